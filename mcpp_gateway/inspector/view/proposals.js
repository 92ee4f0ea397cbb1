// A proposal's fate and what a person may do about it: approve, edit, reject, withdraw.

import { h } from "./dom.js";

/** `actions` has approve(proposal), edit(proposal), reject(proposal) and withdraw(proposal). */
export function proposalActions(proposal, model, actions) {
  const box = h("div", { class: "proposal" },
    h("div", { class: "decision", "data-about": proposal.envelope.id }, decision(proposal, model, actions)));
  if (proposal.isAmbiguous) {
    box.prepend(h("p", { class: "quiet" }, "A key is written twice in it: what you see is what would be sent."));
  }
  if (proposal.isDoubtful && proposal.state === "open") {
    box.prepend(h("p", { class: "quiet" }, "Something is missing since: it may be decided already."));
  }
  for (const { from, reason } of proposal.rejections) {
    if (from !== model.me) box.append(h("p", { class: "fate fate-rejected", dir: "auto" }, `${from} objects: ${reason}`));
  }
  const refusal = model.outbox.refusalOf(proposal.envelope.id);
  if (refusal) box.append(h("p", { class: "fate fate-rejected", dir: "auto" }, `Your answer was refused: ${refusal}`));
  return box;
}

/** Return the buttons, or what became of a proposal if there is nothing to decide any more. */
export function decision(proposal, model, actions) {
  const over = verdict(proposal, model);
  if (over) return [h("p", { class: `fate fate-${over.name}`, dir: "auto", title: over.text }, over.text)];
  const button = (label, run, name) =>
    h("button", { class: name, "data-keep": label, "aria-disabled": "true", on: { click: () => run(proposal) } }, label);
  if (proposal.envelope.from === model.me) return [button("Withdraw", actions.withdraw)];
  return [
    button("Approve", actions.approve, "primary"),
    button("Edit…", actions.edit),
    button("Reject…", actions.reject),
  ];
}

/** Return {name, text} of what became of a proposal; null as long as it waits for our decision. */
export function verdict({ envelope, state, by, rejections }, model) {
  const texts = {
    fulfilled: `Approved by ${by ?? "somebody else before"}`,
    withdrawn: "Withdrawn",
    hidden: "Not in what is loaded",
  };
  if (state in texts) return { name: state, text: texts[state] };
  // Whoever has spoken is not asked again: a second answer would be a second call.
  const answer = model.outbox.answerTo(envelope.id);
  if (answer) {
    const [name, word] = wordFor(answer);
    const rest = model.session.isOpen ? ", not confirmed yet" : ": it will be sent when the line is back";
    return { name, text: `${word} by you${rest}` };
  }
  if (state === "lost") return { name: state, text: "Lost when the gateway was restarted" };
  const ours = rejections.find(({ from }) => from === model.me);
  return ours ? { name: "rejected", text: `Rejected by you: ${ours.reason}` } : null;
}

function wordFor({ kind, payload, correlation_id }) {
  if (kind === "mcp/withdraw") return ["withdrawn", "Withdrawn"];
  if (kind === "mcp/reject" && payload.reason !== "edited") return ["rejected", "Rejected"];
  return ["fulfilled", kind === "mcp/reject" || !correlation_id ? "Edited" : "Approved"];
}
