// The conversation as it is drawn: messages, the growing reply, what tools did, and problems.
import { byId, el, plain } from "./dom.js";
import { keep, recall } from "./store.js";

const KEPT = 100;

export function conversation() {
  const log = byId("conversation");
  const welcome = byId("welcome");
  let messages = recall("messages", []);
  let growing = null; // the bubble of the reply that is being written
  let stopped = false; // what still comes of a reply that the person stopped is not drawn
  let pending = null; // what the person said and the server has not yet taken

  let atEnd = true;
  log.addEventListener("scroll", () => (atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120));
  // Cards and the keyboard of a phone take room: the last sentence stays in sight.
  new ResizeObserver(() => atEnd && log.scrollTo(0, log.scrollHeight)).observe(log);

  function append(element) {
    welcome.hidden = true;
    byId("talk").removeAttribute("data-empty");
    log.append(element);
    if (atEnd) log.scrollTo(0, log.scrollHeight);
    return element;
  }

  const bubble = (role, text) => append(el("div", { class: `message ${role}`, text }));

  function partial(text) {
    if (stopped) return;
    growing ??= append(el("div", { class: "message assistant partial", "aria-hidden": "true" }));
    growing.textContent = plain(text);
    log.scrollTop = log.scrollHeight;
  }

  function dropPartial() {
    growing?.remove();
    growing = null;
  }

  /** The reply was interrupted: what came of it stays, and says so. */
  function cut() {
    growing?.classList.replace("partial", "cut");
    growing?.removeAttribute("aria-hidden");
    growing = null;
  }

  function stop() {
    cut();
    stopped = true;
  }

  /** A turn begins or has ended: no more comes of a reply that had no final. */
  function turnChanged() {
    cut();
    stopped = false;
  }

  function message(role, text) {
    if (role === "user") {
      pending?.remove();
      pending = null;
    } else dropPartial();
    bubble(role, text);
    messages = [...messages, { role, text: text.slice(0, 4_000) }].slice(-KEPT);
    keep("messages", messages);
  }

  function said(text) {
    pending?.classList.remove("partial");
    pending = bubble("user", text);
    log.scrollTop = log.scrollHeight;
  }

  function hearing(text) {
    if (!pending?.classList.contains("partial")) pending = bubble("user partial", "");
    pending.textContent = plain(text);
    log.scrollTop = log.scrollHeight;
  }

  function heard() {
    if (pending?.classList.contains("partial")) pending.remove();
  }

  function clear() {
    messages = [];
    keep("messages", undefined);
    growing = pending = null;
    log.replaceChildren(welcome);
    welcome.hidden = false;
    byId("talk").setAttribute("data-empty", "");
  }

  for (const { role, text } of messages) bubble(role, text);
  return {
    partial,
    stop,
    turnChanged,
    message,
    said,
    hearing,
    heard,
    clear,
    toolLine: (text) => append(el("p", { class: "tool-line", text })),
    notice: (text) => append(el("p", { class: "notice", role: "alert", text })),
  };
}
