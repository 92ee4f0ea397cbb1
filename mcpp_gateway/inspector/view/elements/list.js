// A virtual list: only the visible rows are in the page.
//
// Row heights are estimated first, measured once drawn, and remembered by key. The scroll position
// stays on the same row while rows are added or removed; at the end, the list follows new rows.

import { SplitHeights } from "../../state/log/heights.js";
import { h, oncePerFrame } from "./dom.js";

const OVERSCAN_PX = 400;
const AT_END_PX = 32;

export class VirtualList {
  /**
   * `source` has count(), key(i), find(key), render(i) and guess(i), and place(i) if rows are
   * nested. Where the first rows change on their own, it has head(), their number; isEdge(i), for rows
   * that hold no place; and drawn(), called after drawing. Elements that match the selector `holds` do
   * not move while the pointer is over them.
   */
  constructor(scroller, source, { follows = false, holds = null } = {}) {
    this.scroller = scroller;
    this.follows = follows;
    this._holds = holds;
    this._isHeld = false;
    this._pointer = null;
    this.isAtEnd = true;
    this._isPinned = false; // whether a row was asked for, and the user has not scrolled since
    this.active = 0; // index of the row with the keyboard focus
    this._activeKey = null;
    this._askedKey = null; // the row that was asked for is marked, until another has the focus
    this._source = source;
    this.schedule = oncePerFrame(() => this.draw());
    this._heights = new SplitHeights();
    this._headKeys = new Set();
    this._measured = new Map();
    this._drawn = new Map(); // key → element
    this._stale = new Set();
    this._anchor = null;
    this._top = 0; // last scroll position
    this._width = 0;
    this._spacer = h("div", { class: "spacer", role: "presentation" });
    scroller.append(this._spacer);
    scroller.addEventListener("scroll", () => this._scrolled(), { passive: true });
    scroller.addEventListener("focusin", ({ target }) => {
      const row = target.closest("[data-index]");
      if (!row) return;
      if (row.dataset.key !== this._askedKey) this._mark(null);
      this._setActive(Number(row.dataset.index));
    });
    if (holds) this._watchPointer();
    this._observer = new ResizeObserver(() => this.schedule());
    this._observer.observe(scroller);
  }

  /** Replace the rows from an index on. */
  reset(from) {
    const count = this._source.count();
    if (from < this._heights.length) {
      for (const [key, element] of this._drawn) {
        if (Number(element.dataset.index) >= from) this._stale.add(key);
      }
      this._heights.truncate(from);
    }
    for (let i = this._heights.length; i < count; i += 1) {
      this._heights.push(this._measured.get(this._source.key(i)) ?? this._source.guess(i));
    }
    this.schedule();
  }

  /** Replace the first rows, of which the source has `head()`. */
  resetHead() {
    const count = this._source.head();
    const keys = new Set();
    const heights = [];
    for (let i = 0; i < count; i += 1) {
      const key = this._source.key(i);
      keys.add(key);
      heights.push(this._measured.get(key) ?? this._source.guess(i));
    }
    this._heights.setHead(heights);
    // Heights of rows that are no longer loaded would accumulate.
    for (const key of this._headKeys) if (!keys.has(key)) this._measured.delete(key);
    this._headKeys = keys;
    if (this._activeKey !== null) this.active = Math.max(0, this._source.find(this._activeKey));
    this.schedule();
  }

  /** Redraw a row. */
  invalidate(key) {
    this._stale.add(key);
    this.schedule();
  }

  invalidateAll() {
    for (const key of this._drawn.keys()) this._stale.add(key);
    this.schedule();
  }

  draw() {
    const { scroller } = this;
    if (!scroller.clientHeight) return;
    if (this._width !== scroller.clientWidth) {
      this._width = scroller.clientWidth;
      this._measured.clear();
    }
    const held = this._heldFocus();
    this._isHeld = Boolean(this._held());
    this._restorePlace();
    // A measured height may bring other rows into view: repeat, but not indefinitely.
    for (let round = 0; round < 4; round += 1) {
      this._spacer.style.height = `${this._heights.total}px`;
      if (this._isFollowing) scroller.scrollTop = this._heights.total;
      if (!this._drawRange()) break;
    }
    // A row with the focus stays in the page, out of view: it is redrawn when it comes into view again.
    for (const key of this._stale) if (!this._drawn.has(key)) this._stale.delete(key);
    if (held) this._giveFocusBack(held);
    this._top = scroller.scrollTop;
    this._keepPlace();
    this._source.drawn?.();
  }

