// What has only just come to its place takes no click there: it was aimed at what stood there before.
//
// A list can hold still under a mouse. A finger is nowhere until it is down, and then it is too late.

const STILL_MS = 500;
const NEAR_PX = 4; // much less than a button: a list settles by a pixel

export class Stillness {
  /** Watch over the buttons in what `selector` selects: boxes with a `data-about` of their own. */
  constructor(selector) {
    this._selector = selector;
    this._places = new Map(); // list and what a box is about → {x, y, since}
    const watch = () => {
      this._look();
      requestAnimationFrame(watch);
    };
    watch();
    document.addEventListener("click", (event) => this._judge(event), { capture: true });
  }

  _look() {
    const now = performance.now();
    const before = this._places;
    this._places = new Map();
    for (const box of document.querySelectorAll(this._selector)) {
      const { x, y } = box.getBoundingClientRect();
      // A box that is drawn anew in its place has not moved.
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

  _judge(event) {
    const button = event.target.closest?.(`:is(${this._selector}) button`);
    // From the keyboard: the focus stays with what one has read.
    if (!button || event.detail === 0) return;
    this._look();
    if (button.ariaDisabled === "true") event.stopPropagation();
  }
}
