// The signed-in inspector: connects the model with the gateway connection and redraws what changed.

import { Connection, fetchBlob, fetchPrompt } from "./net.js";
import { Controls } from "./controls.js";
import { Decisions } from "./decisions.js";
import { saveEntries } from "./download.js";
import { ReplayRequests } from "./replay-requests.js";
import { Selection } from "./selection.js";
import { loadSettings } from "./settings.js";
import { print } from "./state/filter/expression.js";
import { everything, isSame } from "./state/filter/filter.js";
import { newId } from "./state/ids.js";
import { GATEWAY } from "./state/kinds.js";
import { writeView } from "./state/filter/link.js";
import { Navigation } from "./navigation.js";
import { Past } from "./state/history/past.js";
import { Model } from "./state/model.js";
import { Rows } from "./state/log/rows.js";
import { Shown } from "./state/log/shown.js";
import { Announcer } from "./view/elements/announcer.js";
import { Bar } from "./view/bar.js";
import { Composer } from "./view/composer.js";
import { byId, oncePerFrame, setText } from "./view/elements/dom.js";
import { FilterBar } from "./view/filters.js";
import { LiveView } from "./view/live.js";
import { LogView } from "./view/log/log.js";
import { PeopleView } from "./view/people.js";
import { QuestionsView } from "./view/decisions/questions.js";
import { showPrompt } from "./view/prompt.js";
import { ReplayBar } from "./view/replay.js";
import { SearchBar } from "./view/search.js";
import { ClickGuard } from "./view/elements/click-guard.js";
import { TimelineView } from "./view/timeline.js";
import { TreeView } from "./view/tree.js";

const SLOW_MS = 250; // the tree, people and timeline are not redrawn every frame

