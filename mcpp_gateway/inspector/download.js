// Saving entries of the log as a file of JSON lines.

/** Let the browser save entries, one line each. */
export function saveEntries(entries, name) {
  // In valid JSON, raw line breaks occur only between tokens, never inside a string.
  const lines = entries.map(({ text }) => `${text.replace(/[\r\n]+/g, " ")}\n`);
  const blob = new Blob([lines.join("")], { type: "application/jsonl" });
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = `${name}.jsonl`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 1_000);
}
