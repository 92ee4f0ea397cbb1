// Tokens as people read them.

const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** Return a sum of tokens in few characters, such as "12.3k tokens". */
export function tokensText({ input, output }) {
  const total = input + output;
  for (const [size, unit] of UNITS) {
    if (total >= size) return `${(total / size).toFixed(1)}${unit} tokens`;
  }
  return `${total} ${total === 1 ? "token" : "tokens"}`;
}

/** Return the parts of a sum, such as "1,200 in (300 cached), 45 out". */
export function tokensTitle({ input, output, cached }) {
  const number = (count) => count.toLocaleString("en");
  return `${number(input)} in${cached ? ` (${number(cached)} cached)` : ""}, ${number(output)} out`;
}
