// The signed-in inspector: connects the model with the gateway connection and redraws what changed.

import { Connection, fetchPrompt } from "./net.js";
import { loadSettings, saveSettings, showTheme } from "./settings.js";
import { print } from "./state/filter/expression.js";
import { everything, isId, isSame } from "./state/filter/filter.js";
import { newId } from "./state/ids.js";
import { GATEWAY, parseKind } from "./state/kinds.js";
import { writeView } from "./state/filter/link.js";
import { Navigation } from "./navigation.js";
import { Past } from "./state/history/past.js";
import { Model } from "./state/model.js";
import { amendment, approval, nameOf, rejection, withdrawal } from "./state/proposals.js";
import { Rows } from "./state/log/rows.js";
import { Shown } from "./state/log/shown.js";
import { ContextNode } from "./state/tree.js";
import { Announcer } from "./view/elements/announcer.js";
import { Bar } from "./view/bar.js";
import { Composer } from "./view/composer.js";
import { askArguments, askReason, showLink, showProblem, showSettings } from "./view/dialogs.js";
import { byId, h, isTyping, oncePerFrame, setText, shortId } from "./view/elements/dom.js";
import { FilterBar } from "./view/filters.js";
import { LogView } from "./view/log/log.js";
import { PeopleView } from "./view/people.js";
import { showPrompt } from "./view/prompt.js";
import { resolution } from "./view/proposals.js";
import { ReplayBar } from "./view/replay.js";
import { SearchBar } from "./view/search.js";
import { ClickGuard } from "./view/elements/click-guard.js";
import { TimelineView } from "./view/timeline.js";
import { TreeView } from "./view/tree.js";

const SLOW_MS = 250; // the tree, people and timeline are not redrawn every frame

export class Inspector {
  /** `view` is the view that a link asks for; `signOut(reason)` returns to the sign-in form. */
  constructor(token, view, signOut) {
    this._view = view;
    this._token = token;
    this._signOut = signOut;
    this._target = null; // id of an envelope to show once the filter passes it
    this.schedule = oncePerFrame(() => this.refresh());
    this.settings = loadSettings();
    const model = (this.model = new Model({ newId }));
    const past = (this.past = new Past(model));
    this.rows = new Rows(model);
    const pastRows = (this.pastRows = new Rows(past));
    const logs = { model, past, rows: this.rows, pastRows, shown: (this.shown = new Shown(pastRows, this.rows)) };
    const actions = {
      fold: (node, folded) => this.fold(node, folded),
      select: (node) => this.select(node),
      find: (id) => this.find(id),
      clearFilter: () => this.applyFilter(everything),
      load: (edge, options) => this.navigation.load(edge, options),
      fill: (mark) => this.navigation.fill(mark),
      reveal: (entry) => this.reveal(entry),
      look: (entry) => this.look(entry.envelope.from, entry),
      lookAs: (participant) => this.look(participant, null),
      approve: (proposal) => this.approve(proposal),
      edit: (proposal) => this.edit(proposal),
      reject: (proposal) => this.reject(proposal),
      withdraw: (proposal) => this.withdraw(proposal),
    };
    this.bar = new Bar(model);
    this.announcer = new Announcer();
    this.clickGuard = new ClickGuard(".decision");
    this.log = new LogView(byId("log"), logs, this.settings, actions);
    this.tree = new TreeView(byId("tree"), model, past, (item) => this.select(item));
    this.timeline = new TimelineView(byId("timeline"), model, past, (node) => this.select(node));
    this.people = new PeopleView(model, actions);
    this.filters = new FilterBar(model, (filter) => this.applyFilter(filter), () => this.rows);
    this.connection = new Connection(model, token, {
      received: (text) => this.received(text),
      state: (name, facts) => this.showState(name, facts),
      probe: () => this._probe(),
      signedOut: (reason) => this.signOut(reason),
    });
    this.replayBar = new ReplayBar(model, (payload) => this._replay(payload));
    this.searchBar = new SearchBar({
      search: (search) => this.search(search),
      step: (direction) => this.navigation.step(direction),
      goTo: (seconds) => this.goTo(seconds),
    });
    this.navigation = new Navigation(logs, this.connection, {
      log: this.log,
      bar: this.searchBar,
      schedule: this.schedule,
      find: (id) => this.find(id),
    });
    this.composer = new Composer(model, (draft) => this.sendMessage(draft));
    this._cleared = model.cleared;
    this._bind();
    this._apply();
  }

