// A proposal's fate and what a person may do about it: approve, edit, reject, withdraw.

import { h } from "./dom.js";

/** `actions` has approve(proposal), edit(proposal), reject(proposal) and withdraw(proposal). */
export function proposalActions(proposal, model, actions) {
  const { envelope, state, by, rejections } = proposal;
  const box = h("div", { class: "proposal" });
  if (state === "open") {
    const button = (label, run, name) =>
      h("button", { class: name, "data-keep": label, on: { click: () => run(proposal) } }, label);
    if (envelope.from === model.me) {
      box.append(button("Withdraw", actions.withdraw));
    } else {
      box.append(
        button("Approve", actions.approve, "primary"),
        button("Edit…", actions.edit),
        button("Reject…", actions.reject),
      );
    }
  } else {
    const fate = state === "fulfilled" ? `Approved by ${by}` : "Withdrawn";
    box.append(h("p", { class: `fate fate-${state}`, dir: "auto" }, fate));
  }
  for (const { from, reason } of rejections) {
    box.append(h("p", { class: "fate fate-rejected", dir: "auto" }, `${from} objects: ${reason}`));
  }
  return box;
}
