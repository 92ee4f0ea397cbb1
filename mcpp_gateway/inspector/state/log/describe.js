// Descriptions of envelopes by kind: a tone for styling, a label, and text. No markup.

import { isCoherent, isObject, parseKind, presenceEntries } from "../kinds.js";
import { outcomeOf, stepOf } from "../outcomes.js";
import { blocksOf, textIn, visibleText } from "../results/summaries.js";
import { readResult } from "../results/transient.js";

/** Return {tone, label, text?, json?, note?}: `text` is prose, `json` a value to format. */
export function describe(envelope) {
  const { family, method, name } = parseKind(envelope.kind);
  const payload = isObject(envelope.payload) ? envelope.payload : {};
  switch (family) {
    case "chat":
      return { tone: "chat", label: "chat", ...prose(payload.text, envelope.payload) };
    case "reflection": {
      const step = stepOf(envelope);
      const label = step === undefined ? "thinks" : "begins";
      const said = step === undefined || payload.thought !== step ? prose(payload.thought, envelope.payload) : {};
      return { tone: "thought", label, name: step, ...said };
    }
    case "conclusion":
      return {
        tone: outcomeOf(envelope) === "failed" ? "failure" : "conclusion",
        label: outcomeOf(envelope) === "concluded" ? "concludes" : "ends",
        ...prose(conclusionText(envelope.payload) || undefined, envelope.payload),
      };
    case "mcp/request":
      return call("call", name ? "calls" : method ?? "asks", name, envelope);
    case "mcp/proposal":
      return { ...call("proposal", name ? "proposes" : `proposes ${method ?? ""}`, name, envelope), ...explanation(payload) };
    case "mcp/response":
      return response(payload, method, name);
    case "mcp/notification":
      return notice(method, payload.params);
    case "mcp/reject":
      return { tone: "reject", label: "rejects", ...prose([payload.reason, payload.text].filter(isText).join(": ")) };
    case "mcp/withdraw":
      return { tone: "system", label: "withdraws", ...prose(payload.reason ?? "") };
    case "claim":
      return { tone: "system", label: "claims", name: envelope.kind.slice(family.length + 1) };
    case "release": {
      const label = payload.done === true ? "has done" : "releases";
      return { tone: "system", label, name: envelope.kind.slice(family.length + 1) };
    }
    case "system/presence":
      return presence(payload);
    case "system/context":
      return contextChange(payload);
    case "system/erased":
      return { tone: "system", label: "erased", text: erasure(payload) };
    case "system/update":
      return { tone: "system", label: "announces its card", who: isObject(payload.participant) ? text(payload.participant.id) : "" };
    case "system/loop":
      return { tone: "error", label: "stopped a loop", text: suspectedLoop(payload) };
    case "tombstone":
      return { tone: "system", label: "sent a message that was erased" };
    case "system/error":
      return { tone: "error", label: "refused", code: text(payload.error), ...prose(payload.message) };
    default:
      return { tone: "other", label: envelope.kind, json: envelope.payload };
  }
}

/** Return what a context's conclusion says; one that was erased says only how the context ended. */
export function outcomeText({ kind, payload }) {
  return kind === "tombstone" ? `${payload.outcome} (erased)` : conclusionText(payload);
}

/** Return a conclusion as text: `decision` and `text`, else the payload as JSON, as the SDK's `text_of`. */
export function conclusionText(payload) {
  if (!isObject(payload)) return payload === null ? "" : text(payload);
  const { decision, text: reason, ...rest } = payload;
  const failure = takeFailure(rest);
  const parts = [decision, reason].filter((part) => part !== undefined && part !== null && part !== "");
  if (parts.length === 0 && !failure && Object.keys(rest).length > 0) parts.push(rest);
  return [failure, [...new Set(parts.map(text))].join("\n")].filter(Boolean).join(": ");
}

// Remove how a context failed from the members of its conclusion, and return it as text (C-19).
function takeFailure(members) {
  const outcome = outcomeOf({ payload: members });
  if (["concluded", outcome].includes(members.outcome)) delete members.outcome;
  if (outcome === "concluded") return "";
  const { error } = members;
  delete members.error;
  if (error === undefined || error === null) return outcome;
  const isPlain = isObject(error) && Object.keys(error).length === 2 && isText(error.type) && isText(error.message);
  if (!isPlain) return `${outcome}: ${text(error)}`;
  return error.message ? `${outcome}: ${error.type}: ${error.message}` : `${outcome}: ${error.type}`;
}

const isText = (value) => typeof value === "string";

const text = (value) => (isText(value) ? value : value === undefined ? "" : JSON.stringify(value));

function prose(value, otherwise) {
  return isText(value) ? { text: value } : { json: value ?? otherwise };
}

