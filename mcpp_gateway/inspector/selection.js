// The selected context: in the tree, the log and the timeline, over reloads and newly loaded stretches of the past.

import { isContext } from "./state/filter/filter.js";
import { contextName } from "./state/ids.js";
import { ContextNode } from "./state/tree.js";
import { byId, h } from "./view/elements/dom.js";

export class Selection {
  /**
   * `link` names the context that the address asks for; `views` are tree and timeline. `select(item)` makes the
   * user's selection, `layOut()` draws the log of another node, and `shown()` is called when the banner is drawn.
   */
  constructor({ model, past, rows }, link, views, { select, layOut, shown }) {
    this._model = model;
    this._past = past;
    this._rows = rows;
    this._link = link;
    this._views = views;
    this._select = select;
    this._layOut = layOut;
    this._shown = shown;
    this._restarted = null; // an expired context that a message of the user creates again
    this._cleared = model.cleared;
  }

  /** Select a context, "main", or null for everything. */
  set(item) {
    this._link.main = false;
    this._link.context = null;
    this._rows.selection = item;
    this._views.timeline.selection = item === "main" ? null : item;
    this._views.tree.selected = item;
  }

  /** Select the context that the link names; if it is not loaded, it is loaded from the past. */
  resolve() {
    const { main, context } = this._link;
    if (main) this._select("main");
    else if (context && isContext(context)) this._select(this._model.tree.get(context) ?? new ContextNode(context, -1));
    else if (context && byId("selection").hidden) this.show();
  }

  /** Note a message of the user: in an expired context it creates the context again, which is selected then. */
  sent(draft) {
    const { selection } = this._rows;
    if (selection?.expired && selection.id === draft.context?.id) this._restarted = selection;
  }

  /** Follow the selected context to its present node. */
  follow() {
    if (this._cleared !== this._model.cleared) this._forgetNodes();
    this._followRestarted();
    this._followLoaded();
  }

  /** Draw the banner that names the selection. */
  show() {
    const { selection } = this._rows;
    const box = byId("selection");
    const { context } = this._link; // if it is not the id of one
    box.hidden = selection === null && !context;
    if (!box.hidden) {
      const isLoaded = selection === "main" || selection?.number >= 0;
      const name = selection === "main" ? "the main context" : contextName(selection ?? { id: "" });
      box.replaceChildren(
        isLoaded ? "Showing only " : "Context not loaded: ", h("strong", { dir: "auto" }, isLoaded ? name : selection?.id ?? context), " ",
        h("button", { class: "link", on: { click: () => this._select(null) } }, "Show everything"));
    }
    this._shown();
  }

  // The history was reloaded: nodes of the previous tree are no longer valid.
  _forgetNodes() {
    this._cleared = this._model.cleared;
    const { selection } = this._rows;
    if (!(selection instanceof Object)) return;
    this._replace(this._model.tree.get(selection.id) ?? new ContextNode(selection.id, -1));
    this.show();
  }

  _followRestarted() {
    const again = this._restarted && this._model.tree.get(this._restarted.id);
    if (!again || again === this._restarted) return;
    if (this._rows.selection === this._restarted) this._select(again);
    this._restarted = null;
  }

  // A selected context of the past has another node in each newly loaded stretch, and in the received log.
  _followLoaded() {
    const { selection } = this._rows;
    if (!(selection instanceof Object) || (selection.count && !this._past.has(selection))) return;
    const known = this._model.tree.get(selection.id);
    const now = known?.count ? known : this._past.tree.get(selection.id);
    if (!now || now === selection) return;
    this._replace(now);
    this._layOut();
    this.show();
  }

  _replace(node) {
    this._rows.selection = this._views.tree.selected = this._views.timeline.selection = node;
  }
}
