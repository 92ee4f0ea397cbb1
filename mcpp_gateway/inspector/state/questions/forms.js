// Forms for the flat schemas of elicitations: fields from a schema, values from fields.

import { isObject } from "../kinds.js";

const MAX_FIELDS = 50;

/** Return the fields of a schema, in its order. What is not understood is asked for as text. */
export function fieldsOf(schema) {
  const properties = isObject(schema.properties) ? schema.properties : {};
  const required = Array.isArray(schema.required) ? schema.required : [];
  return Object.entries(properties)
    .slice(0, MAX_FIELDS)
    .map(([name, given]) => field(name, isObject(given) ? given : {}, required.includes(name)));
}

function field(name, given, isRequired) {
  const text = (value) => (typeof value === "string" ? value : undefined);
  const common = { name, label: text(given.title) ?? name, hint: text(given.description), isRequired, initial: given.default };
  if (given.type === "boolean") return { ...common, type: "boolean" };
  if (given.type === "array") return { ...common, type: "choices", options: optionsOf(isObject(given.items) ? given.items : {}) };
  const options = optionsOf(given);
  if (options.length) return { ...common, type: "choice", options };
  if (given.type === "integer" || given.type === "number") {
    return { ...common, type: given.type, least: given.minimum, most: given.maximum };
  }
  return { ...common, type: "text", format: text(given.format), least: given.minLength, most: given.maxLength };
}

function optionsOf({ enum: values, enumNames, oneOf, anyOf }) {
  if (Array.isArray(values)) {
    const names = Array.isArray(enumNames) ? enumNames : [];
    return values.map((value, i) => ({ value: String(value), label: String(names[i] ?? value) }));
  }
  const titled = [oneOf, anyOf].find(Array.isArray) ?? [];
  return titled.filter(isObject).map(({ const: value, title }) => ({ value: String(value), label: String(title ?? value) }));
}

/**
 * Return the content of a filled form. `values` has texts by name, booleans for boolean fields and
 * lists for several choices. Throw an Error for a value that the schema does not allow.
 */
export function readForm(fields, values) {
  const content = {};
  for (const one of fields) {
    const value = readField(one, values[one.name]);
    if (value !== undefined) content[one.name] = value;
    else if (one.isRequired) throw new Error(`${one.label}: enter a value.`);
  }
  return content;
}

function readField({ type, label, least, most }, value) {
  if (type === "boolean") return Boolean(value);
  if (type === "choices") return value?.length ? value : undefined;
  if (value === undefined || value === "") return undefined;
  if (type === "number" || type === "integer") {
    const number = Number(value);
    const isNumber = value.trim() !== "" && Number.isFinite(number);
    if (!isNumber || (type === "integer" && !Number.isInteger(number))) throw new Error(`${label}: enter ${type === "integer" ? "a whole" : "a"} number.`);
    if (number < least) throw new Error(`${label}: at least ${least}.`);
    if (number > most) throw new Error(`${label}: at most ${most}.`);
    return number;
  }
  if (value.length < least) throw new Error(`${label}: at least ${least} characters.`);
  if (value.length > most) throw new Error(`${label}: at most ${most} characters.`);
  return value;
}
