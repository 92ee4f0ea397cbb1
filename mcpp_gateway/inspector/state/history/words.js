// Words, as the gateway finds them (H-07, mcpp_gateway/core/history/words.py).
//
// A text is folded (compatibility forms, case, accents) and cut into units: a word, or one character of
// a script that puts no spaces between words. A term is a sequence of units that are adjacent in a text.

const UNSPACED = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3040-\\u30ff\\u31f0-\\u31ff\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\uac00-\\ud7af\\u1100-\\u11ff\\u{20000}-\\u{3ffff}";
const SIGNS = "\\u0900-\\u0963\\u0966-\\u0df3\\u0f18-\\u0f39\\u0f71-\\u0f84\\u0f90-\\u0fbc\\u1ab0-\\u1aff";
const UNITS = new RegExp(`(?:(?![${UNSPACED}])[\\p{L}\\p{N}]|[${SIGNS}])+|[${UNSPACED}]`, "gu");
const ACCENTS = /[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]/g;

/** A word, a phrase or a prefix to find. */
class Term {
  constructor(units, isPrefix) {
    this._units = units;
    this._isPrefix = isPrefix;
    this.longest = units.reduce((longest, one) => (one.length > longest.length ? one : longest));
  }

  /** Yield the ranges of a folded text that are this term. */
  *rangesIn(folded) {
    if (!folded.includes(this.longest)) return;
    const found = [...folded.matchAll(UNITS)];
    const { _units: units } = this;
    const last = units.length - 1;
    const isUnit = (one, i) => (i === last && this._isPrefix ? one?.startsWith(units[i]) : one === units[i]);
    for (let at = 0; at + last < found.length; at += 1) {
      if (!units.every((_, i) => isUnit(found[at + i][0], i))) continue;
      const end = found[at + last];
      yield [found[at].index, end.index + units[last].length];
    }
  }

  /** Return whether the term is in a folded text. */
  isIn(folded) {
    return !this.rangesIn(folded).next().done;
  }
}

/** Return the term for a word, a "phrase" or a prefix*; null if there is no word in it. */
export function readTerm(written) {
  const units = fold(written).match(UNITS);
  return units && new Term(units, written.endsWith("*"));
}

/** Return the ranges of a text in which terms occur, in order and without overlaps. */
export function occurrences(text, terms) {
  const { folded, places } = foldWithPlaces(text);
  const found = terms.flatMap((term) => [...term.rangesIn(folded)]);
  found.sort(([one], [other]) => one - other);
  let end = 0;
  const apart = found.filter(([from, to]) => from >= end && ((end = to), true));
  return places ? apart.map(([from, to]) => [places[from], places[to]]) : apart;
}

/** Return a text without case and accents, for comparison. */
export function fold(text) {
  // Most of 100,000 texts need no normalisation, which takes ten times as long.
  if (isPlain(text)) return text.toLowerCase();
  const plain = text.normalize("NFKD").replace(ACCENTS, "").normalize("NFKC");
  return plain.toLowerCase().replaceAll("ß", "ss").replaceAll("ς", "σ");
}

// Folding may change the length of a text: `places` are the indexes of its characters before.
function foldWithPlaces(text) {
  if (isPlain(text)) return { folded: fold(text), places: null };
  const places = [];
  let folded = "";
  let at = 0;
  for (const character of text) {
    const one = fold(character);
    for (let i = 0; i < one.length; i += 1) places.push(at);
    folded += one;
    at += character.length;
  }
  places.push(at);
  return { folded, places };
}

const isPlain = (text) => /^[\0-\x7f]*$/.test(text);
