// What is going on, in motion and in words: what the person did is shown before the server answers.
import { byId } from "./dom.js";

const RUNNING = new Set(["thinking", "speaking"]);
const SLOW_S = 4;

/** `ready()` gives the words for the idle state. */
export function stage(ready) {
  let current = "idle";
  let since = Date.now();
  let questions = 0;
  let hearing = false; // words
  let open = false; // the microphone
  let connected = true;

  function words(shown) {
    if (shown === "idle") return ready();
    if (shown === "listening") return "Listening";
    if (shown === "asking") return "Waiting for your decision";
    if (shown === "speaking") return "Speaking. Tap to interrupt";
    if (!connected) return "Connecting again";
    const seconds = Math.round((Date.now() - since) / 1000);
    return seconds < SLOW_S ? "Thinking" : `Thinking for ${seconds} s`;
  }

  function draw() {
    const undecided = questions && current !== "speaking";
    // A person who speaks is listened to, whatever the server said before it heard of it.
    const listening = hearing || current === "transcribing" || (open && current === "idle");
    const shown = listening ? "listening" : undecided ? "asking" : current;
    byId("stage").dataset.state = shown;
    const text = words(shown);
    if (byId("state").textContent !== text) byId("state").textContent = text;
    byId("stop").disabled = !RUNNING.has(current);
  }

  setInterval(() => current === "thinking" && draw(), 1_000);
  return {
    draw,
    show(name) {
      if (name !== current) since = Date.now();
      current = name;
      draw();
    },
    /** A session goes on: where no turn is running an idle follows. */
    resumed() {
      if (current !== "idle") return;
      current = "thinking";
      draw();
    },
    hearing(now) {
      hearing = now;
      draw();
    },
    open(now) {
      open = now;
      if (!open) hearing = false;
      draw();
    },
    asking(count) {
      questions = count;
      draw();
    },
    connected(now) {
      connected = now;
      draw();
    },
    get running() {
      return RUNNING.has(current);
    },
  };
}
