// The side of the page: who is here and may do what, what waits for a decision, what was refused.

import { describe } from "../state/describe.js";
import { reveal, show } from "../state/json.js";
import { cut } from "../state/summaries.js";
import { byId, clockTime, h, hueOf, setText } from "./dom.js";
import { Keyed } from "./keyed.js";
import { fate, proposalActions } from "./proposals.js";

const MAX_CARDS = 50;
const SHORT_LINES = 12;
const SHORT_CHARS = 400;

export class PeopleView {
  constructor(model, actions) {
    this._model = model;
    this._actions = actions;
    this._cards = new Keyed(byId("proposals"));
    this._people = new Keyed(byId("participants"));
    this._refused = null;
    this.waiting = 0; // proposals that wait for a decision
    for (const event of ["pointerleave", "focusout"]) {
      byId("proposals").addEventListener(event, () => requestAnimationFrame(() => this.update()));
    }
  }

  update() {
    const { proposals, refusals, me } = this._model;
    const waiting = proposals.open.filter(
      ({ rejections }) => !rejections.some(({ from }) => from === me),
    );
    this.waiting = waiting.length;
    setText(byId("proposals-count"), waiting.length ? String(waiting.length) : "");
    setText(byId("people-count"), waiting.length ? String(waiting.length) : "");
    if (byId("proposals").matches(":hover, :has(:focus-visible)")) this._hold(waiting);
    else this._proposals(waiting);
    this._participants();
    if (this._refused !== refusals.at(-1)) this._refusals();
    this._refused = refusals.at(-1);
  }

  // The oldest first: what comes has its place below what is there.
  _proposals(waiting) {
    const notes = [];
    if (!waiting.length) notes.push("Nothing waits for a decision.");
    if (waiting.length > MAX_CARDS) notes.push(`${waiting.length - MAX_CARDS} older ones are in the log.`);
    this._cards.update([
      ...notes.map((text) => ({ key: text, mark: "", make: () => h("p", { class: "quiet" }, text) })),
      ...waiting.slice(-MAX_CARDS).map((proposal) => this._card(proposal)),
    ]);
  }

  // Under a pointer or the keyboard nothing moves, or one would approve what one has not read:
  // what is decided says so in its place, what comes is put below, and the rest waits.
  _hold(waiting) {
    const { proposals, me } = this._model;
    const ids = new Set(waiting.map(({ envelope }) => envelope.id));
    for (const [id, element] of this._cards.elements) {
      const proposal = proposals.get(id) ?? { state: "hidden", rejections: [] };
      if (element.matches(".card:not(.settled)") && !ids.has(id)) settle(element, proposal, me);
    }
    for (const proposal of waiting) {
      if (this._cards.elements.size >= MAX_CARDS) break;
      if (!this._cards.elements.has(proposal.envelope.id)) this._cards.append(this._card(proposal));
    }
  }

  _card(proposal) {
    const { envelope, rejections } = proposal;
    const mark = String(rejections.length);
    return { key: envelope.id, mark, make: () => this._proposal(proposal) };
  }

  _proposal(proposal) {
    const { envelope } = proposal;
    const { name, json, label } = describe(envelope);
    const text = json === undefined ? "" : show(json);
    const isLong = text.length > SHORT_CHARS || text.split("\n").length > SHORT_LINES;
    const decision = [
      text && h("pre", { class: "json" }, text),
      proposalActions(proposal, this._model, this._actions),
    ];
    return h(
      "article",
      { class: "card", tabindex: -1 },
      h("p", {},
        h("strong", { dir: "auto" }, envelope.from), " ", label, " ",
        name && h("code", { class: "name", dir: "auto" }, reveal(name)),
        envelope.to && h("span", { class: "to", dir: "auto" }, ` → ${envelope.to.join(", ")}`)),
      // Nobody approves what is out of sight.
      isLong
        ? h("details", {}, h("summary", {}, `Read ${text.length.toLocaleString("en")} characters, and decide`), decision)
        : decision,
    );
  }

  _participants() {
    const { roster, me } = this._model;
    const all = [...roster.values()].sort(
      (one, other) => Number(other.present) - Number(one.present) || (one.id < other.id ? -1 : 1),
    );
    setText(byId("participants-count"), String(all.filter(({ present }) => present).length));
    this._people.update(
      all.map((one) => ({
        key: one.id,
        mark: JSON.stringify([one, one.id === me]),
        make: () => this._participant(one),
      })),
    );
  }

  _participant({ id, capabilities, present }) {
    return h("li", { class: present ? "person" : "person away" },
      h("details", {},
        h("summary", {},
          h("span", { class: `dot ${present ? "dot-concluded" : "dot-expired"}`, "aria-hidden": "true" }),
          h("span", { class: `who hue-${hueOf(id)}`, dir: "auto" }, id),
          id === this._model.me && h("span", { class: "quiet" }, "you"),
          h("span", { class: "quiet end" }, present ? "here" : "away")),
        h("ul", { class: "plain capabilities" },
          capabilities.length
            ? capabilities.map((one) => h("li", {}, h("code", {}, show(one))))
            : h("li", { class: "quiet" }, "may send nothing"))));
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
              h("p", { dir: "auto" }, String(envelope.payload?.message)),
              about?.kind === "chat" && h("p", { class: "quiet", dir: "auto" }, `“${cut(about.payload.text)}”`)))
        : [h("li", { class: "quiet" }, "Nothing of yours was refused.")]),
    );
  }
}

function settle(element, proposal, me) {
  const hadFocus = element.contains(document.activeElement);
  const box = element.querySelector(".proposal");
  box.style.minHeight = `${box.getBoundingClientRect().height}px`;
  for (const button of box.querySelectorAll("button")) button.remove();
  box.prepend(fate(proposal, me));
  element.classList.add("settled");
  if (hadFocus) element.focus({ preventScroll: true });
}
