// Merges a history that was reloaded under another filter with the loaded entries.
//
// The gateway sends what it still has of the log and what the filter passes. A loaded entry that
// passes the filter but was not sent is therefore older than all that was sent. Entries that only
// another filter passes keep their place, and nothing that is loaded is lost.

/**
 * Return {older, hole, rest}: the entries older than what arrived; the index among them before which
 * entries may be missing, -1 for none; and the other entries merged with what arrived, in order.
 *
 * `isComplete` says that this filter hides nothing. `passes(entry)` returns whether the gateway would
 * have sent an entry, `misses(under)` whether entries received under that filter may lack some that
 * this one passes.
 */
export function overlay(old, arrived, { isComplete, passes, misses }) {
  const begin = old.findLastIndex(({ mark }) => mark === "restart") + 1;
  const reloaded = new Set(arrived.map(({ text }) => text));
  const isReloaded = (entry) => isLogged(entry) && reloaded.has(entry.text);
  const known = old.findIndex((entry, i) => i >= begin && isReloaded(entry));
  const first = known < 0 ? old.length : known;
  let split = first;
  while (split > begin && !(isLogged(old[split - 1]) && passes(old[split - 1]))) split -= 1;
  const isForgotten = split > begin;
  while (split && old[split]?.mark) split += 1;
  // Nothing is inserted into a part that was received without a hole.
  while (split < first && !old[split].mark && !(isLogged(old[split]) && misses(old[split].under))) split += 1;
  const places = new Map();
  for (let i = split; i < old.length; i += 1) if (isLogged(old[i])) places.set(old[i].text, i);
  const rest = [];
  let next = split;
  // Where everything was reloaded, nothing is missing any more.
  const isOver = (entry) => (entry.mark ? isComplete : isReloaded(entry));
  const takeWhile = (test) => {
    for (; next < old.length && test(old[next]); next += 1) if (!isOver(old[next])) rest.push(old[next]);
  };
  for (const one of arrived) {
    const place = places.get(one.text);
    if (place >= next) {
      takeWhile(() => next <= place);
      if (!misses(old[place].under)) one.facts.under = old[place].under;
    } else {
      takeWhile((entry) => !isReloaded(entry) && !(entry.at > one.facts.at));
    }
    rest.push(one);
  }
  takeWhile(() => true);
  // If the gateway has forgotten nothing, what arrived goes back to the beginning.
  const from = isForgotten ? places.get(arrived[0]?.text) : begin - 1;
  const hole = from === undefined ? split : Math.min(split, lastHole(old, from, misses));
  return { older: old.slice(0, split), hole, rest };
}

const isLogged = (entry) => !entry.mark && !entry.direct;

// Return the last index before which loaded entries may be missing, unless a hole is marked there.
function lastHole(old, from, misses) {
  for (let i = from; i > 0 && old[i].mark !== "hole"; i -= 1) {
    if (isLogged(old[i]) && !old[i - 1].mark && misses(old[i].under)) return i;
  }
  return -1;
}
