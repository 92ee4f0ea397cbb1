// The controls of a replay: play or pause, speed, and a slider over the recorded time.

import { byId, clockTime, duration, setText } from "./elements/dom.js";

const STEPS = 1_000; // of the slider

export class ReplayBar {
  /** `control(payload)` sends a change of the replay. */
  constructor(model, control) {
    this._model = model;
    this._slider = byId("replay-slider");
    this._speed = byId("replay-speed");
    this._isDragged = false;
    byId("replay-play").addEventListener("click", () => control(this._toggled()));
    this._speed.addEventListener("change", () => control({ speed: Number(this._speed.value) }));
    this._slider.addEventListener("input", () => {
      this._isDragged = true;
      this._showTime(this._chosen());
    });
    this._slider.addEventListener("change", () => {
      this._isDragged = false;
      control({ time: this._chosen() });
    });
  }

  /** Show the state of the replay; nothing for a pod that is not one. */
  update(now) {
    const { replay } = this._model;
    byId("replay").hidden = replay === null;
    byId("composer").hidden = replay !== null; // it would refuse every message
    if (!replay) return;
    const texts = { playing: "Pause", paused: "Play", ended: "Play again" };
    setText(byId("replay-play"), texts[replay.state] ?? "Play");
    this._showSpeed(replay.speed);
    if (this._isDragged) return;
    const time = replay.timeAt(now);
    const span = replay.end - replay.start;
    this._slider.value = String(span > 0 ? Math.round(((time - replay.start) / span) * STEPS) : STEPS);
    this._showTime(time);
  }

  _toggled() {
    const { replay } = this._model;
    if (replay.state === "ended") return { state: "playing", time: replay.start };
    return { state: replay.isPlaying ? "paused" : "playing" };
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
