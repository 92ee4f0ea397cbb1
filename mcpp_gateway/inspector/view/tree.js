// The context tree: nesting, type, participants, number of messages and state.

import { shortId, titleOf } from "../state/ids.js";
import { outcomeText } from "../state/log/describe.js";
import { everything, isSame } from "../state/filter/filter.js";
import { cut } from "../state/results/summaries.js";
import { h, plural } from "./elements/dom.js";
import { tokensText, tokensTitle } from "./elements/usage.js";
import { VirtualList } from "./elements/list.js";

const ROW_PX = 46;

export class TreeView {
  /** `select(item)` receives a node, "main", or null for everything. */
  constructor(scroller, model, past, select) {
    this.selected = null;
    this.onlyOpen = false;
    this._model = model;
    this._past = past;
    this._select = select;
    this._closed = new Set();
    this._items = [];
    this._index = new Map();
    this.list = new VirtualList(scroller, this);
    scroller.addEventListener("keydown", (event) => this._key(event));
  }

  update() {
    this._items = [];
    // The newest first: they are usually active.
    const roots = [...this._model.tree.roots].reverse();
    this._add([null, "main", ...this._pastRoots(), ...roots], 0);
    this._index = new Map(this._items.map(({ item }, i) => [keyOf(item), i]));
    this.list.reset(0);
  }

  // A context of the past is listed while it is selected, with its ancestors and descendants.
  _pastRoots() {
    let node = this.selected instanceof Object ? this._past.tree.get(this.selected.id) : null;
    if (node !== this.selected) return [];
    while (node?.parent) node = node.parent;
    return node ? [node] : [];
  }

  _modelOf(node) {
    return this._past.has(node) ? this._past : this._model;
  }

  _add(siblings, depth) {
    const shown = siblings.filter((item) => !this.onlyOpen || !(item instanceof Object) || this._mayBeOpen(item));
    shown.forEach((item, i) => {
      this._items.push({ item, depth, place: [i + 1, shown.length] });
      if (item?.children?.length && !this._closed.has(item)) this._add(item.children, depth + 1);
    });
  }

  count() {
    return this._items.length;
  }

  key(index) {
    return keyOf(this._items[index].item);
  }

  find(key) {
    return this._index.get(key) ?? -1;
  }

  guess() {
    return ROW_PX;
  }

  place(index) {
    return this._items[index].place;
  }

  render(index) {
    const { item, depth } = this._items[index];
    const node = item instanceof Object ? item : null;
    const hasChildren = Boolean(node?.children.length);
    const closed = node && this._closed.has(node);
    return h(
      "div",
      {
        class: `tree-item ${node ? `state-${this._modelOf(node).stateOf(node)}` : "general"}`,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-selected": String(item === this.selected),
        "aria-expanded": hasChildren ? String(!closed) : undefined,
        style: { "--depth": String(Math.min(depth, 8)) },
        on: { click: (event) => this._click(event, item) },
      },
      h("span", { class: "twist", "aria-hidden": "true" }, hasChildren ? (closed ? "▸" : "▾") : ""),
      node ? this._context(node) : this._general(item),
    );
  }

  _mayBeOpen(node) {
    return node.state === "open" || node.children.some((child) => this._mayBeOpen(child));
  }

  _general(item) {
    const { tree, log, filter } = this._model;
    const partly = isSame(filter, everything) ? "" : " (filtered)";
    const [name, count] = item === "main" ? ["Main context", tree.mainCount] : ["Everything", log.size];
    return h(
      "span",
      { class: "tree-text" },
      h("span", { class: "tree-first" }, h("span", { class: "tree-type" }, name), h("span", { class: "count" }, count.toLocaleString("en"))),
      h("span", { class: "tree-second" }, item === "main" ? "outside all contexts" : plural(tree.size, "context") + partly),
    );
  }

  _context(node) {
    const model = this._modelOf(node);
    const state = model.stateOf(node);
    // The context may have messages that a filter hides.
    const who = [...node.participants].join(", ") || "no messages loaded";
    const conclusion = node.conclusion && outcomeText(node.conclusion);
    return h(
      "span",
      { class: "tree-text", title: `${node.id}${conclusion ? `: ${cut(conclusion, 300)}` : ""}` },
      h(
        "span",
        { class: "tree-first" },
        h("span", { class: "tree-type", dir: "auto" }, titleOf(node)),
        h("span", { class: "tree-id", dir: "auto" }, node.title === undefined ? shortId(node.id) : node.type ?? "context"),
        h("span", { class: "count" }, node.count ? node.count.toLocaleString("en") : ""),
      ),
      h(
        "span",
        { class: "tree-second" },
        h("span", { class: `dot dot-${state}${node.expired ? " gone" : ""}` }),
        h("span", { class: "tree-state" }, model.stateLabel(node)),
        node.progress && h("span", { class: "tree-steps", title: stepsTitle(node) }, node.progress),
        !node.tokens.isEmpty && h("span", { class: "tree-tokens", title: tokensAbout(node) }, tokensText(node.tokens)),
        h("span", { class: "tree-who", dir: "auto" }, who),
      ),
    );
  }

  _click(event, item) {
    if (event.target.closest(".twist")?.textContent) this._toggle(item);
    else this._choose(item);
  }

  _choose(item) {
    this.selected = item;
    this._select(item);
    this.list.show(this.find(keyOf(item)), { focus: true });
  }

  _toggle(node) {
    if (!this._closed.delete(node)) this._closed.add(node);
    this.update();
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.target.closest?.(".tree-item");
    const index = at ? Number(at.dataset.index) : this.list.active;
    const { item } = this._items[Math.min(index, this._items.length - 1)];
    const isOpen = item?.children?.length && !this._closed.has(item);
    const go = (to) => this.list.show(to, { focus: true });
    if (event.key === "ArrowDown") go(at ? index + 1 : index);
    else if (event.key === "ArrowUp") go(index - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(this._items.length - 1);
    else if (event.key === "ArrowRight" && item?.children?.length && !isOpen) this._toggle(item);
    else if (event.key === "ArrowRight" && isOpen) go(index + 1);
    else if (event.key === "ArrowLeft" && isOpen) this._toggle(item);
    else if (event.key === "ArrowLeft" && item?.parent) go(this.find(keyOf(item.parent)));
    else if (event.key === "Enter" || event.key === " ") this._choose(item);
    else return;
    event.preventDefault();
  }
}

const stepsTitle = ({ steps, done }) => steps.map((step) => `${done.has(step) ? "✓" : "·"} ${step}`).join("\n");

function tokensAbout({ tokens, usage, children }) {
  const model = usage?.model ? ` by ${usage.model}` : "";
  return `Tokens${model}: ${tokensTitle(tokens)}${children.length ? ", with the contexts below" : ""}`;
}

const keyOf = (item) => (item === null ? "all" : item === "main" ? "main" : `n${item.number}`);
