// The conversation: the transcript with lines of calls, problems and suggestions, kept in this tab.
import { byId, el } from "./dom.js";
import { keep, recall } from "./store.js";

const KEPT = 100;
const SUGGESTED = 3; // from this turn on a person knows what to say

/** `line(callId)` gives the element of a call that was kept over a reload. */
export function conversation(line) {
  const log = byId("conversation");
  const welcome = byId("welcome"); // stays below what was said
  let entries = recall("entries", []); // {role, text, cut?} or {call}
  let answers = 0;

  function begun() {
    const turns = entries.filter(({ role }) => role === "user").length + (log.isWaiting ? 1 : 0);
    welcome.hidden = turns >= SUGGESTED;
    place(false);
  }

  /** Until something was said, the round button comes first; the keyboard follows the same order. */
  function place(isEmpty) {
    const talk = byId("talk");
    if (talk.hasAttribute("data-empty") === isEmpty) return;
    talk.toggleAttribute("data-empty", isEmpty);
    byId(isEmpty ? "composer" : "approvals").before(log);
    log.tabIndex = isEmpty ? -1 : 0;
  }

  function append(element) {
    begun();
    return log.add(element);
  }

  function message(role, text) {
    if (role !== "user") answers += 1;
    remember({ role, text: text.slice(0, 4_000) });
    begun();
    log.message(role, text);
  }

  function remember(entry) {
    entries = [...entries, entry].slice(-KEPT);
    keep("entries", entries);
  }

  /** Keep a reply that ends before it is whole, as the transcript marks it. */
  function keepCut() {
    const growing = log.querySelector(".assistant.partial");
    if (growing) remember({ role: "assistant", text: growing.textContent.slice(0, 4_000), cut: true });
  }

  function clear() {
    entries = [];
    keep("entries", undefined);
    log.clear();
    welcome.hidden = false;
    place(true);
  }

  function restore() {
    for (const { role, text, cut, call: id } of entries) {
      if (cut) {
        log.partial(text);
        log.goOn();
      } else if (!id) log.message(role, text);
      const element = id && line(id);
      if (element) log.add(element);
    }
    if (entries.length) begun();
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
    partial: (text) => (begun(), log.partial(text)),
    light: (speech, end) => log.light(speech, end),
    stop: () => (keepCut(), log.stop()),
    turnChanged: () => (keepCut(), log.goOn()),
    message,
    /** `waits`: it cannot be sent now. */
    said: (text, waits) => (log.said(text, waits && "Will be sent"), begun()),
    hearing: (text) => (log.hearing(text), begun()),
    heard: () => log.hearing(""),
    unfinished: () => log.unfinished(),
    clear,
    /** The number of the assistant's messages so far. */
    get answers() {
      return answers;
    },
    notice: (text) => append(el("p", { class: "notice", role: "alert", text })),
  };
}
