// The log view: the loaded past and the received log as one list, and its keyboard.

import { everything, isSame } from "../../state/filter/filter.js";
import { h, isTyping, plural, setText } from "../elements/dom.js";
import { highlight } from "../elements/highlight.js";
import { VirtualList } from "../elements/list.js";
import { RowRenderer, SHOWN_LINES } from "./rows.js";

const NEAR_PX = 1_200; // load more when an edge is this close

export class LogView {
  /**
   * `logs` has the models and rows {model, past, rows, pastRows, shown}. `actions` has fold(node, folded),
   * select(node), find(id), clearFilter(), load(edge), fill(entry), reveal(entry), look(entry) and those
   * of proposals.
   */
  constructor(scroller, { model, past, rows, pastRows, shown }, settings, actions) {
    this._model = model;
    this._past = past;
    this._rows = rows;
    this._pastRows = pastRows;
    this._shown = shown;
    this._actions = actions;
    this._renderer = new RowRenderer({ model, past, rows, pastRows }, settings, actions, (key) => this.list.invalidate(key));
    this._emptyText = h("span");
    this._clearButton = h("button", { class: "link", on: { click: () => actions.clearFilter() } }, "Show everything");
    this._empty = h("p", { class: "quiet empty" }, this._emptyText);
    scroller.append(this._empty);
    // New rows must not move another button under the pointer.
    this.list = new VirtualList(scroller, this, { follows: true, holds: ".proposal button" });
    scroller.addEventListener("keydown", (event) => this._key(event));
  }

  /** Bring the list up to date with the model. */
  update() {
    const before = this._rows.rows.length;
    const { isNew, isReplaced, from } = this._shown.update();
    if (isNew) this.list.resetHead();
    if (isReplaced) this.list.invalidateAll();
    for (const edge of isNew ? ["older", "newer"] : []) this.list.invalidate(edge);
    if (from < before + this._shown.head || this._rows.rows.length !== before) this.list.reset(from);
    for (const seq of this._model.changed) {
      this.list.invalidate(`${seq}`);
      this.list.invalidate(`${seq}f`);
    }
    this._model.changed.clear();
    if (this._expired !== this._model.expired) this.list.invalidateAll();
    this._expired = this._model.expired;
    this._empty.hidden = this._rows.rows.length + this._pastRows.rows.length > 0;
    if (!this._empty.hidden) this._showEmptyReason();
  }

  _showEmptyReason() {
    const { session, filter } = this._model;
    const isReading = session.pod === null || session.isReplaying || this._past.stateOfEdge("older") === "loading";
    const isFiltered = !isReading && !this._rows.search && !isSame(filter, everything);
    setText(this._emptyText, isReading ? "Loading the log…" : isFiltered ? this._hiddenText() : this._missingText());
    if (isFiltered === this._clearButton.isConnected) return;
    if (isFiltered) this._emptyText.after(" ", this._clearButton);
    else this._empty.replaceChildren(this._emptyText);
  }

  _hiddenText() {
    const { selection, descendants } = this._rows;
    const { tree } = this._model;
    const count = selection === "main" ? tree.mainCount : descendants ? selection?.total : selection?.count;
    return count ? `The filter hides ${plural(count, "message")} here.` : "No messages match the filter yet.";
  }

  _missingText() {
    const { search, selection } = this._rows;
    if (search) return this._past.older.isDone ? "No message matches the search." : "No loaded message matches the search.";
    return selection && this._model.log.size ? "No messages in this context yet." : "No messages yet.";
  }

  // --- source of the list -----------------------------------------------------------------------

  count() {
    return this._shown.count;
  }

  head() {
    return this._shown.head;
  }

  key(index) {
    return this._shown.key(index);
  }

  find(key) {
    return this._shown.find(key);
  }

  isEdge(index) {
    return this._shown.at(index).edge !== undefined;
  }

  guess(index) {
    const { edge, entry, fold } = this._shown.at(index);
    if (edge || fold || !entry.envelope) return 36;
    return 34 + Math.min(SHOWN_LINES, Math.ceil(entry.text.length / 160)) * 20;
  }

  render(index) {
    return this._renderer.render(this._shown.at(index));
  }

  /** Load more of the past where the view is near an edge of it. */
  drawn() {
    highlight(this.list.scroller, this._rows.search?.terms ?? []);
    const { scrollTop, clientHeight } = this.list.scroller;
    if (scrollTop < NEAR_PX) this._actions.load("older");
    const hole = this._shown.find("newer");
    if (hole < 0) return;
    const [top, bottom] = this.list.range(hole);
    if (bottom < scrollTop - NEAR_PX || top > scrollTop + clientHeight + NEAR_PX) return;
    // Scrolling up continues with what is just before the received log.
    this._actions.load(top > scrollTop ? "newer" : "latest");
  }

  /** Lay out all rows again. */
  layOut() {
    this._shown.layOutPast();
    this._rows.layOut(0);
    this._shown.update();
    this.list.resetHead();
    this.list.reset(this._shown.head);
    this.list.invalidateAll();
  }

  /** Fold or unfold a context in both parts of the log. */
  fold(node, folded) {
    const isPast = this._past.has(node);
    const now = isPast ? this._model.tree.get(node.id) : node;
    const past = isPast ? node : this._past.tree.get(node.id);
    if (past) {
      this._pastRows.fold(past, folded);
      this._shown.layOutPast();
      this._shown.update();
      this.list.resetHead();
    }
    if (now) this.list.reset(this._shown.head + this._rows.fold(now, folded));
    this.list.invalidateAll();
  }

  // --- keyboard ---------------------------------------------------------------------------------

  _key(event) {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { list } = this;
    const row = list.active < this.count() ? this._shown.at(list.active) : null;
    const page = Math.max(1, Math.floor(list.scroller.clientHeight / 80));
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    const fromRow = event.target.closest?.(".row");
    const start = fromRow ? Number(fromRow.dataset.index) : this._firstVisible();
    if (event.key in steps) list.show(fromRow ? start + steps[event.key] : start, { focus: true });
    else if (event.key === "Home") this._toStart();
    else if (event.key === "End") list.show(this.count() - 1, { focus: true });
    else if (!fromRow || !row?.entry || event.target !== fromRow) return;
    else if (event.key === "Enter" || event.key === " ") this._open(row);
    else if (event.key === "r") this._renderer.toggleRaw(row.entry);
    else if (event.key === "ArrowLeft") this._foldAt(row, true);
    else if (event.key === "ArrowRight") this._foldAt(row, false);
    else return;
    event.preventDefault();
  }

  // The first row with an envelope; the edge above it becomes visible, and more is loaded.
  _toStart() {
    this.list.scroller.scrollTop = 0;
    this.list.show(1, { focus: true });
  }

  _firstVisible() {
    const top = this.list.scroller.getBoundingClientRect().top;
    const rows = [...this.list.scroller.querySelectorAll(".row")];
    const seen = rows.find((row) => row.getBoundingClientRect().top >= top);
    return seen ? Number(seen.dataset.index) : 0;
  }

  _open({ entry, fold }) {
    if (fold) this._actions.fold(fold, false);
    else this._renderer.open(entry);
  }

  _foldAt({ entry, fold }, folded) {
    const node = fold ?? entry.node;
    if (node && Boolean(fold) !== folded) this._actions.fold(node, folded);
  }
}
