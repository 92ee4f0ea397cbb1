// New ids, and ids as people read them.

import { Labels } from "./labels.js";

/** UUIDv7 by getRandomValues: randomUUID is not available on a page loaded without TLS. */
export function newId(now = Date.now()) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let time = now;
  for (let i = 5; i >= 0; i -= 1) {
    bytes[i] = time % 256;
    time = Math.floor(time / 256);
  }
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

const labels = new Labels();

/** Return a short form of a context's id, which no other context has on this page. */
export const shortId = (id) => labels.of(id);

/** Return what to call a context: its title, or its type and the end of its id. */
export function contextName(node) {
  return node.title === undefined ? `${node.type ?? "context"} ${shortId(node.id)}` : titleOf(node);
}

/** Return the title of a context, which no other context has on this page, or its type. */
export function titleOf({ title, type, id }) {
  return title === undefined ? type ?? "context" : labels.of(id, title);
}
