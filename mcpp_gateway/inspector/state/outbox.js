// What we say: on its way until it comes back, over as many connections as that takes, or refused.

const MAX_REFUSALS = 200;

/** An envelope over the gateway's limit: sent all the same it would cost the connection (P-07). */
export class TooLargeError extends Error {
  constructor(bytes, limit) {
    const [size, most] = [bytes, limit].map((number) => number.toLocaleString("en"));
    super(`This is too large to be sent: ${size} bytes, and the gateway takes ${most}.`);
  }
}

export class Outbox {
  /** `changed` is told the id of an envelope whose answer was sent or refused. */
  constructor(session, { newId, changed }) {
    this.due = []; // texts to send now that what they follow is confirmed; whoever sends takes them
    this.refusals = []; // {envelope: the error, about: what was refused, answers: the id it answered}
    this._session = session;
    this._newId = newId;
    this._changed = changed;
    this._pending = new Map(); // by id
  }

  /**
   * Return the text of an envelope to send, which counts as sent once it comes back: what is to
   * follow it `then` becomes due, and never if it is refused. Throw a TooLargeError if it cannot be
   * sent.
   */
  compose(draft, now) {
    const envelope = this._write(draft, now);
    const then = draft.then && this._write(draft.then, now);
    const problem = this._tooLarge(envelope);
    if (problem) throw problem;
    // A request with other arguments is about the proposal that its rejection names.
    const answers = (then ?? envelope).correlation_id;
    this._pending.set(envelope.id, { envelope, then, since: now, answers });
    this._changed(answers);
    return JSON.stringify(envelope);
  }

  /** Return our answer to an envelope that is on its way. */
  answerTo(id) {
    return [...this._pending.values()].find(({ answers }) => answers === id)?.envelope;
  }

  /** Return why our last answer to an envelope was refused, unless another is on its way. */
  refusalOf(id) {
    if (this.answerTo(id)) return undefined;
    return this.refusals.findLast(({ answers }) => answers === id)?.envelope.payload?.message;
  }

  /** Return what we said that is not confirmed, the oldest first: {envelope, since} each. */
  get unheard() {
    return [...this._pending.values()].filter(({ envelope }) => envelope.kind === "chat");
  }

  /** Tell whether something that a person said or decided waits for the line. */
  get isOwed() {
    return !this._session.isOpen && [...this._pending.values()].some(({ envelope }) => !isFilter(envelope));
  }

  /** Tell whether the gateway has yet to answer to a filter. */
  get hasFilter() {
    return [...this._pending.values()].some(({ envelope }) => isFilter(envelope));
  }

  /** Forget the filters that were not answered: another is newer. */
  dropFilters() {
    for (const { envelope } of [...this._pending.values()]) if (isFilter(envelope)) this._pending.delete(envelope.id);
  }

  clear() {
    this._pending.clear();
  }

  /** Take note that an envelope came back or was answered. */
  confirm(id) {
    const { then, since, answers } = this._pending.get(id) ?? {};
    this._pending.delete(id);
    if (!then) return;
    this._pending.set(then.id, { envelope: then, since, answers });
    this.due.push(this._text(then));
  }

  /** Take note of an error that the gateway answers with. */
  refuse(envelope) {
    const { envelope: about, answers } = this._pending.get(envelope.correlation_id) ?? {};
    this._pending.delete(envelope.correlation_id);
    this.refusals.push({ envelope, about, answers });
    if (this.refusals.length > MAX_REFUSALS) this.refusals.shift();
    this._changed(answers); // it waits for an answer again
  }

  /** Refuse what is over the limit that a welcome tells: what was said before did not know it. */
  refuseTooLarge({ ts }) {
    for (const { envelope } of [...this._pending.values()]) {
      const problem = this._tooLarge(this._mine(envelope));
      if (problem) this._refuse({ id: envelope.id, ts }, "too_large", problem.message);
    }
  }

  /**
   * Return what has to be sent again on a new connection: the pod knows a repetition by its id. If
   * somebody else was first while we were away, a second request would be a second call.
   */
  repeat(isDecided) {
    this.due.length = 0;
    for (const { envelope, answers } of [...this._pending.values()]) {
      if (!isDecided(answers)) continue;
      this._refuse(envelope, "decided", "It was not sent: the proposal was decided while the line was cut.");
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

  // What was said before the first welcome did not know yet whose it is.
  _mine(envelope) {
    return { ...envelope, from: this._me };
  }

  _tooLarge(envelope) {
    const limit = this._session.limits.max_message_bytes ?? Infinity;
    const bytes = new TextEncoder().encode(JSON.stringify(envelope)).length;
    return bytes > limit ? new TooLargeError(bytes, limit) : null;
  }
}

const isFilter = ({ kind }) => kind === "pod/filter";
