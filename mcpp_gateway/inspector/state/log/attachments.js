// The attachments of an envelope, as they may be shown.

// Raster pictures only: SVG and HTML can run scripts or load other files.
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const MAX_PICTURE_BYTES = 16_000_000;

/** Return the well-formed attachments of an envelope. */
export function attachmentsOf({ attachments }) {
  if (!Array.isArray(attachments)) return [];
  return attachments.filter(
    (one) =>
      typeof one === "object" && one !== null &&
      /^[0-9a-f]{64}$/.test(one.hash) && Number.isSafeInteger(one.size) && one.size >= 0 && typeof one.media_type === "string",
  );
}

/** Return the type as which an attachment is shown as a picture; null if it is not. */
export function pictureType({ media_type: type, size }) {
  const plain = type.split(";")[0].trim().toLowerCase();
  return PICTURES.has(plain) && size <= MAX_PICTURE_BYTES ? plain : null;
}

/** Return a name for people, which is also a safe name of a file. */
export function fileName({ name, hash }) {
  const safe = typeof name === "string" ? name.replace(/[/\\\p{C}]/gu, "_").replace(/^\.+/, "_").slice(0, 120) : "";
  return safe || hash.slice(0, 12);
}

/** Return a size such as "3.1 MB". */
export function sizeText(size) {
  for (const [factor, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (size >= factor) return `${(size / factor).toFixed(1)} ${unit}`;
  }
  return `${size} B`;
}
