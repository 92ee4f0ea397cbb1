// The rows of the log view: an envelope by its kind, a folded context, a mark; with raw JSON and originals.

import { describe, outcomeText } from "../../state/log/describe.js";
import { contextName, shortId, titleOf } from "../../state/ids.js";
import { indent, reveal, show } from "../../state/json.js";
import { localId, originOf } from "../../state/log/references.js";
import { keyOf } from "../../state/log/shown.js";
import { cut } from "../../state/results/summaries.js";
import { clockTime, duration, h, hueOf, plural } from "../elements/dom.js";
import { explanationOf, proposalActions } from "../decisions/proposals.js";
import { edgeRow } from "./edges.js";

const SHOWN_CHARS = 1_600;
const LARGE_CHARS = 20_000; // laying out 100,000 takes a browser a second
export const SHOWN_LINES = 12;

export class RowRenderer {
  /** `logs` and `actions` as of the log view; `redraw(key)` draws a row again. */
  constructor({ model, past, rows, pastRows }, settings, actions, redraw) {
    this._model = model;
    this._past = past;
    this._rows = rows;
    this._pastRows = pastRows;
    this._settings = settings;
    this._actions = actions;
    this._redraw = redraw;
    this._raw = new Set(); // ids of envelopes whose raw JSON is shown
    this._expanded = new Set(); // ids of envelopes whose long text is shown completely
    this._originals = new Set(); // ids of envelopes whose collapsed result is shown
  }

  /** Return the element of a row. */
  render(row) {
    if (row.edge) return edgeRow(row.edge, this._past, this._actions);
    const { entry } = row;
    if (entry.mark) return this._mark(entry);
    return row.fold ? this._fold(row) : this._envelope(entry);
  }

  /** Show or hide the original of a collapsed result, or the raw JSON of another envelope. */
  open(entry) {
    const { envelope } = entry;
    if (envelope && this._modelOf(entry).tracker.summary(envelope.id) !== null) this._toggle(this._originals, entry);
    else this.toggleRaw(entry);
  }

  toggleRaw(entry) {
    this._toggle(this._raw, entry);
  }

  _modelOf(entry) {
    return entry.position === undefined ? this._model : this._past;
  }

  _mark(entry) {
    const isFillable = ["gap", "hole"].includes(entry.mark) && this._model.log.restart < entry.seq;
    return h("article", { class: `row mark mark-${entry.mark}` },
      h("p", {}, entry.message, isFillable && [" ",
        h("button", { class: "link", "data-keep": "fill", on: { click: () => this._actions.fill(entry) } }, "Load what is missing")]));
  }

