// What happened: one line for each tool call, which opens. Kept in this tab.
import { titled, written as asText } from "./conductor-elements.js";
import { el, json, parsed } from "./dom.js";
import { keep, recall } from "./store.js";

const MOST = 100;
const CHARACTERS = 4_000;
const STATUS = { asking: "waits for you", skipped: "did not run", unknown: "outcome not known", done: "" };
const SCOPE = { once: "once", session: "for this session", always: "always" };
const ENDS = { permission_denied: "denied", approval_timeout: "skipped", unknown: "unknown" };

const written = (value) => asText(value).slice(0, CHARACTERS);
const took = (ms) => (ms < 1 ? "under 1 ms" : ms < 1_000 ? `${ms} ms` : `${(ms / 1_000).toFixed(1)} s`);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function short(given) {
  const words = Object.entries(isObject(given) ? given : {}).flatMap(([name, value]) => {
    if (typeof value === "boolean") return [value ? name : `not ${name}`];
    return typeof value === "object" ? [] : [String(value)];
  });
  return words.join(", ").slice(0, 80);
}

/** A result without the envelope of the server's records. */
function resultOf(call) {
  const outcome = parsed(call.result);
  return isObject(outcome) && "success" in outcome ? (outcome.data ?? outcome.error_message) : outcome;
}

/** A result, or why there is none, in one line. */
function shortResult(call) {
  const result = parsed(call.error ?? resultOf(call));
  if (result === undefined || result === null) return "";
  return (isObject(result) && short(result)) || (typeof result === "string" ? result : JSON.stringify(result)).replace(/\s+/g, " ").slice(0, 120);
}

