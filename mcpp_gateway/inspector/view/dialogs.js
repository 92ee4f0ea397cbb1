// Questions that need an answer before one goes on: arguments to edit, a reason, settings, a link.

import { hasDuplicateKeys, parseExactly, reveal } from "../state/json.js";
import { isObject } from "../state/kinds.js";
import { byId, h } from "./dom.js";

/** Show a form that does what `run` does; while that throws, it stays and says why. */
function ask(title, content, { action, run = () => {} } = {}) {
  const dialog = byId("dialog");
  // The browser gives the focus back to the button that asked, unless that was drawn anew meanwhile.
  const place = document.activeElement.closest(".scroller, #proposals") ?? byId("log");
  dialog.onclose = () => {
    const { activeElement } = document;
    if (activeElement === document.body || dialog.contains(activeElement)) place.focus({ preventScroll: true });
  };
  const problem = h("p", { class: "problem", role: "alert" });
  const submit = (event) => {
    event.preventDefault();
    try {
      run();
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  dialog.replaceChildren(
    h("form", { on: { submit } },
      h("h2", { id: "dialog-title" }, title), content, problem,
      h("div", { class: "dialog-buttons" },
        h("button", { type: "button", on: { click: () => dialog.close() } }, action ? "Cancel" : "Close"),
        action && h("button", { class: "primary" }, action))),
  );
  dialog.showModal();
}

export function showProblem(title, message) {
  ask(title, h("p", {}, message));
}

/** Ask for the arguments that `name` should be called with instead of those that were proposed. */
export function askArguments(name, proposed, send) {
  const area = h("textarea", { rows: 12, class: "code", spellcheck: "false", "aria-label": "Arguments as JSON" });
  area.value = JSON.stringify(proposed, null, 2);
  ask(["Change the arguments of ", called(name)], [
    h("p", {}, "The changed request is made in your own name, and the proposer is told."), area,
  ], {
    action: "Send request",
    run: () => {
      let value;
      try {
        value = parseExactly(area.value);
      } catch (error) {
        throw new Error(`This is not JSON: ${error.message}`);
      }
      if (!isObject(value)) throw new Error("Arguments are an object: { … }.");
      if (hasDuplicateKeys(area.value)) throw new Error("A key is there twice, and only one would be sent.");
      send(value);
    },
  });
}

export function askReason(name, send) {
  const field = h("input", { type: "text", "aria-label": "Reason", autocomplete: "off" });
  ask(["Reject the proposal of ", called(name)], [
    h("p", {}, "An objection is an opinion: others may still approve."), h("label", {}, "Reason ", field),
  ], {
    action: "Reject",
    run: () => {
      if (!field.value.trim()) throw new Error("A rejection needs a reason.");
      send(field.value.trim());
    },
  });
}

const called = (name) => h("code", { class: "name", dir: "auto" }, reveal(name));

export function showLink(url) {
  const field = h("input", { type: "text", readonly: true, value: url, "aria-label": "Link" });
  ask("A link to this view", [h("p", {}, "It carries the filter, the selection and the search. Whoever opens it signs in as themselves."), field]);
  field.select();
}

const KEYS = [
  ["/", "search"], ["f", "filter"], ["c", "write"], ["t", "context tree"], ["g", "log"], ["?", "this help"],
  ["↓ ↑, j k", "next or previous row"], ["Enter", "open a row"], ["r", "raw JSON"], ["← →", "fold, unfold"], ["Esc", "clear selection and search"],
];

export function showSettings(settings, change) {
  const box = (name, label, note) =>
    h("label", { class: "check setting" },
      h("input", { type: "checkbox", checked: settings[name], on: { change: (event) => change(name, event.target.checked) } }),
      h("span", {}, label, note && h("small", {}, note)));
  const theme = h("select", { on: { change: (event) => change("theme", event.target.value) } },
    ["auto", "light", "dark"].map((name) => h("option", { value: name, selected: settings.theme === name }, name)));
  ask("Settings", [
    box("hints", "Show context hints", "badges on tool results: transient, consumed, collapsed"),
    box("foldConcluded", "Fold concluded contexts", "to one line with their conclusion"),
    box("shortcuts", "Single-key shortcuts"),
    h("label", { class: "setting" }, "Appearance ", theme),
    h("p", {}, h("button", { type: "button", on: { click: () => change("signOut", true) } }, "Sign out")),
    h("details", {}, h("summary", {}, "Keyboard"),
      h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]))),
  ]);
}
