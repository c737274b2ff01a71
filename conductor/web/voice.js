// The browser's voice. Where there is none, or it is off, a text counts as read.
import { byId } from "./dom.js";

/** `speak` resolves when the speech is over or was stopped; `heard` is what was said of the running one. */
export function voice() {
  const synthesis = globalThis.speechSynthesis;
  const box = byId("voice");
  let running = null;
  if (!synthesis) box.disabled = true;

  function speak(text, { signal }) {
    if (!synthesis || !box.checked) return Promise.resolve();
    return new Promise((resolve) => {
      const utterance = new SpeechSynthesisUtterance(text);
      // Some browsers forget to tell the end.
      const limit = setTimeout(() => stop(), 5_000 + 120 * text.length);
      signal.addEventListener("abort", () => running?.utterance === utterance && stop());
      const over = () => {
        clearTimeout(limit);
        if (running?.utterance === utterance) running = null;
        resolve();
      };
      running = { utterance, text, at: 0, over };
      utterance.addEventListener("boundary", ({ charIndex }) => (running ? (running.at = charIndex) : 0));
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