  /** Return the top and the bottom of a row. */
  range(index) {
    const top = this._heights.top(index);
    return [top, top + this._heights.get(index)];
  }

  /** Bring a row into view and make it the active one. */
  show(index, { focus = false, center = false } = {}) {
    const count = this._source.count();
    if (!count) return;
    const at = Math.max(0, Math.min(count - 1, index));
    const [top, height] = [this._heights.top(at), this._heights.get(at)];
    // Rows may have been added since the last drawing: the browser would not scroll further than to the old end.
    this._spacer.style.height = `${this._heights.total}px`;
    const { scrollTop, clientHeight } = this.scroller;
    if (center) this.scroller.scrollTop = top - clientHeight / 3;
    else if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + height > scrollTop + clientHeight) {
      this.scroller.scrollTop = Math.min(top, top + height - clientHeight);
    }
    this._isPinned = center;
    this.isAtEnd = !center && this._atEnd();
    // Heights around it are estimates: the row keeps its place while they are measured.
    this._anchor = { key: this._source.key(at), offset: this.scroller.scrollTop - top };
    this.draw();
    this._mark(center ? this._source.key(at) : null); // after drawing, which first restores the previous focus
    this._setActive(at);
    if (focus) this.element(at)?.focus({ preventScroll: true });
  }

  /** Whether all rows fit into the view. */
  get isWhole() {
    return this._heights.total <= this.scroller.clientHeight;
  }

  toEnd() {
    this._mark(null);
    this.isAtEnd = true;
    this._isPinned = false;
    this._anchor = null;
    this.draw();
  }

  element(index) {
    if (index < 0 || index >= this._source.count()) return undefined;
    return this._drawn.get(this._source.key(index));
  }

  _drawRange() {
    const { scroller, _heights: heights } = this;
    const count = this._source.count();
    const first = heights.find(Math.max(0, scroller.scrollTop - OVERSCAN_PX));
    const last = heights.find(scroller.scrollTop + scroller.clientHeight + OVERSCAN_PX);
    const wanted = new Set();
    let previous = null;
    const fresh = [];
    for (let i = first; i <= last && i < count; i += 1) {
      const key = this._source.key(i);
      wanted.add(key);
      let element = this._drawn.get(key);
      if (!element || this._stale.has(key)) {
        const drawn = this._render(i, element);
        this._drawn.set(key, drawn);
        this._stale.delete(key);
        element = drawn;
      }
      element.dataset.index = i;
      element.dataset.key = key;
      setTabStop(element, i === this.active);
      setCurrent(element, key === this._askedKey);
      const [position, size] = this._source.place?.(i) ?? [i + 1, count];
      element.setAttribute("aria-posinset", position);
      element.setAttribute("aria-setsize", size);
      fresh.push([i, key, element]);
      const after = previous ? previous.nextSibling : this._spacer.firstChild;
      if (after !== element) this._spacer.insertBefore(element, after);
      previous = element;
    }
    this._removeAllBut(wanted);
    return this._measure(fresh);
  }

  _render(index, old) {
    const element = this._source.render(index);
    if (!old) return element;
    this._observer.unobserve(old);
    old.replaceWith(element);
    return element;
  }

  /** Return the row that has the focus, and which of its buttons. */
  _heldFocus() {
    const { activeElement } = document;
    const row = this._spacer.contains(activeElement) && activeElement.closest("[data-index]");
    return row ? { key: row.dataset.key, name: activeElement.dataset.keep } : null;
  }

  // Restores the focus to a row that was redrawn while it had it.
  _giveFocusBack({ key, name }) {
    const element = this._drawn.get(key) ?? this.element(this._source.find(key));
    if (!element || element.contains(document.activeElement)) return;
    const part = name && element.querySelector(`[data-keep="${CSS.escape(name)}"]`);
    (part || element).focus({ preventScroll: true });
  }

  _measure(drawn) {
    let changed = false;
    const sizes = drawn.map(([, , element]) => element.offsetHeight);
    drawn.forEach(([i, key, element], n) => {
      this._observer.observe(element);
      this._measured.set(key, sizes[n]);
      if (sizes[n] !== this._heights.get(i)) {
        this._heights.set(i, sizes[n]);
        changed = true;
      }
    });
    if (changed) this._restorePlace();
    for (const [i, , element] of drawn) element.style.top = `${this._heights.top(i)}px`;
    return changed;
  }

  _removeAllBut(wanted) {
    for (const [key, element] of this._drawn) {
      if (wanted.has(key)) continue;
      const index = this._source.find(key);
      const isThere = index >= 0 && this._source.key(index) === key;
      // Removing the focused element would move the keyboard focus to the top of the page.
      if (isThere && element.contains(document.activeElement)) continue;
      this._observer.unobserve(element);
      element.remove();
      this._drawn.delete(key);
    }
  }

  get _isFollowing() {
    return this.follows && this.isAtEnd && !this._isHeld;
  }

  // By pointer position: the browser does not report a redrawn row as hovered yet.
  _held() {
    const part = this._pointer && document.elementFromPoint(...this._pointer)?.closest(this._holds);
    return part?.closest("[data-index]");
  }

  _watchPointer() {
    this.scroller.addEventListener("pointermove", ({ clientX, clientY }) => {
      this._pointer = [clientX, clientY];
      this._keepPlace();
    }, { passive: true });
    this.scroller.addEventListener("pointerleave", () => (this._pointer = null));
  }

  _setActive(index) {
    this.active = index;
    this._activeKey = index < this._source.count() ? this._source.key(index) : null;
    for (const element of this._drawn.values()) setTabStop(element, Number(element.dataset.index) === index);
  }

  _mark(key) {
    this._askedKey = key;
    for (const [drawn, element] of this._drawn) setCurrent(element, drawn === key);
  }

  _scrolled() {
    // The event is late: the content may have grown since. Only scrolling up leaves the end.
    const { scrollTop } = this.scroller;
    const wentUp = scrollTop < this._top - 1;
    this._isPinned = this._isPinned && Math.abs(scrollTop - this._top) <= 1;
    this.isAtEnd = !this._isPinned && (this._atEnd() || (this.isAtEnd && !wentUp));
    this._top = this.scroller.scrollTop;
    this._keepPlace();
    this.schedule();
  }

  _atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    return scrollTop + clientHeight >= scrollHeight - AT_END_PX;
  }

  _keepPlace() {
    if (!this._source.count()) return;
    const held = Number(this._held()?.dataset.index ?? Infinity);
    let index = held < this._source.count() ? held : this._heights.find(this.scroller.scrollTop);
    if (this._source.isEdge?.(index) && index + 1 < this._source.count()) index += 1;
    const offset = this.scroller.scrollTop - this._heights.top(index);
    this._anchor = { key: this._source.key(index), offset };
  }

  _restorePlace() {
    if (!this._anchor || this._isFollowing) return;
    const index = this._source.find(this._anchor.key);
    if (index < 0 || index >= this._heights.length) return;
    const top = this._heights.top(index) + this._anchor.offset;
    if (Math.abs(top - this.scroller.scrollTop) < 1) return;
    this._spacer.style.height = `${this._heights.total}px`;
    this.scroller.scrollTop = top;
  }
}

// The mark does not depend on the keyboard focus, which a browser hides after a click.
function setCurrent(row, isCurrent) {
  if (isCurrent) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
}

// Only the active row and its controls are tab stops, not each of thousands of rows.
function setTabStop(row, isStop) {
  if (row.dataset.stop === String(isStop)) return;
  row.dataset.stop = isStop;
  for (const one of [row, ...row.querySelectorAll("button, [tabindex]")]) one.tabIndex = isStop ? 0 : -1;
}
