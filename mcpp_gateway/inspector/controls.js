// The buttons, tabs and shortcuts of the page, and its settings.

import { saveSettings, showTheme } from "./settings.js";
import { showLink, showSettings } from "./view/dialogs.js";
import { byId, isTyping } from "./view/elements/dom.js";

export class Controls {
  /** `keys` maps shortcuts to functions; the other actions are named after the controls. */
  constructor(settings, keys, actions) {
    this._settings = settings;
    this._keys = { ...keys, "?": () => this._askSettings() };
    this._actions = actions;
    this._bind();
    showTheme(settings);
  }

  /** Show a part of the page: the log, the timeline, or on a small screen another one. */
  show(part) {
    byId("app").dataset.part = part;
    for (const button of document.querySelectorAll(".tabs [data-part]")) {
      if (button.dataset.part === part) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    byId("timeline").hidden = part !== "timeline";
    byId("log").hidden = part === "timeline";
    this._actions.shown();
  }

  /** Show the log in place of another part. */
  leave(part) {
    if (byId("app").dataset.part === part) this.show("log");
  }

  _bind() {
    const { _actions: actions } = this;
    byId("only-open").addEventListener("change", ({ target }) => actions.onlyOpen(target.checked));
    byId("descendants").addEventListener("change", ({ target }) => actions.descendants(target.checked));
    byId("follow").addEventListener("click", () => actions.follow());
    byId("log").addEventListener("scroll", () => actions.scrolled(), { passive: true });
    byId("export").addEventListener("click", () => actions.export());
    byId("copy-link").addEventListener("click", () => {
      actions.writeLink();
      showLink(location.href);
    });
    byId("reconnect").addEventListener("click", () => actions.reconnect());
    byId("settings-button").addEventListener("click", () => this._askSettings());
    for (const button of document.querySelectorAll("[data-part]")) {
      if (button.tagName === "BUTTON") button.addEventListener("click", () => this.show(button.dataset.part));
    }
    document.addEventListener("keydown", (event) => this._key(event));
    // Messages waiting for the connection exist only in this page.
    window.addEventListener("beforeunload", (event) => {
      if (actions.hasUnsent()) event.preventDefault();
    });
  }

  _key(event) {
    const isElsewhere = isTyping(event) && event.target.id !== "search";
    if (event.key === "Escape" && !byId("dialog").open && !isElsewhere) {
      this._actions.showEverything();
    }
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!this._settings.shortcuts || !plain || isTyping(event) || byId("dialog").open) return;
    if (!(event.key in this._keys)) return;
    event.preventDefault();
    this._keys[event.key]();
  }

  _askSettings() {
    showSettings(this._settings, (name, value) => {
      if (name === "signOut") {
        this._actions.signOut();
        return;
      }
      this._settings[name] = value;
      saveSettings(this._settings);
      showTheme(this._settings);
      this._actions.applySettings();
    });
  }
}
