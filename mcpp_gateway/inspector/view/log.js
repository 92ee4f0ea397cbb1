// The log view: rows by kind, folded contexts, collapsed results, raw JSON.

import { conclusionText, describe } from "../state/log/describe.js";
import { everything, isSame } from "../state/filter/filter.js";
import { indent, reveal, show } from "../state/json.js";
import { cut } from "../state/results/summaries.js";
import { clockTime, duration, h, hueOf, isTyping, plural, setText } from "./elements/dom.js";
import { VirtualList } from "./elements/list.js";
import { proposalActions } from "./proposals.js";

const SHOWN_LINES = 12;
const SHOWN_CHARS = 1_600;
const LARGE_CHARS = 20_000; // laying out 100,000 takes a browser a second

export class LogView {
  /** `actions` has fold(node, folded), select(node), find(id), clearFilter() and those of proposals. */
  constructor(scroller, model, rows, settings, actions) {
    this._model = model;
    this._rows = rows;
    this._settings = settings;
    this._actions = actions;
    this._raw = new Set(); // ids of envelopes whose raw JSON is shown
    this._expanded = new Set(); // ids of envelopes whose long text is shown completely
    this._originals = new Set(); // ids of envelopes whose collapsed result is shown
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
    const from = this._rows.update();
    if (from < before || this._rows.rows.length !== before) this.list.reset(from);
    for (const seq of this._model.changed) {
      this.list.invalidate(`${seq}`);
      this.list.invalidate(`${seq}f`);
    }
    this._model.changed.clear();
    if (this._expired !== this._model.expired) this.list.invalidateAll();
    this._expired = this._model.expired;
    this._empty.hidden = this._rows.rows.length > 0;
    if (!this._empty.hidden) this._showEmptyReason();
  }

  _showEmptyReason() {
    const { session, filter } = this._model;
    const isReading = session.pod === null || session.isReplaying;
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
    if (search) return `No loaded message contains “${search}”.`;
    return selection && this._model.log.size ? "No messages in this context yet." : "No messages yet.";
  }

  // --- source of the list -----------------------------------------------------------------------

  count() {
    return this._rows.rows.length;
  }

  key(index) {
    const row = this._rows.rows[index];
    return row.fold ? `${row.entry.seq}f` : `${row.entry.seq}`;
  }

  /** Return the index of the row at or before a key: rows are in the order of their entries. */
  find(key) {
    const seq = Number.parseInt(key, 10);
    const { rows } = this._rows;
    let [low, high] = [0, rows.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle].entry.seq <= seq) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  guess(index) {
    const { entry, fold } = this._rows.rows[index];
    if (fold || !entry.envelope) return 36;
    return 34 + Math.min(SHOWN_LINES, Math.ceil(entry.text.length / 160)) * 20;
  }

  render(index) {
    const row = this._rows.rows[index];
    const { entry } = row;
    if (entry.mark) {
      return h("article", { class: `row mark mark-${entry.mark}` }, h("p", {}, entry.message));
    }
    return row.fold ? this._fold(row) : this._envelope(entry);
  }

  // --- rows -------------------------------------------------------------------------------------

  _envelope(entry) {
    const { envelope } = entry;
    const reading = describe(envelope);
    const badges = this._model.tracker.badges(envelope.id);
    const row = h(
      "article",
      { class: `row tone-${reading.tone} depth-${Math.min(8, entry.node ? entry.node.depth + 1 : 0)}` },
      h(
        "header",
        {},
        h("time", { datetime: envelope.ts, title: envelope.ts }, clockTime(envelope.ts)),
        // An announcement of the gateway names the participant or context that it is about.
        reading.who
          ? h("span", { class: "subject", dir: "auto" }, reading.who)
          : h("span", { class: `who hue-${hueOf(envelope.from)}`, dir: "auto" }, envelope.from),
        h("span", { class: "label" }, reading.label),
        reading.name && h("code", { class: "name", dir: "auto" }, reveal(reading.name)),
        reading.code && h("code", { class: "name" }, reading.code),
        this._addressees(envelope),
        this._timing(envelope),
        this._about(entry),
        this._settings.hints && badges.map((badge) => h("span", { class: `badge badge-${badge}` }, badge)),
        h("span", { class: "row-end" }, entry.node && this._chip(entry.node), this._rawButton(entry)),
      ),
      this._body(entry, reading),
    );
    const proposal = this._model.proposals.find(envelope.id, entry.text);
    // A proposal can be decided only when all of it is visible.
    if (proposal && !(proposal.state === "open" && this._isCut(entry, reading))) row.append(proposalActions(proposal, this._model, this._actions));
    if (this._raw.has(envelope.id)) {
      row.append(h("pre", { class: "raw", tabindex: 0, "aria-label": "Raw JSON" }, indent(entry.text)));
    }
    return row;
  }

