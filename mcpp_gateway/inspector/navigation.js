// Ways through the log: scrolling back, searching, going to a time or to a message, opening past contexts.

import { HistoryLoader } from "./history.js";
import { Matches } from "./state/history/matches.js";
import { queryOf } from "./state/history/query.js";

const WHOLE_CONTEXT = 1_700; // envelopes of a past context that are loaded without scrolling

export class Navigation {
  /**
   * `logs` has {model, past, rows, pastRows, shown}; `log` is the view of them. `schedule()` redraws,
   * `find(id)` shows a loaded envelope.
   */
  constructor(logs, connection, { log, bar, schedule, find }) {
    Object.assign(this, logs);
    this._log = log;
    this._bar = bar;
    this._schedule = schedule;
    this._find = find;
    this.matches = new Matches();
    this._loader = new HistoryLoader(this.model, this.past, this.matches, connection, () => this._loaded());
    this._seek = null; // the entry to show once it is laid out
    this._current = null; // key of the match that the user is at
    this._countedFrom = 0; // seq of the first received entry: what is older is counted
    this._stepping = null;
  }

  /** Continue on a new connection. */
  resume() {
    this._loader.resume();
  }

  /** Bring the query of the past up to date with filter, selection and search. */
  update() {
    this.past.sync();
    const { selection, descendants, search } = this.rows;
    const query = queryOf(this.model, { selection, descendants, search });
    if (JSON.stringify(query) !== JSON.stringify(this.past.query)) {
      this.past.use(query);
      this.matches.stop();
      this._current = null;
    }
    if (this._countedFrom !== this.model.log.first) {
      this._countedFrom = this.model.log.first;
      this.matches.stop(); // what was received and removed since belongs to the past
    }
    if (this._isOpeningContext) this._loader.load("older");
    if (search) this._count();
    this._showMatches();
  }

  /** Load more at an edge: "older", "newer", or "latest" for what is just before the received log. */
  load(edge, options) {
    if (edge === "latest") {
      if (this._seek) return;
      this.past.restart();
      this._loader.load("older");
    } else {
      this._loader.load(edge, options);
    }
    this._schedule();
  }

  /** Load what is missing at a mark: the entries before it are forgotten, and loaded again on demand. */
  fill({ seq }) {
    this.model.forgetTo(seq);
    this.past.restart();
    this._schedule();
  }

  /** Show the log at a time, in seconds. */
  goTo(time) {
    if (!this.past.isAvailable) return;
    this._loader.locate(time, (entry) => {
      if (!entry) this._log.list.toEnd();
      else if (this.past.isReceived(entry)) this._find(entry.envelope.id);
      else this.reveal(entry);
    });
  }

  /** Show an entry of the past among those around it. */
  reveal(entry) {
    this.past.around(entry);
    this.pastRows.revealed = entry.envelope.id;
    this._seek = entry;
    this._schedule();
  }

  /** Go to the next match, "older" or "newer". */
  step(direction) {
    const { shown, past } = this;
    if (!this.rows.search || shown.count === 0) return;
    const isOlder = direction === "older";
    const here = this._current === null ? shown.count : shown.find(this._current);
    const next = this._current === null && !isOlder ? shown.count - 1 : here + (isOlder ? -1 : 1);
    if (next < 0 || next >= shown.count) return;
    const { edge } = shown.at(next);
    if (!edge) {
      this._current = shown.key(next);
      this._log.list.show(next, { center: true });
      this._showMatches();
    } else if (past.stateOfEdge(edge) !== "end") {
      this._stepping = direction;
      this._loader.load(edge);
    }
  }

  /** Show what was asked for, once it is laid out. */
  arrive() {
    if (!this._seek) return;
    const { envelope } = this._seek;
    this._seek = null;
    this._find(envelope.id);
  }

  // A past context is loaded as a whole, so that its tree and its timeline are complete.
  get _isOpeningContext() {
    const { selection } = this.rows;
    if (!(selection instanceof Object) || this.rows.search) return false;
    const isPast = this.past.has(selection) || !selection.count; // the welcome lists live contexts without messages
    return isPast && this.past.log.size < WHOLE_CONTEXT;
  }

  // Called after each answer, and when an edge may be asked again: a page without a match is no end.
  _loaded() {
    if (this._stepping) {
      const direction = this._stepping;
      this._stepping = null;
      this._log.update();
      this.step(direction);
    }
    this._log.list.schedule(); // which loads more if an edge is in view
    this._schedule();
  }

  _count() {
    const { past, matches } = this;
    const isAll = past.older.isDone && past.isAttached;
    if (!isAll && !matches.isCounting && !matches.isComplete && !matches.positions.length && past.isAvailable) {
      matches.start(past.firstRequest());
    }
    const current = this._currentEntry;
    if (!isAll && current?.position !== undefined) matches.countTo(current.position);
    this._loader.count();
  }

  _showMatches() {
    const { rows, past, matches } = this;
    if (!rows.search) {
      this._bar.showMatches(null);
      return;
    }
    const isAll = past.older.isDone && past.isAttached;
    const older = isAll ? past.log.size : Math.max(matches.positions.length, past.log.size);
    this._bar.showMatches({
      count: rows.rows.length + older,
      isComplete: isAll || matches.isComplete || !past.isAvailable,
      indexing: past.indexing,
      isSearching: past.stateOfEdge("older") === "loading" || past.stateOfEdge("older") === "idle",
      rank: this._rank(isAll),
    });
  }

  get _currentEntry() {
    const { shown } = this;
    const index = this._current === null ? -1 : shown.find(this._current);
    return index >= 0 && index < shown.count ? shown.at(index).entry : undefined;
  }

  // The newest match is the first.
  _rank(isAll) {
    const { shown, rows, past, matches, _currentEntry: entry } = this;
    if (!entry) return null;
    if (entry.position === undefined) return shown.count - shown.find(this._current);
    const place = isAll ? past.log.size - past.log.entries.findIndex(({ position }) => position === entry.position) : matches.rank(entry.position);
    return place === null ? null : rows.rows.length + place;
  }
}

