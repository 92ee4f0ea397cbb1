// A replay of a recorded stretch: its state as the gateway last told it, and the changes that the user asks for.

import { isObject } from "./kinds.js";

const NUMBERS = ["position", "speed", "time", "start_time", "end_time"];

export class Replay {
  constructor({ state, speed, time, start_time: start, end_time: end }) {
    this.state = state; // playing, paused or ended
    this.speed = speed;
    this.start = start; // recorded times in seconds
    this.end = end;
    // Not extrapolated: a gateway or a page that is slower than asked for shows less of the log.
    this.time = Math.min(end, Math.max(start, time));
  }

  get isPlaying() {
    return this.state === "playing";
  }
}

/** Return the replay that a payload describes; null if it is none. */
export function readReplay(payload) {
  const isReplay = isObject(payload) && typeof payload.state === "string" && NUMBERS.every((name) => Number.isFinite(payload[name]));
  return isReplay ? new Replay(payload) : null;
}

/** Changes that the user asks for, until the gateway has answered them: a seek closes the connection. */
export class ReplayControl {
  constructor(newId) {
    this._newId = newId;
    this._pending = new Map(); // by id of the request: its payload
    this._isLost = false; // whether answers to these will not come
  }

  /** Everything that is not answered yet, as one change: {state?, time?, speed?}. */
  get wanted() {
    return Object.assign({}, ...this._pending.values());
  }

  /** Ask for a change; return the draft of the request. */
  ask(payload) {
    const id = this._newId();
    this._pending.set(id, payload);
    return { id, kind: "pod/replay", payload };
  }

  /** Note that a request was answered or refused. */
  answer(id) {
    this._pending.delete(id);
  }

  /** Note that what is not answered yet has to be asked for again. */
  lose() {
    this._isLost = this._pending.size > 0;
  }

  /** Return the draft that asks again; null if there is nothing to ask. */
  repeat() {
    if (!this._isLost) return null;
    const { wanted } = this;
    this._isLost = false;
    this._pending.clear();
    return this.ask(wanted);
  }
}
