// The side of the page: who is here and may do what, what waits for a decision, what was refused.

import { describe } from "../state/describe.js";
import { reveal, show } from "../state/json.js";
import { cut } from "../state/summaries.js";
import { byId, clockTime, h, hueOf, setText } from "./dom.js";
import { Keyed } from "./keyed.js";
import { decision, proposalActions, verdict } from "./proposals.js";

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
    const { proposals, outbox: { refusals }, me } = this._model;
    // What was decided stays until that is confirmed.
    const shown = proposals.open.filter(({ rejections }) => !rejections.some(({ from }) => from === me));
    this.waiting = shown.filter((proposal) => !verdict(proposal, this._model)).length;
    setText(byId("proposals-count"), this.waiting ? String(this.waiting) : "");
    setText(byId("people-count"), this.waiting ? String(this.waiting) : "");
    if (byId("proposals").matches(":hover, :has(:focus-visible)")) this._hold(shown);
    else this._proposals(shown);
    this._participants();
    if (this._refused !== refusals.at(-1)) this._refusals();
    this._refused = refusals.at(-1);
  }

  // The oldest first: what comes has its place below what is there.
  _proposals(shown) {
    const notes = [];
    if (!shown.length) notes.push("Nothing waits for a decision.");
    if (shown.length > MAX_CARDS) notes.push(`${shown.length - MAX_CARDS} older ones are in the log.`);
    const hadFocus = byId("proposals").contains(document.activeElement);
    this._cards.update([
      ...notes.map((text) => ({ key: text, mark: "", make: () => h("p", { class: "quiet" }, text) })),
      ...shown.slice(-MAX_CARDS).map((proposal) => this._card(proposal)),
    ]);
    if (hadFocus && document.activeElement === document.body) byId("proposals").focus({ preventScroll: true });
  }

  // Under a pointer or the keyboard nothing moves, or one would approve what one has not read:
  // what is decided says so in its place, what comes is put below, and the rest waits.
  _hold(shown) {
    for (const [id, element] of this._cards.elements) {
      if (!element.matches(".card")) continue;
      const proposal = this._model.proposals.get(id) ?? { envelope: { id }, state: "hidden", rejections: [] };
      const text = verdict(proposal, this._model)?.text ?? "";
      if (element.dataset.verdict === text) continue;
      this._cards.forget(id);
      decide(element, text, decision(proposal, this._model, this._actions));
    }
    for (const proposal of shown) {
      if (this._cards.elements.size >= MAX_CARDS) break;
      if (!this._cards.elements.has(proposal.envelope.id)) this._cards.append(this._card(proposal));
    }
  }

  _card(proposal) {
    const { envelope, number, rejections, isDoubtful } = proposal;
    const text = verdict(proposal, this._model)?.text ?? "";
    const mark = JSON.stringify([number, rejections, text, isDoubtful, this._model.outbox.refusalOf(envelope.id)]);
    return { key: envelope.id, mark, make: () => this._proposal(proposal, text) };
  }

  _proposal(proposal, text) {
    const { envelope } = proposal;
    const { name, json, label } = describe(envelope);
    const asked = json === undefined ? "" : show(json);
    const isLong = asked.length > SHORT_CHARS || asked.split("\n").length > SHORT_LINES;
    const body = [
      asked && h("pre", { class: "json" }, asked),
      proposalActions(proposal, this._model, this._actions),
    ];
    return h(
      "article",
      {
        class: text ? "card settled" : "card",
        tabindex: -1,
        "aria-label": `${envelope.from} ${label} ${reveal(name ?? "")}`,
        "data-verdict": text,
      },
      h("p", {},
        h("strong", { dir: "auto" }, envelope.from), " ", label, " ",
        name && h("code", { class: "name", dir: "auto" }, reveal(name)),
        envelope.to && h("span", { class: "to", dir: "auto" }, ` → ${envelope.to.join(", ")}`)),
      // Nobody approves what is out of sight.
      isLong
        ? h("details", {}, h("summary", {}, `Read ${asked.length.toLocaleString("en")} characters, and decide`), body)
        : body,
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
    const { refusals } = this._model.outbox;
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

function decide(element, text, parts) {
  const hadFocus = element.contains(document.activeElement);
  const box = element.querySelector(".decision");
  box.style.minHeight = `${box.getBoundingClientRect().height}px`;
  box.replaceChildren(...parts);
  element.dataset.verdict = text;
  element.classList.toggle("settled", Boolean(text));
  if (hadFocus) element.focus({ preventScroll: true });
}
