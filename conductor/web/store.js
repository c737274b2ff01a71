// What this tab keeps over a reload. Without storage (it may be forbidden) nothing is kept.
const PREFIX = "conductor.";

export function recall(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    if (value === undefined) sessionStorage.removeItem(PREFIX + name);
    else sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // The tab works without it, until it is reloaded.
  }
}
