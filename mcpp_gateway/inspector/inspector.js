// The inspector of one who has signed in: holds the model and the line together, and draws what changed.

import { Line } from "./net.js";
import { loadSettings, saveSettings, showTheme } from "./settings.js";
import { print } from "./state/expression.js";
import { everything, isSame } from "./state/filter.js";
import { newId } from "./state/ids.js";
import { parseKind } from "./state/kinds.js";
import { writeView } from "./state/link.js";
import { Model } from "./state/model.js";
import { amendment, approval, nameOf, rejection, withdrawal } from "./state/proposals.js";
import { Rows } from "./state/rows.js";
import { Announcer } from "./view/announcer.js";
import { Bar } from "./view/bar.js";
import { Composer } from "./view/composer.js";
import { askArguments, askReason, showLink, showProblem, showSettings } from "./view/dialogs.js";
import { byId, h, isTyping, setText } from "./view/dom.js";
import { FilterBar } from "./view/filters.js";
import { LogView, shortId } from "./view/log.js";
import { PeopleView } from "./view/people.js";
import { verdict } from "./view/proposals.js";
import { Stillness } from "./view/stillness.js";
import { TimelineView } from "./view/timeline.js";
import { TreeView } from "./view/tree.js";

const SLOW_MS = 250; // tree, people and timeline need not follow every frame
const SEARCH_MS = 150;

export class Inspector {
  /** `view` is what a link asks for; `signOut` is told the reason. */
  constructor(token, view, signOut) {
    this._view = view;
    this._signOut = signOut;
    this._sought = null; // the id of an envelope to show as soon as the filter lets it through
    this.settings = loadSettings();
    const model = (this.model = new Model({ newId }));
    this.rows = new Rows(model);
    const actions = {
      fold: (node, folded) => this.fold(node, folded),
      select: (node) => this.select(node),
      find: (id) => this.find(id),
      lift: () => this.applyFilter(everything),
      approve: (proposal) => this.approve(proposal),
      edit: (proposal) => this.edit(proposal),
      reject: (proposal) => this.reject(proposal),
      withdraw: (proposal) => this.withdraw(proposal),
    };
    this.bar = new Bar(model);
    this.announcer = new Announcer();
    this.stillness = new Stillness(".decision");
    this.log = new LogView(byId("log"), model, this.rows, this.settings, actions);
    this.tree = new TreeView(byId("tree"), model, (item) => this.select(item));
    this.timeline = new TimelineView(byId("timeline"), model, (node) => this.select(node));
    this.people = new PeopleView(model, actions);
    this.filters = new FilterBar(model, (filter) => this.applyFilter(filter), () => this.rows);
    this.line = new Line(model, token, {
      received: (text) => this.received(text),
      state: (name, facts) => this.showState(name, facts),
      ask: () => this._ask(),
      signedOut: (reason) => this.signOut(reason),
    });
    this.composer = new Composer(model, (draft) => this.say(draft));
    this._cleared = model.cleared;
    this._bind();
    this._apply();
  }

  start() {
    byId("filter").value = this._view.filter;
    this.model.filter = this.filters.read() ?? everything;
    this.rows.search = this._view.search.toLowerCase();
    byId("search").value = this._view.search;
    byId("descendants").checked = this.rows.descendants = this._view.descendants;
    this.line.open();
    this._everySecond();
    setInterval(() => this._everySecond(), 1_000);
  }

  // --- what comes in ----------------------------------------------------------------------------

  received(text) {
    const { model } = this;
    const { refusals } = model.outbox;
    const last = refusals.at(-1);
    const what = model.receive(text, Date.now());
    if (refusals.at(-1) !== last) this._refused(refusals.at(-1));
    if (what === "live") this.announcer.heard(model.log.entries.at(-1)?.envelope);
    if (what === "welcome" || what === "filter") this._slow = 0;
    if (!model.session.isReplaying) this._resolveView();
    this.schedule();
  }

  schedule() {
    this._frame ??= requestAnimationFrame(() => {
      this._frame = undefined;
      this.refresh();
    });
  }

  refresh() {
    if (this._cleared !== this.model.cleared) this._forgetNodes();
    this._followBegun();
    if (!this.model.session.isReplaying || this.rows.rows.length === 0) this.log.update();
    this._showSought();
    this._showFollow();
    const now = performance.now();
    if (now - (this._slow ?? 0) >= SLOW_MS) {
      this._slow = now;
      this.refreshSlowly();
    } else {
      this._later ??= setTimeout(() => {
        this._later = undefined;
        this.schedule();
      }, SLOW_MS);
    }
  }

  refreshSlowly() {
    this.tree.update();
    this.tree.list.invalidateAll();
    if (!byId("timeline").hidden) this.timeline.update();
    this.people.update();
    this.filters.update();
    this.composer.update();
    this.bar.update(this.people.waiting);
  }

  showState(name, facts) {
    this.bar.showState(name, facts);
    // What was decided and not sent yet says so.
    this.log.list.invalidateAll();
    this._slow = 0;
    this.schedule();
  }

  // --- what a person does -----------------------------------------------------------------------

