// Sign-in: with a one-time link, a pasted token, or the token kept in this tab's session storage.

import { Inspector } from "./inspector.js";
import { checkToken, redeem } from "./net.js";
import { loadSettings, showTheme } from "./settings.js";
import { readCode, readView } from "./state/filter/link.js";
import { byId } from "./view/elements/dom.js";

const TOKEN = "mcpp.token";
const REASON = "mcpp.reason"; // why the user was signed out
const PROBLEMS = { refused: "The gateway does not recognize this token.", unreachable: "The gateway does not respond." };

function showInspector(token, view) {
  sessionStorage.setItem(TOKEN, token);
  byId("sign-in").hidden = true;
  byId("app").hidden = false;
  new Inspector(token, view, signOut).start();
}

function signOut(reason) {
  sessionStorage.removeItem(TOKEN);
  if (reason) sessionStorage.setItem(REASON, reason);
  location.reload();
}

function askForToken(view, problem) {
  const showError = (text) => {
    byId("sign-in-problem").textContent = text;
    byId("sign-in-problem").hidden = !text;
  };
  showError(problem ?? "");
  byId("sign-in").hidden = false;
  byId("token").focus();
  byId("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = byId("token").value.trim();
    if (!/^[A-Za-z0-9._~-]+$/.test(token)) {
      showError("A token contains only letters, digits and . _ ~ -");
      return;
    }
    const status = await checkToken(token);
    if (status === "valid") {
      byId("token").value = "";
      showInspector(token, view);
    } else {
      showError(PROBLEMS[status] ?? `The gateway says: ${status}`);
    }
  });
}

async function main() {
  byId("stuck").remove();
  // When a link is opened on a page that is already loaded, the browser only changes the fragment.
  window.addEventListener("hashchange", () => location.reload());
  showTheme(loadSettings());
  const code = readCode(location.hash);
  if (code) {
    // First, so that the code stays neither in the address bar nor in the history.
    history.replaceState(null, "", location.pathname + location.search);
    const token = await redeem(code).catch(() => null);
    if (token) {
      showInspector(token, readView(""));
      return;
    }
  }
  const view = readView(location.hash);
  const kept = sessionStorage.getItem(TOKEN);
  if (kept) {
    showInspector(kept, view);
    return;
  }
  const reason = sessionStorage.getItem(REASON);
  sessionStorage.removeItem(REASON);
  askForToken(view, code ? "This link has already been used, or is older than two minutes." : reason);
}

main();
