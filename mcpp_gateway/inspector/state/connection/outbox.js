// Outgoing envelopes: pending until echoed or refused, across reconnections.

const MAX_REFUSALS = 200;

/** An envelope exceeds the gateway's size limit; sending it would close the connection (P-07). */
export class TooLargeError extends Error {
  constructor(bytes, limit) {
    const [size, maximum] = [bytes, limit].map((number) => number.toLocaleString("en"));
    super(`Too large to send: ${size} bytes. The gateway accepts ${maximum}.`);
  }
}

export class Outbox {
  /** `changed(id)` is called with the id of an envelope whose answer was sent or refused. */
  constructor(session, { newId, changed }) {
    this.due = []; // texts that follow confirmed envelopes; taken by the connection
    this.refusals = []; // {envelope: the error, about: what was refused, answers: the id it answered}
    this._session = session;
    this._newId = newId;
    this._changed = changed;
    this._pending = new Map(); // by id
  }

  /**
   * Return the text of an envelope to send. It is confirmed by its echo, and then the draft in
   * `then` becomes due; never if it is refused. Throw a TooLargeError if it cannot be sent.
   */
  compose(draft, now) {
    const envelope = this._write(draft, now);
    const then = draft.then && this._write(draft.then, now);
    const problem = this._tooLarge(envelope);
    if (problem) throw problem;
    // An edited request answers the proposal that its rejection refers to.
    const answers = (then ?? envelope).correlation_id;
    this._pending.set(envelope.id, { envelope, then, since: now, answers });
    this._changed(answers);
    return JSON.stringify(envelope);
  }

  /** Return the text of an envelope that is not repeated on another connection. */
  write(draft, now) {
    return JSON.stringify(this._write(draft, now));
  }

  /** Return the pending answer to an envelope. */
  answerTo(id) {
    return [...this._pending.values()].find(({ answers }) => answers === id)?.envelope;
  }

  /** Return why the last answer to an envelope was refused, unless another is pending. */
  refusalOf(id) {
    if (this.answerTo(id)) return undefined;
    return this.refusals.findLast(({ answers }) => answers === id)?.envelope.payload?.message;
  }

  /** Unconfirmed chat messages, the oldest first: {envelope, since} each. */
  get unconfirmedChats() {
    return [...this._pending.values()].filter(({ envelope }) => envelope.kind === "chat");
  }

  /** Whether messages or decisions are waiting for the connection. */
  get hasUnsent() {
    return !this._session.isOpen && [...this._pending.values()].some(({ envelope }) => !isFilter(envelope));
  }

  /** Whether a filter has not been answered yet. */
  get hasFilter() {
    return [...this._pending.values()].some(({ envelope }) => isFilter(envelope));
  }

  /** Drop unanswered filters, because a newer one replaces them. */
  dropFilters() {
    for (const { envelope } of [...this._pending.values()]) if (isFilter(envelope)) this._pending.delete(envelope.id);
  }

  clear() {
    this._pending.clear();
  }

  /** Record that an envelope was echoed or answered. */
  confirm(id) {
    const { then, since, answers } = this._pending.get(id) ?? {};
    this._pending.delete(id);
    if (!then) return;
    this._pending.set(then.id, { envelope: then, since, answers });
    this.due.push(this._text(then));
  }

  /** Record a refusal by the gateway. */
  refuse(envelope) {
    const { envelope: about, answers } = this._pending.get(envelope.correlation_id) ?? {};
    this._pending.delete(envelope.correlation_id);
    this.refusals.push({ envelope, about, answers });
    if (this.refusals.length > MAX_REFUSALS) this.refusals.shift();
    this._changed(answers); // it can be answered again
  }

  /** Refuse pending envelopes over the limit of a welcome: they may precede the first one. */
  refuseTooLarge({ ts }) {
    for (const { envelope } of [...this._pending.values()]) {
      const problem = this._tooLarge(this._mine(envelope));
      if (problem) this._refuse({ id: envelope.id, ts }, "too_large", problem.message);
    }
  }

  /**
   * Return the texts to send again on a new connection; the gateway deduplicates them by id. Answers
   * to proposals that were decided meanwhile are dropped: a second request would be a second call.
   */
  repeat(isDecided) {
    this.due.length = 0;
    for (const { envelope, answers } of [...this._pending.values()]) {
      if (!isDecided(answers)) continue;
      this._refuse(envelope, "decided", "Not sent: the proposal was decided while you were disconnected.");
    }
    return [...this._pending.values()].map(({ envelope }) => this._text(envelope));
  }

  _refuse({ id, ts }, error, message) {
    this.refuse({ id, ts, correlation_id: id, payload: { error, message } });
  }

  _write({ id = this._newId(), kind, payload = {}, to, context, correlation_id }, now) {
    const envelope = { protocol: "mcpp/v0.1", id, ts: new Date(now).toISOString(), from: this._me };
    if (to?.length) envelope.to = to;
    envelope.kind = kind;
    if (correlation_id) envelope.correlation_id = correlation_id;
    if (context) envelope.context = context;
    return { ...envelope, payload };
  }

  get _me() {
    return this._session.you?.id ?? null;
  }

  _text(envelope) {
    return JSON.stringify(this._mine(envelope));
  }

  // An envelope composed before the first welcome has no sender yet.
  _mine(envelope) {
    return { ...envelope, from: this._me };
  }

  _tooLarge(envelope) {
    const limit = this._session.limits.max_message_bytes ?? Infinity;
    const bytes = new TextEncoder().encode(JSON.stringify(envelope)).length;
    return bytes > limit ? new TooLargeError(bytes, limit) : null;
  }
}

// Requests about the connection itself, of which the last replaces the others.
const isFilter = ({ kind }) => kind === "pod/filter";