  /** Send what was drafted, or throw a TooLargeError. */
  send(draft) {
    this.line.send(this.model.outbox.compose(draft, Date.now()));
  }

  say(draft) {
    this.send(draft);
    const { selection } = this.rows;
    // Said in an expired context, it begins anew: that is then the one to look at.
    if (selection?.expired && selection.id === draft.context?.id) this._begun = selection;
  }

  approve(proposal) {
    this._decideAtOnce(proposal, approval(proposal, newId()));
  }

  withdraw(proposal) {
    this._decideAtOnce(proposal, withdrawal(proposal));
  }

  edit(proposal) {
    const { kind, payload: { params = {} } } = proposal.envelope;
    // What is called by a name keeps it.
    const isNamed = parseKind(kind).name !== undefined;
    askArguments(nameOf(proposal), isNamed ? params.arguments ?? {} : params, (value) => {
      const changed = isNamed ? { ...params, arguments: value } : value;
      this._decide(proposal, amendment(proposal, newId(), changed));
    });
  }

  reject(proposal) {
    askReason(nameOf(proposal), (reason) => this._decide(proposal, rejection(proposal, reason)));
  }

  /** Have the gateway send what a filter passes, and hide the rest at once. */
  applyFilter(filter) {
    const { model, line } = this;
    this._sought = null;
    if (line.isOpen && !model.needsHistory(filter)) {
      this.send({ kind: "pod/filter", payload: { filter } });
    } else {
      model.useFilter(filter);
      // A line that is not open yet has asked for another filter.
      if (line.isThere) line.open();
    }
    this.schedule();
    this._writeView(filter);
  }

  select(item) {
    this._sought = null;
    this._view.main = false;
    this._view.context = null;
    this.rows.selection = item;
    this.timeline.selection = item === "main" ? null : item;
    this.tree.selected = item;
    this.composer.enter(item);
    this._slow = 0;
    this._layOut();
    this._showSelection();
    if (byId("app").dataset.part === "contexts") this._show("log");
  }

  fold(node, folded) {
    this.log.list.reset(this.rows.fold(node, folded));
    this.log.list.invalidateAll();
  }

  /** Show an envelope in the log, whatever hides it now. */
  find(id) {
    const entry = this.model.log.find(id);
    if (!entry) return;
    if (!this.model.passes(entry)) {
      this.applyFilter(everything);
      this._sought = id;
      return;
    }
    if (!this.rows.isWanted(entry)) this._showEverything();
    for (let node = entry.node; node; node = node.parent) {
      if (this.rows.isFolded(node)) this.fold(node, false);
    }
    const index = this.log.find(`${entry.seq}`);
    if (this.rows.rows[index]?.entry === entry) this.log.list.show(index, { focus: true, center: true });
  }

  search(text) {
    this.rows.search = text.trim().toLowerCase();
    this._layOut();
    this._writeView();
  }

