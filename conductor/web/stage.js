// What is going on, in motion and in words: what the person did is shown before the server answers.
import { byId } from "./dom.js";

const RUNNING = new Set(["thinking", "speaking"]);
const SLOW_S = 4;

/** `ready()` gives the words for the idle state. */
export function stage(ready) {
  // The server's state and since when; open cards; words that are heard; an open microphone; a connection.
  const facts = { name: "idle", since: Date.now(), questions: 0, hearing: false, open: false, connected: true };

  function words(shown) {
    if (shown === "idle") return ready();
    if (shown === "listening") return "Listening";
    if (shown === "asking") return "Waiting for your decision";
    if (shown === "speaking") return "Speaking. Tap to interrupt";
    if (!facts.connected) return "Waiting for the server";
    const seconds = Math.round((Date.now() - facts.since) / 1000);
    return seconds < SLOW_S ? "Thinking" : `Thinking for ${seconds} s`;
  }

  function draw() {
    const { name, questions, hearing, open } = facts;
    // A person who speaks is listened to, whatever the server said before it heard of it.
    const listening = hearing || name === "transcribing" || (open && name === "idle" && !questions);
    const shown = listening ? "listening" : questions && name !== "speaking" ? "asking" : name;
    byId("stage").dataset.state = shown;
    const text = words(shown);
    if (byId("state").textContent !== text) byId("state").textContent = text;
    byId("stop").disabled = !RUNNING.has(name);
  }

  setInterval(() => facts.name === "thinking" && draw(), 1_000);
  return {
    draw,
    set(changes) {
      if (changes.name && changes.name !== facts.name) facts.since = Date.now();
      Object.assign(facts, changes);
      draw();
    },
    get name() {
      return facts.name;
    },
    get connected() {
      return facts.connected;
    },
    get running() {
      return RUNNING.has(facts.name);
    },
  };
}
