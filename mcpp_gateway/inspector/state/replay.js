// A replay of a recorded stretch: its state as the gateway last told it, and the time it has reached since.

import { isObject } from "./kinds.js";

const NUMBERS = ["position", "speed", "time", "start_time", "end_time"];

export class Replay {
  constructor(payload, now) {
    const { state, speed, time, start_time: start, end_time: end } = payload;
    this.state = state; // playing, paused or ended
    this.speed = speed;
    this.start = start; // recorded times in seconds
    this.end = end;
    this._time = time;
    this._told = now;
  }

  get isPlaying() {
    return this.state === "playing";
  }

  /** Return the recorded time that is reached at a time of the page's clock, in milliseconds. */
  timeAt(now) {
    const since = this.isPlaying ? ((now - this._told) / 1000) * this.speed : 0;
    return Math.min(this.end, Math.max(this.start, this._time + since));
  }
}

/** Return the replay that a payload describes; null if it is none. */
export function readReplay(payload, now) {
  const isReplay = isObject(payload) && typeof payload.state === "string" && NUMBERS.every((name) => Number.isFinite(payload[name]));
  return isReplay ? new Replay(payload, now) : null;
}
