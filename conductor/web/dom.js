// Elements whose text is only ever text. What came from elsewhere goes through `plain`.

export const byId = (id) => document.getElementById(id);

// Control characters, and those that turn the direction of text around or are invisible tags.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

/** The text with what could disguise it written out, cut after `most` characters. */
export function plain(text, most = 20_000) {
  const shown = String(text).slice(0, most);
  const rest = String(text).length - shown.length;
  const code = (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return shown.replace(UNSEEN, code) + (rest > 0 ? ` … ${rest.toLocaleString("en")} more characters` : "");
}

/** Make an element: `text`, `class`, listeners as `onclick`, all else as attributes. */
export function el(tag, { text, class: names, ...rest } = {}, ...children) {
  const made = document.createElement(tag);
  if (names) made.className = names;
  if (text !== undefined) made.textContent = plain(text);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const button = (text, onclick, names) => el("button", { type: "button", text, onclick, class: names });

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
