// Signing in: with a one-time link, with a token that is pasted, or with the one of this tab.

import { Inspector } from "./inspector.js";
import { checkToken, redeem } from "./net.js";
import { loadSettings, showTheme } from "./settings.js";
import { readCode, readView } from "./state/link.js";
import { byId } from "./view/dom.js";

const TOKEN = "mcpp.token";
const REASON = "mcpp.reason"; // why one was signed out

function enter(token, view) {
  sessionStorage.setItem(TOKEN, token);
  byId("sign-in").hidden = true;
  byId("app").hidden = false;
  new Inspector(token, view, leave).start();
}

function leave(reason) {
  sessionStorage.removeItem(TOKEN);
  if (reason) sessionStorage.setItem(REASON, reason);
  location.reload();
}

function askForToken(view, problem) {
  const complain = (text) => {
    byId("sign-in-problem").textContent = text;
    byId("sign-in-problem").hidden = !text;
  };
  complain(problem ?? "");
  byId("sign-in").hidden = false;
  byId("token").focus();
  byId("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = byId("token").value.trim();
    if (!/^[A-Za-z0-9._~-]+$/.test(token)) {
      complain("A token has letters, digits and . _ ~ - only.");
      return;
    }
    const verdict = await checkToken(token);
    if (verdict === "good") {
      byId("token").value = "";
      enter(token, view);
    } else {
      complain(verdict === "refused" ? "The gateway does not know this token." : "The gateway does not answer.");
    }
  });
}

async function main() {
  byId("stuck").remove();
  // A link opened where the page already is: the browser changes the address and loads nothing.
  window.addEventListener("hashchange", () => location.reload());
  showTheme(loadSettings());
  const code = readCode(location.hash);
  if (code) {
    // Before anything else: a code must not stay in the address bar or the history.
    history.replaceState(null, "", location.pathname);
    const token = await redeem(code).catch(() => null);
    if (token) {
      enter(token, readView(""));
      return;
    }
  }
  const view = readView(location.hash);
  const kept = sessionStorage.getItem(TOKEN);
  if (kept) {
    enter(kept, view);
    return;
  }
  const reason = sessionStorage.getItem(REASON);
  sessionStorage.removeItem(REASON);
  askForToken(view, code ? "This link was used before, or is older than two minutes." : reason);
}

main();
