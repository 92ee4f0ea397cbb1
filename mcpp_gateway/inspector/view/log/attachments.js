// Attachments below a row: pictures of safe types, and downloads of everything else.

import { attachmentsOf, fileName, pictureType, sizeText } from "../../state/log/attachments.js";
import { reveal } from "../../state/json.js";
import { saveBlob } from "../../download.js";
import { h } from "../elements/dom.js";

const KEPT_PICTURES = 24;

export class AttachmentsView {
  /** `fetchBlob(attachment)` returns the content, or throws an error with the reason. */
  constructor(fetchBlob) {
    this._fetch = fetchBlob;
    this._pictures = new Map(); // by hash and type, the most recent last: promises of URLs
  }

  /** Return the element for the attachments of an envelope, or null. */
  render(envelope) {
    const found = attachmentsOf(envelope);
    return found.length ? h("ul", { class: "attachments", "aria-label": "Attachments" }, found.map((one) => this._item(one))) : null;
  }

  _item(attachment) {
    const name = fileName(attachment);
    const type = pictureType(attachment);
    const problem = h("span", { class: "problem", role: "status" });
    return h("li", {},
      type && this._picture(attachment, type, name, problem),
      h("button", { class: "link", "data-keep": `save-${attachment.hash}`, title: "Download", on: { click: () => this._save(attachment, name, problem) } },
        h("span", { dir: "auto" }, reveal(name))),
      " ", h("span", { class: "quiet" }, `${reveal(attachment.media_type.slice(0, 80))}, ${sizeText(attachment.size)}${attachment.private === true ? ", private" : ""}`),
      " ", problem);
  }

  _picture(attachment, type, name, problem) {
    // Its box has a fixed height: the list of rows knows heights before pictures arrive.
    const image = h("img", { class: "picture", alt: name, on: { error: () => (problem.textContent = "This is not a picture.") } });
    this._url(attachment, type).then(
      (url) => (image.src = url),
      (error) => (problem.textContent = error.message),
    );
    return h("div", { class: "picture-box" }, image);
  }

  _url(attachment, type) {
    const key = `${attachment.hash} ${type}`;
    const known = this._pictures.get(key) ?? this._fetch(attachment).then((bytes) => URL.createObjectURL(new Blob([bytes], { type })));
    this._pictures.delete(key);
    this._pictures.set(key, known);
    known.catch(() => this._pictures.delete(key)); // so that it is tried again
    if (this._pictures.size > KEPT_PICTURES) {
      const [oldest, url] = this._pictures.entries().next().value;
      this._pictures.delete(oldest);
      url.then((text) => URL.revokeObjectURL(text), () => {});
    }
    return known;
  }

  async _save(attachment, name, problem) {
    problem.textContent = "";
    try {
      // Whatever its type is said to be, a saved file is not opened as a page of this origin.
      saveBlob(new Blob([await this._fetch(attachment)], { type: "application/octet-stream" }), name);
    } catch (error) {
      problem.textContent = error.message;
    }
  }
}