function call(tone, label, name, envelope) {
  const { payload } = envelope;
  if (!isCoherent(envelope)) {
    return { tone, label, name, json: payload, note: "Kind and payload do not match: no participant will serve this." };
  }
  const { params } = payload;
  const { name: _, _meta, ...rest } = params ?? {};
  // Approving sends all params, so show all of them.
  const isBare = tone !== "proposal" || _meta === undefined;
  const onlyArguments = isBare && name !== undefined && Object.keys(rest).join() === "arguments";
  return { tone, label, name, json: onlyArguments ? rest.arguments : params };
}

/** Return the reason of a proposal and what it would change, as far as they are texts (P-51). */
function explanation({ reason, preview }) {
  const { before, after } = isObject(preview) ? preview : {};
  const isShown = [before, after].some(isText) && [before, after].every((one) => isText(one) || one === undefined || one === null);
  return { reason: isText(reason) && reason ? reason : undefined, preview: isShown ? { before, after } : undefined };
}

function response(payload, method, name) {
  if (method !== "tools/call") {
    const failed = isObject(payload.error);
    const tone = failed ? "error" : "result";
    return { tone, label: `answers ${method ?? ""}`, json: failed ? payload.error : payload.result };
  }
  const result = readResult(payload);
  const tone = result.isError ? "error" : "result";
  const label = result.isError ? "failed" : "returns";
  const texts = blocksOf(result).map(textOf).filter(isText);
  const said = texts.length ? texts.join("\n") : visibleText(result);
  const empty = result.isError ? "No error message." : "Empty result.";
  return { tone, label, name, text: said, note: notShown(result) ?? (said ? undefined : empty) };
}

/** Return the readable text of a content block; more than a model is shown. */
function textOf(block) {
  const { type, name, uri } = block;
  return textIn(block) ?? (type === "resource_link" ? [name, uri].filter(isText).join(": ") : null);
}

const MAX_SECONDS = 8.64e12; // of a Date
const NOUNS = new Map([["image", "image"], ["audio", "recording"], ["resource", "file"]]);

function notShown(result) {
  const counts = new Map();
  for (const block of blocksOf(result)) {
    if (isText(textOf(block))) continue;
    const noun = NOUNS.get(block.type) ?? "part of another type";
    counts.set(noun, (counts.get(noun) ?? 0) + 1);
  }
  if (!counts.size) return undefined;
  const parts = [...counts].map(([noun, count]) => `${count} ${count > 1 ? noun.replace(/^\w+/, "$&s") : noun}`);
  return `${parts.join(", ")}, not shown`;
}

function notice(method, params) {
  if (method !== "notifications/progress" || !isObject(params)) {
    return { tone: "system", label: method ?? "notifies", json: params };
  }
  const total = params.total === undefined ? "" : ` of ${text(params.total)}`;
  return { tone: "system", label: "progress", text: `${text(params.progress)}${total} ${text(params.message)}` };
}

function presence(payload) {
  const [first, ...rest] = presenceEntries(payload).map(({ event, participant }) => ({
    who: isObject(participant) ? text(participant.id) : "a participant",
    label: event === "join" ? "joined" : "left",
  }));
  const more = rest.map(({ who, label }) => `${who} ${label}`).join(", ");
  return { tone: "system", ...(first ?? { label: "presence" }), ...(more ? { text: more } : {}) };
}

function erasure({ context, participant, before, entries, by }) {
  const parts = [`${text(entries)} ${entries === 1 ? "message" : "messages"}`];
  if (participant !== undefined) parts.push(`of ${text(participant)}`);
  if (context !== undefined) parts.push(`in context ${text(context)}`);
  if (Number.isFinite(before) && Math.abs(before) < MAX_SECONDS) parts.push(`before ${new Date(before * 1000).toISOString()}`);
  if (by !== undefined) parts.push(`by ${text(by)}`);
  return parts.join(" ");
}

function suspectedLoop({ participant, hops, context }) {
  const where = isObject(context) ? ` in ${context.type ? text(context.type) : "context"} ${text(context.id)}` : "";
  return `${text(hops - 1)} chats followed each other without a person${where}. Chats such as that of ${text(participant)} are refused until a person says something there.`;
}

function contextChange(payload) {
  const { event, context, contexts, messages, participants } = payload;
  if (!isObject(context) && Array.isArray(contexts)) {
    const ids = contexts.filter(isObject).map((one) => `${one.type ? text(one.type) : "context"} ${text(one.id)}`);
    return { tone: "system", label: event === "revived" ? "revived" : "expired", who: ids[0] ?? "", text: ids.slice(1).join(", ") };
  }
  const id = isObject(context) ? text(context.id) : "";
  const type = isObject(context) && context.type ? text(context.type) : "context";
  const by = Array.isArray(participants) ? ` by ${participants.map(text).join(", ")}` : "";
  const label = event === "revived" ? "revived" : "expired";
  return { tone: "system", label, who: `${type} ${id}`, text: `${text(messages)} ${messages === 1 ? "message" : "messages"}${by}` };
}
