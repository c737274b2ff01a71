// A client of the public protocol: one session, over as many sockets and reloads as it takes.
import { keep, recall } from "./store.js";

const CAPABILITIES = ["resume", "tools", "cancel", "late", "approval", "activity", "diagnostics"];
const REMEMBERED = 2_000; // ids of events that were handled
const KEPT = 200; // of them over a reload
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 10_000;
const TAKEN_OVER = 4409; // another connection serves the session: coming back would be a duel
const PASSING = new Set(["assistant.speech.partial", "session.ping", "session.started", "event.ack"]);
const BROKEN_OFF = "The page was closed while this ran: it may have happened.";

const timeZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;
const isUiCall = (name) => name.startsWith("convo.") || name.startsWith("tts.");

/**
 * Connect, and stay so until `close()`. Calls are handled one at a time; what the server has not recorded is
 * sent again, with its original id, after a lost connection or a reload.
 */
export function connect(options) {
  const client = new Client(options);
  client.open();
  return client;
}

class Client {
  #options;
  #socket = null;
  #closed = false;
  #pause = FIRST_PAUSE_MS;
  #prefix = crypto.getRandomValues(new Uint32Array(2)).join("-");
  #count = 0;
  #lastEventId = null;
  #handled = new Set();
  #unrecorded = new Map(); // events that the server has not acknowledged, by id
  #calls = new Map(); // callId -> {call, begun, outcome: {result, error}, eventId}
  #queue = Promise.resolve();
  #digests = new Map();

  constructor(options) {
    this.#options = options;
    const { lastEventId = null, handled = [], unrecorded = [], calls = [] } = recall(`client.${options.sessionId}`, {});
    this.#lastEventId = lastEventId;
    this.#handled = new Set(handled);
    this.#unrecorded = new Map(unrecorded);
    this.#calls = new Map(calls);
    for (const [callId, one] of this.#calls) {
      if (one.outcome) continue;
      if (!one.begun) this.#enqueue(one.call);
      else this.#finish(callId, { result: null, error: BROKEN_OFF });
    }
  }

  open() {
    const { url, token } = this.#options;
    this.#options.onConnection?.("connecting");
    this.#socket = new this.#options.WebSocket(url, ["conductor.v1", ...(token ? [`bearer.${token}`] : [])]);
    this.#socket.onopen = () => this.#start();
    this.#socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    this.#socket.onclose = ({ code }) => this.#lost(code);
  }

  say(text) {
    this.#send("user.audio.transcript.final", { text });
  }

  hearing(text) {
    this.#write(this.#event("user.audio.transcript.partial", { text }));
  }

  interrupt({ spokenText, playedMs, reason = "user_speech" } = {}) {
    this.#write(this.#event("audio.output.interrupted", { reason, spokenText, playedMs }));
  }

  decide(approvalId, decision, { scope, arguments: editedArguments, words: message } = {}) {
    const argumentsDigest = this.#digests.get(approvalId);
    this.#send("approval.response", { approvalId, argumentsDigest, decision, scope, editedArguments, message });
  }

  declare(tools, handlers) {
    Object.assign(this.#options, { tools, handlers });
    this.#write(this.#event("session.update", { tools }));
  }

  close() {
    this.#closed = true;
    this.#socket.close(1000);
  }

  #start() {
    const { sessionId, tools } = this.#options;
    const open = [...this.#calls].filter(([, { outcome, eventId }]) => !outcome || this.#unrecorded.has(eventId));
    const resume = this.#lastEventId && {
      lastEventId: this.#lastEventId,
      done: open.flatMap(([callId, { outcome }]) => (outcome ? [{ callId, ...outcome }] : [])).slice(-256),
      pending: open.flatMap(([callId, { outcome }]) => (outcome ? [] : [callId])).slice(-256),
    };
    const start = { sessionId, timeZone: timeZone(), locale: navigator.language, capabilities: CAPABILITIES, tools };
    this.#write(this.#event("session.start", { ...start, resume: resume || undefined }));
  }

  #lost(code) {
    if (this.#closed || code === TAKEN_OVER) return this.#options.onConnection?.("closed");
    this.#options.onConnection?.("connecting");
    setTimeout(() => !this.#closed && this.open(), this.#pause * (0.5 + Math.random()));
    this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE_MS);
  }

