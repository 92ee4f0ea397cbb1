// The message composer: sends chat to a context, addressed to everyone or to one participant.

import { newId } from "../state/ids.js";
import { TooLargeError } from "../state/connection/outbox.js";
import { cut } from "../state/results/summaries.js";
import { contextName } from "../state/ids.js";
import { byId, h, plural, setText } from "./elements/dom.js";

const SHOWN_CONTEXTS = 200;
const CONFIRM_MS = 3_000; // show a note if a confirmation takes longer

export class Composer {
  constructor(model, send) {
    this._model = model;
    this._send = send;
    this._text = byId("composer-text");
    this._context = byId("composer-context");
    this._to = byId("composer-to");
    this._problem = byId("composer-problem");
    this._sent = null;
    this._error = "";
    this._viewed = null; // id of the context being viewed, "" for the main one, null for everything
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
      this._showError("");
    });
  }

  update() {
    this._offerContexts(this._context.value);
    const { participants, me } = this._model;
    const others = [...participants.values()].filter(({ present, id }) => present && id !== me);
    const names = others.map(({ id }) => [id, id]);
    setOptions(this._to, [["", "everyone"], ...names], this._to.value, (name) => `${name} (offline)`);
    setText(this._problem, this._error || this._note());
  }

  /** Make the viewed item (a context, "main", or null for everything) the destination. */
  enter(item) {
    this._viewed = item === "main" ? "" : item?.id ?? null;
    // A draft keeps its destination when another context is viewed.
    if (!this._text.value.trim()) this._offerContexts(this._viewed ?? "");
    this.update();
  }

  focus() {
    this._text.focus();
  }

  /** Restore the text of a message that the gateway has refused. */
  refused(id, message) {
    if (this._sent?.id !== id) return;
    this._showError(message);
    if (!this._text.value) this._text.value = this._sent.text;
    this._sent = null;
  }

  _showError(message) {
    this._error = message;
    this.update();
  }

  _note() {
    const [first, ...more] = this._model.outbox.unconfirmedChats;
    if (!first) return this._destinationNote();
    if (Date.now() - first.since < CONFIRM_MS && this._model.session.isOpen) return "";
    const what = more.length ? plural(more.length + 1, "message") : `“${cut(first.envelope.payload.text, 60)}”`;
    return this._model.session.isOpen
      ? `The gateway has not confirmed ${what} yet.`
      : `${what} will be sent after reconnecting.`;
  }

  // Warns if the destination is not the context being viewed.
  _destinationNote() {
    const { value } = this._context;
    if (this._viewed !== null && this._viewed !== value && this._text.value.trim()) {
      return `This goes to ${value ? this._name(value) : "the main context"}, not to the selected context.`;
    }
    return this._model.tree.get(value)?.expired ? "This context has expired. A message revives it." : "";
  }

  _name(id) {
    const node = this._model.tree.get(id);
    const state = node && node.state !== "open" ? `, ${this._model.stateLabel(node)}` : "";
    return `${contextName(node ?? { id })}${state}`;
  }

  // In the order of the tree: the newest first, each followed by its descendants.
  _offerContexts(chosen) {
    const live = [];
    const add = (node) => {
      if (!node.expired) live.push(node.id);
      node.children.forEach(add);
    };
    [...this._model.tree.roots].reverse().forEach(add);
    const options = live.slice(0, SHOWN_CONTEXTS).map((id) => [id, this._name(id)]);
    setOptions(this._context, [["", "the main context"], ...options], chosen, (id) => this._name(id));
  }

  // The chosen context, whether or not any of its messages are loaded.
  _destination() {
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
      this._send({ id, kind: "chat", payload: { text }, to: this._to.value ? [this._to.value] : undefined, context: this._destination() });
    } catch (error) {
      if (!(error instanceof TooLargeError)) throw error;
      this._showError(error.message);
      return;
    }
    this._sent = { id, text };
    this._showError("");
    this._text.value = "";
    this._text.rows = 1;
  }
}

const shownOptions = new WeakMap(); // replacing the options would close an open list

// Keeps the chosen option even if it is no longer available: a message must not go elsewhere.
function setOptions(select, options, chosen, label) {
  const all = options.some(([key]) => key === chosen) ? options : [...options, [chosen, label(chosen)]];
  const now = JSON.stringify(all);
  const isInUse = select.matches(":focus") && select.value === chosen;
  if (shownOptions.get(select) !== now && !isInUse) {
    shownOptions.set(select, now);
    select.replaceChildren(...all.map(([key, text]) => h("option", { value: key }, text)));
  }
  select.value = chosen;
}
