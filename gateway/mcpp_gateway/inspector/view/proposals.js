// A proposal's fate and what a person may do about it: approve, edit, reject, withdraw.

import { h } from "./dom.js";

/** `actions` has approve(proposal), edit(proposal), reject(proposal) and withdraw(proposal). */
export function proposalActions(proposal, model, actions) {
  const { envelope, state, rejections } = proposal;
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
    box.append(fate(proposal, model.me));
  }
  for (const { from, reason } of rejections) {
    box.append(h("p", { class: "fate fate-rejected", dir: "auto" }, `${from} objects: ${reason}`));
  }
  return box;
}

/** Return what became of a proposal: for us it is over, too, once we have spoken against it. */
export function fate({ state, by, rejections }, me) {
  const ours = state === "open" && rejections.some(({ from }) => from === me);
  const texts = { fulfilled: `Approved by ${by}`, withdrawn: "Withdrawn", lost: "Lost when the gateway was restarted", hidden: "Not in what is loaded" };
  const [name, text] = ours ? ["rejected", "Rejected by you"] : [state, texts[state]];
  return h("p", { class: `fate fate-${name}`, dir: "auto", title: text }, text);
}