  export() {
    // Raw line breaks stand between a sender's tokens, never inside of a string.
    const lines = this.rows.selected().map(({ text }) => text.replace(/[\r\n]+/g, " "));
    const blob = new Blob([lines.map((line) => `${line}\n`).join("")], { type: "application/jsonl" });
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(blob);
    anchor.download = `${this.model.session.pod?.name ?? "pod"}.jsonl`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1_000);
  }

  signOut(reason) {
    this.model.outbox.clear(); // nobody is asked whether to stay
    this._signOut(reason);
  }

  // --- private ----------------------------------------------------------------------------------

  /** Answer a proposal, and only once: throw if it was decided while one made up one's mind. */
  _decide(proposal, draft) {
    const now = this.model.proposals.find(proposal.envelope.id, proposal.text);
    const over = verdict(now ?? { ...proposal, state: "hidden" }, this.model);
    if (over) throw new Error(`This is decided already: ${over.text}.`);
    this.send(draft);
    this._slow = 0;
    this.schedule();
  }

  _decideAtOnce(proposal, draft) {
    if (this.model.outbox.answerTo(proposal.envelope.id)) return; // the second of two quick clicks
    try {
      this._decide(proposal, draft);
    } catch (error) {
      showProblem("This was not sent", error.message);
    }
  }

  _ask() {
    const question = this.model.question();
    if (question) this.send(question);
  }

  _layOut() {
    this.log.list.reset(this.rows.layOut(0));
    this.log.list.invalidateAll();
    this.log.list.toEnd();
    this.schedule();
  }

  /** Select what the link names, as soon as it is there. */
  _resolveView() {
    const { main, context } = this._view;
    const item = main ? "main" : context && this.model.tree.get(context);
    if (item) this.select(item);
    else if (context && byId("selection").hidden) this._showSelection();
  }

  // The history was read anew: nodes of before are none of this tree.
  _forgetNodes() {
    this._cleared = this.model.cleared;
    const { selection } = this.rows;
    if (!(selection instanceof Object)) return;
    const again = this.model.tree.get(selection.id) ?? null;
    if (!again) this._view.context = selection.id;
    this.rows.selection = this.tree.selected = this.timeline.selection = again;
    this._showSelection();
  }

  _followBegun() {
    const again = this._begun && this.model.tree.get(this._begun.id);
    if (!again || again === this._begun) return;
    if (this.rows.selection === this._begun) this.select(again);
    this._begun = null;
  }

  // What a filter hid is shown once that is lifted, which may take the history anew.
  _showSought() {
    const { model, _sought: id } = this;
    const entry = id && !model.isReloading && model.log.find(id);
    if (!entry || !model.passes(entry)) return;
    this._sought = null;
    this.find(id);
  }

  _refused({ envelope, about }) {
    const message = String(envelope.payload?.message ?? envelope.payload?.error);
    if (about?.kind === "pod/filter") this.filters.refuse(message);
    else this.composer.refused(envelope.correlation_id, `Refused: ${message}`);
  }

  _showSelection() {
    const { selection } = this.rows;
    const { context } = this._view;
    const box = byId("selection");
    box.hidden = selection === null && !context;
    if (!box.hidden) {
      const name = selection === "main" ? "the main context" : selection && `${selection.type ?? "context"} ${shortId(selection.id)}`;
      box.replaceChildren(
        name ? "Showing only " : "Not in what is loaded: the context ", h("strong", { dir: "auto" }, name ?? context), " ",
        h("button", { class: "link", on: { click: () => this.select(null) } }, "Show everything"));
    }
    this._writeView();
  }

  _writeView(filter = this.model.filter) {
    const { selection, descendants } = this.rows;
    const fragment = writeView({
      filter: isSame(filter, everything) ? "" : print(filter),
      main: selection === "main",
      context: selection instanceof Object ? selection.id : this._view.context,
      descendants,
      search: byId("search").value.trim(),
    });
    history.replaceState(null, "", location.pathname + fragment);
  }

  _showFollow() {
    const { list } = this.log;
    if (list.isAtEnd) this._seenTo = this.model.log.end;
    const button = byId("follow");
    const behind = Math.max(0, this.model.log.end - (this._seenTo ?? 0));
    button.hidden = list.isAtEnd || byId("log").hidden;
    if (!button.hidden) setText(byId("follow-text"), behind ? `${behind.toLocaleString("en")} new` : "Latest");
  }

  _everySecond() {
    this.line.check();
    this.composer.update();
    this.bar.showRates(Date.now());
  }

  _bind() {
    byId("only-open").addEventListener("change", ({ target }) => {
      this.tree.onlyOpen = target.checked;
      this.tree.update();
    });
    byId("descendants").addEventListener("change", ({ target }) => {
      this.rows.descendants = target.checked;
      this._layOut();
      this._writeView();
    });
    let timer;
    byId("search").addEventListener("input", ({ target }) => {
      clearTimeout(timer);
      timer = setTimeout(() => this.search(target.value), SEARCH_MS);
    });
    byId("follow").addEventListener("click", () => this.log.list.toEnd());
    byId("log").addEventListener("scroll", () => this._showFollow(), { passive: true });
    byId("export").addEventListener("click", () => this.export());
    byId("copy-link").addEventListener("click", () => {
      this._writeView();
      showLink(location.href);
    });
    byId("reconnect").addEventListener("click", () => this.line.open());
    byId("settings-button").addEventListener("click", () => this._settings());
    for (const button of document.querySelectorAll("[data-part]")) {
      if (button.tagName === "BUTTON") button.addEventListener("click", () => this._show(button.dataset.part));
    }
    document.addEventListener("keydown", (event) => this._key(event));
    // What waits for the line waits in this page.
    window.addEventListener("beforeunload", (event) => {
      if (this.model.outbox.isOwed) event.preventDefault();
    });
  }

  _showEverything() {
    byId("search").value = "";
    this.rows.search = "";
    this.select(null);
  }

  _show(part) {
    byId("app").dataset.part = part;
    for (const button of document.querySelectorAll(".tabs [data-part]")) {
      if (button.dataset.part === part) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    byId("timeline").hidden = part !== "timeline";
    byId("log").hidden = part === "timeline";
    this._slow = 0;
    this.schedule();
    for (const { list } of [this.log, this.tree, this.timeline]) list.schedule();
  }

  _key(event) {
    const isElsewhere = isTyping(event) && event.target.id !== "search";
    if (event.key === "Escape" && !byId("dialog").open && !isElsewhere) {
      this._showEverything();
    }
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!this.settings.shortcuts || !plain || isTyping(event) || byId("dialog").open) return;
    const keys = {
      "/": () => byId("search").focus(),
      f: () => byId("filter").focus(),
      c: () => this.composer.focus(),
      t: () => this.tree.list.show(this.tree.list.active, { focus: true }),
      g: () => this.log.list.show(this.log.count() - 1, { focus: true }),
      "?": () => this._settings(),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  _settings() {
    showSettings(this.settings, (name, value) => {
      if (name === "signOut") {
        this.signOut("");
        return;
      }
      this.settings[name] = value;
      saveSettings(this.settings);
      this._apply();
      this._layOut();
    });
  }

  _apply() {
    showTheme(this.settings);
    this.rows.foldConcluded = this.settings.foldConcluded;
  }
}