  start() {
    byId("filter").value = this._view.filter;
    this.model.filter = this.filters.read() ?? everything;
    this.searchBar.text = this._view.search;
    this.rows.search = this.searchBar.read() ?? null;
    byId("descendants").checked = this.rows.descendants = this._view.descendants;
    this.connection.open();
    this._everySecond();
    setInterval(() => this._everySecond(), 1_000);
  }

  // --- incoming frames --------------------------------------------------------------------------

  received(text) {
    const { model } = this;
    const { refusals } = model.outbox;
    const last = refusals.at(-1);
    const what = model.receive(text, Date.now());
    if (refusals.at(-1) !== last) this._refused(refusals.at(-1));
    if (what === "live") this.announcer.add(model.log.entries.at(-1)?.envelope);
    if (what === "welcome" || what === "filter" || what === "page") this._slow = 0;
    if (what === "welcome") this.navigation.resume();
    if (model.isStale && !model.session.isReplaying) this._reload();
    if (what === "welcome" || what === "replay") this.replayBar.update(Date.now());
    if (!model.session.isReplaying) this._resolveView();
    this.schedule();
  }

  refresh() {
    if (this._cleared !== this.model.cleared) this._forgetNodes();
    this._followRestarted();
    this._followSelection();
    this.navigation.update();
    if (!this.model.session.isReplaying || this.rows.rows.length === 0) this.log.update();
    this.navigation.arrive();
    this._showTarget();
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
    // Decisions that are not sent yet show the state of the connection.
    this.log.list.invalidateAll();
    this._slow = 0;
    this.schedule();
  }

  // --- user actions -----------------------------------------------------------------------------

  /** Send a draft, or throw a TooLargeError. */
  send(draft) {
    this.connection.send(this.model.outbox.compose(draft, Date.now()));
  }

  sendMessage(draft) {
    this.send(draft);
    const { selection } = this.rows;
    // A message in an expired context creates it again: select the new one when it appears.
    if (selection?.expired && selection.id === draft.context?.id) this._restarted = selection;
  }

  approve(proposal) {
    this._decideAtOnce(proposal, approval(proposal, newId()));
  }

  withdraw(proposal) {
    this._decideAtOnce(proposal, withdrawal(proposal));
  }

  edit(proposal) {
    const { kind, payload: { params = {} } } = proposal.envelope;
    // A named call, such as a tool call, keeps its name: only the arguments are edited.
    const isNamed = parseKind(kind).name !== undefined;
    askArguments(nameOf(proposal), isNamed ? params.arguments ?? {} : params, (value) => {
      const changed = isNamed ? { ...params, arguments: value } : value;
      this._decide(proposal, amendment(proposal, newId(), changed));
    });
  }

  reject(proposal) {
    askReason(nameOf(proposal), (reason) => this._decide(proposal, rejection(proposal, reason)));
  }

  /** Apply a filter at the gateway, and hide what it does not pass at once. */
  applyFilter(filter) {
    const { model, connection } = this;
    this._target = null;
    if (connection.isOpen && !model.needsHistory(filter)) {
      this.send({ kind: "pod/filter", payload: { filter } });
    } else {
      model.useFilter(filter);
      // A connection that is still opening has requested another filter.
      if (connection.isActive) connection.open();
    }
    this.schedule();
    this._writeView(filter);
  }

  select(item) {
    this._target = null;
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
    this.log.fold(node, folded);
  }

