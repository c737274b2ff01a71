// The round button: what it hears, its level, and the choice of a microphone.
import { ConductorMicrophone } from "./conductor-elements.js";
import { byId, offer } from "./dom.js";
import { meter } from "./meter.js";
import { keep, recall } from "./store.js";

const PRIVACY = "Your browser's own service hears what you say.";

/** Tells what it hears: `started()`, `partial(text)`, `final(text)`, `ended()`. `interrupt()` tells if there was anything to stop. */
export function microphone({ started, partial, final, ended, interrupt }) {
  const element = byId("ear");
  const note = byId("media-note");
  const input = byId("input");
  const { problem } = ConductorMicrophone;
  const level = meter((value) => byId("microphone").style.setProperty("--level", value.toFixed(2)));

  note.textContent = problem;
  byId("stage").classList.toggle("deaf", Boolean(problem));
  input.disabled = Boolean(problem);

  element.track = async () => {
    const track = level.start(input.value);
    return input.value ? track : undefined;
  };
  const events = {
    press: (event) => interrupt() && event.preventDefault(),
    hearing: ({ detail }) => partial(detail),
    said: ({ detail }) => final(detail),
    listening() {
      note.textContent = PRIVACY;
      started();
    },
    silent() {
      level.stop();
      if (note.textContent === PRIVACY) note.textContent = "";
      ended();
    },
    problem({ detail }) {
      note.textContent = detail;
      if (problem) byId("words").focus();
    },
  };
  for (const [name, act] of Object.entries(events)) element.addEventListener(name, act);

  async function listInputs() {
    const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
    const named = devices.filter(({ kind, deviceId, label }) => kind === "audioinput" && label && deviceId !== "default");
    offer(input, named.map(({ deviceId, label }) => [deviceId, label]), input.value || recall("input"));
  }

  byId("devices").addEventListener("beforetoggle", listInputs);
  navigator.mediaDevices?.addEventListener("devicechange", listInputs);
  input.addEventListener("change", () => (keep("input", input.value), element.stop()));
  return { ready: () => (problem ? "Type to begin" : "Hold to talk, or tap for hands-free") };
}

/** Tell whether words were rather the page's own voice: most of them are in what it is saying. */
export function isEcho(words, spoken) {
  const known = new Set(spoken.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);
  const heard = words.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return heard.filter((word) => known.has(word)).length * 2 > heard.length;
}
