// The filter bar: buttons for the five strategies, and an expression field with completion.

import { ExpressionError, complete, parse, print } from "../state/filter/expression.js";
import { conclusions, everything, inContext, isSame, mainOnly, strategyOf, withTypes } from "../state/filter/filter.js";
import { byId, h } from "./elements/dom.js";

const KNOWN_KINDS = ["chat", "reflection", "conclusion", "mcp/*", "mcp/request:*", "mcp/response:*", "mcp/proposal:*", "system/*"];

export class FilterBar {
  /** `apply(filter)` puts a filter in force; `state()` returns {selection, descendants}. */
  constructor(model, apply, state) {
    this._model = model;
    this._apply = apply;
    this._state = state;
    this._field = byId("filter");
    this._options = byId("filter-options");
    this._problem = byId("filter-problem");
    this._strategies = byId("strategies");
    this._chosen = -1;
    this._completion = null;
    this._isDraft = false; // the field's text is neither applied nor discarded
    this._types = h("div", { class: "popover", role: "group", "aria-label": "Context types", hidden: true });
    this._draw();
    this._field.addEventListener("input", () => this._typed());
    this._field.addEventListener("focus", () => this._suggest());
    this._field.addEventListener("blur", () => this._hide());
    this._field.addEventListener("keydown", (event) => this._key(event));
  }

  /** Show which filter is in force. */
  update() {
    const name = strategyOf(this._model.filter);
    const { selection } = this._state();
    for (const button of this._strategies.querySelectorAll("button[data-strategy]")) {
      button.setAttribute("aria-pressed", String(button.dataset.strategy === name));
      if (button.dataset.strategy === "context") button.disabled = !(selection instanceof Object);
    }
    // Keep a wrong expression beside its error message.
    if (document.activeElement !== this._field && this._problem.hidden && !this._isDraft) this._write(this._model.filter);
  }

  /** Show why the gateway refused a filter. */
  refuse(message) {
    this._showError(message);
  }

  _draw() {
    const add = (strategy, label, title, run) =>
      this._strategies.append(
        h("button", { "data-strategy": strategy, "aria-pressed": "false", title, on: { click: run } }, label),
      );
    add("everything", "Everything", "All contexts", () => this._use(everything));
    add("main", "Main only", "Only the main context", () => this._use(mainOnly));
    add("types", "Types…", "The main context and contexts of selected types", () => this._chooseTypes());
    add("conclusions", "Conclusions", "Only the conclusions of contexts", () => this._use(conclusions));
    add("context", "This context", "Only the context selected in the tree", () => {
      const { selection, descendants } = this._state();
      this._use(inContext(selection.id, descendants));
    });
    this._strategies.after(this._types);
    this._types.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this._closeTypes();
    });
    document.addEventListener("pointerdown", ({ target }) => {
      if (!target.closest(".popover, [data-strategy=types]")) this._types.hidden = true;
    });
  }

  _chooseTypes() {
    this._types.hidden = !this._types.hidden;
    if (this._types.hidden) return;
    const now = new Set((this._model.filter.any ?? []).map((part) => part.type).filter(Boolean));
    const types = [...new Set([...this._model.types, ...now])].sort();
    const boxes = types.map((type) =>
      h("label", { class: "check" },
        h("input", { type: "checkbox", value: type, checked: now.has(type), on: { change: () => this._useTypes() } }),
        h("span", { dir: "auto" }, type)),
    );
    this._types.replaceChildren(
      h("p", {}, types.length ? "Main context and contexts of type:" : "No context types yet."),
      ...boxes,
      h("button", { class: "link", on: { click: () => this._closeTypes() } }, "Close"),
    );
    this._types.querySelector("input, button").focus();
  }

  _useTypes() {
    const chosen = [...this._types.querySelectorAll("input:checked")].map((box) => box.value);
    this._apply(withTypes(chosen));
  }

  _closeTypes() {
    this._types.hidden = true;
    this._strategies.querySelector('[data-strategy="types"]').focus();
  }

  _use(filter) {
    this._types.hidden = true;
    this._showError("");
    this._apply(filter);
    this._write(filter);
  }

  // --- expression field -------------------------------------------------------------------------

  _write(filter) {
    this._field.value = isSame(filter, everything) ? "" : print(filter);
    this._setDraft(false);
  }

  _setDraft(isDraft) {
    this._isDraft = isDraft;
    this._field.classList.toggle("draft", isDraft);
    this._field.title = isDraft ? "Not applied yet. Press Enter to apply or Escape to discard." : "";
  }

  _typed() {
    this._setDraft(true);
    this._suggest();
    // An expression that can still be completed is not an error yet.
    if (this._completion.options.length) this._showError("");
    else this.read();
  }

  /** Return the filter in the field, or show an error and return null. */
  read() {
    try {
      const filter = parse(this._field.value);
      this._showError("");
      return filter;
    } catch (error) {
      if (!(error instanceof ExpressionError)) throw error;
      const at = error.position > 0 ? `At character ${error.position + 1}: ` : "";
      this._showError(`${at}${error.message}.`);
      return null;
    }
  }

  _showError(message) {
    this._problem.textContent = message;
    this._problem.hidden = !message;
    this._field.setAttribute("aria-invalid", String(Boolean(message)));
  }

  _suggest() {
    const model = this._model;
    const known = {
      type: [...model.types],
      context: [...model.tree].slice(-400).map((node) => node.id),
      kind: [...new Set([...KNOWN_KINDS, ...model.kinds])],
      from: [...model.participants.keys()],
      to: [...model.participants.keys()],
    };
    this._completion = complete(this._field.value, this._field.selectionStart, known);
    this._chosen = -1;
    this._showOptions();
  }

  _showOptions() {
    const { options } = this._completion;
    this._options.replaceChildren(
      ...options.map((option, i) =>
        h("li", {
          id: `filter-option-${i}`,
          role: "option",
          "aria-selected": String(i === this._chosen),
          on: { mousedown: (event) => { event.preventDefault(); this._insert(option); } },
        }, option)),
    );
    this._options.hidden = options.length === 0;
    this._field.setAttribute("aria-expanded", String(options.length > 0));
    this._field.setAttribute("aria-activedescendant", this._chosen < 0 ? "" : `filter-option-${this._chosen}`);
    this._options.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }

  _hide() {
    this._options.hidden = true;
    this._field.setAttribute("aria-expanded", "false");
  }

  _insert(option) {
    const { start, end } = this._completion;
    const { value } = this._field;
    const text = option.endsWith(":") ? option : `${option} `;
    this._field.value = value.slice(0, start) + text + value.slice(end);
    this._field.setSelectionRange(start + text.length, start + text.length);
    this._typed();
  }

  _key(event) {
    const options = this._options.hidden ? [] : this._completion?.options ?? [];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!options.length) return;
      const step = event.key === "ArrowDown" ? 1 : -1;
      this._chosen = (this._chosen + step + options.length + (this._chosen < 0 && step < 0 ? 1 : 0)) % options.length;
      this._showOptions();
    } else if ((event.key === "Enter" || event.key === "Tab") && this._chosen >= 0 && options.length) {
      this._insert(options[this._chosen]);
    } else if (event.key === "Enter") {
      this._hide(); // the completions would cover an error message
      const filter = this.read();
      if (filter) {
        this._setDraft(false);
        this._apply(filter);
      }
    } else if (event.key === "Escape" && !this._options.hidden) {
      this._hide();
    } else if (event.key === "Escape") {
      this._showError("");
      this._write(this._model.filter);
    } else {
      return;
    }
    event.preventDefault();
  }
}