  _fold({ entry, fold: node, since, forMe }) {
    const { conclusion } = node;
    const state = this._model.stateOf(node);
    const outcome = conclusion ? cut(conclusionText(conclusion.payload), 400) : `${state}…`;
    return h(
      "article",
      { class: `row fold depth-${Math.min(8, node.depth)} state-${state}` },
      h(
        "header",
        {},
        h("time", { datetime: entry.envelope.ts }, clockTime(entry.envelope.ts)),
        this._foldButton(node, true),
        h("span", { class: "fold-type" }, node.type ?? "context"),
        // If the beginning is not loaded, the creator is uncertain: name the author of the conclusion.
        conclusion && h("span", { class: `who hue-${hueOf(conclusion.from)}`, dir: "auto" }, conclusion.from),
        h("span", { class: "outcome", dir: "auto", title: outcome }, outcome),
        since > 0 && h("span", { class: "badge badge-since" }, `${since.toLocaleString("en")} newer`),
        forMe > 0 && h("span", { class: "badge badge-for-me" }, `${forMe.toLocaleString("en")} to you`),
        h("span", { class: "quiet" }, [plural(node.total, "message"), duration(node.end - node.start), ...(conclusion && node.expired ? ["expired"] : [])].join(" · ")),
        h("span", { class: "row-end" }, this._chip(node, shortId(node.id))),
      ),
    );
  }

  _foldButton(node, folded) {
    const title = folded ? "Unfold this context" : "Fold this context";
    return h(
      "button",
      {
        class: "twisty",
        title,
        "aria-label": title,
        "aria-expanded": String(!folded),
        "data-keep": "fold",
        on: { click: () => this._actions.fold(node, !folded) },
      },
      folded ? "▸" : "▾",
    );
  }

  _chip(node, text = `${node.type ?? "context"} ${shortId(node.id)}`) {
    const state = this._model.stateOf(node);
    return [
      h(
        "button",
        {
          class: `chip state-${state}`,
          title: `Show only context ${node.id} (${this._model.stateLabel(node)})`,
          "data-keep": "chip",
          on: { click: () => this._actions.select(node) },
        },
        h("span", { dir: "auto" }, text),
      ),
      !this._rows.isFolded(node) && node !== this._rows.selection && this._foldButton(node, false),
    ];
  }

  _addressees({ to }) {
    if (!Array.isArray(to) || !to.length) return null;
    return h("span", { class: "to", dir: "auto" }, `→ ${cut(to.join(", "))}`);
  }

  _timing(envelope) {
    const { request, response } = this._model.tracker.call(envelope) ?? {};
    const [asked, answered] = [request, response].map((one) => one && this._model.log.find(one.id));
    if (!asked || !answered) return null;
    const [other, title] = request === envelope ? [response, "Show the response"] : [request, "Show the call"];
    return h(
      "button",
      {
        class: "link",
        title,
        "data-keep": "timing",
        on: { click: () => this._actions.find(other.id) },
      },
      duration(answered.at - asked.at),
    );
  }

  /** Return a link to the context or the envelope that this one answers (E-16). */
  _about({ envelope, about }) {
    const link = (text, title, run) =>
      h("button", { class: "link", title, "data-keep": "about", on: { click: run } }, h("span", { dir: "auto" }, text));
    if (about) {
      const title = `Answers context ${about.id}. Show only that context`;
      return link(`on ${about.type ?? "context"} ${shortId(about.id)}`, title, () => this._actions.select(about));
    }
    const other = this._model.log.find(envelope.correlation_id)?.envelope;
    if (!other || this._model.tracker.call(envelope)?.response === envelope) return null; // its duration links there
    const { name, label } = describe(other);
    const what = name === undefined ? label : reveal(name);
    return link(`on ${other.from}: ${what}`, "Show the message that this answers", () => this._actions.find(other.id));
  }

  _rawButton(entry) {
    return h(
      "button",
      {
        class: "raw-button",
        "aria-pressed": String(this._raw.has(entry.envelope.id)),
        "aria-label": "Raw JSON",
        title: "Raw JSON",
        "data-keep": "raw",
        on: { click: () => this._toggle(this._raw, entry) },
      },
      "{ }",
    );
  }

