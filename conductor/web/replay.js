// The server's records of the session, read one by one: what each showed the client, and the state after it.
import { byId, el, json, lazyDetails } from "./dom.js";

/**
 * Makes a reader of a session's records: all without their states, or a given number with their states.
 * `session()` gives the session's id, `token()` the server's token or undefined.
 */
export function recordReader({ session, token }) {
  return async (number) => {
    const query = new URLSearchParams({ session: session() });
    if (number !== undefined) query.set("number", number);
    const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
    const answer = await fetch(`/replay.json?${query}`, { headers });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  };
}

/** The history as the server has recorded it, oldest first. */
export async function recordedLog(read) {
  const moments = await read();
  const [last] = (await read(moments.at(-1)?.number)).slice(-1);
  return last?.state?.log ?? [];
}

/** Find a call's arguments and result, both as text; undefined where the records do not have them. */
export async function recordedCall(read, callId) {
  const running = (await read()).flatMap(({ record }) => [record?.message ?? {}, record?.result ?? {}]);
  const log = [...(await recordedLog(read)), ...running];
  const call = log.flatMap(({ calls }) => calls ?? []).find((other) => other.call_id === callId);
  return { given: call?.arguments, result: log.find((entry) => entry.call_id === callId)?.content };
}

export function replay(read) {
  const list = byId("records");
  const opened = new Set(); // names of the parts whose contents are shown, from record to record
  let moments = [];
  let chosen = -1;

  const note = (text) => (byId("replay-note").textContent = text);

  async function stateOf(moment) {
    if (!moment.state) {
      const same = (await read(moment.number)).find(({ name, time }) => name === moment.name && time === moment.time);
      if (!same) throw new Error("A snapshot has replaced this record. Read again.");
      moment.state = same.state;
    }
    return moment.state;
  }

  function part(key, title, value, fact, changed) {
    const summary = el("summary", {}, el("span", { class: "name", text: title }), el("span", { class: "quiet", text: fact }));
    const details = lazyDetails(summary, () => value, { class: changed ? "tool changed" : "tool", open: opened.has(key) });
    details.addEventListener("toggle", () => opened[details.open ? "add" : "delete"](key));
    return details;
  }

  const section = (title, ...parts) => el("section", { class: "source" }, el("h2", { text: title }), ...parts);

  function sizeOf(value) {
    if (value === undefined) return "none";
    if (typeof value !== "object" || value === null) return String(value).slice(0, 60);
    const count = Object.keys(value).length;
    return count === 1 ? "1 item" : `${count} items`;
  }

  function draw(moment, state, before) {
    const field = (name) => {
      const changed = before && JSON.stringify(state[name]) !== JSON.stringify(before[name]);
      return part(`state ${name}`, name, state[name], `${sizeOf(state[name])}${changed ? ", changed" : ""}`, changed);
    };
    const shown = moment.events.map(({ id, type, payload }) => part(`event ${type}`, type, payload, id));
    byId("record").replaceChildren(
      section("Record", el("pre", { text: json(moment.record ?? { acked: moment.acked }), tabindex: "0" })),
      section("Shown to the client", ...(shown.length ? shown : [el("p", { class: "quiet", text: "Nothing" })])),
      section("State after it", ...[...new Set(Object.keys({ ...before, ...state }))].map(field)),
    );
  }

  async function choose(index) {
    if (!moments.length) return;
    chosen = Math.max(0, Math.min(index, moments.length - 1));
    const [row, moment] = [list.children[chosen], moments[chosen]];
    list.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    row.setAttribute("aria-selected", "true");
    row.scrollIntoView({ block: "nearest" });
    list.setAttribute("aria-activedescendant", row.id);
    note(`${chosen + 1} of ${moments.length}: ${moment.name}`);
    try {
      const [state, before] = [await stateOf(moment), chosen ? await stateOf(moments[chosen - 1]) : undefined];
      if (moments[chosen] === moment) draw(moment, state, before);
    } catch (error) {
      note(error.message);
    }
  }

  function row({ time, number, name, events }, index) {
    const facts = [
      el("span", { class: "time", text: time.slice(11, 23) }),
      el("span", { class: "time", text: number }),
      el("span", { class: "type", text: name }),
      el("span", { class: "summary", text: events.map(({ type }) => type).join(", ") }),
    ];
    return el("div", { role: "option", id: `record-${index}`, "aria-selected": "false", onclick: () => choose(index) }, ...facts);
  }

  function show(read) {
    moments = read;
    chosen = -1;
    list.replaceChildren(...moments.map(row));
    list.removeAttribute("aria-activedescendant");
    byId("record").replaceChildren();
    note("");
  }

  async function start() {
    try {
      show(await read());
      await choose(moments.length - 1);
    } catch (error) {
      note(error.message);
    }
  }

  list.addEventListener("keydown", (event) => {
    const keys = { ArrowUp: chosen - 1, ArrowLeft: chosen - 1, ArrowDown: chosen + 1, ArrowRight: chosen + 1, Home: 0, End: moments.length - 1 };
    if (keys[event.key] === undefined) return;
    event.preventDefault();
    choose(keys[event.key]);
  });
  byId("previous-record").addEventListener("click", () => choose(chosen - 1));
  byId("next-record").addEventListener("click", () => choose(chosen + 1));
  byId("read-records").addEventListener("click", start);
  byId("replay").addEventListener("shown", start);
  return { clear: () => show([]) };
}