  #event(type, payload) {
    const id = `${this.#prefix}-${(this.#count += 1)}`;
    const { sessionId } = this.#options;
    return { id, type, timestamp: new Date().toISOString(), sessionId, protocolVersion: 1, payload };
  }

  #send(type, payload) {
    const event = this.#event(type, payload);
    this.#unrecorded.set(event.id, event);
    this.#save();
    this.#write(event);
    return event.id;
  }

  #write(event) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(JSON.stringify(event));
    this.#options.onEvent?.("out", event);
  }

  #save() {
    if (this.#closed) return;
    keep(`client.${this.#options.sessionId}`, {
      lastEventId: this.#lastEventId,
      handled: [...this.#handled].slice(-KEPT),
      unrecorded: [...this.#unrecorded],
      calls: [...this.#calls].slice(-KEPT),
    });
  }

  #take(event) {
    this.#options.onEvent?.("in", event);
    if (this.#handled.has(event.id)) return;
    if (!PASSING.has(event.type)) {
      this.#handled.add(event.id);
      if (this.#handled.size > REMEMBERED) this.#handled.delete(this.#handled.values().next().value);
      this.#lastEventId = event.id;
    }
    this.#react[event.type]?.(event.payload);
    if (event.type !== "assistant.speech.partial") this.#save();
  }

  #react = {
    "session.started": ({ resend, drop }) => {
      this.#pause = FIRST_PAUSE_MS;
      this.#options.onConnection?.("open");
      for (const callId of drop ?? []) this.#calls.delete(callId);
      for (const event of this.#unrecorded.values()) this.#write(event);
      for (const callId of resend ?? []) this.#report(callId);
    },
    "event.ack": ({ eventIds }) => eventIds.forEach((id) => this.#unrecorded.delete(id)),
    "assistant.speech.partial": ({ text }) => this.#options.onPartial?.(text),
    "assistant.speech.final": ({ text }) => this.#options.onFinal?.(text),
    "approval.request": (request) => {
      this.#digests.set(request.approvalId, request.argumentsDigest);
      this.#options.onApproval?.(request);
      this.#send("approval.shown", { approvalId: request.approvalId });
    },
    "tool.call": (call) => {
      if (this.#calls.has(call.callId)) return;
      if (!isUiCall(call.name)) this.#calls.set(call.callId, { call, begun: false });
      this.#enqueue(call);
    },
    "tool.cancel": ({ callId }) => {
      // A call that has begun gives its result; one that still waits does nothing.
      if (this.#calls.get(callId)?.begun !== false) return;
      this.#calls.delete(callId);
      this.#send("tool.cancelled", { callId, effect: "none" });
    },
  };

  #enqueue(call) {
    this.#queue = this.#queue.then(() => (isUiCall(call.name) ? this.#draw(call) : this.#run(call)));
  }

  async #draw({ callId, name, arguments: given }) {
    const { state, text } = JSON.parse(given);
    if (name === "convo.setState") this.#options.onState?.(state);
    if (name === "tts.speak") await this.#options.speak?.(text, { signal: new AbortController().signal });
    this.#send("tool.result", { callId, result: '{"ok":true}', error: null });
  }

  async #run({ callId, name, arguments: given }) {
    const known = this.#calls.get(callId);
    if (!known) return; // cancelled, or no longer wanted
    known.begun = true;
    this.#save();
    try {
      const handler = this.#options.handlers?.[name];
      if (!handler) throw new Error(`This client has no tool ${name}.`);
      const result = await handler(JSON.parse(given));
      this.#finish(callId, { result: typeof result === "string" ? result : JSON.stringify(result ?? null), error: null });
    } catch (error) {
      this.#finish(callId, { result: null, error: String(error?.message ?? error) });
    }
  }

  #finish(callId, outcome) {
    if (this.#closed || !this.#calls.has(callId)) return;
    this.#calls.get(callId).outcome = outcome;
    this.#report(callId);
  }

  #report(callId) {
    const known = this.#calls.get(callId);
    if (known?.outcome) known.eventId = this.#send("tool.result", { callId, ...known.outcome });
  }
}
