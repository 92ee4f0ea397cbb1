// The timeline: a bar for each context, nested, on one time axis.

import { contextName } from "../state/ids.js";
import { duration, h } from "./elements/dom.js";
import { VirtualList } from "./elements/list.js";

const ROW_PX = 30;

export class TimelineView {
  constructor(container, model, past, select) {
    this.selection = null;
    this._model = model;
    this._past = past;
    this._select = select;
    this._nodes = [];
    this._index = new Map();
    this._axis = h("div", { class: "axis", "aria-hidden": "true" });
    this._scroller = h("div", { class: "scroller", role: "list", "aria-label": "Context timeline", tabindex: 0 });
    this._empty = h("p", { class: "quiet empty" }, "No contexts yet.");
    container.append(this._axis, this._empty, this._scroller);
    this.list = new VirtualList(this._scroller, this);
    this._scroller.addEventListener("keydown", (event) => this._key(event));
  }

  update() {
    const within = this.selection instanceof Object ? this.selection : null;
    const isPast = within !== null && this._past.has(within);
    this._nodes = [...(isPast ? this._past : this._model).tree].filter(
      (node) => Number.isFinite(node.start) && (!within || node.isWithin(within)),
    );
    this._index = new Map(this._nodes.map((node, i) => [`${node.number}`, i]));
    this._start = Math.min(...this._nodes.slice(0, 50_000).map((node) => this._startOf(node)));
    const end = Math.max(...this._nodes.slice(0, 50_000).map((node) => node.end));
    this._span = Math.max(1, end - this._start);
    this._empty.hidden = this._nodes.length > 0;
    const ticks = this._nodes.length ? [0, 0.25, 0.5, 0.75, 1] : [];
    this._axis.replaceChildren(
      ...ticks.map((part) => h("span", {}, part ? `+${duration(this._span * part)}` : "0")),
    );
    this.list.reset(0);
    this.list.invalidateAll();
  }

  // The loaded past may have the beginning of a context.
  _startOf(node) {
    return Math.min(node.start, this._past.tree.get(node.id)?.start ?? Infinity);
  }

  count() {
    return this._nodes.length;
  }

  key(index) {
    return `${this._nodes[index].number}`;
  }

  find(key) {
    return this._index.get(key) ?? -1;
  }

  guess() {
    return ROW_PX;
  }

  _key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest(".bar-row");
    if (step) this.list.show(row ? this.list.active + step : this.list.active, { focus: true });
    else if (event.key === "Enter" && event.target === row) this._select(this._nodes[this.list.active]);
    else return;
    event.preventDefault();
  }

  render(index) {
    const node = this._nodes[index];
    const [start, took] = [this._startOf(node), node.end - this._startOf(node)];
    const left = ((start - this._start) / this._span) * 100;
    const whole = node.parent ? node.parent.end - this._startOf(node.parent) : this._span;
    const share = whole > 0 ? Math.round((took / whole) * 100) : null;
    const name = contextName(node);
    const model = this._past.has(node) ? this._past : this._model;
    const state = model.stateOf(node);
    return h(
      "div",
      { class: "bar-row", role: "listitem" },
      h(
        "button",
        {
          class: "bar-name",
          title: `Show only context ${node.id}`,
          style: { "--depth": String(Math.min(8, node.depth - (this.selection?.depth ?? 0))) },
          on: { click: () => this._select(node) },
        },
        h("span", { dir: "auto" }, name),
      ),
      h(
        "span",
        { class: "bar-track" },
        h("span", {
          class: `bar-fill dot-${state}${node.expired ? " gone" : ""}`,
          title: model.stateLabel(node),
          style: { left: `min(${left}%, 100% - 3px)`, width: `max(3px, ${(took / this._span) * 100}%)` },
        }),
      ),
      h(
        "span",
        { class: "bar-time" },
        duration(took),
        share !== null && h("span", { class: "bar-share", title: node.parent ? "of its parent" : "of the total" }, `${share} %`),
        h("span", { class: "visually-hidden" }, model.stateLabel(node)),
      ),
    );
  }
}