  /** Show an envelope in the log; clear the filter, the selection or the search if they hide it. */
  find(id) {
    if (this.searchBar.isPending) this.searchBar.apply(); // or a search that was just typed would hide it again
    const entry = this.past.log.find(id) ?? this.model.log.find(id);
    if (!entry) return;
    if (entry.position === undefined && !this.model.passes(entry)) {
      this.applyFilter(everything);
      this._target = id;
      return;
    }
    if (entry.position === undefined && !this.rows.isIncluded(entry)) this._showEverything();
    const rows = entry.position === undefined ? this.rows : this.pastRows;
    for (let node = entry.node; node; node = node.parent) {
      if (rows.isFolded(node)) this.fold(node, false);
    }
    const index = this.shown.indexOf(entry);
    if (index >= 0) this.log.list.show(index, { focus: true, center: true });
  }

  /** Search all of the log; null shows everything again. */
  search(search) {
    this.rows.search = search;
    this._layOut();
    this._writeView();
  }

  /** Show a match among the messages around it. */
  reveal(entry) {
    this._showEverything();
    if (entry.position === undefined) this.find(entry.envelope.id);
    else this.navigation.reveal(entry);
  }

  /** Show what a participant's model would see at an entry, or now. */
  look(viewer, entry) {
    const known = new Set([...this.model.participants.keys(), viewer]);
    for (const { log } of [this.model, this.past]) for (const one of log.entries) if (one.envelope) known.add(one.envelope.from);
    known.delete(GATEWAY);
    const participants = [...known].sort();
    const first = known.has(viewer) ? viewer : participants[0];
    showPrompt({ participants, viewer: first, entry }, (options) => fetchPrompt(this._token, options));
  }

  /** Show the log at a time, in seconds. */
  goTo(seconds) {
    if (this.rows.search) this._showEverything();
    if (byId("app").dataset.part === "timeline") this._show("log");
    this.navigation.goTo(seconds);
  }

