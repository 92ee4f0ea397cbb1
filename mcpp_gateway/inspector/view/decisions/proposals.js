// The state of a proposal, and the buttons to decide it: approve, edit, reject, withdraw.

import { h } from "../elements/dom.js";

/** `actions` has approve(proposal), confirm(proposal), edit(proposal), reject(proposal) and withdraw(proposal). */
export function proposalActions(proposal, model, actions) {
  const box = h("div", { class: "proposal" },
    h("div", { class: "decision", "data-about": aboutOf(proposal) }, decision(proposal, model, actions)));
  if (proposal.isAmbiguous) {
    box.prepend(h("p", { class: "quiet" }, "A key occurs twice in this proposal. What you see is what would be sent."));
  }
  if (isAbandoned(proposal, model)) {
    box.prepend(h("p", { class: "abandoned", dir: "auto" }, `${proposal.envelope.from} is not in the pod: it does not wait for the result now.`));
  }
  if (proposal.isUncertain && proposal.state === "open") {
    box.prepend(h("p", { class: "quiet" }, "Some later messages are missing: this may already be decided."));
  }
  for (const { from, reason } of proposal.rejections) {
    if (from !== model.me) box.append(h("p", { class: "resolution resolution-rejected", dir: "auto" }, `Rejected by ${from}: ${reason}`));
  }
  const refusal = model.outbox.refusalOf(proposal.envelope.id);
  if (refusal) box.append(h("p", { class: "resolution resolution-rejected", dir: "auto" }, `Your decision was refused: ${refusal}`));
  return box;
}

/** Return why something is proposed, and what it would change. */
export function explanationOf({ reason, preview }) {
  const side = (name, label, value) => typeof value === "string" &&
    h("div", { class: `preview-${name}` }, h("h4", {}, label), h("pre", { dir: "auto" }, value));
  return [
    reason !== undefined && h("p", { class: "reason", dir: "auto" }, reason),
    preview && h("div", { class: "preview" }, side("before", "Before", preview.before), side("after", "After", preview.after)),
  ];
}

/** Return the buttons, or the resolution of a proposal that can no longer be decided. */
export function decision(proposal, model, actions) {
  const resolved = resolution(proposal, model);
  if (resolved) return [h("p", { class: `resolution resolution-${resolved.name}`, dir: "auto", title: resolved.text }, resolved.text)];
  const button = (label, run, name) =>
    h("button", { class: name, "data-keep": label, "aria-disabled": "true", on: { click: () => run(proposal) } }, label);
  if (proposal.envelope.from === model.me) return [button("Withdraw", actions.withdraw)];
  const isAsked = isAbandoned(proposal, model) && !proposal.isConfirmed;
  return [
    isAsked ? button("Approve…", actions.confirm) : button(isAbandoned(proposal, model) ? "Approve anyway" : "Approve", actions.approve, "primary"),
    button("Edit…", actions.edit),
    button("Reject…", actions.reject),
  ];
}

// Another key while it is confirmed: the second click of a double click must not approve.
export const aboutOf = ({ envelope, isConfirmed }) => (isConfirmed ? `${envelope.id} confirmed` : envelope.id);

/** Return whether the proposer of an open proposal is gone: approving it takes a second click. */
export function isAbandoned({ envelope, state }, model) {
  return state === "open" && !model.replay && !model.participants.get(envelope.from)?.present;
}

/** Return {name, text} of a proposal's resolution; null while it waits for the user's decision. */
export function resolution({ envelope, state, by, rejections }, model) {
  const texts = {
    fulfilled: `Approved by ${by ?? "another participant"}`,
    withdrawn: "Withdrawn",
    hidden: "Not loaded",
  };
  if (state in texts) return { name: state, text: texts[state] };
  if (model.replay) return { name: "hidden", text: "Open at this point of the recording" };
  // After a decision there are no buttons: a second approval would be a second call.
  const answer = model.outbox.answerTo(envelope.id);
  if (answer) {
    const [name, word] = wordFor(answer);
    const rest = model.session.isOpen ? ", not confirmed yet" : ", not sent yet";
    return { name, text: `${word} by you${rest}` };
  }
  if (state === "lost") return { name: state, text: "Lost when the gateway restarted" };
  const ours = rejections.find(({ from }) => from === model.me);
  return ours ? { name: "rejected", text: `Rejected by you: ${ours.reason}` } : null;
}

function wordFor({ kind, payload, correlation_id }) {
  if (kind === "mcp/withdraw") return ["withdrawn", "Withdrawn"];
  if (kind === "mcp/reject" && payload.reason !== "edited") return ["rejected", "Rejected"];
  return ["fulfilled", kind === "mcp/reject" || !correlation_id ? "Edited" : "Approved"];
}
