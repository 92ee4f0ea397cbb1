// Modal dialogs: edit arguments, enter a reason, settings, link to the view.

import { hasDuplicateKeys, parseExactly, reveal } from "../state/json.js";
import { isObject } from "../state/kinds.js";
import { byId, h } from "./elements/dom.js";

/** Show a form that calls `run` on submit and closes; if `run` throws, it shows the message instead. */
function ask(title, content, { action, run = () => {} } = {}) {
  const dialog = byId("dialog");
  // The browser returns the focus to the button that opened the dialog, unless it was redrawn meanwhile.
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

/** Ask for the arguments of a call to `name`, starting from the proposed ones. */
export function askArguments(name, proposed, send) {
  const area = h("textarea", { rows: 12, class: "code", spellcheck: "false", "aria-label": "Arguments as JSON" });
  area.value = JSON.stringify(proposed, null, 2);
  ask(["Edit the arguments of ", nameCode(name)], [
    h("p", {}, "The edited request is sent in your name, and the proposer is notified."), area,
  ], {
    action: "Send request",
    run: () => {
      let value;
      try {
        value = parseExactly(area.value);
      } catch (error) {
        throw new Error(`Invalid JSON: ${error.message}`);
      }
      if (!isObject(value)) throw new Error("The arguments must be a JSON object: { … }.");
      if (hasDuplicateKeys(area.value)) throw new Error("A key occurs twice; only one of its values would be sent.");
      send(value);
    },
  });
}

export function askReason(name, send) {
  const field = h("input", { type: "text", "aria-label": "Reason", autocomplete: "off" });
  ask(["Reject the proposal for ", nameCode(name)], [
    h("p", {}, "A rejection is an opinion: other participants may still approve."), h("label", {}, "Reason ", field),
  ], {
    action: "Reject",
    run: () => {
      if (!field.value.trim()) throw new Error("Enter a reason.");
      send(field.value.trim());
    },
  });
}

/** Show the form of a question; `send` reads it, and throws an Error for what is not valid. */
export function askQuestion(content, send) {
  ask("Answer a question", content, { action: "Send answer", run: send });
}

/** Ask for a moment; `read(text)` returns it in seconds or null, `go(seconds)` shows it. */
export function askTime(read, go) {
  const field = h("input", { type: "text", "aria-label": "Time", autocomplete: "off", spellcheck: "false", placeholder: "10:00" });
  ask("Go to a time", [
    h("label", {}, "Time ", field),
    h("p", { class: "hint" }, "Such as 10:00, yesterday, 2026-11-16, 2026-11-16T10:00, or 2h for two hours ago."),
  ], {
    action: "Go",
    run: () => {
      const seconds = read(field.value);
      if (seconds === null) throw new Error("Enter a time, such as 10:00 or 2026-11-16T10:00.");
      go(seconds);
    },
  });
}

const nameCode = (name) => h("code", { class: "name", dir: "auto" }, reveal(name));

export function showLink(url) {
  const field = h("input", { type: "text", readonly: true, value: url, "aria-label": "Link" });
  ask("Link to this view", [h("p", {}, "The link contains the filter, the selection and the search. People who open it sign in with their own token."), field]);
  field.select();
}

const KEYS = [
  ["/", "search"], ["f", "filter"], ["c", "write a message"], ["t", "context tree"], ["g", "log"], ["?", "this help"],
  ["n, N", "next older or newer match"], ["d", "go to a time"],
  ["↓ ↑, j k", "next or previous row"], ["Enter", "open a row"], ["r", "raw JSON"], ["← →", "fold or unfold"], ["Esc", "clear selection and search"],
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
    box("foldConcluded", "Fold concluded contexts", "into one line with their conclusion"),
    box("shortcuts", "Single-key shortcuts"),
    h("label", { class: "setting" }, "Appearance ", theme),
    h("p", {}, h("button", { type: "button", on: { click: () => change("signOut", true) } }, "Sign out")),
    h("details", {}, h("summary", {}, "Keyboard"),
      h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]))),
  ]);
}
