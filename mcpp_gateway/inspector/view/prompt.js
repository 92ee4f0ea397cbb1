// "What does it see?": the prompt of a participant's model at a point of the log.

import { reveal } from "../state/json.js";
import { byId, clockTime, h, plural } from "./elements/dom.js";

const SHOWN_CHARS = 4_000; // of a part, until the user asks for all of it
const MARK = /^\[(?:collapsed|folded|cut)(?:;[^\]\n]*)?; handle ([^\]\n]+)\]/gm;

/**
 * Ask whose prompt to show, and show it. `about` has the names of `participants`, the `viewer` to begin
 * with and the `entry` up to which it sees the log (null: all of it); `compute(options)` returns the
 * prompt or throws an error.
 */
export function showPrompt({ participants, viewer, entry }, compute) {
  const dialog = byId("dialog");
  const who = h("select", { "aria-label": "Participant" },
    participants.map((name) => h("option", { value: name, selected: name === viewer }, name)));
  const budget = h("input", { type: "text", value: "", placeholder: "60000", "aria-label": "Token budget", autocomplete: "off" });
  const result = h("div", { class: "prompt", tabindex: 0, role: "region", "aria-label": "Prompt", "aria-live": "polite" });
  const run = async (event) => {
    event?.preventDefault();
    result.replaceChildren(h("p", { class: "quiet" }, "Computing…"));
    try {
      const prompt = await compute({ viewer: who.value, at: entry?.envelope.id, budget: budget.value.trim() || undefined });
      result.replaceChildren(...describe(prompt));
    } catch (error) {
      result.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  };
  const when = entry ? `at ${clockTime(entry.envelope.ts)}` : "now";
  dialog.onclose = () => {
    dialog.classList.remove("wide");
    if (dialog.contains(document.activeElement) || document.activeElement === document.body) byId("log").focus({ preventScroll: true });
  };
  dialog.classList.add("wide");
  dialog.replaceChildren(
    h("form", { on: { submit: run } },
      h("h2", { id: "dialog-title" }, `What does it see ${when}?`),
      h("p", { class: "prompt-fields" },
        h("label", {}, "Model of ", who), h("label", {}, "Token budget ", budget), h("button", {}, "Compute")),
      result,
      h("div", { class: "dialog-buttons" }, h("button", { type: "button", on: { click: () => dialog.close() } }, "Close"))));
  who.addEventListener("change", run);
  dialog.showModal();
  run();
}

function describe({ tokens, tokens_before: before, budget, envelopes, changed, left_out: leftOut, messages, system, handles }) {
  const known = new Set(handles);
  const number = (value) => value.toLocaleString("en");
  const counts = (title, reasons) => {
    const found = Object.entries(reasons);
    return found.length ? [h("dt", {}, title), h("dd", {}, found.map(([reason, count]) => `${reason}: ${number(count)}`).join(", "))] : [];
  };
  return [
    h("dl", { class: "prompt-facts" },
      h("dt", {}, "Tokens"), h("dd", {}, `${number(tokens)} of ${number(budget)}${before === tokens ? "" : `; ${number(before)} before it was reduced`}`),
      h("dt", {}, "From"), h("dd", {}, plural(envelopes, "envelope")),
      counts("Reduced", changed), counts("Left out", leftOut)),
    system && message("system", [{ kind: "text", text: system }], known),
    ...messages.map(({ role, parts }) => message(role, parts, known)),
  ].filter(Boolean);
}

function message(role, parts, known) {
  return h("section", { class: `prompt-message prompt-${role === "user" || role === "assistant" ? role : "system"}` },
    h("h3", {}, role),
    parts.map((part) => [
      part.kind !== "text" && h("p", { class: "label" }, { call: "tool call", result: "tool result", error: "failed tool call", image: "image" }[part.kind]),
      text(part.text, known),
    ]));
}

function text(full, known) {
  const box = h("p", { class: "text", dir: "auto" });
  const show = (shown) => box.replaceChildren(...withMarks(reveal(shown), known));
  if (full.length <= SHOWN_CHARS) {
    show(full);
    return box;
  }
  show(`${full.slice(0, SHOWN_CHARS)}…`);
  const more = h("button", { type: "button", class: "link" }, `Show all ${full.length.toLocaleString("en")} characters`);
  more.addEventListener("click", () => {
    show(full);
    more.remove();
  });
  return [box, more];
}

// Marks of the prompt builder; a participant's text that looks like one has no known handle.
function withMarks(shown, known) {
  const parts = [];
  let end = 0;
  for (const found of shown.matchAll(MARK)) {
    if (!known.has(found[1])) continue;
    parts.push(shown.slice(end, found.index), h("mark", {}, found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, shown.slice(end)];
}
