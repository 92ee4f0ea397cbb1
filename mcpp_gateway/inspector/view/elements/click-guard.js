// Ignores clicks on buttons that have just moved: the click was aimed at what was there before.
//
// A list can stop moving under a mouse pointer, but a touch has no position before it happens.

const STILL_MS = 500;
const NEAR_PX = 4; // much smaller than a button: layout may shift by a pixel

export class ClickGuard {
  /** Guard the buttons inside elements that match `selector`, identified by their `data-about`. */
  constructor(selector) {
    this._selector = selector;
    this._places = new Map(); // list id and data-about → {x, y, since}
    const watch = () => {
      this._look();
      requestAnimationFrame(watch);
    };
    watch();
    document.addEventListener("click", (event) => this._filter(event), { capture: true });
  }

  _look() {
    const now = performance.now();
    const before = this._places;
    this._places = new Map();
    for (const box of document.querySelectorAll(this._selector)) {
      const { x, y } = box.getBoundingClientRect();
      // A box that was redrawn in the same place has not moved.
      const key = `${box.closest("[id]").id} ${box.dataset.about}`;
      const old = before.get(key);
      const isNear = old && Math.hypot(old.x - x, old.y - y) <= NEAR_PX;
      const place = isNear ? old : { x, y, since: now };
      this._places.set(key, place);
      const isMoving = String(now - place.since < STILL_MS);
      for (const button of box.querySelectorAll("button")) {
        if (button.ariaDisabled !== isMoving) button.ariaDisabled = isMoving;
      }
    }
  }

  _filter(event) {
    const button = event.target.closest?.(`:is(${this._selector}) button`);
    // Clicks from the keyboard pass: the focus moves with the button.
    if (!button || event.detail === 0) return;
    this._look();
    if (button.ariaDisabled === "true") event.stopPropagation();
  }
}
