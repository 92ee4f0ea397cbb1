// The controls of a replay: play or pause, speed, and a slider over the recorded time.

import { byId, clockTime, duration, setText } from "./elements/dom.js";

const STEPS = 1_000; // of the slider

export class ReplayBar {
  /** `control(payload)` asks for a change of the replay. */
  constructor(model, control) {
    this._model = model;
    this._slider = byId("replay-slider");
    this._speed = byId("replay-speed");
    this._isDragged = false;
    const change = (payload) => {
      control(payload);
      this.update();
    };
    byId("replay-play").addEventListener("click", () => change(this._toggled()));
    this._speed.addEventListener("change", () => change({ speed: Number(this._speed.value) }));
    this._slider.addEventListener("input", () => {
      this._isDragged = true;
      this._showTime(this._chosen());
    });
    this._slider.addEventListener("change", () => {
      this._isDragged = false;
      // At a time, the entries of that time are still to come: behind the end there are none.
      const isEnd = Number(this._slider.value) === STEPS;
      change({ time: isEnd ? this._model.replay.end + 1 : this._chosen() });
    });
  }

  /** Show the state of the replay, and what the user has asked for since; nothing for a pod that is not one. */
  update() {
    const { replay, replayControl } = this._model;
    byId("replay").hidden = replay === null;
    byId("composer").hidden = replay !== null; // it would refuse every message
    if (!replay) return;
    const texts = { playing: "Pause", paused: "Play", ended: "Play again" };
    setText(byId("replay-play"), texts[this._state] ?? "Play");
    this._showSpeed(replayControl.wanted.speed ?? replay.speed);
    if (this._isDragged) return;
    const time = Math.min(replay.end, replayControl.wanted.time ?? replay.time);
    const span = replay.end - replay.start;
    this._slider.value = String(span > 0 ? Math.round(((time - replay.start) / span) * STEPS) : STEPS);
    this._showTime(time);
  }

  // A seek from the end pauses, unless it is to play.
  get _state() {
    const { replay, replayControl: { wanted } } = this._model;
    return wanted.state ?? (replay.state === "ended" && wanted.time < replay.end ? "paused" : replay.state);
  }

  _toggled() {
    const { start } = this._model.replay;
    if (this._state === "ended") return { state: "playing", time: start };
    return { state: this._state === "playing" ? "paused" : "playing" };
  }

  _chosen() {
    const { start, end } = this._model.replay;
    return start + ((end - start) * Number(this._slider.value)) / STEPS;
  }

  _showTime(time) {
    const { start, end } = this._model.replay;
    const at = clockTime(new Date(time * 1000).toISOString());
    setText(byId("replay-time"), `${at} · ${duration((time - start) * 1000)} of ${duration((end - start) * 1000)}`);
    this._slider.setAttribute("aria-valuetext", at);
  }

  // A speed from the command line may be none of the choices.
  _showSpeed(speed) {
    const value = String(speed);
    if (this._speed.value === value || document.activeElement === this._speed) return;
    if (![...this._speed.options].some((one) => one.value === value)) this._speed.add(new Option(`${value}×`, value));
    this._speed.value = value;
  }
}