  export() {
    // In valid JSON, raw line breaks occur only between tokens, never inside a string.
    const entries = [...this.past.log.entries, ...this.rows.selected()];
    const lines = entries.map(({ text }) => text.replace(/[\r\n]+/g, " "));
    const blob = new Blob([lines.map((line) => `${line}\n`).join("")], { type: "application/jsonl" });
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(blob);
    anchor.download = `${this.model.session.pod?.name ?? "pod"}.jsonl`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1_000);
  }

  signOut(reason) {
    this.model.outbox.clear(); // prevents the browser's prompt about unsent messages
    this._signOut(reason);
  }

  // --- private ----------------------------------------------------------------------------------

  /** Answer a proposal, or throw an error if it has been decided in the meantime. */
  _decide(proposal, draft) {
    const now = this.model.proposals.find(proposal.envelope.id, proposal.text);
    const decided = resolution(now ?? { ...proposal, state: "hidden" }, this.model);
    if (decided) throw new Error(`Already decided: ${decided.text}.`);
    this.send(draft);
    this._slow = 0;
    this.schedule();
  }

  _decideAtOnce(proposal, draft) {
    if (this.model.outbox.answerTo(proposal.envelope.id)) return; // a double click
    try {
      this._decide(proposal, draft);
    } catch (error) {
      showProblem("Not sent", error.message);
    }
  }

  // Something was erased: no copy of it stays in the page.
  _reload() {
    this.model.reload();
    this.log.layOut();
    this.connection.open();
  }

  _replay(payload) {
    this.connection.send(this.model.outbox.write({ kind: "pod/replay", payload }, Date.now()));
  }

  _probe() {
    const probe = this.model.probe();
    if (probe) this.send(probe);
  }

  _layOut() {
    this.navigation.update();
    this.log.layOut();
    this.log.list.toEnd();
    this.schedule();
  }

  /** Select the context that the link names; if it is not loaded, it is loaded from the past. */
  _resolveView() {
    const { main, context } = this._view;
    if (main) this.select("main");
    else if (context && isId(context)) this.select(this.model.tree.get(context) ?? new ContextNode(context, -1));
    else if (context && byId("selection").hidden) this._showSelection();
  }

  // A selected context of the past has another node in each newly loaded stretch, and in the received log.
  _followSelection() {
    const { selection } = this.rows;
    if (!(selection instanceof Object) || !this.past.has(selection)) return;
    const known = this.model.tree.get(selection.id);
    const now = known?.count ? known : this.past.tree.get(selection.id);
    if (!now || now === selection) return;
    this.rows.selection = this.tree.selected = this.timeline.selection = now;
    this._slow = 0;
    this.log.layOut();
    this._showSelection();
  }

  // The history was reloaded: nodes of the previous tree are no longer valid.
  _forgetNodes() {
    this._cleared = this.model.cleared;
    const { selection } = this.rows;
    if (!(selection instanceof Object)) return;
    const again = this.model.tree.get(selection.id) ?? new ContextNode(selection.id, -1);
    this.rows.selection = this.tree.selected = this.timeline.selection = again;
    this._showSelection();
  }

  _followRestarted() {
    const again = this._restarted && this.model.tree.get(this._restarted.id);
    if (!again || again === this._restarted) return;
    if (this.rows.selection === this._restarted) this.select(again);
    this._restarted = null;
  }

  // Shows the target once the filter is cleared, which may require reloading the history.
  _showTarget() {
    const { model, _target: id } = this;
    const entry = id && !model.isReloading && model.log.find(id);
    if (!entry || !model.passes(entry)) return;
    this._target = null;
    this.find(id);
  }

  _refused({ envelope, about }) {
    const message = String(envelope.payload?.message ?? envelope.payload?.error);
    if (about?.kind === "pod/filter") this.filters.refuse(message);
    else this.composer.refused(envelope.correlation_id, `Refused: ${message}`);
  }

  _showSelection() {
    const { selection } = this.rows;
    const box = byId("selection");
    const { context } = this._view; // of a link, if it is not the id of one
    box.hidden = selection === null && !context;
    if (!box.hidden) {
      const isLoaded = selection === "main" || selection?.number >= 0;
      const name = selection === "main" ? "the main context" : `${selection?.type ?? "context"} ${shortId(selection?.id ?? "")}`;
      box.replaceChildren(
        isLoaded ? "Showing only " : "Context not loaded: ", h("strong", { dir: "auto" }, isLoaded ? name : selection?.id ?? context), " ",
        h("button", { class: "link", on: { click: () => this.select(null) } }, "Show everything"));
    }
    this._writeView();
  }

  _writeView(filter = this.model.filter) {
    const { selection, descendants } = this.rows;
    const fragment = writeView({
      filter: isSame(filter, everything) ? "" : print(filter),
      main: selection === "main",
      context: selection instanceof Object ? selection.id : null,
      descendants,
      search: this.searchBar.text,
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
    this.connection.check();
    this.composer.update();
    this.bar.showRates(Date.now());
    this.replayBar.update(Date.now());
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
    byId("follow").addEventListener("click", () => this.log.list.toEnd());
    byId("log").addEventListener("scroll", () => this._showFollow(), { passive: true });
    byId("export").addEventListener("click", () => this.export());
    byId("copy-link").addEventListener("click", () => {
      this._writeView();
      showLink(location.href);
    });
    byId("reconnect").addEventListener("click", () => this.connection.open());
    byId("settings-button").addEventListener("click", () => this._settings());
    for (const button of document.querySelectorAll("[data-part]")) {
      if (button.tagName === "BUTTON") button.addEventListener("click", () => this._show(button.dataset.part));
    }
    document.addEventListener("keydown", (event) => this._key(event));
    // Messages waiting for the connection exist only in this page.
    window.addEventListener("beforeunload", (event) => {
      if (this.model.outbox.hasUnsent) event.preventDefault();
    });
  }

  _showEverything() {
    this.searchBar.text = "";
    this.searchBar.apply();
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
      "/": () => this.searchBar.focus(),
      n: () => this.navigation.step("older"),
      N: () => this.navigation.step("newer"),
      d: () => this.searchBar.askTime(),
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
