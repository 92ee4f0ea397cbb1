// The side of the page: who is here and may do what, what waits for a decision, what was refused.

import { describe } from "../state/describe.js";
import { reveal, show } from "../state/json.js";
import { byId, clockTime, h, hueOf, setText } from "./dom.js";
import { proposalActions } from "./proposals.js";

export class PeopleView {
  constructor(model, actions) {
    this._model = model;
    this._actions = actions;
    this._shown = "";
    this.waiting = 0; // proposals that wait for a decision
  }

  update() {
    const { roster, refusals, proposals, me } = this._model;
    const waiting = proposals.open.filter(
      ({ rejections }) => !rejections.some(({ from }) => from === me),
    );
    // Drawn anew only when something is different, or open details would close under one's eyes.
    const now = JSON.stringify([
      [...roster.values()],
      refusals.length,
      refusals.at(-1)?.envelope.id,
      waiting.map(({ envelope, rejections }) => [envelope.id, rejections.length]),
    ]);
    if (now === this._shown) return;
    this._shown = now;
    this._proposals(waiting);
    this._participants();
    this._refusals();
    this.waiting = waiting.length;
    setText(byId("people-count"), this.waiting ? String(this.waiting) : "");
  }

  _proposals(waiting) {
    setText(byId("proposals-count"), waiting.length ? String(waiting.length) : "");
    byId("proposals").replaceChildren(
      ...(waiting.length
        ? waiting.slice(-50).reverse().map((proposal) => this._proposal(proposal))
        : [h("p", { class: "quiet" }, "Nothing waits for a decision.")]),
    );
  }

  _proposal(proposal) {
    const { envelope } = proposal;
    const { name, json, label } = describe(envelope);
    return h(
      "article",
      { class: "card" },
      h("p", {},
        h("strong", { dir: "auto" }, envelope.from), " ", label, " ",
        name && h("code", { class: "name", dir: "auto" }, reveal(name)),
        envelope.to && h("span", { class: "to", dir: "auto" }, ` → ${envelope.to.join(", ")}`)),
      json !== undefined && h("pre", { class: "json" }, show(json)),
      proposalActions(proposal, this._model, this._actions),
    );
  }

  _participants() {
    const { roster, me } = this._model;
    const all = [...roster.values()].sort(
      (one, other) => Number(other.present) - Number(one.present) || (one.id < other.id ? -1 : 1),
    );
    setText(byId("participants-count"), String(all.filter(({ present }) => present).length));
    byId("participants").replaceChildren(
      ...all.map(({ id, capabilities, present }) =>
        h("li", { class: present ? "person" : "person away" },
          h("details", {},
            h("summary", {},
              h("span", { class: `dot ${present ? "dot-concluded" : "dot-expired"}`, "aria-hidden": "true" }),
              h("span", { class: `who hue-${hueOf(id)}`, dir: "auto" }, id),
              id === me && h("span", { class: "quiet" }, "you"),
              h("span", { class: "quiet end" }, present ? "here" : "away")),
            h("ul", { class: "plain capabilities" },
              capabilities.length
                ? capabilities.map((one) => h("li", {}, h("code", {}, show(one))))
                : h("li", { class: "quiet" }, "may send nothing")))),
      ),
    );
  }

  _refusals() {
    const { refusals } = this._model;
    setText(byId("refusals-count"), refusals.length ? String(refusals.length) : "");
    byId("refusals").replaceChildren(
      ...(refusals.length
        ? [...refusals].reverse().map(({ envelope, about }) =>
            h("li", { class: "refusal" },
              h("p", {}, h("time", {}, clockTime(envelope.ts)), " ",
                h("code", { class: "name" }, String(envelope.payload?.error)),
                about && h("span", { class: "quiet" }, ` ${about.kind}`)),
              h("p", { dir: "auto" }, String(envelope.payload?.message))))
        : [h("li", { class: "quiet" }, "Nothing of yours was refused.")]),
    );
  }
}
