// The side panel: open proposals, participants with their capabilities, claims, and refusals.

import { describe } from "../state/log/describe.js";
import { reveal, show } from "../state/json.js";
import { cut } from "../state/results/summaries.js";
import { byId, clockTime, h, hueOf, setText } from "./elements/dom.js";
import { tokensText, tokensTitle } from "./elements/usage.js";
import { Keyed } from "./elements/keyed.js";
import { aboutOf, decision, explanationOf, isAbandoned, proposalActions, resolution } from "./decisions/proposals.js";

const MAX_CARDS = 50;
const MAX_CLAIMS = 100;
const SHORT_LINES = 12;
const SHORT_CHARS = 400;

export class PeopleView {
  constructor(model, actions) {
    this._model = model;
    this._actions = actions;
    this._cards = new Keyed(byId("proposals"));
    this._people = new Keyed(byId("participants"));
    this._held = new Keyed(byId("claims"));
    this._refused = null;
    this.waiting = 0; // number of proposals waiting for a decision
    for (const event of ["pointerleave", "focusout"]) {
      byId("proposals").addEventListener(event, () => requestAnimationFrame(() => this.update()));
    }
  }

  update() {
    const { proposals, outbox: { refusals }, me } = this._model;
    // A decided proposal stays until the decision is confirmed.
    const shown = proposals.open.filter(({ rejections }) => !rejections.some(({ from }) => from === me));
    this.waiting = shown.filter((proposal) => !resolution(proposal, this._model)).length;
    setText(byId("proposals-count"), this.waiting ? String(this.waiting) : "");
    setText(byId("people-count"), this.waiting ? String(this.waiting) : "");
    if (byId("proposals").matches(":hover, :has(:focus-visible)")) this._hold(shown);
    else this._proposals(shown);
    this._participants();
    this._claims();
    if (this._refused !== refusals.at(-1)) this._refusals();
    this._refused = refusals.at(-1);
  }

  // The oldest first, so that new ones are added below.
  _proposals(shown) {
    const notes = [];
    if (!shown.length) notes.push("No proposals are waiting for a decision.");
    if (shown.length > MAX_CARDS) notes.push(`${shown.length - MAX_CARDS} older proposals are in the log.`);
    const hadFocus = byId("proposals").contains(document.activeElement);
    this._cards.update([
      ...notes.map((text) => ({ key: text, version: "", make: () => h("p", { class: "quiet" }, text) })),
      ...shown.slice(-MAX_CARDS).map((proposal) => this._card(proposal)),
    ]);
    if (hadFocus && document.activeElement === document.body) byId("proposals").focus({ preventScroll: true });
  }

  // Nothing moves while the pointer or the keyboard focus is here, or a user could approve another
  // proposal than intended: decided ones change in place, new ones are added below.
  _hold(shown) {
    for (const [id, element] of this._cards.elements) {
      if (!element.matches(".card")) continue;
      const proposal = this._model.proposals.get(id) ?? { envelope: { id }, state: "hidden", rejections: [] };
      const text = resolution(proposal, this._model)?.text ?? "";
      const isConfirmed = String(proposal.isConfirmed ?? false);
      if (element.dataset.resolution === text && element.dataset.confirmed === isConfirmed) continue;
      this._cards.invalidate(id);
      element.dataset.confirmed = isConfirmed;
      element.querySelector(".decision").dataset.about = aboutOf(proposal);
      showDecision(element, text, decision(proposal, this._model, this._actions));
    }
    for (const proposal of shown) {
      if (this._cards.elements.size >= MAX_CARDS) break;
      if (!this._cards.elements.has(proposal.envelope.id)) this._cards.append(this._card(proposal));
    }
  }

  _card(proposal) {
    const { envelope, number, rejections, isUncertain, isConfirmed } = proposal;
    const text = resolution(proposal, this._model)?.text ?? "";
    const version = JSON.stringify([number, rejections, text, isUncertain, isConfirmed, isAbandoned(proposal, this._model), this._model.outbox.refusalOf(envelope.id)]);
    return { key: envelope.id, version, make: () => this._proposal(proposal, text) };
  }

  _proposal(proposal, text) {
    const { envelope } = proposal;
    const reading = describe(envelope);
    const { name, json, label } = reading;
    const request = json === undefined ? "" : show(json);
    const isLong = request.length > SHORT_CHARS || request.split("\n").length > SHORT_LINES;
    const body = [
      explanationOf(reading),
      request && h("pre", { class: "json" }, request),
      proposalActions(proposal, this._model, this._actions),
    ];
    return h(
      "article",
      {
        class: text ? "card settled" : "card",
        tabindex: -1,
        "aria-label": `${envelope.from} ${label} ${reveal(name ?? "")}`,
        "data-resolution": text,
        "data-confirmed": String(proposal.isConfirmed),
      },
      h("p", {},
        h("strong", { dir: "auto" }, envelope.from), " ", label, " ",
        name && h("code", { class: "name", dir: "auto" }, reveal(name)),
        envelope.to && h("span", { class: "to", dir: "auto" }, ` → ${envelope.to.join(", ")}`)),
      // A proposal can be decided only when all of it is visible.
      isLong
        ? h("details", {}, h("summary", {}, `Read all ${request.length.toLocaleString("en")} characters to decide`), body)
        : body,
    );
  }

