// The browser's speech recognition: held (push to talk), or open all the time (hands-free).
import { byId } from "./dom.js";

const Recognition = globalThis.SpeechRecognition ?? globalThis.webkitSpeechRecognition;

function whyNot() {
  if (!globalThis.isSecureContext) return "Over plain HTTP a browser gives no microphone: type instead, or use HTTPS.";
  if (!Recognition) return "This browser has no speech recognition: type instead.";
  return "";
}

/** Tells what it hears: `started()`, `partial(text)`, `final(text)`, `ended()`. */
export function microphone({ started, partial, final, ended }) {
  const button = byId("microphone");
  const handsFree = byId("hands-free");
  const note = byId("media-note");
  let recognition = null;
  note.textContent = whyNot();
  button.disabled = handsFree.disabled = Boolean(whyNot());

  function open(continuous) {
    if (recognition) return;
    recognition = new Recognition();
    recognition.lang = navigator.language;
    recognition.continuous = continuous;
    recognition.interimResults = true;
    recognition.addEventListener("result", (event) => {
      for (let index = event.resultIndex; index < event.results.length; index += 1) {
        const result = event.results[index];
        const text = result[0].transcript.trim();
        if (text) (result.isFinal ? final : partial)(text);
      }
    });
    recognition.addEventListener("error", ({ error }) => {
      if (error === "no-speech" || error === "aborted") return;
      note.textContent = `The microphone does not work (${error}): type instead.`;
      handsFree.checked = false;
    });
    recognition.addEventListener("end", () => {
      recognition = null;
      ended();
      button.setAttribute("aria-pressed", "false");
      if (handsFree.checked) open(true); // browsers end it after a silence
    });
    recognition.start();
    note.textContent = "What you say is heard by your browser's own service.";
    started();
  }

  function hold() {
    if (handsFree.checked || button.disabled) return;
    button.setAttribute("aria-pressed", "true");
    open(false);
  }

  function letGo() {
    if (!handsFree.checked) recognition?.stop();
  }

  button.addEventListener("pointerdown", hold);
  for (const name of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) button.addEventListener(name, letGo);
  button.addEventListener("keydown", (event) => {
    if (event.repeat || (event.key !== " " && event.key !== "Enter")) return;
    event.preventDefault();
    hold();
  });
  handsFree.addEventListener("change", () => (handsFree.checked ? open(true) : recognition?.abort()));
}

/** Tell whether words were rather the page's own voice: most of them are in what it is saying. */
export function isEcho(words, spoken) {
  const known = new Set(spoken.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);
  const heard = words.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return heard.filter((word) => known.has(word)).length * 2 > heard.length;
}
