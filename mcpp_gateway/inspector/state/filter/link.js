// The view in the address: filter, selection and search. Never a token.

const CODE = /^[A-Za-z0-9_-]{22}$/;

/** Return the one-time code in a fragment, or null. */
export function readCode(fragment) {
  const text = fragment.replace(/^#/, "");
  return CODE.test(text) ? text : null;
}

export function writeView({ filter, main, context, descendants, search }) {
  const query = new URLSearchParams();
  if (filter) query.set("filter", filter);
  if (main) query.set("main", "1"); // a context may have the id "main", too
  if (context) query.set("context", context);
  if (context && !descendants) query.set("only", "1");
  if (search) query.set("search", search);
  const text = query.toString();
  return text && `#${text}`;
}

export function readView(fragment) {
  const query = new URLSearchParams(fragment.replace(/^#/, ""));
  return {
    filter: query.get("filter") ?? "",
    main: query.get("main") === "1",
    context: query.get("context"),
    descendants: query.get("only") !== "1",
    search: query.get("search") ?? "",
  };
}