/** A picture of a tool. The page takes images from its server alone: this is drawn. */
async function drawn({ data, mimeType }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: mimeType }));
  const { width, height } = bitmap;
  const canvas = el("canvas", { role: "img", "aria-label": "The picture, as the model gets it", width, height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  return canvas;
}

/** Who decided a call, and how; `earlier` is a decision of the person that covers it. */
function decision({ outcome, response, message }, earlier) {
  if (!outcome) return earlier ? `You allowed it earlier, ${SCOPE[earlier.response.scope]}` : "No question was needed";
  if (outcome === "edited") return "You changed the arguments and allowed it";
  if (outcome === "expired") return "Nobody decided in time";
  if (outcome === "superseded") return message ?? "Another request took its place";
  if (!response) return `${outcome === "allowed" ? "Allowed" : "Denied"} by voice, or on another screen`;
  if (outcome === "allowed") return `You allowed it ${SCOPE[response.scope]}, on the card`;
  return response.words ? `You denied it: “${response.words}”` : "You denied it";
}

/**
 * `append(callId, element)` puts a line into the conversation; `lookUp(callId)` asks the server's records, when a line
 * is opened, or at once where `looksUp()`.
 */
export function callLog({ append, lookUp, looksUp }) {
  let calls = recall("calls", []);
  const lines = new Map();
  const pictures = new Map(); // by the id of the call, until the page is loaded again

  function find(id, name) {
    let call = calls.find((other) => other.id === id);
    if (!call && name) {
      call = { id, name, source: "device", status: "running" };
      calls = [...calls, call].slice(-MOST);
      append(id, line(call));
    }
    return call;
  }

  function update(call, facts) {
    if (!call) return;
    Object.assign(call, facts);
    keep("calls", calls);
    draw(call);
  }

  function line(call) {
    const details = el("details", { class: "call" }, el("summary"));
    lines.set(call.id, details);
    details.addEventListener("toggle", () => details.open && complete(call));
    draw(call);
    return details;
  }

  /** The arguments and the result of the server's own tools are not sent to clients. */
  async function complete(call) {
    const ended = call.status !== "running" && call.status !== "asking";
    if (call.given === undefined || (call.result === undefined && !call.error && ended)) {
      const { given, result } = await lookUp(call.id);
      update(call, { given: call.given ?? parsed(given), result: call.result ?? result?.slice(0, CHARACTERS) });
    } else draw(call);
  }

  function argument(name, call) {
    const [now, before] = [call.given?.[name], call.asked?.[name]];
    const edited = call.outcome === "edited" && call.asked && call.given && json(now) !== json(before);
    const value = edited
      ? [...(before === undefined ? [] : [el("del", { text: written(before) }), " "]), el("ins", { text: now === undefined ? "left out" : written(now) })]
      : [el("span", { text: written(now ?? before) })];
    return [el("dt", { text: name }), el("dd", {}, ...value, ...(edited ? [el("span", { class: "quiet", text: " edited" })] : []))];
  }

  function contents(call) {
    const given = { ...call.asked, ...(isObject(call.given) ? call.given : {}) };
    const result = resultOf(call);
    const before = calls.slice(0, calls.indexOf(call));
    const earlier = before.findLast(({ name, outcome, response }) => name === call.name && outcome === "allowed" && response?.scope !== "once");
    const facts = [
      ["Result", call.error ?? (result === undefined || result === null ? "The tool gave none" : written(result))],
      ["Time", call.ms === undefined ? "Not known" : took(call.ms)],
      ["Decision", decision(call, earlier)],
      ["Where", call.source === "device" ? "On this page" : `On the server (${call.source})`],
    ];
    const names = Object.keys(given);
    return el(
      "dl",
      {},
      el("dt", { class: "part", text: names.length ? "Arguments" : "No arguments" }),
      ...(names.length ? [el("dd", {}, el("dl", {}, ...names.flatMap((name) => argument(name, call))))] : [el("dd")]),
      ...facts.flatMap(([name, text]) => [el("dt", { class: "part", text: name }), el("dd", { text })]),
    );
  }

  function draw(call) {
    const details = lines.get(call.id);
    if (!details) return;
    details.dataset.status = call.status;
    const words = call.response?.words && call.outcome === "denied" ? `denied: “${call.response.words}”` : (STATUS[call.status] ?? call.status);
    const facts = [words, call.outcome === "edited" && "edited", call.status === "done" && took(call.ms ?? 0)].filter(Boolean).join(" · ");
    const parts = { name: titled(call.name), given: short(call.given ?? call.asked), result: shortResult(call), quiet: facts };
    const spans = Object.entries(parts).map(([name, text]) => el("span", { class: name, text }));
    details.firstElementChild.replaceChildren(...spans, ...(pictures.get(call.id) ?? []));
    details.querySelector("dl")?.remove();
    if (details.open) details.append(contents(call));
  }

  const incoming = {
    "approval.request": ({ callId, name, arguments: asked, approvalId, risk }) =>
      update(find(callId, name), { approvalId, risk, status: "asking", asked: json(asked).length < CHARACTERS ? asked : undefined }),
    "approval.resolved"({ approvalId, outcome, message }) {
      if (outcome === "refused") return;
      const status = { allowed: "running", edited: "running", denied: "denied" }[outcome] ?? "skipped";
      update(calls.find((call) => call.approvalId === approvalId), { outcome, message, status });
    },
    "tool.call"({ callId, name, arguments: text }) {
      if (/^(?:convo|tts|bridge)\./.test(name)) return;
      const call = find(callId, name);
      update(call, { given: text.length < CHARACTERS ? parsed(text) : {}, status: call.ms === undefined ? "running" : call.status });
    },
    "tool.activity"({ callId, name, source, status, errorType = "none", executionTimeMs }) {
      const call = find(callId, name);
      if (status === "started") update(call, { source, status: "running" });
      else {
        update(call, { source, ms: executionTimeMs, status: errorType === "none" ? "done" : (ENDS[errorType] ?? "failed") });
        if (call && source !== "device" && looksUp()) complete(call);
      }
    },
    "tool.cancel": ({ callId }) => update(find(callId), { status: "cancelled" }),
  };
  const outgoing = {
    "approval.response": ({ approvalId, scope, message }) =>
      update(calls.find((call) => call.approvalId === approvalId), { response: { scope, words: message } }),
    "tool.result": ({ callId, result, error }) => update(find(callId), { error: error ?? undefined, result: result?.slice(0, CHARACTERS) }),
  };

  return {
    add: ({ direction, event: { type, payload } }) => (direction === "in" ? incoming : outgoing)[type]?.(payload),
    /** Show the pictures that a call gives. */
    async show(id, images) {
      if (!images.length) return;
      pictures.set(id, await Promise.all(images.map(drawn)));
      update(find(id), {});
    },
    /** The line of a call that was kept, or undefined. */
    line: (id) => {
      const call = find(id);
      return call && line(call);
    },
    clear() {
      calls = [];
      lines.clear();
      pictures.clear();
      keep("calls", undefined);
    },
  };
}
