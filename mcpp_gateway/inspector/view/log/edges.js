// The edges of the loaded past: what lies beyond, and a way to load it.

import { h } from "../elements/dom.js";

/** Return the row of an edge, "older" or "newer". `actions` has load(edge). */
export function edgeRow(name, past, actions) {
  const state = past.stateOfEdge(name);
  const text = { older: olderText, newer: newerText }[name](state, past);
  const label = state === "problem" ? "Try again" : state === "idle" ? `Load ${name} messages` : null;
  return h("div", { class: `edge edge-${name} edge-${state}`, role: "note" },
    h("p", {},
      text, label && [text && " ", h("button", { class: "link", "data-keep": "load", on: { click: () => actions.load(name, { again: true }) } }, label)]));
}

function olderText(state, { older, query, start }) {
  const isAll = Object.keys(query).length === 0;
  return {
    loading: "Loading older messages…",
    problem: `Older messages could not be loaded: ${older.problem}`,
    unavailable: "Older messages are not available: the log was lost when the gateway restarted.",
    end: isAll ? (start > 0 ? "The log begins here. Older messages are no longer kept." : "The log begins here.") : "No older messages.",
    idle: "",
  }[state];
}

function newerText(state, { newer }) {
  return {
    loading: "Loading newer messages…",
    problem: `Newer messages could not be loaded: ${newer.problem}`,
    unavailable: "Messages between here and the latest are not loaded.",
    end: "",
    idle: "Messages between here and the latest are not loaded.",
  }[state];
}
