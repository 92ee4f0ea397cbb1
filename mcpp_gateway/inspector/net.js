// The line to the gateway: opens it, opens it again, and never loses what came over it.

import { Pulse } from "./state/pulse.js";

const SUBPROTOCOL = "mcpp.v0.1";
const LOST = 1006; // as if it had been cut
const CHECK_MS = 5_000;
const NO_LONGER_ADMITTED = { 4501: "This token was revoked.", 4502: "This session is over: sign in again." };

export class Line {
  /** `events` has received(text), state(name, facts), ask() and signedOut(reason). */
  constructor(model, token, events) {
    this._model = model;
    this._token = token;
    this._events = events;
    this._socket = null;
    this._timer = null;
    this._isWelcomed = false;
    this._welcomedAt = 0;
    this._resend = false;
  }

  /** Whether what is sent now is heard. */
  get isOpen() {
    return this._isWelcomed && this._socket?.readyState === WebSocket.OPEN;
  }

  /** Whether a line is being opened or is open: one that waits for its next attempt is neither. */
  get isThere() {
    return this._socket !== null;
  }

  open() {
    clearTimeout(this._timer);
    const { session, filter, isReloading } = this._model;
    const query = session.query(filter, { fresh: isReloading });
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const url = `${scheme}://${location.host}/ws?${query}`;
    const socket = new WebSocket(url, [SUBPROTOCOL, `mcpp.bearer.${this._token}`]);
    const before = this._socket;
    const pulse = (this._pulse = new Pulse());
    pulse.asked(performance.now());
    // One that was not welcomed yet might be after this one, and then it would be the newer.
    if (!this._isWelcomed) before?.close();
    this._socket = socket;
    this._isWelcomed = false;
    socket.addEventListener("message", ({ data }) => {
      if (this._socket !== socket) return;
      pulse.heard(performance.now());
      this._events.received(data);
      if (!this._isWelcomed) {
        this._isWelcomed = true;
        this._welcomedAt = performance.now();
        this._events.state("open");
        // The pod still knows us by the newer line: the older one may go, and nobody hears of it.
        before?.close();
      }
      this._catchUp();
    });
    socket.addEventListener("close", ({ code, reason }) => {
      before?.close();
      if (this._socket === socket) this._closed(code, reason);
    });
    this._resend = true;
    if (!before) this._events.state("connecting");
  }

  send(text) {
    if (!this.isOpen) return;
    this._socket.send(text);
    this._pulse.asked(performance.now());
  }

  /** Look whether the line still lives: to be called now and then. */
  check() {
    if (!this._socket) return;
    const verdict = this._pulse.check(performance.now());
    if (verdict === "ask") this._events.ask();
    if (verdict !== "lost") return;
    this._socket.close();
    this._closed(LOST, "");
  }

  // Once the history is here, what is still unconfirmed has not arrived; later, what became due.
  _catchUp() {
    if (this._model.session.isReplaying) return;
    const texts = this._resend ? this._model.unconfirmed() : this._model.outbox.due.splice(0);
    this._resend = false;
    for (const text of texts) this.send(text);
  }

  async _closed(code, reason) {
    const wasWelcomed = this._isWelcomed;
    this._socket = null;
    this._isWelcomed = false;
    const heldMs = wasWelcomed ? performance.now() - this._welcomedAt : 0;
    const { retry, delay } = this._model.session.closed(code, heldMs);
    if (code in NO_LONGER_ADMITTED) {
      // Whoever may see nothing any more is shown nothing any more.
      this._events.signedOut(NO_LONGER_ADMITTED[code]);
      return;
    }
    if (!retry) {
      this._events.state("ended", { reason });
      return;
    }
    this._events.state("waiting");
    // A socket does not say why it was refused; the page behind it does.
    if (!wasWelcomed && (await checkToken(this._token)) === "refused") {
      this._events.signedOut("The gateway no longer knows this token.");
      return;
    }
    this._timer = setTimeout(() => this.open(), delay);
  }
}

/** Exchange a one-time code for a session token; null if it is not good any more. */
export async function redeem(code) {
  const response = await fetch("/session", { headers: { "MCPP-Code": code }, cache: "no-store" });
  return response.ok ? (await response.json()).token : null;
}

/** Tell whether a token is "good", "refused", or whether nobody "away" could be asked. */
export async function checkToken(token) {
  try {
    const response = await fetch("/session", {
      headers: { Authorization: `Bearer ${token}` },
      cache: "no-store",
      signal: AbortSignal.timeout(CHECK_MS),
    });
    if (response.ok) return "good";
    return response.status === 401 || response.status === 429 ? "refused" : "away";
  } catch {
    return "away";
  }
}