export class Inspector {
  /** `view` is the view that a link asks for; `signOut(reason)` returns to the sign-in form. */
  constructor(token, view, signOut) {
    this._link = view;
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
      fetchBlob: (attachment) => fetchBlob(this._token, attachment),
      readCard: (participant) => this._readCard(participant),
      approve: (proposal) => this.decisions.approve(proposal),
      confirm: (proposal) => this.confirm(proposal),
      edit: (proposal) => this.decisions.edit(proposal),
      reject: (proposal) => this.decisions.reject(proposal),
      withdraw: (proposal) => this.decisions.withdraw(proposal),
      answer: (question) => this.decisions.answer(question),
      decline: (question) => this.decisions.decline(question),
    };
    this.bar = new Bar(model);
    this.decisions = new Decisions(model, (draft) => {
      this.send(draft);
      this._redrawSlowParts();
    });
    this.announcer = new Announcer();
    this.clickGuard = new ClickGuard(".decision");
    this.log = new LogView(byId("log"), logs, this.settings, actions);
    this.tree = new TreeView(byId("tree"), model, past, (item) => this.select(item));
    this.timeline = new TimelineView(byId("timeline"), model, past, (node) => this.select(node));
    this.live = new LiveView(model);
    this.people = new PeopleView(model, actions);
    this.questions = new QuestionsView(model, actions);
    this.filters = new FilterBar(model, (filter) => this.applyFilter(filter), () => this.rows);
    this.connection = new Connection(model, token, {
      received: (text) => this.received(text),
      state: (name, facts) => this.showState(name, facts),
      probe: () => this._probe(),
      signedOut: (reason) => this.signOut(reason),
    });
    this.replay = new ReplayRequests(model, this.connection);
    this.replayBar = new ReplayBar(model, (payload) => this.replay.ask(payload));
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
    this.selection = new Selection(logs, view, { tree: this.tree, timeline: this.timeline }, {
      select: (item) => this.select(item),
      layOut: () => {
        this._slow = 0;
        this.log.layOut();
      },
      shown: () => this._writeView(),
    });
    this.controls = this._newControls();
    this._applySettings();
  }

  start() {
    byId("filter").value = this._link.filter;
    this.model.filter = this.filters.read() ?? everything;
    this.searchBar.text = this._link.search;
    this.rows.search = this.searchBar.read() ?? null;
    byId("descendants").checked = this.rows.descendants = this._link.descendants;
    this.connection.open();
    this._everySecond();
    setInterval(() => this._everySecond(), 1_000);
    this.replay.start();
  }

  // --- incoming frames --------------------------------------------------------------------------

  received(text) {
    const { model } = this;
    const { refusals } = model.outbox;
    const last = refusals.at(-1);
    const what = model.receive(text, Date.now());
    if (refusals.at(-1) !== last) this._refused(refusals.at(-1));
    if (what === "live") this.announcer.add(model.log.entries.at(-1)?.envelope);
    if (["welcome", "filter", "page", "card"].includes(what)) this._slow = 0;
    if (what === "welcome") this.navigation.resume();
    if (model.isStale && !model.session.isReplaying) this._reload();
    if (what === "welcome" || what === "replay") this.replayBar.update();
    if (!model.session.isReplaying) this.selection.resolve();
    this.schedule();
  }

  refresh() {
    this.selection.follow();
    this.navigation.update();
    if (!this.model.session.isReplaying || this.rows.rows.length === 0) this.log.update();
    this.live.update();
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
    this.questions.update();
    this.filters.update();
    this.composer.update();
    this.bar.update(this.people.waiting + this.questions.waiting);
  }

  showState(name, facts) {
    this.bar.showState(name, facts);
    if (name === "open") {
      if (!this.model.replay) this.connection.send(this.model.outbox.write(this.model.cards.announce(), Date.now()));
      this.replay.follow();
    }
    // Decisions that are not sent yet show the state of the connection.
    this.log.list.invalidateAll();
    this._redrawSlowParts();
  }

  // --- user actions -----------------------------------------------------------------------------

  /** Send a draft, or throw a TooLargeError. */
  send(draft) {
    this.connection.send(this.model.outbox.compose(draft, Date.now()));
  }

  sendMessage(draft) {
    this.send(draft);
    this.selection.sent(draft);
  }

  /** Offer to approve a proposal although its proposer is gone. */
  confirm(proposal) {
    this.model.confirm(proposal);
    this.schedule();
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
    this.selection.set(item);
    this.composer.enter(item);
    this._slow = 0;
    this._layOut();
    this.selection.show();
    this.controls.leave("contexts");
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
    this.controls.leave("timeline");
    this.navigation.goTo(seconds);
  }

  export() {
    saveEntries([...this.past.log.entries, ...this.rows.selected()], this.model.session.pod?.name ?? "pod");
  }

  signOut(reason) {
    this.model.outbox.clear(); // prevents the browser's prompt about unsent messages
    this._signOut(reason);
  }

  // --- private ----------------------------------------------------------------------------------

  _readCard(participant) {
    const draft = this.connection.isOpen ? this.model.cards.ask(participant) : null;
    if (draft) this.connection.send(this.model.outbox.write(draft, Date.now()));
  }

  _newControls() {
    const { log, searchBar, navigation, tree } = this;
    const keys = {
      "/": () => searchBar.focus(),
      n: () => navigation.step("older"),
      N: () => navigation.step("newer"),
      d: () => searchBar.askTime(),
      f: () => byId("filter").focus(),
      c: () => this.composer.focus(),
      t: () => tree.list.show(tree.list.active, { focus: true }),
      g: () => log.list.show(log.count() - 1, { focus: true }),
    };
    return new Controls(this.settings, keys, {
      onlyOpen: (isOnly) => {
        tree.onlyOpen = isOnly;
        tree.update();
      },
      descendants: (areShown) => {
        this.rows.descendants = areShown;
        this._layOut();
        this._writeView();
      },
      follow: () => log.list.toEnd(),
      scrolled: () => this._showFollow(),
      shown: () => {
        this._redrawSlowParts();
        for (const { list } of [log, tree, this.timeline]) list.schedule();
      },
      export: () => this.export(),
      writeLink: () => this._writeView(),
      reconnect: () => this.connection.open(),
      hasUnsent: () => this.model.outbox.hasUnsent,
      showEverything: () => this._showEverything(),
      signOut: () => this.signOut(""),
      applySettings: () => {
        this._applySettings();
        this._layOut();
      },
    });
  }

  _applySettings() {
    this.rows.foldConcluded = this.settings.foldConcluded;
  }

  _redrawSlowParts() {
    this._slow = 0;
    this.schedule();
  }

  // Something was erased: no copy of it stays in the page.
  _reload() {
    this.model.reload();
    this.log.layOut();
    this.connection.open();
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

  _writeView(filter = this.model.filter) {
    const { selection, descendants } = this.rows;
    const fragment = writeView({
      filter: isSame(filter, everything) ? "" : print(filter),
      main: selection === "main",
      context: selection instanceof Object ? selection.id : null,
      descendants,
      search: this.searchBar.text,
    });
    history.replaceState(null, "", location.pathname + location.search + fragment);
  }

  _showFollow() {
    const { list } = this.log;
    if (list.isAtEnd) this._seenTo = this.model.log.end;
    const button = byId("follow");
    const behind = Math.max(0, this.model.log.end - (this._seenTo ?? 0));
    button.hidden = list.isAtEnd || list.isWhole || byId("log").hidden;
    if (!button.hidden) setText(byId("follow-text"), behind ? `${behind.toLocaleString("en")} new` : "Latest");
  }

  _everySecond() {
    this.connection.check();
    this.composer.update();
    this.bar.showRates(Date.now());
    this.model.live.expire(Date.now());
    this.live.update();
  }

  _showEverything() {
    this.searchBar.text = "";
    this.searchBar.apply();
    this.select(null);
  }
}
