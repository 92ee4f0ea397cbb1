// DOM helpers. Text from participants becomes only text nodes or attributes with safe names, never
// markup.

const ATTRIBUTES = /^(?:class|id|title|alt|type|role|tabindex|for|value|rows|dir|name|datetime|placeholder|hidden|open|checked|selected|disabled|readonly|spellcheck|autocomplete|aria-[a-z]+|data-[a-z-]+)$/;

/** Create an element. `on` holds listeners, `style` properties, the rest are attributes. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else if (!ATTRIBUTES.test(name)) {
      throw new TypeError(`attribute ${name} is not allowed`);
    } else if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== undefined && child !== null && child !== false) element.append(child);
  }
}

export const byId = (id) => document.getElementById(id);

/** Return a function that calls `draw` once in the next frame, however often it is called before. */
export function oncePerFrame(draw) {
  let frame;
  return () => {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      draw();
    });
  };
}

/** Set an element's text, if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const isTyping = (event) =>
  event.target.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]") ?? false;

/** Return one of eight hues for a name, deterministically: the last bits of FNV-1a. */
export function hueOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i += 1) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return hash & 7;
}

export const plural = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

export function duration(milliseconds) {
  if (!Number.isFinite(milliseconds) || milliseconds < 0) return "–";
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 59_950) return `${(milliseconds / 1_000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1_000);
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return the time of day, preceded by the date if that is not today. */
export function clockTime(ts) {
  const date = new Date(ts);
  if (Number.isNaN(date.getTime())) return "";
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}
