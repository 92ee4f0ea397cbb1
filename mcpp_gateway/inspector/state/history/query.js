// The query of the past: what the view shows, as members of `pod/history`.

import { everything, isSame } from "../filter/filter.js";
import { GATEWAY } from "../kinds.js";

const INSTANT = 0.001; // seconds; bounds are exclusive

/** Return the query for a filter, a selection ("main", a context, or null) and a search, if there is one. */
export function queryOf(model, { selection, descendants, search }) {
  const { filter, me } = model;
  const parts = [];
  // F-09: these are sent whatever the filter.
  if (!isSame(filter, everything)) parts.push({ any: [filter, { from: me }, { to: me }, { from: GATEWAY }] });
  if (selection === "main") parts.push({ main: true });
  else if (selection && !descendants) parts.push({ context: selection.id });
  if (search && !isSame(search.filter, everything)) parts.push(search.filter);
  const query = {};
  if (parts.length) query.filter = parts.length > 1 ? { all: parts } : parts[0];
  if (selection instanceof Object && descendants) query.context = selection.id;
  if (search?.text) query.text = search.text;
  if (search && search.since !== null) query.after = search.since - INSTANT;
  if (search && search.until !== null) query.before = search.until;
  return query;
}
