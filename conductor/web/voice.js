// The browser's voice. Without a voice, or with the voice off, a text is taken as read.
import { byId, offer } from "./dom.js";
import { keep, recall } from "./store.js";

/**
 * `speak` resolves when the speech is over or was stopped; `heard` is what was said of the running one. `pause` holds it until
 * `goOn`, also where the browser's own pause ends the speech or does nothing. `word(text, end)`
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
      const speech = (running = { text, lang, at: 0, paused: false, lost: false, utterance: null, limit: 0 });
      speech.over = () => {
        clearTimeout(speech.limit);
        if (running === speech) running = null;
        resolve();
      };
      signal.addEventListener("abort", () => running === speech && stop());
      play(speech);
    });
  }

  /** Say a speech from the last word on that was begun. */
  function play(speech) {
    const { text, lang, at: from } = speech;
    const utterance = (speech.utterance = new SpeechSynthesisUtterance(text.slice(from)));
    const chosen = synthesis.getVoices().find(({ name }) => name === names.value) ?? null;
    const mine = (act) => (event) => speech.utterance === utterance && running === speech && act(event);
    // A voice reads its own language only.
    if (lang) utterance.lang = lang;
    utterance.voice = lang && chosen?.lang.slice(0, 2) !== lang.slice(0, 2) ? null : chosen;
    limit(speech);
    utterance.addEventListener("boundary", mine(({ name, charIndex }) => {
      if (speech.paused) return synthesis.cancel(); // it cannot pause
      if (name === "sentence") return;
      speech.at = from + charIndex;
      word(text, speech.at + text.slice(speech.at).match(/^\S*/)[0].length);
    }));
    // Some voices end where they are to pause.
    const ended = mine(() => (speech.paused ? (speech.lost = true) : speech.over()));
    utterance.addEventListener("end", ended);
    utterance.addEventListener("error", ended);
    synthesis.speak(utterance);
  }

  /** Some browsers forget to tell the end. */
  function limit(speech) {
    clearTimeout(speech.limit);
    speech.limit = setTimeout(() => running === speech && stop(), 5_000 + 120 * (speech.text.length - speech.at));
  }

  function pause() {
    if (!running || running.paused) return;
    running.paused = true;
    clearTimeout(running.limit);
    synthesis.pause();
  }

  function goOn() {
    const speech = running;
    if (!speech?.paused) return;
    speech.paused = false;
    synthesis.resume();
    if (speech.lost) play(speech);
    else limit(speech);
    speech.lost = false;
  }

  function stop() {
    const stopped = running;
    running = null;
    synthesis?.cancel();
    if (stopped?.paused) synthesis.resume(); // else the next speech would not begin
    stopped?.over();
  }

  synthesis?.addEventListener?.("voiceschanged", listVoices); // Safari lacks the event
  names.addEventListener("change", () => keep("voice", names.value));
  listVoices();
  return {
    speak,
    pause,
    goOn,
    stop,
    on: () => (box.checked = Boolean(synthesis)),
    get speaking() {
      return running !== null;
    },
    get paused() {
      return running?.paused ?? false;
    },
    get text() {
      return running?.text ?? "";
    },
    get heard() {
      return running ? running.text.slice(0, running.at).trim() : undefined;
    },
  };
}
