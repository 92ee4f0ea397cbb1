// Saying something: in the main context or another, to everybody or to one.

import { newId } from "../state/ids.js";
import { TooLargeError } from "../state/outbox.js";
import { cut } from "../state/summaries.js";
import { byId, h, many, setText } from "./dom.js";
import { shortId } from "./log.js";

const SHOWN_CONTEXTS = 200;
const PROMPT_MS = 3_000; // what takes longer to be confirmed is worth a word

export class Composer {
  constructor(model, send) {
    this._model = model;
    this._send = send;
    this._text = byId("composer-text");
    this._context = byId("composer-context");
    this._to = byId("composer-to");
    this._problem = byId("composer-problem");
    this._sent = null;
    this._complaint = "";
    this._seen = null; // the context that is looked at; null for everything
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
      this._complain("");
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

  /** Choose what is looked at (a context, "main", or null for everything) as the place to speak in. */
  enter(item) {
    this._seen = item === "main" ? "" : item?.id ?? null;
    // What was written for one place is not for another because one looks there.
    if (!this._text.value.trim()) this._offerContexts(this._seen ?? "");
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
    const [first, ...more] = this._model.outbox.unheard;
    if (!first) return this._whereTo();
    if (Date.now() - first.since < PROMPT_MS && this._model.session.isOpen) return "";
    const what = more.length ? many(more.length + 1, "message") : `“${cut(first.envelope.payload.text, 60)}”`;
    return this._model.session.isOpen
      ? `The gateway has not confirmed ${what} yet.`
      : `${what} will be sent when the line is back.`;
  }

  // Nobody is to speak in another place than they believe.
  _whereTo() {
    const { value } = this._context;
    if (this._seen !== null && this._seen !== value && this._text.value.trim()) {
      return `This goes to ${value ? this._name(value) : "the main context"}, not to what you look at.`;
    }
    return this._model.tree.get(value)?.expired ? "That context has expired: this begins it anew." : "";
  }

  _name(id) {
    const node = this._model.tree.get(id);
    const state = node && node.state !== "open" ? `, ${this._model.standing(node)}` : "";
    return `${node?.type ?? "context"} ${shortId(id)}${state}`;
  }

  // As in the tree: the newest on top, and below it what is inside of it.
  _offerContexts(chosen) {
    const live = [];
    const add = (node) => {
      if (!node.expired) live.push(node.id);
      node.children.forEach(add);
    };
    [...this._model.tree.roots].reverse().forEach(add);
    const options = live.slice(0, SHOWN_CONTEXTS).map((id) => [id, this._name(id)]);
    offer(this._context, [["", "the main context"], ...options], chosen, (id) => this._name(id));
  }

  // What is chosen is where it goes, whether or not anything of it is loaded.
  _place() {
    const id = this._context.value;
    if (!id) return undefined;
    const { type, parent } = this._model.tree.get(id) ?? {};
    return { id, ...(type && { type }), ...(parent && { parent: parent.id }) };
  }

  _submit() {
    const text = this._text.value.trim();
    if (!text) return;
    const id = newId();
    try {
      this._send({ id, kind: "chat", payload: { text }, to: this._to.value ? [this._to.value] : undefined, context: this._place() });
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

const offered = new WeakMap(); // an open list would close if it were filled anew

// What was chosen stays so even if it is no longer offered: a message must not go elsewhere unasked.
function offer(select, options, chosen, more) {
  const all = options.some(([key]) => key === chosen) ? options : [...options, [chosen, more(chosen)]];
  const now = JSON.stringify(all);
  const isInUse = select.matches(":focus") && select.value === chosen;
  if (offered.get(select) !== now && !isInUse) {
    offered.set(select, now);
    select.replaceChildren(...all.map(([key, text]) => h("option", { value: key }, text)));
  }
  select.value = chosen;
}
