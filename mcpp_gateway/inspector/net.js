// The connection to the gateway: opens it, reconnects and resumes without losing envelopes.

import { LivenessMonitor } from "./state/connection/liveness.js";

const SUBPROTOCOL = "mcpp.v0.1";
const LOST = 1006; // the code of an abnormal closure
const CHECK_MS = 5_000;
const PROMPT_MS = 30_000;
const SIGNED_OUT = { 4501: "This token was revoked.", 4502: "This session has ended. Sign in again." };

export class Connection {
  /** `events` has received(text), state(name, facts), probe() and signedOut(reason). */
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

  /** Whether envelopes can be sent now. */
  get isOpen() {
    return this._isWelcomed && this._socket?.readyState === WebSocket.OPEN;
  }

  /** Whether the connection is open or opening, not waiting for the next attempt. */
  get isActive() {
    return this._socket !== null;
  }

  open() {
    clearTimeout(this._timer);
    const { session, filter, isReloading } = this._model;
    const query = session.query(filter, { fresh: isReloading });
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const url = `${scheme}://${location.host}${withPod(`/ws?${query}`)}`;
    const socket = new WebSocket(url, [SUBPROTOCOL, `mcpp.bearer.${this._token}`]);
    const before = this._socket;
    const liveness = (this._liveness = new LivenessMonitor());
    liveness.sent(performance.now());
    // Close a connection without a welcome now: the gateway might otherwise admit it after this one.
    if (!this._isWelcomed) before?.close();
    this._socket = socket;
    this._isWelcomed = false;
    socket.addEventListener("message", ({ data }) => {
      if (this._socket !== socket) return;
      liveness.received(performance.now());
      this._events.received(data);
      if (!this._isWelcomed) {
        this._isWelcomed = true;
        this._welcomedAt = performance.now();
        this._events.state("open");
        // The new connection keeps us present, so closing the old one announces no leave.
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
    this._liveness.sent(performance.now());
  }

  /** Check whether the connection is still alive. Called every second. */
  check() {
    if (!this._socket) return;
    const action = this._liveness.check(performance.now());
    if (action === "probe") this._events.probe();
    if (action !== "close") return;
    this._socket.close();
    this._closed(LOST, "");
  }

  // After the replay, sends what is still unconfirmed again; later, what has become due.
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
    if (code in SIGNED_OUT) {
      // Access was revoked: also remove what is displayed.
      this._events.signedOut(SIGNED_OUT[code]);
      return;
    }
    if (!retry) {
      this._events.state("ended", { reason });
      return;
    }
    this._events.state("waiting");
    // A WebSocket does not expose the HTTP status of a refusal; this request does.
    if (!wasWelcomed && (await checkToken(this._token)) === "refused") {
      this._events.signedOut("The gateway no longer accepts this token.");
      return;
    }
    this._timer = setTimeout(() => this.open(), delay);
  }
}

/** Exchange a one-time code for a session token; null if the code is no longer valid. */
export async function redeem(code) {
  const response = await fetch("/session", { headers: { "MCPP-Code": code }, cache: "no-store" });
  return response.ok ? (await response.json()).token : null;
}

/** Return the prompt of a participant's model at an envelope; throw an error with the gateway's reason. */
export async function fetchPrompt(token, { viewer, at, budget }) {
  const query = new URLSearchParams({ viewer });
  if (at) query.set("at", at);
  if (budget) query.set("budget", budget);
  const response = await fetch(withPod(`/prompt?${query}`), {
    headers: { Authorization: `Bearer ${token}` },
    cache: "no-store",
    signal: AbortSignal.timeout(PROMPT_MS),
  });
  if (!response.ok) throw new Error((await response.text()).trim().slice(0, 500) || "The gateway refused.");
  return response.json();
}

/** Return the content of an attachment; throw an error with the reason if it cannot be had. */
export async function fetchBlob(token, { hash, size }) {
  const response = await fetch(withPod(`/blob/${hash}`), { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
  if (!response.ok) throw new Error(response.status === 404 ? "The gateway no longer has it, or not for you." : (await response.text()).slice(0, 200));
  const bytes = await response.arrayBuffer();
  const digest = await globalThis.crypto.subtle?.digest("SHA-256", bytes); // not in pages over plain HTTP
  const found = digest && [...new Uint8Array(digest)].map((one) => one.toString(16).padStart(2, "0")).join("");
  if (bytes.byteLength !== size || (found && found !== hash)) throw new Error("The content is not what the message names.");
  return bytes;
}

/** Add the pod that the page's address names: a token for several pods needs it. */
function withPod(path) {
  const pod = new URLSearchParams(location.search).get("pod");
  return pod === null ? path : `${path}${path.includes("?") ? "&" : "?"}pod=${encodeURIComponent(pod)}`;
}

/** Return whether a token is "valid" or "refused", or the gateway is "unreachable"; or why it is not for this pod. */
export async function checkToken(token) {
  try {
    const response = await fetch(withPod("/session"), {
      headers: { Authorization: `Bearer ${token}` },
      cache: "no-store",
      signal: AbortSignal.timeout(CHECK_MS),
    });
    if (response.ok) return "valid";
    if (response.status === 400 || response.status === 403) return (await response.text()).trim().slice(0, 500);
    return response.status === 401 || response.status === 429 ? "refused" : "unreachable";
  } catch {
    return "unreachable";
  }
}
