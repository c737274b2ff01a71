// The conversation as it is drawn: messages, the growing reply, lines of calls, and problems.
import { byId, el, plain } from "./dom.js";
import { keep, recall } from "./store.js";

const KEPT = 100;
const SUGGESTED = 3; // from this turn on a person knows what to say

/** `line(callId)` gives the element of a call that was kept over a reload. */
export function conversation(line) {
  const log = byId("conversation");
  const welcome = byId("welcome");
  let entries = recall("entries", []); // {role, text} or {call}
  let growing = null; // the bubble of the reply that is being written
  let stopped = false; // what still comes of a reply that the person stopped is not drawn
  let answers = 0;
  let lit = null; // the speech whose words are lit, and where its last word ends
  let pending = null; // what the person said and the server has not yet taken

  let atEnd = true;
  let height = 0;
  log.addEventListener("scroll", () => {
    // What takes room is no scrolling of the person's.
    if (log.clientHeight === height) atEnd = log.scrollHeight - log.scrollTop - height < 120;
  });
  // Cards and the keyboard of a phone take room: the last sentence stays in sight.
  new ResizeObserver(() => {
    height = log.clientHeight;
    if (atEnd) log.scrollTo(0, log.scrollHeight);
  }).observe(log);

  const turns = () => entries.filter(({ role }) => role === "user").length + (pending ? 1 : 0);

  /** Suggestions stay below what was said. */
  function append(element) {
    welcome.hidden = turns() >= SUGGESTED;
    byId("talk").removeAttribute("data-empty");
    welcome.before(element);
    if (atEnd) log.scrollTo(0, log.scrollHeight);
    return element;
  }

  const bubble = (role, text) => append(el("div", { class: `message ${role}`, text }));

  function partial(text) {
    if (stopped) return;
    growing ??= append(el("div", { class: "message assistant partial", "aria-hidden": "true" }));
    growing.textContent = plain(text);
    light(lit?.speech, lit?.end);
    log.scrollTop = log.scrollHeight;
  }

  /** Light the words of the last reply up to `end` in a speech of it; without a speech, none. */
  function light(speech, end) {
    lit = speech ? { speech, end } : null;
    const words = log.querySelector(".message.assistant:not(:has(~ .message))")?.firstChild;
    const start = lit && words ? words.data.lastIndexOf(speech) : -1;
    if (start < 0) return void globalThis.CSS.highlights?.delete("spoken");
    const range = document.createRange();
    range.setStart(words, 0);
    range.setEnd(words, start + Math.min(end, speech.length));
    globalThis.CSS.highlights?.set("spoken", new Highlight(range));
  }

  /** The reply was interrupted: what came of it stays, and says so. */
  function cut() {
    growing?.classList.replace("partial", "cut");
    growing?.removeAttribute("aria-hidden");
    growing = null;
  }

  function message(role, text) {
    if (role === "user") {
      pending?.remove();
      pending = null;
    } else {
      growing?.remove();
      growing = null;
      answers += 1;
    }
    remember({ role, text: text.slice(0, 4_000) });
    bubble(role, text);
    light(lit?.speech, lit?.end); // in the place of what was growing
  }

  function remember(entry) {
    entries = [...entries, entry].slice(-KEPT);
    keep("entries", entries);
  }

  /** `waits`: it cannot be sent now. */
  function said(text, waits) {
    pending?.classList.remove("partial");
    pending = bubble("user", text);
    if (waits) pending.append(el("small", { text: "Will be sent" }));
    log.scrollTop = log.scrollHeight;
  }

  function hearing(text) {
    if (!pending?.classList.contains("partial")) pending = bubble("user partial", "");
    pending.textContent = plain(text);
    log.scrollTop = log.scrollHeight;
  }

  function clear() {
    entries = [];
    keep("entries", undefined);
    growing = pending = null;
    log.replaceChildren(welcome);
    welcome.hidden = false;
    byId("talk").setAttribute("data-empty", "");
  }

  function restore() {
    for (const { role, text, call: id } of entries) {
      const element = id ? line(id) : bubble(role, text);
      if (element) append(element);
    }
  }

  return {
    restore,
    /** Draw others' entries in place of this tab's. */
    replace(others) {
      clear();
      entries = others;
      keep("entries", entries);
      restore();
    },
    call: (id, element) => (remember({ call: id }), append(element)),
    partial,
    light,
    stop: () => (cut(), (stopped = true)),
    /** A turn begins or has ended: no more comes of a reply that had no final. */
    turnChanged: () => (cut(), (stopped = false)),
    message,
    said,
    hearing,
    heard: () => pending?.classList.contains("partial") && pending.remove(),
    clear,
    /** The number of the assistant's messages so far. */
    get answers() {
      return answers;
    },
    notice: (text) => append(el("p", { class: "notice", role: "alert", text })),
  };
}
