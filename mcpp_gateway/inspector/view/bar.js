// The top bar and the page title: pod name, connection state and message rates.

import { byId, plural, setText } from "./elements/dom.js";
import { drawSpark } from "./elements/spark.js";

export class Bar {
  constructor(model) {
    this._model = model;
  }

  /** `waiting` is the number of proposals waiting for a decision. */
  update(waiting) {
    const name = this._model.session.pod?.name ?? "MCPP";
    setText(byId("pod-name"), name);
    const title = `${waiting ? `(${waiting}) ` : ""}${name} · MCPP inspector`;
    if (document.title !== title) document.title = title;
  }

  showState(name, { reason } = {}) {
    const texts = {
      connecting: "Connecting…",
      open: `Signed in as ${this._model.me}`,
      waiting: "Offline, reconnecting…",
      ended: `Closed: ${reason || "replaced by a newer connection"}`,
    };
    const status = byId("status");
    status.dataset.state = name;
    setText(status, texts[name]);
    byId("reconnect").hidden = name !== "ended";
  }

  showRates(now) {
    const { rates } = this._model;
    const { messagesPerSecond, contextsPerMinute } = rates.read(now);
    const digits = messagesPerSecond < 10 ? 1 : 0;
    setText(byId("rates-text"), `${messagesPerSecond.toFixed(digits)} msg/s · ${plural(contextsPerMinute, "context")}/min`);
    drawSpark(byId("spark"), rates.history());
  }
}
