// The bar on top, and the page's title: which pod this is, how the line stands, and how much happens.

import { byId, many, setText } from "./dom.js";
import { drawSpark } from "./spark.js";

export class Bar {
  constructor(model) {
    this._model = model;
  }

  /** `waiting` is how many proposals wait for a decision. */
  update(waiting) {
    const name = this._model.session.pod?.name ?? "MCPP";
    setText(byId("pod-name"), name);
    const title = `${waiting ? `(${waiting}) ` : ""}${name} · MCPP inspector`;
    if (document.title !== title) document.title = title;
  }

  showState(name, { reason } = {}) {
    const texts = {
      connecting: "connecting…",
      open: `you are ${this._model.me}`,
      waiting: "line cut, reconnecting…",
      ended: `closed: ${reason || "replaced by a newer connection"}`,
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
    setText(byId("rates-text"), `${messagesPerSecond.toFixed(digits)} msg/s · ${many(contextsPerMinute, "context")}/min`);
    drawSpark(byId("spark"), rates.history());
  }
}