  _envelope(entry) {
    const { envelope } = entry;
    const model = this._modelOf(entry);
    const reading = describe(envelope);
    const badges = model.tracker.badges(envelope.id);
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
        this._origin(envelope),
        h("span", { class: "label" }, reading.label),
        reading.name && h("code", { class: "name", dir: "auto" }, reveal(reading.name)),
        reading.code && h("code", { class: "name" }, reading.code),
        this._addressees(envelope),
        this._timing(envelope, model),
        this._about(entry, model),
        this._settings.hints && badges.map((badge) => h("span", { class: `badge badge-${badge}` }, badge)),
        h("span", { class: "row-end" }, entry.node && this._chip(entry.node, model), this._revealButton(entry), this._rawButton(entry)),
      ),
      this._body(entry, reading),
    );
    const proposal = model.proposals.find(envelope.id, entry.text);
    if (proposal) row.append(...this._decision(entry, proposal, reading));
    if (this._raw.has(envelope.id)) {
      row.append(
        h("pre", { class: "raw", tabindex: 0, "aria-label": "Raw JSON" }, indent(entry.text)),
        !entry.direct && h("button", { class: "link", "data-keep": "look", on: { click: () => this._actions.look(entry) } }, "What did it see?"));
    }
    return row;
  }

  _decision(entry, proposal, reading) {
    if (proposal.state !== "open") return [proposalActions(proposal, this._model, this._actions)];
    // A decision may be in a part of the log that is not loaded, and a second approval would be a second call.
    if (entry.position !== undefined) return [h("p", { class: "quiet" }, "The decision is not loaded, if there is one.")];
    // A proposal can be decided only when all of it is visible.
    return this._isCut(entry, reading) ? [] : [proposalActions(proposal, this._model, this._actions)];
  }

  _revealButton(entry) {
    if (!this._rows.search) return null;
    const title = "Show this message among those around it";
    return h("button", { class: "link", title, "data-keep": "reveal", on: { click: () => this._actions.reveal(entry) } }, "Show in log");
  }

  _fold({ entry, fold: node, since, forMe }) {
    const { conclusion } = node;
    const model = this._modelOf(entry);
    const state = model.stateOf(node);
    const progress = node.progress ? `, ${node.progress}` : "";
    const outcome = conclusion ? cut(outcomeText(conclusion), 400) : `${state}${progress}…`;
    return h(
      "article",
      { class: `row fold depth-${Math.min(8, node.depth)} state-${state}` },
      h(
        "header",
        {},
        h("time", { datetime: entry.envelope.ts }, clockTime(entry.envelope.ts)),
        this._foldButton(node, true),
        h("span", { class: "fold-type", dir: "auto" }, titleOf(node)),
        // If the beginning is not loaded, the creator is uncertain: name the author of the conclusion.
        conclusion && h("span", { class: `who hue-${hueOf(conclusion.from)}`, dir: "auto" }, conclusion.from),
        h("span", { class: "outcome", dir: "auto", title: outcome }, outcome),
        since > 0 && h("span", { class: "badge badge-since" }, `${since.toLocaleString("en")} newer`),
        forMe > 0 && h("span", { class: "badge badge-for-me" }, `${forMe.toLocaleString("en")} to you`),
        h("span", { class: "quiet" }, [plural(node.total, "message"), duration(node.end - node.start), ...(conclusion && node.expired ? ["expired"] : [])].join(" · ")),
        h("span", { class: "row-end" }, this._chip(node, model, node.title === undefined ? shortId(node.id) : node.type ?? "context")),
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

  _chip(node, model, text = contextName(node)) {
    const state = model.stateOf(node);
    return [
      h(
        "button",
        {
          class: `chip state-${state}`,
          title: `Show only context ${node.id} (${model.stateLabel(node)})`,
          "data-keep": "chip",
          on: { click: () => this._actions.select(node) },
        },
        h("span", { dir: "auto" }, text),
      ),
      !this._rowsOf(model).isFolded(node) && node.id !== this._rows.selection?.id && this._foldButton(node, false),
    ];
  }

  _addressees({ to }) {
    if (!Array.isArray(to) || !to.length) return null;
    return h("span", { class: "to", dir: "auto" }, `→ ${cut(to.join(", "))}`);
  }

  _rowsOf(model) {
    return model === this._past ? this._pastRows : this._rows;
  }

  _timing(envelope, model) {
    const { request, response } = model.tracker.call(envelope) ?? {};
    const [asked, answered] = [request, response].map((one) => one && model.log.find(one.id));
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

  /** Return who sent a mirrored envelope in another pod, as the link says. */
  _origin(envelope) {
    const origin = originOf(envelope);
    const title = "Mirrored from another pod, as its sender says";
    return origin && h("span", { class: "quiet", dir: "auto", title }, `for ${reveal(cut(origin.from, 64))} in ${origin.pod}`);
  }

  /** Return a link to the context or the envelope that this one answers (E-16). */
  _about({ envelope, about }, model) {
    const link = (text, title, run) =>
      h("button", { class: "link", title, "data-keep": "about", on: { click: run } }, h("span", { dir: "auto" }, text));
    if (about) {
      const title = `Answers context ${about.id}. Show only that context`;
      return link(`on ${contextName(about)}`, title, () => this._actions.select(about));
    }
    const answered = localId(envelope.correlation_id, this._model.session.pod?.name);
    const other = (model.log.find(answered) ?? this._past.log.find(answered))?.envelope;
    if (!other && answered !== envelope.correlation_id) return h("span", { class: "quiet" }, `on ${envelope.correlation_id}`);
    if (!other || model.tracker.call(envelope)?.response === envelope) return null; // its duration links there
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
        on: { click: () => this.toggleRaw(entry) },
      },
      "{ }",
    );
  }

  _body(entry, reading) {
    const { id } = entry.envelope;
    const summary = this._modelOf(entry).tracker.summary(id);
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
    if (tone === "proposal") return [explanationOf(reading), this._full(entry, reading)];
    return this._full(entry, reading);
  }

  _full(entry, reading) {
    const { tone, text, note } = reading;
    const isProse = text !== undefined;
    const full = fullText(reading);
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

  _toggle(set, entry) {
    const { envelope } = entry;
    if (!envelope) return; // a mark
    if (!set.delete(envelope.id)) set.add(envelope.id);
    this._redraw(keyOf(entry));
  }
}

const fullText = ({ text, json }) => text ?? (json === undefined ? "" : show(json));

function shorten(text) {
  const lines = text.split("\n", SHOWN_LINES + 1);
  const some = lines.length > SHOWN_LINES ? `${lines.slice(0, SHOWN_LINES).join("\n")}\n…` : text;
  return some.length > SHOWN_CHARS ? `${some.slice(0, SHOWN_CHARS)}…` : some;
}
