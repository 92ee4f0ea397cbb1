// Keyed children: elements whose version is unchanged are kept, with their focus and open details.

export class Keyed {
  constructor(parent) {
    this.elements = new Map(); // key → element, in order
    this._parent = parent;
    this._versions = new Map();
  }

  /** Show items, each {key, version, make()}; an element is replaced if its version changes. */
  update(items) {
    const focused = document.activeElement;
    const before = this.elements;
    this.elements = new Map();
    for (const item of items) {
      const old = before.get(item.key);
      before.delete(item.key);
      if (old && this._versions.get(item.key) === item.version) this.elements.set(item.key, old);
      else this._make(item, old);
    }
    for (const [key, element] of before) {
      element.remove();
      this._versions.delete(key);
    }
    let next = this._parent.firstChild;
    for (const element of this.elements.values()) {
      if (element === next) next = next.nextSibling;
      else this._parent.insertBefore(element, next);
    }
    // Moving an element removes its focus.
    if (focused !== document.activeElement && this._parent.contains(focused)) focused.focus({ preventScroll: true });
  }

  /** Replace an element at the next update, whatever its version. */
  invalidate(key) {
    this._versions.delete(key);
  }

  append(item) {
    this._parent.append(this._make(item));
  }

  _make({ key, version, make }, old) {
    const element = make();
    this.elements.set(key, element);
    this._versions.set(key, version);
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
