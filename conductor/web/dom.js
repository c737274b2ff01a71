// Elements whose text is only ever text. What came from elsewhere goes through `plain`.

import { button, el, plain } from "./conductor-elements.js";

export { button, el, plain };

export const byId = (id) => document.getElementById(id);

export const count = (number) => number.toLocaleString("en");

/** Write a value as JSON for people; a string that holds JSON is not unpacked. */
export const json = (value) => JSON.stringify(value, null, 2) ?? "null";

/** Details whose value is written as JSON when it is looked at: there are thousands, and one may have a megabyte. */
export function lazyDetails(summary, value, options = {}) {
  const details = el("details", options, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(el("pre", { text: json(value()), tabindex: "0" }));
  });
  return details;
}

/** Offer `options`, [value, text] each, below the first one of a select. */
export function offer(select, options, chosen) {
  const elements = options.map(([value, text]) => el("option", { value, text, selected: value === chosen }));
  select.replaceChildren(select.options[0], ...elements);
}

/** Read JSON, or leave the text as it is. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
