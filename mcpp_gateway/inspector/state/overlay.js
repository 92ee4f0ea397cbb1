// The history read anew under another filter, laid over what is loaded.
//
// The gateway sends what it still has of the log, and of that only what the filter lets through.
// What is loaded and would have been sent is therefore older than all that was. What another filter
// let through and this one does not keeps its place, and nothing that is loaded is lost.

/**
 * Return {older, hole, rest}: the entries that are older than what arrived; the place among them
 * before which something may be missing, -1 for none; and the others with what arrived, in order.
 *
 * `isWhole` says that this filter hides nothing; `passes(entry)` tells whether the gateway would
 * have sent it, `misses(under)` whether what came under that filter may lack what this one shows.
 */
export function overlay(old, arrived, { isWhole, passes, misses }) {
  const begin = old.findLastIndex(({ mark }) => mark === "restart") + 1;
  const anew = new Set(arrived.map(({ text }) => text));
  const isAnew = (entry) => isLogged(entry) && anew.has(entry.text);
  const known = old.findIndex((entry, i) => i >= begin && isAnew(entry));
  const first = known < 0 ? old.length : known;
  let split = first;
  while (split > begin && !(isLogged(old[split - 1]) && passes(old[split - 1]))) split -= 1;
  const isForgotten = split > begin;
  while (split && old[split]?.mark) split += 1;
  // Into what came without a hole nothing is to be put.
  while (split < first && !old[split].mark && !(isLogged(old[split]) && misses(old[split].under))) split += 1;
  const places = new Map();
  for (let i = split; i < old.length; i += 1) if (isLogged(old[i])) places.set(old[i].text, i);
  const rest = [];
  let next = split;
  // Where all has come anew, nothing is missing any more.
  const isOver = (entry) => (entry.mark ? isWhole || entry.mark === "older" : isAnew(entry));
  const takeWhile = (test) => {
    for (; next < old.length && test(old[next]); next += 1) if (!isOver(old[next])) rest.push(old[next]);
  };
  for (const one of arrived) {
    const place = places.get(one.text);
    if (place >= next) {
      takeWhile(() => next <= place);
      if (!misses(old[place].under)) one.facts.under = old[place].under;
    } else {
      takeWhile((entry) => !isAnew(entry) && !(entry.at > one.facts.at));
    }
    rest.push(one);
  }
  takeWhile(() => true);
  // As long as the gateway has forgotten nothing, what arrived goes back to the beginning.
  const from = isForgotten ? places.get(arrived[0]?.text) : begin - 1;
  const hole = from === undefined ? split : Math.min(split, lastHole(old, from, misses));
  return { older: old.slice(0, split), hole, rest };
}

const isLogged = (entry) => !entry.mark && !entry.direct;

// The last place where what is loaded may not follow on what stands before it, unless one is marked.
function lastHole(old, from, misses) {
  for (let i = from; i > 0 && old[i].mark !== "hole"; i -= 1) {
    if (isLogged(old[i]) && !old[i - 1].mark && misses(old[i].under)) return i;
  }
  return -1;
}
