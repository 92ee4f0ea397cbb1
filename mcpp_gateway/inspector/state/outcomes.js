// What a context's creator says about it: title, steps, outcome and tokens, as mcpp/outcomes.py reads them.

import { isObject } from "./kinds.js";

const MAX_TITLE_LENGTH = 200;
const OUTCOMES = ["concluded", "failed", "cancelled"];
const MAX_STEPS = 64;
const MAX_STEP_LENGTH = 100;
const MAX_MODEL_LENGTH = 100;
const MAX_TOKENS = 2 ** 40;

/** Return whether an envelope of a context's creator ends it: a conclusion, erased or not. */
export function endsContext({ kind, payload }) {
  if (kind !== "tombstone") return kind === "conclusion";
  return isObject(payload) && OUTCOMES.includes(payload.outcome);
}

/** Return how a context ended, from its creator's conclusion (C-19). */
export function outcomeOf({ payload }) {
  const stated = isObject(payload) ? payload.outcome : undefined;
  return stated === "failed" || stated === "cancelled" ? stated : "concluded";
}

/** Return the tokens that a conclusion reports, null if it reports none that can be true (C-22). */
export function usageOf({ kind, payload }) {
  const usage = kind === "conclusion" && isObject(payload) ? payload.usage : undefined;
  if (!isObject(usage)) return null;
  const { input_tokens: input = 0, output_tokens: output = 0, cached_tokens: cached = 0, model = "" } = usage;
  if (![input, output, cached].every(isCount) || typeof model !== "string") return null;
  const name = [...model];
  return { input, output, cached, model: name.length > MAX_MODEL_LENGTH ? `${name.slice(0, MAX_MODEL_LENGTH - 1).join("")}…` : model };
}

/** Return the title in a context's metadata, on one line; undefined if there is none (C-20). */
export function titleIn(metadata) {
  if (!isObject(metadata) || typeof metadata.title !== "string") return undefined;
  const line = [...metadata.title.split(WHITESPACE).filter(Boolean).join(" ")];
  return (line.length > MAX_TITLE_LENGTH ? `${line.slice(0, MAX_TITLE_LENGTH - 1).join("")}…` : line.join("")) || undefined;
}

/** Return the steps that a context's metadata announce, each once (C-21). */
export function stepsIn(metadata) {
  const steps = isObject(metadata) ? metadata.steps : undefined;
  if (!Array.isArray(steps) || steps.length > MAX_STEPS || !steps.every(isStep)) return [];
  return [...new Set(steps)];
}

/** Return the step that a reflection begins, undefined for any other envelope (C-21). */
export function stepOf({ kind, payload }) {
  if (kind !== "reflection" || !isObject(payload)) return undefined;
  return typeof payload.step === "string" && payload.step ? payload.step : undefined;
}

const isCount = (number) => Number.isInteger(number) && number >= 0 && number <= MAX_TOKENS;
const isStep = (step) => typeof step === "string" && step.length > 0 && [...step].length <= MAX_STEP_LENGTH;

// What Python's `str.split` takes for white space.
const WHITESPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;
