// Short names of contexts: a title, or a part of the id; no two contexts share one.
//
// Participants choose ids and titles, so a context could pass itself off as another one. Where a name is
// taken by another context, more of the id is shown.

const CHARACTERS = 6;
const MAX_LABELS = 20_000; // the oldest names are given away then

export class Labels {
  constructor({ maxLabels = MAX_LABELS } = {}) {
    this._maxLabels = maxLabels;
    this._owners = new Map(); // by name: the id
  }

  /** Return a name that no other context has; the same one for the same arguments. */
  of(id, title) {
    for (const label of candidates(id, title)) {
      const owner = this._owners.get(label);
      if (owner !== undefined && owner !== id) continue;
      this._owners.set(label, id);
      if (this._owners.size > this._maxLabels) this._owners.delete(this._owners.keys().next().value);
      return label;
    }
    return id;
  }
}

function* candidates(id, title) {
  const begin = title === undefined ? "" : `${title} `;
  if (title !== undefined) yield title;
  for (let length = CHARACTERS; length <= id.length; length += 1) yield begin + shortened(id, length);
  yield begin + id;
  for (let number = 2; ; number += 1) yield `${begin}${id}~${number}`;
}

// UUIDv7s of one day begin alike, so they are shown by their end.
function shortened(id, length) {
  if (/^[0-9a-f]{8}-[0-9a-f]{4}-7/.test(id) && length < id.length) return `…${id.slice(-length)}`;
  return id.length > length + 2 * CHARACTERS ? `${id.slice(0, CHARACTERS)}…${id.slice(-length)}` : id;
}
