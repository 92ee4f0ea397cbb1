// Questions that other participants put to the user, and the form to answer one.

import { fieldsOf, readForm } from "../../state/questions/forms.js";
import { byId, h, setText } from "../elements/dom.js";
import { Keyed } from "../elements/keyed.js";

export class QuestionsView {
  /** `actions` has answer(question) and decline(question). */
  constructor(model, actions) {
    this._model = model;
    this._actions = actions;
    this._cards = new Keyed(byId("questions"));
  }

  get waiting() {
    return this._shown().filter((question) => !this._isAnswered(question)).length;
  }

  update() {
    const shown = this._shown();
    byId("questions-section").hidden = shown.length === 0;
    setText(byId("questions-count"), this.waiting ? String(this.waiting) : "");
    this._cards.update(shown.map((question) => ({
      key: question.envelope.id,
      version: JSON.stringify([this._isAnswered(question), this._model.outbox.refusalOf(question.envelope.id)]),
      make: () => this._card(question),
    })));
  }

  _shown() {
    return this._model.replay ? [] : this._model.questions.open;
  }

  _isAnswered({ envelope }) {
    return Boolean(this._model.outbox.answerTo(envelope.id));
  }

  _card(question) {
    const { envelope, message } = question;
    const refusal = this._model.outbox.refusalOf(envelope.id);
    const button = (label, run, name) =>
      h("button", { class: name, "data-keep": label, "aria-disabled": "true", on: { click: () => run(question) } }, label);
    return h("article", { class: "card", tabindex: -1, "aria-label": `${envelope.from} asks` },
      h("p", {}, h("strong", { dir: "auto" }, envelope.from), " asks"),
      h("p", { class: "asked", dir: "auto" }, message || "(no text)"),
      h("div", { class: "decision", "data-about": envelope.id },
        this._isAnswered(question)
          ? h("p", { class: "resolution resolution-fulfilled" }, "Answered by you, not confirmed yet")
          : [button("Answer…", this._actions.answer, "primary"), button("Decline", this._actions.decline)]),
      refusal && h("p", { class: "resolution resolution-rejected", dir: "auto" }, `Your answer was refused: ${refusal}`));
  }
}

/** Return the elements of a form for a question, and a function that reads or throws an Error. */
export function questionForm({ envelope, message, url, schema }) {
  const from = h("p", { class: "quiet", dir: "auto" }, `${envelope.from} asks. Do not enter passwords or other secrets.`);
  const asked = h("p", { class: "asked", dir: "auto" }, message);
  if (url !== undefined) {
    const address = h("code", { class: "name", dir: "auto" }, url);
    return { content: [from, asked, h("p", {}, "Open this address in another tab, if you trust it:"), address], read: () => undefined };
  }
  const fields = fieldsOf(schema);
  const controls = new Map(fields.map((field) => [field.name, control(field)]));
  const rows = fields.map((field) =>
    h("label", { class: "setting" }, field.isRequired ? `${field.label} *` : field.label, " ", controls.get(field.name).element,
      field.hint && h("small", { dir: "auto" }, field.hint)));
  const read = () => readForm(fields, Object.fromEntries(fields.map(({ name }) => [name, controls.get(name).read()])));
  return { content: [from, asked, ...rows], read };
}

function control({ type, label, options, initial, format }) {
  if (type === "boolean") {
    const box = h("input", { type: "checkbox", checked: initial === true, "aria-label": label });
    return { element: box, read: () => box.checked };
  }
  if (type === "choice" || type === "choices") {
    const chosen = new Set([initial].flat().map(String));
    const empty = type === "choice" && { value: "", label: "" };
    const list = h("select", { "aria-label": label });
    list.multiple = type === "choices"; // before the options, several of which may be selected
    for (const { value, label: text } of [...(empty ? [empty] : []), ...options]) {
      list.append(h("option", { value, selected: chosen.has(value) }, text));
    }
    const selected = () => [...list.selectedOptions].map(({ value }) => value);
    return { element: list, read: () => (type === "choices" ? selected() : list.value) };
  }
  const kinds = { email: "email", date: "date", uri: "url" };
  const field = h("input", { type: type === "text" ? kinds[format] ?? "text" : "text", "aria-label": label, autocomplete: "off" });
  if (initial !== undefined && initial !== null) field.value = String(initial);
  return { element: field, read: () => field.value };
}
