// The round button and the browser's speech recognition: held (push to talk), or tapped (hands-free).
import { byId, offer } from "./dom.js";
import { meter } from "./meter.js";
import { keep, recall } from "./store.js";

const Recognition = globalThis.SpeechRecognition ?? globalThis.webkitSpeechRecognition;
const HOLD_MS = 350;
const PRIVACY = "Your browser's own service hears what you say.";

const INSECURE = "Over plain HTTP a browser gives no microphone. Type instead, or use HTTPS.";
const DEAF = "This browser has no speech recognition. Type instead.";
// By the code of the browser's error.
const REFUSALS = {
  "not-allowed": "The browser does not let this page use the microphone. Allow it beside the address, or type.",
  "service-not-allowed": "This browser gives pages no speech recognition. Type, or use Chrome, Edge or Safari.",
  "audio-capture": "The browser finds no microphone. Connect one, or type.",
  network: "The browser's speech service cannot be reached. Try again, or type.",
  "language-not-supported": "The browser's speech service does not know this browser's language. Type instead.",
};

/** Tells what it hears: `started()`, `partial(text)`, `final(text)`, `ended()`. `interrupt()` tells if there was anything to stop. */
export function microphone({ started, partial, final, ended, interrupt }) {
  const button = byId("microphone");
  const note = byId("media-note");
  const input = byId("input");
  const level = meter((value) => button.style.setProperty("--level", value.toFixed(2)));
  let recognition = null;
  let handsFree = false;
  let downAt = 0; // 0: nobody holds the button
  let interrupted = false; // by this press
  const phrases = []; // what was heard since the button is held

  const problem = globalThis.isSecureContext ? (Recognition ? "" : DEAF) : INSECURE;
  note.textContent = problem;
  byId("stage").classList.toggle("deaf", Boolean(problem));
  input.disabled = Boolean(problem);

  function hear({ resultIndex, results }) {
    for (let index = resultIndex; index < results.length; index += 1) {
      const text = results[index][0].transcript.trim();
      if (!text) continue;
      const { isFinal } = results[index];
      if (handsFree) (isFinal ? final : partial)(text);
      else partial([...phrases, text].join(" "));
      if (isFinal && !handsFree) phrases.push(text);
    }
  }

  async function listen() {
    if (recognition) return;
    const mine = (recognition = new Recognition());
    mine.lang = navigator.language;
    mine.continuous = true;
    mine.interimResults = true;
    mine.addEventListener("result", hear);
    mine.addEventListener("error", ({ error }) => {
      if (error === "no-speech" || error === "aborted") return;
      note.textContent = REFUSALS[error] ?? `The microphone does not work (${error}). Type instead.`;
      handsFree = false;
    });
    mine.addEventListener("end", () => {
      recognition = null;
      // What was said while the button was held is one utterance.
      const text = phrases.splice(0).join(" ");
      if (text) final(text);
      if (handsFree) return listen(); // browsers end it after a silence
      level.stop();
      if (note.textContent === PRIVACY) note.textContent = "";
      button.setAttribute("aria-pressed", "false");
      ended();
    });
    const track = level.start(input.value);
    if (input.value) await track;
    if (recognition !== mine) return;
    mine.start(...(input.value && (await track) ? [await track] : []));
    button.setAttribute("aria-pressed", "true");
    note.textContent = PRIVACY;
    started();
  }

  function down() {
    if (problem) return byId("words").focus();
    downAt = Date.now();
    interrupted = interrupt();
    return handsFree ? undefined : listen();
  }

  function up() {
    if (!downAt) return;
    const held = phrases.length > 0 || Date.now() - downAt > HOLD_MS;
    downAt = 0;
    if (handsFree ? !interrupted : held) stop();
    else handsFree = true;
  }

  function stop() {
    handsFree = false;
    if (recognition) recognition.stop();
  }

  button.addEventListener("pointerdown", (event) => event.button === 0 && down());
  for (const name of ["pointerup", "pointercancel", "blur"]) button.addEventListener(name, up);
  button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
  button.addEventListener("keydown", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    if (!event.repeat) down();
  });
  button.addEventListener("keyup", (event) => {
    event.preventDefault();
    up();
  });
  // Screen readers and voice control click without a pointer.
  button.addEventListener("click", (event) => event.detail === 0 && !event.pointerType && (down(), up()));

  async function listInputs() {
    const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
    const named = devices.filter(({ kind, deviceId, label }) => kind === "audioinput" && label && deviceId !== "default");
    offer(input, named.map(({ deviceId, label }) => [deviceId, label]), input.value || recall("input"));
  }

  byId("devices").addEventListener("beforetoggle", listInputs);
  navigator.mediaDevices?.addEventListener("devicechange", listInputs);
  input.addEventListener("change", () => (keep("input", input.value), stop()));
  return { ready: () => (problem ? "Type to begin" : "Hold to talk, or tap for hands-free") };
}

/** Tell whether words were rather the page's own voice: most of them are in what it is saying. */
export function isEcho(words, spoken) {
  const known = new Set(spoken.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);
  const heard = words.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return heard.filter((word) => known.has(word)).length * 2 > heard.length;
}
