// The search field: what to find, how much was found, and the way from match to match.

import { ExpressionError } from "../state/filter/expression.js";
import { readMoment } from "../state/history/moments.js";
import { readSearch } from "../state/history/search.js";
import { askTime } from "./dialogs.js";
import { byId, plural, setText } from "./elements/dom.js";

const SEARCH_MS = 150;

export class SearchBar {
  /** `actions` has search(search), step(direction) and goTo(seconds). */
  constructor(actions) {
    this._actions = actions;
    this._field = byId("search");
    this._timer = undefined;
    this._field.addEventListener("input", () => {
      clearTimeout(this._timer);
      this._timer = setTimeout(() => this.apply(), SEARCH_MS);
    });
    this._field.addEventListener("keydown", (event) => this._key(event));
    byId("older-match").addEventListener("click", () => actions.step("older"));
    byId("newer-match").addEventListener("click", () => actions.step("newer"));
    byId("go-to-time").addEventListener("click", () => this.askTime());
  }

  get text() {
    return this._field.value.trim();
  }

  set text(text) {
    this._field.value = text;
  }

  /** Whether something was typed that is not applied yet. */
  get isPending() {
    return this._timer !== undefined;
  }

  focus() {
    this._field.focus();
  }

  /** Apply what is in the field, or show what is wrong with it. */
  apply() {
    clearTimeout(this._timer);
    this._timer = undefined;
    const search = this.read();
    if (search !== undefined) this._actions.search(search);
  }

  /** Return the search in the field, null if it is empty, or show an error and return undefined. */
  read() {
    let problem = "";
    let search;
    try {
      search = readSearch(this._field.value, Date.now());
    } catch (error) {
      if (!(error instanceof ExpressionError)) throw error;
      problem = `${error.message}.`;
    }
    setText(byId("search-problem"), problem);
    byId("search-problem").hidden = !problem;
    this._field.setAttribute("aria-invalid", String(Boolean(problem)));
    return search;
  }

  /** Show the number of matches: {count, isComplete, isSearching, indexing, rank}; null if nothing is searched. */
  showMatches(found) {
    byId("matches").hidden = found === null;
    byId("log").classList.toggle("searching", found !== null);
    if (!found) return;
    const { count, isComplete, isSearching, indexing, rank } = found;
    const more = isComplete ? "" : "+";
    byId("matches-text").title = isComplete ? "" : "At least so many: not all of the log is counted.";
    const isBehind = indexing !== null && (isSearching || !isComplete);
    byId("indexing").hidden = !isBehind;
    if (isBehind) byId("indexing-bar").value = indexing;
    const all = plural(count, "match").replace("matchs", `matches`).replace(/^[\d,]+/, `$&${more}`);
    setText(byId("matches-text"), isSearching && !count ? "Searching…" : rank ? `${rank.toLocaleString("en")} of ${all}` : all);
    for (const name of ["older-match", "newer-match"]) byId(name).disabled = count === 0;
  }

  askTime() {
    askTime((text) => readMoment(text, Date.now()), (seconds) => this._actions.goTo(seconds));
  }

  _key(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (this.isPending) this.apply();
    this._actions.step(event.shiftKey ? "newer" : "older");
  }
}
