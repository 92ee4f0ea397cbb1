// Saying something: in the main context or another, to everybody or to one.

import { newId } from "../state/ids.js";
import { TooLargeError } from "../state/model.js";
import { byId, h, setText } from "./dom.js";
import { shortId } from "./log.js";

const SHOWN_CONTEXTS = 200;
const PROMPT_MS = 3_000; // what takes longer to be confirmed is worth a word

export class Composer {
  constructor(model, send, isOnline) {
    this._model = model;
    this._send = send;
    this._isOnline = isOnline;
    this._text = byId("composer-text");
    this._context = byId("composer-context");
    this._to = byId("composer-to");
    this._problem = byId("composer-problem");
    this._sent = null;
    this._complaint = "";
    this._isElsewhere = false; // whether one looks at a context in which one cannot speak
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this._submit();
    });
    this._text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this._submit();
    });
    this._context.addEventListener("change", () => this.update());
    this._text.addEventListener("input", () => {
      this._text.rows = Math.min(6, this._text.value.split("\n").length);
    });
  }

  update() {
    this._offerContexts(this._context.value);
    const { roster, me } = this._model;
    const people = [...roster.values()].filter(({ present, id }) => present && id !== me);
    const names = people.map(({ id }) => [id, id]);
    offer(this._to, [["", "everybody"], ...names], this._to.value, (name) => `${name}, who is away`);
    setText(this._problem, this._complaint || this._note());
  }

  /** Choose the context that is looked at as the one to speak in. */
  enter(node) {
    // What was written for a context is not for everybody because one looks at everything again.
    if (!node && this._text.value.trim()) return;
    this._offerContexts(node && !node.expired ? node.id : "");
    this._isElsewhere = Boolean(node?.expired);
    this.update();
  }

  focus() {
    this._text.focus();
  }

  /** Give back what the gateway has refused. */
  refused(id, message) {
    if (this._sent?.id !== id) return;
    this._complain(message);
    if (!this._text.value) this._text.value = this._sent.text;
    this._sent = null;
  }

  _complain(message) {
    this._complaint = message;
    this.update();
  }

  _note() {
    const since = this._model.unconfirmedSince;
    if (since === null) {
      const isMain = this._context.value === "";
      return this._isElsewhere && isMain ? "That context has expired: this goes to the main one." : "";
    }
    if (!this._isOnline()) return "It will be sent when the line is back.";
    return Date.now() - since >= PROMPT_MS ? "The gateway has not confirmed it yet." : "";
  }

  _offerContexts(chosen) {
    const { tree } = this._model;
    const open = [...tree].filter((node) => !node.expired).slice(-SHOWN_CONTEXTS);
    const name = (id) => `${tree.get(id)?.type ?? "context"} ${shortId(id)}`;
    const options = open.map(({ id }) => [id, name(id)]);
    const more = (id) => (tree.get(id)?.expired ? `${name(id)}, expired` : name(id));
    offer(this._context, [["", "the main context"], ...options], chosen, more);
  }

  _submit() {
    const text = this._text.value.trim();
    if (!text) return;
    const node = this._context.value && this._model.tree.get(this._context.value);
    const context = node && { id: node.id, ...(node.type && { type: node.type }), ...(node.parent && { parent: node.parent.id }) };
    const id = newId();
    try {
      this._send({ id, kind: "chat", payload: { text }, to: this._to.value ? [this._to.value] : undefined, context: context || undefined });
    } catch (error) {
      if (!(error instanceof TooLargeError)) throw error;
      this._complain(error.message);
      return;
    }
    this._sent = { id, text };
    this._complain("");
    this._text.value = "";
    this._text.rows = 1;
  }
}

const offered = new WeakMap(); // an open list would close if it were filled anew for nothing

// What was chosen stays so even if it is no longer offered: a message must not go elsewhere unasked.
function offer(select, options, chosen, more) {
  const all = options.some(([key]) => key === chosen) ? options : [...options, [chosen, more(chosen)]];
  const now = JSON.stringify(all);
  if (offered.get(select) !== now) {
    offered.set(select, now);
    select.replaceChildren(...all.map(([key, text]) => h("option", { value: key }, text)));
  }
  select.value = chosen;
}
