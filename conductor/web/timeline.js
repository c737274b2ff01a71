// Every event, both ways: filtered, paused, copied, exported.
import { byId, el, json } from "./dom.js";

const SHOWN = 1_000;
const KEPT = 20_000;
const ROUTINE = new Set(["session.ping", "event.ack"]);

const clock = (at) => new Date(at).toISOString().slice(11, 23);

function summaryOf({ type, payload = {} }) {
  if (type === "tool.call") return `${payload.name} ${payload.arguments}`;
  if (type === "tool.result") return `${payload.callId} ${payload.error ?? json(payload.result)}`;
  return payload.text ?? payload.display ?? payload.message ?? payload.name ?? json(payload).replace(/\s+/g, " ");
}

/** Takes frames as {at, direction, event}; `direction` is "in" or "out". */
export function timeline() {
  const list = byId("events");
  const frames = [];
  let missed = 0;

  const paused = () => byId("pause").getAttribute("aria-pressed") === "true";

  function matches({ event }) {
    if (ROUTINE.has(event.type) && !byId("pings").checked) return false;
    const wanted = byId("filter").value.trim().toLowerCase();
    return !wanted || JSON.stringify(event).toLowerCase().includes(wanted);
  }

  function row(frame) {
    const out = frame.direction === "out";
    const summary = el(
      "summary",
      {},
      el("span", { class: "time", text: clock(frame.at) }),
      el("span", { class: "direction", text: out ? "→" : "←", title: out ? "to the server" : "from the server" }),
      el("span", { class: "type", text: frame.event.type }),
      el("span", { class: "summary", text: String(summaryOf(frame.event)).slice(0, 300) }),
    );
    const details = el("details", {}, summary);
    // The text is made when it is looked at: there are thousands of rows, and one may have a megabyte.
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(el("pre", { text: json(frame.event) }));
    });
    return el("li", { class: out ? "out" : "in" }, details);
  }

  function draw(frame) {
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    list.append(row(frame));
    while (list.children.length > SHOWN) list.firstElementChild.remove();
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  function note() {
    const waiting = missed ? `, ${missed} since the pause` : "";
    byId("timeline-note").textContent = `${frames.length} events${waiting}`;
  }

  function redraw() {
    missed = 0;
    list.replaceChildren(...frames.filter(matches).slice(-SHOWN).map(row));
    list.scrollTop = list.scrollHeight;
    note();
  }

  function add(frame) {
    frames.push(frame);
    if (frames.length > KEPT) frames.shift();
    if (paused()) missed += 1;
    else if (matches(frame)) draw(frame);
    note();
  }

  const lines = () => frames.filter(matches).map(({ at, direction, event }) => JSON.stringify({ at: new Date(at).toISOString(), direction, event }));

  function pause() {
    const now = !paused();
    byId("pause").setAttribute("aria-pressed", String(now));
    if (!now) redraw();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(lines().join("\n"));
      byId("timeline-note").textContent = `Copied ${lines().length} events`;
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
  byId("copy").addEventListener("click", copy);
  byId("export").addEventListener("click", save);
  return { add, clear: () => (frames.splice(0), redraw()) };
}