  _claims() {
    const all = [...this._model.claims];
    byId("claims-section").hidden = !all.length;
    setText(byId("claims-count"), String(all.length));
    this._held.update(all.slice(-MAX_CLAIMS).map(({ name, holder, id, at }) => ({
      key: name,
      version: id,
      make: () => h("li", { class: "claim", title: `${name}, since ${new Date(at).toLocaleString()}` },
        h("code", { dir: "auto" }, name), h("span", { class: `who hue-${hueOf(holder)}`, dir: "auto" }, holder)),
    })));
  }

  _participants() {
    const { participants, me } = this._model;
    const all = [...participants.values(), ...this._gone()].sort(
      (one, other) => Number(other.present) - Number(one.present) || (one.id < other.id ? -1 : 1),
    );
    setText(byId("participants-count"), String(all.filter(({ present }) => present).length));
    this._people.update(
      all.map((one) => ({
        key: one.id,
        version: JSON.stringify([one, one.id === me, this._model.cards.get(one), this._spent(one.id)]),
        make: () => this._participant(one),
      })),
    );
  }

  // Those that had left when this page came, and whose tokens it shows: their capabilities are not known.
  _gone() {
    const { participants, tree } = this._model;
    const ids = [...tree.tokensBy.keys()].filter((id) => !participants.has(id) && this._spent(id).models.length);
    return ids.map((id) => ({ id, present: false, capabilities: null }));
  }

  // Of the conclusions that this page has loaded.
  _spent(id) {
    const models = [...(this._model.tree.tokensBy.get(id) ?? [])].filter(([, sum]) => !sum.isEmpty);
    const total = { input: 0, output: 0, cached: 0 };
    for (const [, sum] of models) for (const key of Object.keys(total)) total[key] += sum[key];
    return { models, total };
  }

  _participant(participant) {
    const { id, capabilities, present } = participant;
    const { models, total } = this._spent(id);
    const opened = ({ target }) => target.open && this._actions.readCard(participant);
    return h("li", { class: present ? "person" : "person away" },
      h("details", { on: { toggle: opened } },
        h("summary", {},
          h("span", { class: `dot ${present ? "dot-concluded" : "dot-expired"}`, "aria-hidden": "true" }),
          h("span", { class: `who hue-${hueOf(id)}`, dir: "auto" }, id),
          id === this._model.me && h("span", { class: "quiet" }, "you"),
          models.length > 0 && h("span", { class: "quiet tokens", title: `${tokensTitle(total)}; as far as loaded` }, tokensText(total)),
          h("span", { class: "quiet end" }, present ? "online" : "offline")),
        models.length > 0 && h("ul", { class: "plain tokens-by-model" }, models.map(([model, sum]) =>
          h("li", { dir: "auto" }, h("code", { class: "name" }, reveal(model || "model not named")), ` ${tokensTitle(sum)}`))),
        showCard(this._model.cards.get(participant)),
        h("button", { class: "link look", on: { click: () => this._actions.lookAs(id) } }, "What does it see?"),
        capabilities && h("ul", { class: "plain capabilities" },
          capabilities.length
            ? capabilities.map((one) => h("li", {}, h("code", {}, show(one))))
            : h("li", { class: "quiet" }, "no capabilities"))));
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
        : [h("li", { class: "quiet" }, "None of your messages was refused.")]),
    );
  }
}

function showCard(card) {
  if (!card) return null;
  const offers = (label, list) => list.length > 0 && [
    h("p", { class: "quiet" }, label),
    h("ul", { class: "plain" }, list.map(({ name, description }) =>
      h("li", {}, h("code", { class: "name", dir: "auto" }, reveal(name)), " ", h("span", { dir: "auto" }, cut(description))))),
  ];
  return h("div", { class: "participant-card" },
    card.description && h("p", { dir: "auto" }, card.description),
    card.instructions && h("p", { class: "quiet", dir: "auto" }, cut(card.instructions)),
    offers("Tools", card.tools), offers("Prompts", card.prompts), offers("Resources", card.resources));
}

function showDecision(element, text, parts) {
  const hadFocus = element.contains(document.activeElement);
  const box = element.querySelector(".decision");
  box.style.minHeight = `${box.getBoundingClientRect().height}px`;
  box.replaceChildren(...parts);
  element.dataset.resolution = text;
  element.classList.toggle("settled", Boolean(text));
  if (hadFocus) element.focus({ preventScroll: true });
}