  _body(entry, reading) {
    const { id } = entry.envelope;
    const summary = this._model.tracker.summary(id);
    if (summary === null) return this._content(entry, reading);
    const open = this._originals.has(id);
    return h(
      "div",
      { class: "accordion" },
      h(
        "button",
        {
          class: "accordion-head",
          "aria-expanded": String(open),
          "data-keep": "accordion",
          on: { click: () => this._toggle(this._originals, entry) },
        },
        h("span", { class: "twist" }, open ? "▾" : "▸"),
        h("span", { dir: "auto" }, summary),
      ),
      open &&
        h(
          "div",
          { class: "original", role: "group", "aria-label": "Original result, read-only" },
          this._content(entry, reading),
        ),
    );
  }

  _content(entry, reading) {
    const { tone, text, note } = reading;
    const isProse = text !== undefined;
    const full = fullText(reading);
    if (!full) return note ? h("p", { class: "quiet" }, note) : null;
    const isCut = this._isCut(entry, reading);
    const size = `${full.length.toLocaleString("en")} characters`;
    const more = tone === "proposal" ? `Read all ${size} to decide` : `Show all ${size}`;
    return h(
      "div",
      { class: "content" },
      h(isProse ? "p" : "pre", { class: isProse ? "text" : "json", dir: "auto" }, isCut ? shorten(full) : full),
      (isCut || this._expanded.has(entry.envelope.id)) &&
        h(
          "button",
          { class: "link more", "data-keep": "more", on: { click: () => this._toggle(this._expanded, entry) } },
          isCut ? more : "Show less",
        ),
      note && h("p", { class: "quiet" }, note),
    );
  }

  _isCut({ envelope }, reading) {
    if (this._expanded.has(envelope.id)) return false;
    const full = fullText(reading);
    return reading.tone === "proposal" ? full.length > LARGE_CHARS : shorten(full) !== full;
  }

  _toggle(set, { envelope, seq }) {
    if (!envelope) return; // a mark
    if (!set.delete(envelope.id)) set.add(envelope.id);
    this.list.invalidate(`${seq}`);
  }

  // --- keyboard ---------------------------------------------------------------------------------

  _key(event) {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { list } = this;
    const row = this._rows.rows[list.active];
    const page = Math.max(1, Math.floor(list.scroller.clientHeight / 80));
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    const fromRow = event.target.closest?.(".row");
    const start = fromRow ? Number(fromRow.dataset.index) : this._firstVisible();
    if (event.key in steps) list.show(fromRow ? start + steps[event.key] : start, { focus: true });
    else if (event.key === "Home") list.show(0, { focus: true });
    else if (event.key === "End") list.show(this.count() - 1, { focus: true });
    else if (!fromRow || !row || event.target !== fromRow) return;
    else if (event.key === "Enter" || event.key === " ") this._open(this._rows.rows[start]);
    else if (event.key === "r") this._toggle(this._raw, this._rows.rows[start].entry);
    else if (event.key === "ArrowLeft") this._foldAt(this._rows.rows[start], true);
    else if (event.key === "ArrowRight") this._foldAt(this._rows.rows[start], false);
    else return;
    event.preventDefault();
  }

  _firstVisible() {
    const top = this.list.scroller.getBoundingClientRect().top;
    const rows = [...this.list.scroller.querySelectorAll(".row")];
    const seen = rows.find((row) => row.getBoundingClientRect().top >= top);
    return seen ? Number(seen.dataset.index) : 0;
  }

  _open({ entry, fold }) {
    if (fold) this._actions.fold(fold, false);
    else if (this._model.tracker.summary(entry.envelope?.id) !== null) this._toggle(this._originals, entry);
    else this._toggle(this._raw, entry);
  }

  _foldAt({ entry, fold }, folded) {
    const node = fold ?? entry.node;
    if (node && Boolean(fold) !== folded) this._actions.fold(node, folded);
  }
}

/** Return a short form of an id. UUIDv7s of one day begin alike, so they are shown by their end. */
export function shortId(id) {
  if (/^[0-9a-f]{8}-[0-9a-f]{4}-7/.test(id)) return `…${id.slice(-6)}`;
  return id.length > 18 ? `${id.slice(0, 6)}…${id.slice(-6)}` : id;
}

const fullText = ({ text, json }) => text ?? (json === undefined ? "" : show(json));

function shorten(text) {
  const lines = text.split("\n", SHOWN_LINES + 1);
  const some = lines.length > SHOWN_LINES ? `${lines.slice(0, SHOWN_LINES).join("\n")}\n…` : text;
  return some.length > SHOWN_CHARS ? `${some.slice(0, SHOWN_CHARS)}…` : some;
}
