// Saying something: in the main context or another, to everybody or to one.

import { byId, h } from "./dom.js";
import { shortId } from "./log.js";

const SHOWN_CONTEXTS = 200;

export class Composer {
  constructor(model, send, isOnline) {
    this._model = model;
    this._send = send;
    this._isOnline = isOnline;
    this._text = byId("composer-text");
    this._context = byId("composer-context");
    this._to = byId("composer-to");
    this._problem = byId("composer-problem");
    this._shown = "";
    this._sent = null;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this._submit();
    });
    this._text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this._submit();
    });
    this._text.addEventListener("input", () => {
      this._text.rows = Math.min(6, this._text.value.split("\n").length);
    });
  }

  update() {
    const open = [...this._model.tree].filter((node) => !node.expired).slice(-SHOWN_CONTEXTS);
    const people = [...this._model.roster.values()].filter(({ present, id }) => present && id !== this._model.me);
    const contexts = open.map((node) => [node.id, `${node.type ?? "context"} ${shortId(node.id)}`]);
    const names = people.map(({ id }) => [id, id]);
    const shown = JSON.stringify([contexts, names]);
    if (shown === this._shown) return;
    this._shown = shown;
    fill(this._context, [["", "the main context"], ...contexts]);
    fill(this._to, [["", "everybody"], ...names]);
  }

  /** Choose the context that is looked at as the one to speak in. */
  enter(node) {
    this.update();
    this._context.value = node && !node.expired ? node.id : "";
  }

  focus() {
    this._text.focus();
  }

  /** Give back what the gateway has refused. */
  refused(id, message) {
    if (this._sent?.id !== id) return;
    this._problem.textContent = message;
    if (!this._text.value) this._text.value = this._sent.text;
    this._sent = null;
  }

  _submit() {
    const text = this._text.value.trim();
    if (!text) return;
    const node = this._context.value && this._model.tree.get(this._context.value);
    const context = node && { id: node.id, ...(node.type && { type: node.type }), ...(node.parent && { parent: node.parent.id }) };
    const id = this._send({ kind: "chat", payload: { text }, to: this._to.value ? [this._to.value] : undefined, context: context || undefined });
    this._sent = { id, text };
    this._problem.textContent = this._isOnline() ? "" : "It will be sent when the line is back.";
    this._text.value = "";
    this._text.rows = 1;
  }
}

function fill(select, options) {
  const { value } = select;
  select.replaceChildren(...options.map(([key, text]) => h("option", { value: key }, text)));
  select.value = options.some(([key]) => key === value) ? value : "";
}
