// Envelopes and contexts of other pods (E-30), and the mirrored ones of this pod (P-90).

const REFERENCE = /^mcpp:\/\/([A-Za-z0-9_][A-Za-z0-9._-]{0,63})\/([A-Za-z0-9._:~-]{1,128})$/;

const parts = (text) => (typeof text === "string" ? REFERENCE.exec(text) : null) ?? [];

/** Return the id in this pod of what an id or a reference names: a link gives it the id `POD~ID`. */
export function localId(id, pod) {
  const [, other, rest] = parts(id);
  if (other === undefined) return id;
  return other === pod ? rest : `${other}~${rest}`;
}

/** Return who sent a mirrored envelope first and in which pod, as its sender says; null for any other. */
export function originOf({ origin }) {
  const [, pod] = parts(origin?.path?.[0]);
  return pod !== undefined && typeof origin.from === "string" ? { from: origin.from, pod } : null;
}
