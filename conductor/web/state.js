// What is going on, in one word, seen at once: what the person did is shown before the server answers.
import { byId } from "./dom.js";

const WORDS = { idle: "Ready", listening: "Listening", transcribing: "Listening", thinking: "Thinking", speaking: "Speaking", asking: "Waiting for your decision" };
const RUNNING = new Set(["thinking", "speaking"]);

export function stateLine() {
  let current = "idle";
  let questions = 0;
  let hearing = false;

  function draw() {
    const undecided = questions && current !== "speaking";
    // A person who speaks is listened to, whatever the server said before it heard of it.
    const shown = hearing ? "listening" : undecided ? "asking" : current;
    byId("state").dataset.state = shown;
    byId("state-text").textContent = WORDS[shown] ?? shown;
    byId("stop").disabled = !RUNNING.has(current);
  }

  return {
    show(name) {
      current = name;
      draw();
    },
    resumed() {
      if (current !== "idle") return;
      current = "thinking";
      draw();
    },
    hearing(now) {
      hearing = now;
      draw();
    },
    asking(count) {
      questions = count;
      draw();
    },
    get running() {
      return RUNNING.has(current);
    },
  };
}
