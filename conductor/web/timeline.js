// Every event, both ways, by turn: filtered, paused, copied, exported.
import { byId, el, json, lazyDetails } from "./dom.js";

const SHOWN = 1_000;
const KEPT = 20_000;
const ROUTINE = new Set(["session.ping", "event.ack"]);
const UI_CALL = /^(?:convo|tts)\./;

const clock = (at) => new Date(at).toISOString().slice(11, 23);

function summaryOf({ type, payload = {} }) {
  if (type === "tool.call") return `${payload.name} ${payload.arguments}`;
  if (type === "tool.result") return `${payload.callId} ${payload.error ?? json(payload.result)}`;
  return payload.text ?? payload.display ?? payload.message ?? payload.name ?? json(payload).replace(/\s+/g, " ");
}

/** Takes frames as {at, direction, event, turn}; `direction` is "in" or "out". `asRehearsal(frames)` gives a file's text. */
export function timeline({ asRehearsal } = {}) {
  const list = byId("events");
  const frames = [];
  const uiCalls = new Set();
  let last = null; // the row that was drawn last
  let drawn = 0;
  let missed = 0;

  const paused = () => byId("pause").ariaPressed === "true";

  function isRoutine({ type, payload = {} }) {
    if (type === "tool.call" && UI_CALL.test(payload.name)) uiCalls.add(payload.callId);
    return ROUTINE.has(type) || (type.startsWith("tool.") && uiCalls.has(payload.callId));
  }

  function matches({ event, routine }) {
    if (routine && !byId("pings").checked) return false;
    const wanted = byId("filter").value.trim().toLowerCase();
    return !wanted || JSON.stringify(event).toLowerCase().includes(wanted);
  }

  function addRow(frame) {
    if (last?.turn !== frame.turn || !list.children.length) {
      const title = frame.turn ? `${frame.turn.number}: ${frame.turn.title}` : "Connection";
      const heading = el("summary", { class: "turn", text: title });
      list.append(el("li", {}, el("details", { open: true }, heading, el("ol"))));
    }
    const facts = { time: el("span", { class: "time" }), summary: el("span", { class: "summary" }), count: el("span", { class: "count" }) };
    const out = frame.direction === "out";
    const direction = el("span", { class: "direction", text: out ? "→" : "←", title: out ? "to the server" : "from the server" });
    const type = el("span", { class: "type", text: frame.event.type });
    const row = (last = { ...frame, count: 0, facts });
    const details = lazyDetails(el("summary", {}, facts.time, direction, type, facts.count, facts.summary), () => row.event);
    list.lastElementChild.querySelector("ol").append(el("li", { class: out ? "out" : "in" }, details));
  }

  function draw(frame) {
    const { type } = frame.event;
    const goesOn = type.endsWith(".partial") && last?.event.type === type && last.turn === frame.turn && list.children.length;
    if (!goesOn) addRow(frame);
    last.event = frame.event;
    last.count += 1;
    last.facts.time.textContent = clock(frame.at);
    last.facts.count.textContent = last.count > 1 ? `× ${last.count}` : "";
    last.facts.summary.replaceChildren(...el("i", { text: String(summaryOf(frame.event)).slice(0, 300) }).childNodes);
    drawn += 1;
  }

  function note() {
    const all = drawn === frames.length ? `${drawn} events` : `${drawn} of ${frames.length} events`;
    byId("timeline-note").textContent = missed ? `${all}, ${missed} since the pause` : all;
  }

  function redraw() {
    missed = drawn = 0;
    list.replaceChildren();
    frames.filter(matches).slice(-SHOWN).forEach(draw);
    list.scrollTop = list.scrollHeight;
    note();
  }

  function add(frame) {
    frame.routine = isRoutine(frame.event);
    frames.push(frame);
    if (frames.length > KEPT) frames.shift();
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    if (paused()) missed += 1;
    else if (matches(frame)) draw(frame);
    if (drawn > 2 * SHOWN) redraw();
    if (atEnd) list.scrollTop = list.scrollHeight;
    note();
  }

  const lines = () => frames.filter(matches).map(({ at, direction, event }) => JSON.stringify({ at: new Date(at).toISOString(), direction, event }));

  function pause() {
    byId("pause").ariaPressed = String(!paused());
    if (!paused()) redraw();
  }

  async function copy(text, done) {
    try {
      await navigator.clipboard.writeText(text);
      byId("timeline-note").textContent = done;
    } catch {
      byId("timeline-note").textContent = "This browser does not let the page copy: export instead.";
    }
  }

  function save() {
    const file = URL.createObjectURL(new Blob([lines().join("\n"), "\n"], { type: "application/jsonl" }));
    el("a", { href: file, download: "conductor-events.jsonl" }).click();
    setTimeout(() => URL.revokeObjectURL(file), 10_000);
  }

  byId("filter").addEventListener("input", redraw);
  byId("pings").addEventListener("change", redraw);
  byId("pause").addEventListener("click", pause);
  byId("copy").addEventListener("click", () => copy(lines().join("\n"), `Copied ${lines().length} events`));
  byId("copy-rehearsal")?.addEventListener("click", () => copy(asRehearsal(frames), "Copied. Save it as FILE.yaml, then: conductor rehearse run FILE.yaml"));
  byId("export").addEventListener("click", save);
  return { add, clear: () => (frames.splice(0), redraw()) };
}
