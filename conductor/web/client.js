// A client of the public protocol: one session, over as many sockets as it takes.
const CAPABILITIES = ["resume", "tools", "cancel", "late", "approval", "activity", "diagnostics"];
const REMEMBERED = 2_000; // ids of events that were handled
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 10_000;
const TAKEN_OVER = 4409; // another connection serves the session: coming back would be a duel
const PASSING = new Set(["assistant.speech.partial", "session.ping", "session.started", "event.ack"]);

const timeZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;
const isUiCall = (name) => name.startsWith("convo.") || name.startsWith("tts.");

/**
 * Connect, and stay so until `close()`. Calls are handled one at a time; what the server has not recorded is
 * sent again, with its original id, after a lost connection.
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
  #unrecorded = new Map(); // what the server has not acknowledged, by id
  #calls = new Map(); // callId -> the result, or null while there is none
  #queue = Promise.resolve();
  #digests = new Map();

  constructor(options) {
    this.#options = options;
  }

  open() {
    const { url, token } = this.#options;
    this.#options.onConnection?.("connecting");
    this.#socket = new WebSocket(url, ["conductor.v1", ...(token ? [`bearer.${token}`] : [])]);
    this.#socket.onopen = () => this.#start();
    this.#socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    this.#socket.onclose = ({ code }) => this.#lost(code);
  }

  say(text) {
    this.#send("user.audio.transcript.final", { text });
  }

  hearing(text) {
    this.#send("user.audio.transcript.partial", { text }, { once: true });
  }

  interrupt({ spokenText, playedMs, reason = "user_speech" } = {}) {
    this.#send("audio.output.interrupted", { reason, spokenText, playedMs }, { once: true });
  }

  decide(approvalId, decision, { scope, arguments: editedArguments, words: message } = {}) {
    const argumentsDigest = this.#digests.get(approvalId);
    this.#send("approval.response", { approvalId, argumentsDigest, decision, scope, editedArguments, message });
  }

  close() {
    this.#closed = true;
    this.#socket.close(1000);
  }

  #start() {
    const { sessionId, tools } = this.#options;
    const done = [...this.#calls].filter(([, result]) => result && this.#unrecorded.has(result.eventId)).slice(-256);
    const pending = [...this.#calls].filter(([, result]) => !result).map(([callId]) => callId);
    const resume = this.#lastEventId && {
      lastEventId: this.#lastEventId,
      done: done.map(([callId, { result, error }]) => ({ callId, result, error })),
      pending,
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

  #send(type, payload, { once = false } = {}) {
    const event = this.#event(type, payload);
    if (!once) this.#unrecorded.set(event.id, event);
    this.#write(event);
    return event.id;
  }

  #write(event) {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    this.#socket.send(JSON.stringify(event));
    this.#options.onEvent?.(event, "out");
  }

  #take(event) {
    this.#options.onEvent?.(event, "in");
    if (this.#handled.has(event.id)) return;
    this.#handled.add(event.id);
    if (this.#handled.size > REMEMBERED) this.#handled.delete(this.#handled.values().next().value);
    if (!PASSING.has(event.type)) this.#lastEventId = event.id;
    this.#react[event.type]?.(event.payload);
  }

  #react = {
    "session.started": ({ resend = [], drop = [] }) => {
      this.#pause = FIRST_PAUSE_MS;
      this.#options.onConnection?.("open");
      for (const callId of drop ?? []) this.#calls.delete(callId);
      for (const event of this.#unrecorded.values()) this.#write(event);
      for (const callId of resend ?? []) if (this.#calls.get(callId)) this.#report(callId);
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
      if (!isUiCall(call.name)) this.#calls.set(call.callId, null);
      this.#queue = this.#queue.then(() => this.#handle(call));
    },
    "tool.cancel": ({ callId }) => {
      // A call that has begun gives its result; one that still waits does nothing.
      if (this.#calls.get(callId) !== null || callId === this.#running) return;
      this.#calls.delete(callId);
      this.#send("tool.cancelled", { callId, effect: "none" });
    },
  };

  #running = null;

  async #handle({ callId, name, arguments: given }) {
    if (isUiCall(name)) {
      await this.#draw(name, JSON.parse(given));
      this.#send("tool.result", { callId, result: '{"ok":true}', error: null });
      return;
    }
    if (!this.#calls.has(callId)) return;
    this.#running = callId;
    this.#calls.set(callId, await this.#run(name, given));
    this.#running = null;
    this.#report(callId);
  }

  async #draw(name, { state, text }) {
    if (name === "convo.setState") this.#options.onState?.(state);
    if (name === "tts.speak") await this.#options.speak?.(text);
  }

  async #run(name, given) {
    try {
      const handler = this.#options.handlers?.[name];
      if (!handler) throw new Error(`This client has no tool ${name}.`);
      const result = await handler(JSON.parse(given));
      return { result: typeof result === "string" ? result : JSON.stringify(result ?? null), error: null };
    } catch (error) {
      return { result: null, error: String(error?.message ?? error) };
    }
  }

  #report(callId) {
    const { result, error } = this.#calls.get(callId);
    this.#calls.get(callId).eventId = this.#send("tool.result", { callId, result, error });
  }
}
