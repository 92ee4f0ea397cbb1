// The cards of participants: what they say about themselves and offer. Fetched when they are looked at.

import { isObject } from "./kinds.js";

const MAX_CARDS = 1_000;
// The card of a person. `mcpp chat` announces the same one: a person may use both.
const PERSON = { description: "A person.", tools: [], answers: ["chat", "elicitation"] };

export class Cards {
  constructor(newId) {
    this._newId = newId;
    this._known = new Map(); // by participant: {digest, card}
    this._asked = new Map(); // participants by the id of the request
  }

  /** Return a participant's card, if the one with this digest was fetched. */
  get({ id, card: digest }) {
    const known = this._known.get(id);
    return known !== undefined && known.digest === digest ? known.card : null;
  }

  /** Return the draft of a request for a participant's card; null if there is none to ask for. */
  ask(participant) {
    const { id, card: digest } = participant;
    if (digest === undefined || this.get(participant) || [...this._asked.values()].includes(id)) return null;
    const request = this._newId();
    this._asked.set(request, id);
    return { id: request, kind: "pod/card", payload: { participant: id } };
  }

  /** Return the draft of the announcement of our own card, which the gateway compares with what it has. */
  announce() {
    const request = this._newId();
    this._asked.set(request, null);
    return { id: request, kind: "pod/card", payload: { card: PERSON } };
  }

  /** Process an answer. */
  answer({ correlation_id, payload }) {
    const id = this._asked.get(correlation_id);
    this._asked.delete(correlation_id);
    if (typeof id !== "string" || !isObject(payload) || !isObject(payload.card)) return;
    if (this._known.size >= MAX_CARDS) this._known.delete(this._known.keys().next().value);
    this._known.set(id, { digest: payload.digest, card: readCard(payload.card) });
  }

  /** Process a refusal; return whether it was about one of these requests. */
  refuse({ correlation_id }) {
    return this._asked.delete(correlation_id);
  }

  /** Forget all requests, because the connection that they were sent on is gone. */
  drop() {
    this._asked.clear();
  }
}

const text = (value) => (typeof value === "string" ? value : "");

/** Return what can be shown of a card; whatever its participant wrote, it is only text. */
function readCard(card) {
  const offers = (list, key) =>
    (Array.isArray(list) ? list : [])
      .filter(isObject)
      .map((one) => ({ name: text(one[key]), description: text(one.description) }))
      .filter(({ name }) => name);
  return {
    description: text(card.description),
    instructions: text(card.instructions),
    tools: offers(card.tools, "name"),
    prompts: offers(card.prompts, "name"),
    resources: offers(card.resources, "uri"),
  };
}
