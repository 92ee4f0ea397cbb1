// Which participant holds which name, as mcpp/session/claims.py finds it in the log (P-55).

import { GATEWAY, presenceEntries } from "./kinds.js";

const MAX_CLAIMS = 10_000;

export class Claims {
  constructor() {
    this._held = new Map(); // name → {name, holder, id, at}
  }

  [Symbol.iterator]() {
    return this._held.values();
  }

  clear() {
    this._held.clear();
  }

  /** Process the next envelope of the log. */
  receive(envelope, at) {
    const { id, kind, from, payload, correlation_id } = envelope;
    const colon = kind.indexOf(":");
    const [family, name] = colon < 0 ? [kind, ""] : [kind.slice(0, colon), kind.slice(colon + 1)];
    const known = this._held.get(name);
    if (family === "claim" && name) {
      const isOpen = known ? known.holder === from : this._held.size < MAX_CLAIMS;
      if (isOpen) this._held.set(name, { name, holder: from, id, at });
    } else if (family === "release" && known?.id === correlation_id && known?.holder === from) {
      this._held.delete(name);
    } else if (kind === "system/presence" && from === GATEWAY) {
      for (const { event, participant } of presenceEntries(payload)) if (event === "leave") this._leave(participant?.id);
    }
  }

  _leave(participant) {
    for (const { name, holder } of [...this._held.values()]) if (holder === participant) this._held.delete(name);
  }
}
