// Highlights search terms in the drawn rows, by ranges: no element is created from a message's text.

import { occurrences } from "../../state/history/words.js";

const MAX_RANGES = 2_000;
const MAX_CHARS = 200_000; // of text that is searched in one drawing
const PLACES = ".text, .json, .raw, .outcome, .accordion-head, .who, .name, .subject, .to";

/** Highlight the terms in an element; browsers without the API show the rows as they are. */
export function highlight(element, terms) {
  const { highlights } = globalThis.CSS ?? {};
  if (!highlights) return;
  if (!terms.length) {
    highlights.delete("search");
    return;
  }
  const ranges = [];
  let left = MAX_CHARS;
  for (const place of element.querySelectorAll(PLACES)) {
    const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      left -= node.data.length;
      if (left < 0 || ranges.length >= MAX_RANGES) break;
      for (const [start, end] of occurrences(node.data, terms)) ranges.push(rangeIn(node, start, end));
    }
  }
  highlights.set("search", new Highlight(...ranges));
}

function rangeIn(node, start, end) {
  return new StaticRange({ startContainer: node, startOffset: start, endContainer: node, endOffset: end });
}
