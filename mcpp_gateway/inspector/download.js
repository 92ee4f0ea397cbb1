// Saving files: entries of the log as JSON lines, and attachments.

/** Let the browser save entries, one line each. */
export function saveEntries(entries, name) {
  // In valid JSON, raw line breaks occur only between tokens, never inside a string.
  const lines = entries.map(({ text }) => `${text.replace(/[\r\n]+/g, " ")}\n`);
  saveBlob(new Blob([lines.join("")], { type: "application/jsonl" }), `${name}.jsonl`);
}

/** Let the browser save content under a name. */
export function saveBlob(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 1_000);
}
