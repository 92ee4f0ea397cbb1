// Loads pages of the past as they are needed: sends the requests, repeats them, and counts matches.

const PACE_MS = 40; // between pages without an entry: each costs a token of the rate
const RETRY_MS = 1_000;

export class HistoryLoader {
  /** `connection` sends texts; `changed()` is called after each answer, and after a rest. */
  constructor(model, past, matches, connection, changed) {
    this._model = model;
    this._past = past;
    this._matches = matches;
    this._connection = connection;
    this._changed = changed;
    this._rests = new Set(); // edges that wait before the next request
  }

  /** Load more at an edge of the past, if there is more. `again` repeats what was refused. */
  load(edge, { again = false } = {}) {
    if (!this._isReady || this._rests.has(edge)) return;
    if (this._past.stateOfEdge(edge) === "problem" && !again) return;
    const request = this._past.ask(edge);
    if (!request) return;
    this._send(request, {
      accept: (page) => {
        this._past.noteIndex(page);
        if (!page.entries.length) this._rest(edge, PACE_MS);
        this._past.accept(edge, request, page);
        this._changed();
      },
      refuse: (refusal) => {
        this._refused(edge, request, refusal);
        this._changed();
      },
    });
  }

  /** Count the matches of a search, from its newest page on. */
  count() {
    if (!this._isReady || this._rests.has("matches")) return;
    const request = this._matches.ask();
    if (!request) return;
    this._send(request, {
      accept: (page) => {
        this._past.noteIndex(page);
        this._matches.accept(request, { ...page, entries: page.entries.filter((entry) => this._past.shows(entry)) });
        this.count();
        this._changed();
      },
      refuse: () => {
        this._matches.disconnect();
        this._rest("matches", RETRY_MS);
      },
    });
  }

  /** Pass the first entry at or after a time to a function, undefined if there is none or it is not answered. */
  locate(time, found) {
    if (!this._isReady) return;
    const follow = (request) =>
      this._send(request, {
        accept: ({ entries, next }) => {
          if (entries.length || next === null) found(entries[0]);
          else follow({ ...request, cursor: next });
        },
        refuse: () => found(undefined),
      });
    follow(this._past.firstSince(time));
  }

  /** Continue on a new connection. */
  resume() {
    this._past.disconnect();
    this._matches.disconnect();
  }

  get _isReady() {
    const { session, isReloading } = this._model;
    return this._connection.isOpen && !session.isReplaying && !isReloading;
  }

  _refused(edge, request, { code, member, message }) {
    if (code === "rate_limited") this._rest(edge, RETRY_MS);
    const isGone = code === "invalid_history" && typeof request[member] === "string" && ["after", "before"].includes(member);
    if (isGone) this._past.lose(edge, request);
    else this._past.refuse(edge, request, code === "rate_limited" ? "" : message);
  }

  _send(request, answers) {
    const draft = this._model.history.ask(request, answers);
    this._connection.send(this._model.outbox.write(draft, Date.now()));
  }

  _rest(name, milliseconds) {
    this._rests.add(name);
    setTimeout(() => {
      this._rests.delete(name);
      this._changed();
    }, milliseconds);
  }
}
