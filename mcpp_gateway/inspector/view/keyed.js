// Children with keys: what stays the same is not touched, and so keeps its focus and what is open.

export class Keyed {
  constructor(parent) {
    this.elements = new Map(); // key → element, in their order
    this._parent = parent;
    this._marks = new Map();
  }

  /** Show items, each {key, mark, make()}: an element is made anew if its mark is another. */
  update(items) {
    const held = document.activeElement;
    const before = this.elements;
    this.elements = new Map();
    for (const item of items) {
      const old = before.get(item.key);
      before.delete(item.key);
      if (old && this._marks.get(item.key) === item.mark) this.elements.set(item.key, old);
      else this._make(item, old);
    }
    for (const [key, element] of before) {
      element.remove();
      this._marks.delete(key);
    }
    let next = this._parent.firstChild;
    for (const element of this.elements.values()) {
      if (element === next) next = next.nextSibling;
      else this._parent.insertBefore(element, next);
    }
    // What was moved has lost it.
    if (held !== document.activeElement && this._parent.contains(held)) held.focus({ preventScroll: true });
  }

  /** Have an element made anew next time, whatever its mark. */
  forget(key) {
    this._marks.delete(key);
  }

  append(item) {
    this._parent.append(this._make(item));
  }

  _make({ key, mark, make }, old) {
    const element = make();
    this.elements.set(key, element);
    this._marks.set(key, mark);
    if (old) replace(old, element);
    return element;
  }
}

function replace(old, element) {
  const parts = (one, what) => [...one.querySelectorAll(what)];
  const open = parts(old, "details").map((one) => one.open);
  parts(element, "details").forEach((one, i) => (one.open = open[i] ?? one.open));
  const focused = parts(old, "button, summary").indexOf(document.activeElement);
  old.replaceWith(element);
  parts(element, "button, summary")[focused]?.focus({ preventScroll: true });
}
