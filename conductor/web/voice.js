// The browser's voice. Without a voice, or with the voice off, a text is taken as read.
import { byId, offer } from "./dom.js";
import { keep, recall } from "./store.js";

/**
 * `speak` resolves when the speech is over or was stopped; `heard` is what was said of the running one. `word(text, end)`
 * is called at each word with the speech and the end of the word in it, by browsers that tell.
 */
export function voice(word) {
  const synthesis = globalThis.speechSynthesis;
  const box = byId("voice");
  const names = byId("voice-name");
  let running = null;
  if (!synthesis) box.disabled = names.disabled = true;

  /** The voices of the page's language, and of the person's. */
  function listVoices() {
    const languages = new Set(["en", navigator.language.slice(0, 2)]);
    const offered = synthesis?.getVoices().filter(({ lang }) => languages.has(lang.slice(0, 2))) ?? [];
    offer(names, offered.map(({ name }) => [name, name]), names.value || recall("voice"));
  }

  function speak(text, { signal, lang }) {
    if (!synthesis || !box.checked) return Promise.resolve();
    return new Promise((resolve) => {
      const utterance = new SpeechSynthesisUtterance(text);
      const chosen = synthesis.getVoices().find(({ name }) => name === names.value) ?? null;
      // A voice reads its own language only.
      if (lang) utterance.lang = lang;
      utterance.voice = lang && chosen?.lang.slice(0, 2) !== lang.slice(0, 2) ? null : chosen;
      // Some browsers forget to tell the end.
      const limit = setTimeout(() => stop(), 5_000 + 120 * text.length);
      signal.addEventListener("abort", () => running?.utterance === utterance && stop());
      const over = () => {
        clearTimeout(limit);
        if (running?.utterance === utterance) running = null;
        resolve();
      };
      running = { utterance, text, at: 0, over };
      utterance.addEventListener("boundary", ({ name, charIndex }) => {
        if (running?.utterance !== utterance || name === "sentence") return;
        running.at = charIndex;
        word(text, charIndex + text.slice(charIndex).match(/^\S*/)[0].length);
      });
      utterance.addEventListener("end", over);
      utterance.addEventListener("error", over);
      synthesis.speak(utterance);
    });
  }

  function stop() {
    const stopped = running;
    synthesis?.cancel();
    stopped?.over();
  }

  synthesis?.addEventListener?.("voiceschanged", listVoices); // Safari lacks the event
  names.addEventListener("change", () => keep("voice", names.value));
  listVoices();
  return {
    speak,
    stop,
    on: () => (box.checked = Boolean(synthesis)),
    get speaking() {
      return running !== null;
    },
    get text() {
      return running?.text ?? "";
    },
    get heard() {
      return running ? running.text.slice(0, running.at).trim() : undefined;
    },
  };
}
