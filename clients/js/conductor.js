// A client of Conductor's protocol (docs/protocol.md) for browsers and Node.
const SERVED = [
  "resume", "tools", "cancel", "lease", "late", "activity", "pause", "segments", "images", "turns", "context", "metrics",
  "goaway", "diagnostics",
];
const SUPERSEDED = 4409; // another connection serves the session: do not reconnect
const FINAL_ERRORS = new Set(["unauthorized", "unsupported_protocol_version", "session_mismatch"]);
// Events that no replay repeats.
const PASSING = new Set([
  "assistant.speech.partial", "session.ping", "session.started", "session.goaway", "event.ack", "diagnostic",
  "turn.metrics", "turn.hint", "stt.hints",
]);

const REMEMBERED = 2_000; // ids of events and calls
const SAVED_IDS = 500; // of these, saved over a reload
const STORED_MS = 7 * 24 * 3_600_000;
const MAX_FACT = 2_000; // characters
const KEPT = 128; // events that wait for their acknowledgement
const UNSENT_TRANSCRIPTS = 8;
const TRANSCRIPT_MS = 60_000; // an older transcript is not sent again
const INTERRUPTION_MS = 10_000; // the server does not repeat older speeches
const START_MS = 10_000;
const STEADY_MS = 5_000; // only a connection that lasted resets the pauses
const SILENCE_MS = 60_000; // the server pings every 20 s
const RETRY_MS = 1_000;
const STORAGE_MS = 5_000; // for one `load` or `save`
const TOOL_MS = 600_000;
const CANCEL_MS = 3_000; // for a cancelled handler, until later events no longer wait for it
const MAX_RESUMED = 256;
const MAX_RESUME_BYTES = 32_768;
const MAX_START_BYTES = 64_512; // the soft limit of an event without the envelope
const MAX_RESULT_BYTES = 1_044_480; // the server's hard limit of a frame without the envelope
const MAX_RESULT_CHARACTERS = 131_072;
const MAX_CANCELLED_CHARACTERS = 8_192;
const MAX_IMAGES = 3; // of a result or transcript
const MAX_IMAGE_CHARACTERS = 1_048_576; // of base64
const MAX_IMAGE_SIDE = 1_568; // in pixels: services scale larger ones down
const IMAGE_QUALITIES = [0.85, 0.6, 0.3];
const MAX_WORDS = 2_000;
const SAVED_STAGES = new Set(["begun", "taken", "cancelled", "unwanted", "dropped"]);
const BROKEN_OFF = "The app was closed while this ran: it may have happened.";

const isUiCall = (name) => name.startsWith("convo.") || name.startsWith("tts.");
const bytes = (value) => new TextEncoder().encode(JSON.stringify(value)).length;
const clean = (text) => text?.toWellFormed?.() ?? text; // UTF-8 cannot encode lone surrogates
const plain = (text) => text.normalize("NFC").split(/\s+/).filter(Boolean).join(" "); // servers may normalise
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null));
const hasImages = (value) => Array.isArray(value?.images) && Object.keys(value).every((key) => key === "images" || key === "result");
const randomId = () => [...crypto.getRandomValues(new Uint8Array(9))].map((byte) => byte.toString(36).padStart(2, "0")).join("");

/** Connect, and stay connected until `close()`. The options are in conductor.d.ts. */
export function connect(options = {}) {
  const client = new Client(options);
  client._start();
  return client;
}

/** How much of a cancelled call took effect: thrown by its handler. */
export class ToolCancelled extends Error {
  constructor(effect, result) {
    super(`cancelled: ${effect}`);
    Object.assign(this, { effect, result });
  }
}

/**
 * An image for the wire. `{mimeType, data}` with base64 stays as it is; a `Blob`, a canvas, an image or a video's frame is
 * scaled to 1,568 pixels and encoded as JPEG, in a browser.
 */
export async function picture(source) {
  if (typeof source?.mimeType === "string" && typeof source.data === "string") return source;
  const bitmap = await createImageBitmap(source);
  const scale = Math.min(1, MAX_IMAGE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  for (const quality of IMAGE_QUALITIES) {
    const blob = await canvas.convertToBlob({ type: "image/jpeg", quality });
    const data = base64(new Uint8Array(await blob.arrayBuffer()));
    if (data.length <= MAX_IMAGE_CHARACTERS) return { mimeType: "image/jpeg", data };
  }
  throw new Error("The picture is too large.");
}

async function pictures(sources) {
  // More would not fit into a frame.
  if (sources.length > MAX_IMAGES) throw new RangeError(`There are ${sources.length} images; the most is ${MAX_IMAGES}.`);
  return Promise.all(sources.map(picture));
}

function base64(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 32_768) text += String.fromCharCode(...data.subarray(at, at + 32_768));
  return btoa(text);
}

/** An event as it is kept over a reload: without its images, which are larger than a browser's storage may be. */
function withoutImages(event) {
  const { images, ...payload } = event.payload;
  if (!images) return event;
  if (event.type === "tool.result") payload.result = `${payload.result ?? ""}\n[Its images were lost when the app was loaded again.]`.trim();
  return { ...event, payload };
}

/** Keep sessions as long as the process. */
export function memoryStorage() {
  const kept = new Map();
  return { load: (id) => kept.get(id), save: (id, state) => void kept.set(id, state) };
}

/** Keep sessions in this browser for a week after their last use. */
export function indexedDbStorage(name = "conductor") {
  const settled = (request, act) =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      act?.(request);
    });
  const open = async () =>
    settled(indexedDB.open(name, 1), (request) => {
      request.onupgradeneeded = () => request.result.createObjectStore("sessions");
    });
  const opened = open(); // rejected in a page that may not use a database
  const store = async (mode) => (await opened).transaction("sessions", mode).objectStore("sessions");
  const prune = async () => {
    const request = (await store("readwrite")).openCursor();
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor) return;
      if (!(cursor.value.savedAt > Date.now() - STORED_MS)) cursor.delete();
      cursor.continue();
    };
  };
  prune().catch(() => {}); // each use reports a database that does not open
  return {
    load: async (id) => settled((await store("readonly")).get(id)),
    save: async (id, state) => settled((await store("readwrite")).put({ ...state, savedAt: Date.now() }, id)),
  };
}

const writes = new Map(); // session id -> the last write of this page, until it ends

/** Saves the latest state, one write at a time. A fault of the storage is reported, and the session goes on without it. */
class Saver {
  #storage;
  #sessionId;
  #state;
  #report;
  #limitMs;
  #writing = null;
  #next = null;
  #failing = false;

  constructor(storage, sessionId, { state, report, limitMs = STORAGE_MS }) {
    this.#storage = storage;
    this.#sessionId = sessionId;
    this.#state = state;
    this.#report = report;
    this.#limitMs = limitMs;
  }

  /** The saved state, or undefined. It includes what an earlier client of this page is still writing. */
  async load() {
    await writes.get(this.#sessionId);
    try {
      const saved = await within(this.#limitMs, async () => this.#storage.load(this.#sessionId));
      if (saved === undefined || saved === null) return undefined;
      if (!isState(saved)) throw new Error("The saved state has another form.");
      return saved;
    } catch (error) {
      this.#report("The session could not be loaded", error);
    }
  }

  /** The promise of a write with the present state. */
  save() {
    if (!this.#writing) return this.#enter((this.#writing = this.#write()));
    return (this.#next ??= this.#enter(
      this.#writing.then(() => {
        this.#next = null;
        return (this.#writing = this.#write());
      }),
    ));
  }

  /** Wait for the writes that have been asked for. */
  async settle() {
    await (this.#next ?? this.#writing);
  }

  #enter(write) {
    writes.set(this.#sessionId, write);
    write.then(() => writes.get(this.#sessionId) === write && writes.delete(this.#sessionId));
    return write;
  }

  async #write() {
    try {
      await within(this.#limitMs, async () => this.#storage.save(this.#sessionId, this.#state()));
      this.#failing = false;
    } catch (error) {
      if (!this.#failing) this.#report("The session could not be saved", error); // once, not at each event
      this.#failing = true;
    }
    if (!this.#next) this.#writing = null;
  }
}

/**
 * Events in order, oldest first, that the server has not acknowledged. They are sent again on each new
 * connection under their original ids: the server takes an id once. A frame that a socket took proves nothing.
 */
class Outbox {
  entries = [];

  has = (id) => this.entries.some(({ event }) => event.id === id);

  of = (callId) => this.entries.find(({ event }) => event.type === "tool.result" && event.payload.callId === callId);

  add(event, shown) {
    this.entries.push({ event, shown, at: Date.now(), sentOn: 0 });
    if (this.entries.length > KEPT) this.entries.splice(0, 1);
  }

  remove(ids) {
    this.entries = this.entries.filter(({ event }) => !ids.includes(event.id));
  }

  forget(callIds) {
    this.entries = this.entries.filter(({ event: { type, payload } }) => type !== "tool.result" || !callIds.has(payload.callId));
  }

  /** Drop events that are too old to be sent again (a pause: once it has ended), and after the loss of a session all but transcripts and facts. */
  expire(gone, pauseId) {
    const now = Date.now();
    this.entries = this.entries.filter(({ event: { id, type }, at }) => {
      if (type === "user.audio.transcript.final") return now - at < TRANSCRIPT_MS;
      if (type === "audio.output.paused") return !gone && id === pauseId;
      if (type === "context.add") return true; // it holds in a new session, too
      return !gone && (type !== "audio.output.interrupted" || now - at < INTERRUPTION_MS);
    });
  }

  get transcripts() {
    return this.entries.filter(({ event }) => event.type === "user.audio.transcript.final");
  }

  /** The results for `session.start`, in `room` bytes: the server requests content that does not fit. */
  done(room) {
    const named = [];
    for (const { event, shown } of this.entries) {
      if (event.type !== "tool.result" || shown || named.length === MAX_RESUMED) continue;
      const { callId, result, error, images } = event.payload;
      if (images) {
        named.push({ callId }); // the server requests it
        continue;
      }
      const full = error === null ? { callId, result } : { callId, error };
      const size = bytes(full) + 1;
      named.push(size <= room ? full : { callId });
      room -= size <= room ? size : bytes({ callId }) + 1;
    }
    return named;
  }
}

/**
 * The open turns. One runs from its transcript's `convo.appendMessage` to its `turn.ended`; from a server without the
 * capability `turns`, to the next `idle`.
 */
class Turns {
  named = false; // the server names the transcripts whose turns have ended
  #open = [];
  #thinking = false;

  add(text, id, connection) {
    const result = { transcript: text, text: "", finals: [], calls: [], errors: [], interrupted: false };
    return new Promise((resolve) => {
      this.#open.push({ id, connection, result, resolve, stage: "waiting", recorded: false, asked: new Set() });
    });
  }

  interrupted() {
    for (const { result } of this.#open) result.interrupted = true;
  }

  recorded(ids) {
    for (const turn of this.#open) turn.recorded ||= ids.includes(turn.id);
  }

  /** The session is lost, and with it the recorded transcripts. */
  forgotten() {
    for (const turn of [...this.#open]) if (turn.recorded) this.#end(turn, "lost");
  }

  expire(has) {
    for (const turn of [...this.#open]) if (turn.stage === "waiting" && !turn.recorded && !has(turn.id)) this.#end(turn, "lost");
  }

  close(error) {
    for (const turn of [...this.#open]) {
      if (error) turn.result.errors.push(error);
      this.#end(turn, "closed");
    }
  }

  note({ type, payload }, args) {
    if (type === "error") return this.#failed(payload);
    if (args?.state === "thinking") this.#thinking = true;
    if (payload.name === "convo.appendMessage" && args?.role === "user" && !args.isPartial) this.#began(args.text);
    if (type === "turn.ended") return this.#ended(payload);
    for (const turn of this.#running) this.#heard(turn, type, payload);
  }

  #heard(turn, type, payload) {
    if (type === "assistant.speech.final") {
      turn.result.finals.push((turn.result.text = payload.text));
      turn.asked.clear(); // after a reconnect the outcome of a request may follow the answer
    }
    if (type === "approval.request") turn.asked.add(payload.approvalId);
    if (type === "approval.resolved" && payload.outcome !== "refused") turn.asked.delete(payload.approvalId);
    if (type === "tool.call" && !isUiCall(payload.name)) {
      const { callId, name, arguments: given } = payload;
      if (!turn.result.calls.some((call) => call.callId === callId)) turn.result.calls.push({ callId, name, arguments: given });
    }
  }

  #ended({ eventId, reason }) {
    const turn = this.#open.find(({ id }) => id === eventId);
    if (!turn) return;
    turn.result.reason = reason;
    this.#end(turn, reason === "interrupted" && !turn.result.interrupted ? "followed" : "idle");
  }

  /** An `idle` was handled: end the turns that it ends. */
  idle(connection, has) {
    this.#thinking = false;
    let passed = false;
    for (const turn of [...this.#open].reverse()) {
      if (this.named && turn.stage !== "refused") continue;
      if (turn.asked.size) passed = true; // its idle is for the answer by voice
      else if (turn.stage !== "waiting") {
        this.#end(turn, "idle");
        passed ||= turn.stage === "running";
      } else if (passed || (turn.connection < connection && !turn.recorded && !has(turn.id))) this.#end(turn, "lost");
    }
  }

  get #running() {
    return this.#open.filter(({ stage }) => stage === "running");
  }

  #began(text) {
    const waiting = this.#open.filter(({ stage }) => stage === "waiting");
    const same = waiting.find(({ result }) => plain(result.transcript) === plain(text));
    const begun = same ? [same] : halves(waiting, plain(text)) ?? (this.#thinking ? waiting.slice(0, 1) : []);
    if (!begun.length) return;
    if (!this.named) for (const running of this.#running) this.#end(running, "followed");
    for (const half of begun) half.stage = "running";
    this.#thinking = false;
  }

  #failed({ code, message, eventId, callId }) {
    const named = this.#open.find(({ id }) => id === eventId) ?? this.#running[0];
    const turn = named ?? (eventId || callId ? undefined : this.#open[0]);
    if (!turn) return;
    turn.result.errors.push({ code, message });
    turn.asked.clear();
    if (turn.stage === "waiting") turn.stage = "refused";
  }

  #end(turn, ending) {
    this.#open.splice(this.#open.indexOf(turn), 1);
    turn.resolve({ ...turn.result, ending });
  }
}

/** The turns in a row whose transcripts are together this text, halves of one sentence. */
function halves(turns, text) {
  for (let first = 0; first < turns.length; first += 1) {
    for (let end = first + 2; end <= turns.length; end += 1) {
      const some = turns.slice(first, end);
      if (some.map(({ result }) => plain(result.transcript)).join(" ") === text) return some;
    }
  }
}

class Client {
  sessionId;
  state;
  connection = "connecting";
  started;
  #options;
  #accepted = new Set();
  #socket = null;
  #number = 0; // of the socket
  #live = false; // the server has answered `session.start` on it
  #startId = null;
  #openedAt = 0;
  #readAt = 0;
  #failures = 0; // the tries that failed, and the connections before them that did not last
  #brief = 0; // connections in a row that did not last
  #retry = null; // the timer of the next try, if it may come sooner
  #timers = new Set();
  #watch;
  #closed = false;
  #refusal; // the error of a page that may not connect
  #loaded = false; // before, a write would replace the saved state
  #opened = false; // a connection of this client
  #known = false; // the server has answered this client, or the one before a reload: its calls are known
  #reported = new Set(); // calls whose results are in the last `session.start`
  #answerStarted;
  #prefix = randomId();
  #count = 0;
  #seen = new Set();
  #handled = new Set();
  #lastEventId = null;
  #outbox = new Outbox();
  #turns = new Turns();
  #saver;
  #calls = new Map(); // callId -> "queued", "begun", "taken", "cancelled", "unwanted" or "dropped"
  #runs = new Map();
  #approvals = new Map();
  #queue = Promise.resolve();
  #voice = Promise.resolve(); // with segments speeches wait for each other, and only an `idle` for them
  #arrivals = 0;
  #silentTo = 0;
  #speech = null; // its AbortController, and its id
  #pause = null; // the id of its event, whether the person has said something since, and its end
  #voiceModel = null; // in front of the session, if there is one
  #replying = false; // a partial or final came since the last message

  constructor(options) {
    this.#options = { ...options };
    this.sessionId = options.sessionId ?? `js-${randomId()}`;
    const storage = options.storage ?? (globalThis.indexedDB ? indexedDbStorage() : memoryStorage());
    this.#saver = new Saver(storage, this.sessionId, {
      state: () => this.#snapshot(),
      report: (what, error) => this.#storageFailed(what, error),
      limitMs: options.storageMs,
    });
    this.started = new Promise((resolve, reject) => (this.#answerStarted = { resolve, reject }));
    this.started.catch(() => {}); // an app may ignore it
    globalThis.addEventListener?.("online", this.#tryNow);
  }

  async _start() {
    const saved = await this.#saver.load();
    if (this.#closed) return;
    this.#restore(saved);
    this.#watch = setInterval(() => this.#live && Date.now() - this.#readAt > SILENCE_MS && this.#drop("The server is silent."), 10_000);
    this.#watch.unref?.();
    this.#open();
  }

  say(text, { lang, images, id } = {}) {
    return images?.length ? this.#sayShowing(text, { lang, id }, images) : this.#say(text, { lang, id });
  }

  async #sayShowing(text, options, images) {
    return this.#say(text, { ...options, images: await pictures(images) });
  }

  #say(text, { lang, images, id }) {
    const event = this.#event("user.audio.transcript.final", { text: clean(text), lang, images });
    event.id = id ?? event.id; // the server takes an id once
    const turn = this.#turns.add(text, event.id, this.#number);
    if (id === undefined) this.#voiceModel?.typed?.(); // its own words have an id or null
    if (this.#pause) this.#pause.said = true;
    if (this.#closed) this.#turns.close(this.#refusal);
    else this.#keep(event);
    const unsent = this.#outbox.transcripts.filter(({ sentOn }) => !sentOn);
    if (unsent.length > UNSENT_TRANSCRIPTS) this.#outbox.remove([unsent[0].event.id]);
    this.#turns.expire(this.#outbox.has);
    this.#tryNow();
    return turn;
  }

  hearing(text) {
    this.send("user.audio.transcript.partial", { text: clean(text) });
  }

  pause({ spokenText, playedMs } = {}) {
    if (!this.#speech || !this.#accepted.has("pause")) return false;
    if (this.#pause) return true;
    const event = this.#event("audio.output.paused", { speechId: this.#speech.id, spokenText: clean(spokenText), playedMs });
    const over = new AbortController();
    this.#pause = { id: event.id, said: false, over };
    this.#keep(event);
    return true;
  }

  interrupt({ spokenText, playedMs, reason = "user_speech" } = {}) {
    this.#turns.interrupted();
    // The voice stops at once; its result follows in a later task, after the interruption.
    this.#silence();
    this.#keep(this.#event("audio.output.interrupted", { reason, spokenText: clean(spokenText), playedMs }));
  }

  #silence() {
    this.#endPause();
    this.#silentTo = this.#arrivals;
    this.#speech?.abort.abort("interrupted");
  }

  #goOn() {
    if (this.#endPause()) this.#tell("onResume");
  }

  #endPause() {
    const pause = this.#pause;
    this.#pause = null;
    pause?.over.abort();
    return pause !== null;
  }

  addContext(text, { key, ttlS, untrusted } = {}) {
    if ([...text].length > MAX_FACT) throw new RangeError(`A fact has at most ${MAX_FACT} characters.`);
    if (!text.trim() && !key) throw new RangeError("A fact without a key needs a text.");
    this.#keep(this.#event("context.add", { key: clean(key), text: clean(text), ttlS, untrusted }));
  }

  cancelResponse() {
    this.#turns.interrupted();
    if (!this.#live || !this.#accepted.has("cancel")) return;
    if (this.#pause) this.#silence(); // the server cuts a paused speech
    this.send("response.cancel", {});
  }

  decide(approvalId, decision, options = {}) {
    const question = this.#approvals.get(approvalId);
    if (!question || question.settled || question.answer) throw new Error(`There is no open question ${approvalId}.`);
    if (!["allow", "deny", "edit"].includes(decision)) throw new Error("A decision is allow, deny or edit.");
    if (decision === "edit" && !options.arguments) throw new Error("An edit needs all of the arguments.");
    const { argumentsDigest, scopes } = question.request;
    const scope = scopes.includes(options.scope) ? options.scope : "once";
    const message = clean(options.words)?.slice(0, MAX_WORDS);
    const editedArguments = decision === "edit" ? options.arguments : undefined;
    question.answer = { approvalId, argumentsDigest, decision, scope, editedArguments, message };
    this.#answer(question);
  }

  /**
   * Let a voice model speak, ask and answer (openai-live.js), from the next `session.start` on. It says replies whole,
   * and it decides when a question has been heard: cards are asked as ever, but their `approval.shown` is its own.
   */
  attach(voice) {
    this.#voiceModel = voice;
  }

  declare(tools, handlers) {
    this.#options.tools = tools;
    if (handlers) this.#options.handlers = handlers;
    this.send("session.update", { tools });
  }

  renew(token) {
    this.#options.token = token;
    this.send("session.update", { token });
  }

  send(type, payload) {
    if (this.#live) this.#write(this.#event(type, payload));
  }

  reconnect() {
    this.#tryNow();
  }

  async close() {
    this.#save(); // not of a client that has ended: another one may have the session
    if (!this.#closed) this.#end(new Error("The client was closed."), 1000);
    await this.#saver.settle();
  }

  // The connection

  #open() {
    try {
      this.#connect();
    } catch (error) {
      this.#end(error, 1006, error.message); // no address, or no WebSocket: a retry is pointless
    }
  }

  #tryNow = () => {
    if (this.#retry === null) return;
    this.#forget(this.#retry);
    this.#open();
  };

  #connect() {
    const { url, token, WebSocket = globalThis.WebSocket } = this.#options;
    const to = new URL(url ?? "/ws", globalThis.location?.href);
    to.protocol = to.protocol.replace("http", "ws");
    const protocols = ["conductor.v1"];
    if (token && /^[\w!#$%&'*+.^`|~-]+$/.test(token)) protocols.push(`bearer.${token}`);
    else if (token) to.searchParams.set("token", token);
    if (!WebSocket) throw new Error("There is no global WebSocket: give one, such as that of the package ws.");
    this.#retry = null;
    this.#number += 1;
    this.#openedAt = Date.now();
    const socket = (this.#socket = new WebSocket(String(to), protocols));
    const mine = (act) => (event) => socket === this.#socket && act(event);
    let reason = ""; // the package ws tells one, a browser does not
    socket.onopen = mine(() => {
      this.#opened = true;
      this.#begin();
    });
    socket.onmessage = mine(({ data }) => this.#read(data));
    socket.onerror = mine(({ message }) => (reason = String(message ?? ""))); // a close follows
    socket.onclose = mine((close) => {
      this.#lost(close.code, String(close.reason || reason));
      if (!this.#opened) this.#askWhy(to);
    });
    this.#later(START_MS, () => socket === this.#socket && !this.#live && this.#drop("The server does not answer."));
  }

  /** A WebSocket does not tell why it was refused: the server does, for a token and for the page's origin. */
  async #askWhy({ protocol, host, pathname }) {
    const { token } = this.#options;
    const isOurs = (globalThis.location?.host ?? host) === host; // another origin's server may not be sent the token
    const headers = token && isOurs ? { authorization: `Bearer ${token}` } : {};
    const address = `${protocol.replace("ws", "http")}//${host}${pathname}`;
    const answer = await fetch(address, { credentials: "omit", headers }).catch(() => {});
    const isRefused = answer?.status === 403 || (answer?.status === 401 && (isOurs || !token));
    const message = isRefused && (await answer.text().catch(() => "")).trim();
    if (!message || this.#closed || this.#live) return;
    this.#refusal = { code: "unauthorized", message };
    this.#tell("onError", this.#refusal);
    this.#end(new Error(message), 1006, message);
  }

  #drop(reason, retryAfterMs) {
    const socket = this.#socket;
    this.#lost(1006, reason, retryAfterMs); // waiting for the close handshake may take long
    socket?.close();
  }

  #lost(code, reason, retryAfterMs = 0) {
    if (this.#closed) return;
    if (this.#live) {
      this.#failures = this.#brief = Date.now() - this.#openedAt >= STEADY_MS ? 0 : this.#brief;
      this.#brief += 1;
    }
    this.#socket = null;
    this.#live = false;
    const { firstMs = 500, mostMs = 15_000, tries = Infinity } = this.#options.reconnect ?? {};
    if (code === SUPERSEDED || this.#failures >= tries) return this.#end(new Error(`The connection is lost (${code}): ${reason}`), code, reason);
    const pause = Math.min(mostMs, Math.max(firstMs * 2 ** Math.min(this.#failures, 30), retryAfterMs));
    this.#failures += 1;
    this.#connectionIs("connecting", { code, reason });
    const timer = this.#later(pause * (1 - Math.random() / 2), () => this.#open());
    this.#retry = retryAfterMs ? null : timer; // a time that the server named counts
  }

  #end(error, code, reason = "") {
    const socket = this.#socket;
    this.#closed = true;
    this.#socket = null;
    this.#live = false;
    clearInterval(this.#watch);
    globalThis.removeEventListener?.("online", this.#tryNow);
    for (const timer of [...this.#timers]) this.#forget(timer);
    socket?.close(1000);
    this.#answerStarted.reject(error);
    this.#turns.close(this.#refusal);
    this.#endPause();
    this.#speech?.abort.abort("closed");
    for (const run of this.#runs.values()) run.abort.abort("closed");
    for (const question of this.#approvals.values()) this.#settle(question);
    this.#connectionIs("closed", { code, reason });
  }

  #connectionIs(name, close) {
    this.connection = name;
    this.#voiceModel?.connectionIs(name);
    this.#tell("onConnection", name, close);
  }

  #later(ms, act) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      if (!this.#closed) act();
    }, ms);
    this.#timers.add(timer);
    return timer;
  }

  #forget(timer) {
    clearTimeout(timer);
    this.#timers.delete(timer);
  }

  #begin() {
    const { model, instructions, variables, greeting, locale = globalThis.navigator?.language, lang, capabilities, tools, onApproval } =
      this.#options;
    const { onHints, onUnfinished, holdUnfinishedMs } = this.#options;
    const { timeZone = Intl.DateTimeFormat().resolvedOptions().timeZone } = this.#options;
    const listens = onHints || onUnfinished || holdUnfinishedMs !== undefined;
    const own = [...SERVED, ...(onApproval || this.#voiceModel ? ["approval"] : []), ...(listens ? ["hints"] : [])];
    const named = (capabilities ?? own).filter((name) => name !== "segments" || !this.#voiceModel);
    const start = { sessionId: this.sessionId, locale, lang, timeZone, model, instructions, variables, greeting };
    Object.assign(start, { capabilities: named, tools, holdUnfinishedMs });
    this.#expire();
    if (this.#known && named.includes("resume")) start.resume = this.#resume(MAX_START_BYTES - bytes(start));
    const event = this.#event("session.start", start);
    this.#startId = event.id;
    this.#write(event);
  }

  /** Results and pending calls, in `room` bytes. The server requests or repeats the others. */
  #resume(room) {
    const pending = [];
    let left = Math.min(room, MAX_RESUME_BYTES) - 256;
    for (const [callId, stage] of this.#calls) {
      if ((stage !== "queued" && stage !== "begun") || pending.length === MAX_RESUMED) continue;
      left -= bytes(callId) + 1;
      if (left < 0) break;
      pending.push(callId);
    }
    const done = this.#outbox.done(left);
    this.#reported = new Set(done.filter((one) => "result" in one || "error" in one).map(({ callId }) => callId));
    return { lastEventId: this.#lastEventId ?? undefined, done, pending };
  }

  #welcome({ resumed, capabilities, resend, drop }) {
    const again = new Set(resend ?? []);
    const unwanted = new Set(drop ?? []);
    this.#known = true;
    this.#live = true;
    this.#accepted = new Set(capabilities ?? []);
    this.#turns.named = this.#accepted.has("turns");
    if (!resumed) this.#turns.forgotten();
    if (!resumed || !this.#accepted.has("pause")) this.#goOn(); // the server knows of no pause
    this.#expire(!resumed);
    if (!resumed) for (const question of this.#approvals.values()) this.#settle(question);
    for (const callId of unwanted) {
      this.#calls.set(callId, "dropped");
      const run = this.#runs.get(callId);
      if (run && this.#readsOnly(run.name)) run.abort.abort("superseded");
    }
    // Results in `session.start` were recorded before this answer.
    this.#outbox.forget(new Set([...unwanted, ...[...this.#reported].filter((callId) => !again.has(callId))]));
    this.#reported.clear();
    this.#connectionIs("open");
    this.#flush();
    for (const question of this.#approvals.values()) if (!question.answer && !question.settled) this.#shown(question);
    this.#save();
  }

  // Sending

  #event(type, payload) {
    const id = `${this.#prefix}-${(this.#count += 1)}`;
    return { id, type, timestamp: new Date().toISOString(), sessionId: this.sessionId, protocolVersion: 1, payload };
  }

  #write(event) {
    if (this.#socket?.readyState !== 1) return;
    this.#socket.send(JSON.stringify(event));
    this.#tell("onEvent", "out", event);
  }

  /** Send an event until it is acknowledged. `shown`: it answers a UI call. */
  #keep(event, shown = false) {
    if (this.#closed) return;
    this.#outbox.add(event, shown);
    this.#save();
    this.#flush();
  }

  #flush() {
    if (!this.#live) return;
    for (const entry of this.#outbox.entries) {
      if (entry.sentOn === this.#number) continue;
      entry.sentOn = this.#number;
      this.#write(entry.event);
    }
  }

  #expire(gone) {
    this.#outbox.expire(gone, this.#pause?.id);
    this.#turns.expire(this.#outbox.has);
  }

  // Keeping over a reload

  #save() {
    return this.#loaded && !this.#closed ? this.#saver.save() : undefined;
  }

  #storageFailed(what, error) {
    console.error(`conductor: ${what}`, error);
    this.#tell("onError", { code: "storage_failed", message: `${what}: ${error?.message ?? error}` });
  }

  #snapshot() {
    return {
      known: this.#known,
      lastEventId: this.#lastEventId,
      handled: [...this.#handled].slice(-SAVED_IDS),
      outbox: this.#outbox.entries.map(({ event, shown, at }) => ({ event: withoutImages(event), shown, at })),
      // Queued calls are forgotten over a reload: the server sends them again.
      calls: [...this.#calls].filter(([, stage]) => stage !== "queued").slice(-SAVED_IDS),
    };
  }

  #restore(saved) {
    this.#loaded = true;
    if (saved) this.#continue(saved);
    if (this.#outbox.entries.length) this.#save(); // with the words that came before
  }

  #continue(saved) {
    this.#known = saved.known;
    this.#lastEventId = saved.lastEventId;
    this.#handled = new Set(saved.handled);
    this.#seen = new Set(saved.handled);
    this.#outbox.entries.unshift(...saved.outbox.map((entry) => ({ ...entry, sentOn: 0 })));
    for (const [callId, stage] of saved.calls) {
      this.#calls.set(callId, stage === "begun" ? "taken" : stage);
      if (stage === "begun") this.#outbox.add(this.#event("tool.cancelled", { callId, effect: "partial", result: BROKEN_OFF }), false);
    }
  }

  // Reading

  #read(data) {
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    if (typeof event?.id !== "string" || typeof event.payload !== "object" || !event.payload) return;
    this.#readAt = Date.now();
    this.#tell("onEvent", "in", event);
    if (this.#seen.has(event.id)) return;
    remember(this.#seen, event.id);
    this.#arrivals += 1;
    this.#notice(event);
    this.#voiceModel?.notice(event);
    if (event.type === "assistant.speech.partial" || !PASSING.has(event.type)) this.#enqueue(event, this.#arrivals);
  }

  /** The urgent part of an event, which does not wait for earlier events. */
  #notice({ type, payload }) {
    if (type === "session.started" && !this.#live) {
      this.#welcome(payload);
      this.#answerStarted.resolve(payload);
    } else if (type === "event.ack") {
      this.#turns.recorded(payload.eventIds);
      this.#outbox.remove(payload.eventIds);
      this.#save();
    } else if (type === "error") this.#failed(payload);
    else if (type === "tool.call") {
      const ours = !isUiCall(payload.name) && !payload.name.startsWith("bridge.");
      if (ours && !this.#calls.has(payload.callId)) this.#calls.set(payload.callId, "queued");
      // The person's words are taken: they have interrupted the paused speech.
      if (this.#pause?.said && payload.name === "convo.appendMessage" && parsed(payload.arguments)?.role === "user") this.#silence();
    } else if (type === "audio.output.resume") this.#goOn();
    else if (type === "tool.cancel") this.#cancel(payload);
    else if (type === "approval.request") this.#asked(payload);
    else if (type === "approval.resolved") this.#resolved(payload);
    else if (type === "stt.hints") this.#tell("onHints", payload.phrases);
    else if (type === "turn.hint" && payload.complete === false) this.#tell("onUnfinished");
  }

  #failed({ code, message, eventId, retryAfterMs }) {
    const entry = this.#outbox.entries.find(({ event }) => event.id === eventId);
    if (eventId === this.#startId && !this.#live) {
      if (FINAL_ERRORS.has(code)) this.#end(new Error(`${message} (${code})`), 1000, code);
      else if (code !== "store_unavailable") this.#drop(message, retryAfterMs); // the server tries that itself
    } else if (entry && (entry.event.type === "user.audio.transcript.final" || code === "invalid_event")) this.#outbox.remove([eventId]);
    else if (entry && code === "store_unavailable") {
      this.#later(RETRY_MS, () => {
        if (!this.#outbox.has(eventId)) return;
        entry.event = { ...entry.event, id: this.#event("", {}).id };
        entry.sentOn = 0;
        this.#flush();
      });
    }
  }

  #enqueue(event, number) {
    this.#queue = this.#queue.then(async () => {
      if (this.#closed) return;
      try {
        if (await this.#handle(event, number)) return;
      } catch (error) {
        console.error("conductor: an event could not be handled", error);
      }
      if (this.#closed || PASSING.has(event.type)) return;
      this.#lastEventId = event.id;
      // An open request is repeated after a reload.
      this.#done(event, event.type !== "approval.request");
    });
  }

  #done(event, forGood = true) {
    if (this.#closed) return;
    if (forGood) remember(this.#handled, event.id);
    this.#save();
  }

  /** Whether the event continues concurrently with later ones. */
  async #handle(event, number) {
    const { type, payload } = event;
    const args = type === "tool.call" ? parsed(payload.arguments) : null;
    this.#turns.note(event, args);
    if (type === "assistant.speech.partial" || type === "assistant.speech.final") {
      this.#replying = true;
      this.#tell(type.endsWith("partial") ? "onPartial" : "onFinal", payload.text);
    } else if (type === "error") this.#tell("onError", payload);
    else if (payload.name === "tts.speak" && this.#accepted.has("segments")) {
      this.#voice = this.#voice.then(() => this.#closed || this.#show(payload, args, number)).then(() => this.#done(event));
      return true;
    } else if (type === "tool.call" && isUiCall(payload.name)) await this.#show(payload, args, number);
    else if (type === "tool.call" && !payload.name.startsWith("bridge.")) await this.#run(payload, args);
  }

  #tell(hook, ...values) {
    try {
      return this.#options[hook]?.(...values);
    } catch (error) {
      console.error(`conductor: ${hook} failed`, error);
    }
  }

  // UI calls

  async #show({ callId, name }, args, number) {
    if (args?.state === "idle") await this.#voice;
    const answer = { callId, result: name === "tts.speak" ? '{"spoken":true}' : '{"ok":true}', error: null };
    try {
      if (!args) throw new Error("The arguments are not a JSON object.");
      if (name === "tts.speak") {
        const heard = await this.#speak(String(args.text ?? ""), { id: callId, ...args }, number);
        if (typeof heard === "string") answer.result = JSON.stringify({ spoken: true, heard: clean(heard) });
      } else await this.#draw(name, args, callId);
    } catch (error) {
      Object.assign(answer, { result: null, error: clean(String(error?.message ?? error)) });
    }
    this.#keep(this.#event("tool.result", answer), true);
    if (args?.state === "idle" && name === "convo.setState") this.#turns.idle(this.#number, this.#outbox.has);
  }

  async #draw(name, args, callId) {
    if (name === "convo.setState") {
      this.state = args.state;
      this.#tell("onState", args.state);
    }
    if (name === "convo.appendMessage" && !args.isPartial) {
      if (args.role === "assistant" && !this.#replying) this.#tell("onQuestion", args.text);
      this.#replying = false;
    }
    await this.#options.handlers?.[name]?.(args, { callId, name, signal: new AbortController().signal, progress() {} });
  }

  async #speak(text, { id, lang, speechId, segment, last }, number) {
    if (this.#pause) await aborted(this.#pause.over.signal); // the speech before it ended while it was paused
    if (number <= this.#silentTo || this.#closed) return;
    const abort = new AbortController();
    const { signal } = abort;
    this.#speech = { abort, id: speechId ?? id };
    try {
      const run = { signal, lang, speechId, segment, last };
      const own = () => this.#options.speak?.(text, run);
      // A voice model that was left has not said it: null.
      const said = this.#voiceModel ? this.#voiceModel.speak(text, run).then((heard) => (heard === null ? own() : heard)) : own();
      // A voice that ignores the signal must not block later events.
      return await Promise.race([said, aborted(signal)]);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      this.#speech = null;
    }
  }

  // Tools

  async #run({ callId, name }, args) {
    const stage = this.#calls.get(callId);
    if (stage === "unwanted") return this.#cancelled(callId, "none");
    if (stage !== "queued") return this.#resend(callId);
    const handler = this.#options.handlers?.[name];
    if (!args) return this.#finish(callId, { error: "The arguments are not a JSON object." });
    if (!handler) return this.#finish(callId, { error: `This device has no tool ${name}.` });
    const run = { name, abort: new AbortController(), called: false };
    this.#runs.set(callId, run);
    this.#stage(callId, "begun");
    await this.#save(); // a reload must not run it again
    const ended = this.#work(callId, run, handler, args);
    // A handler that ignores the signal must not block later events.
    await Promise.race([ended, aborted(run.abort.signal).then(() => new Promise((pass) => this.#later(CANCEL_MS, pass)))]);
  }

  async #work(callId, run, handler, args) {
    const outcome = run.abort.signal.aborted ? {} : await this.#outcome(callId, run, handler, args);
    this.#runs.delete(callId);
    if (this.#closed || this.#calls.get(callId) === "dropped") return;
    if (!run.abort.signal.aborted || run.late) this.#finish(callId, outcome);
    else this.#cancelled(callId, ...this.#effect(run, outcome));
  }

  async #outcome(callId, run, handler, args) {
    const { signal } = run.abort;
    const lease = (type, payload) => this.#accepted.has("lease") && this.#runs.has(callId) && this.send(type, { callId, ...payload });
    const limit = setTimeout(() => {
      run.late = true;
      run.abort.abort("timeout");
    }, TOOL_MS);
    lease("tool.started");
    run.called = true;
    try {
      const progress = ({ message, percent } = {}) => void lease("tool.progress", { message: clean(message), percent });
      const work = (async () => handler(args, { callId, name: run.name, signal, progress }))();
      const late = aborted(signal).then(() => {
        if (run.late || this.#closed) throw new Error("The device's tool did not end in time.");
        return work; // it reports its effect
      });
      const value = await Promise.race([work, late]);
      if (!hasImages(value)) return { result: asText(value) };
      return { result: value.result === undefined ? null : asText(value.result), images: await pictures(value.images) };
    } catch (error) {
      if (error instanceof ToolCancelled) return { error: error.message, cancelled: error };
      return { error: String(error?.message ?? error) || "The tool failed." };
    } finally {
      clearTimeout(limit);
    }
  }

  #effect(run, { result, cancelled }) {
    if (!run.called) return ["none"];
    if (cancelled) return [cancelled.effect, cancelled.result === undefined ? undefined : asText(cancelled.result)];
    if (result !== undefined) return ["complete", result]; // it ended despite the cancellation
    return [this.#readsOnly(run.name) ? "none" : "partial"]; // without a report of the handler, the worst case
  }

  #finish(callId, { result = null, error = null, images }) {
    const answer = { callId, result: clean(result), error: clean(error) };
    if (bytes(answer) > MAX_RESULT_BYTES) {
      answer.result = shortened(answer.result, MAX_RESULT_CHARACTERS);
      answer.error = shortened(answer.error, MAX_RESULT_CHARACTERS);
    }
    if (images?.length && this.#accepted.has("images")) answer.images = images;
    this.#stage(callId, "taken");
    this.#keep(this.#event("tool.result", answer));
  }

  #cancelled(callId, effect, result) {
    this.#stage(callId, "cancelled");
    this.#keep(this.#event("tool.cancelled", { callId, effect, result: shortened(clean(result), MAX_CANCELLED_CHARACTERS) }));
  }

  #cancel({ callId, reason }) {
    const stage = this.#calls.get(callId);
    if (stage === "begun") this.#runs.get(callId)?.abort.abort(reason);
    else if (stage === "queued") this.#cancelled(callId, "none");
    else if (!stage) this.#stage(callId, "unwanted"); // a waiting event may still deliver it
  }

  /** A replay under a new id: its answer may have been lost. It does not run again. */
  #resend(callId) {
    const entry = this.#outbox.of(callId);
    if (!entry) return;
    entry.sentOn = 0;
    this.#flush();
  }

  #stage(callId, stage) {
    this.#calls.delete(callId);
    this.#calls.set(callId, stage);
    if (this.#calls.size > REMEMBERED) this.#calls.delete(this.#calls.keys().next().value);
  }

  #readsOnly(name) {
    return this.#options.tools?.find((tool) => tool.name === name)?.annotations?.readOnlyHint === true;
  }

  // Approvals

  #asked(request) {
    const known = this.#approvals.get(request.approvalId);
    if (known && known.request.argumentsDigest === request.argumentsDigest) {
      if (known.answer && !known.settled && !this.#outbox.has(known.answerId)) this.#answer(known);
      return;
    }
    if (known) this.#settle(known); // other arguments: the decision does not apply
    const question = { request, abort: new AbortController(), answer: null, answerId: null, settled: false };
    this.#approvals.set(request.approvalId, question);
    if (this.#approvals.size > MAX_RESUMED) this.#approvals.delete(this.#approvals.keys().next().value);
    this.#ask(question);
  }

  async #ask(question) {
    const run = { signal: question.abort.signal };
    this.#voiceModel?.ask({ ...question.request }, { ...run, hasCard: Boolean(this.#options.onApproval) });
    if (!this.#options.onApproval) return;
    let answer;
    try {
      const asking = this.#options.onApproval({ ...question.request }, run);
      this.#shown(question);
      answer = await asking;
      if (!answer || question.settled || question.answer) return;
      this.decide(question.request.approvalId, answer.decision, answer);
    } catch (error) {
      console.error("conductor: onApproval failed", error);
      if (question.settled || question.answer) return;
      this.decide(question.request.approvalId, "deny", { words: "The app could not ask the person." });
    }
  }

  /** A yes by voice counts only after this: the person must be able to see the card, or have heard the voice model ask. */
  #shown({ request: { approvalId } }) {
    if (this.#options.onApproval && !this.#voiceModel) this.send("approval.shown", { approvalId });
  }

  #answer(question) {
    const event = this.#event("approval.response", question.answer);
    question.answerId = event.id;
    this.#keep(event);
  }

  #resolved({ approvalId, outcome, message }) {
    const question = this.#approvals.get(approvalId);
    if (!question || question.settled) return;
    if (outcome !== "refused" || question.answer?.decision !== "edit") return this.#settle(question);
    question.answer = null;
    question.request = { ...question.request, refused: message || "It was refused." };
    this.#ask(question);
  }

  /** It stays in the table, so that a replay does not ask again. */
  #settle(question) {
    question.settled = true;
    question.abort.abort("settled");
  }
}

function remember(ids, id) {
  ids.add(id);
  if (ids.size > REMEMBERED) ids.delete(ids.values().next().value);
}

/** Whether it is a state as `#snapshot` makes it. */
function isState({ known, lastEventId, handled, outbox, calls }) {
  const isText = (value) => typeof value === "string";
  const isList = (value, isItem) => Array.isArray(value) && value.every(isItem);
  const isEntry = (entry) =>
    isText(entry?.event?.id) && isText(entry.event.type) && typeof (entry.event.payload ?? 0) === "object" && Number.isFinite(entry.at);
  const isCall = (call) => Array.isArray(call) && isText(call[0]) && SAVED_STAGES.has(call[1]);
  const areIds = (lastEventId === null || isText(lastEventId)) && isList(handled, isText);
  return typeof known === "boolean" && areIds && isList(outbox, isEntry) && isList(calls, isCall);
}

/** What `act` returns, if it comes within so many milliseconds. */
async function within(ms, act) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`It took longer than ${ms} ms.`)), ms)));
  try {
    return await Promise.race([act(), late]);
  } finally {
    clearTimeout(timer);
  }
}

function parsed(text) {
  try {
    const value = JSON.parse(text || "{}");
    return typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function aborted(signal) {
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

function shortened(text, most) {
  if (typeof text !== "string" || text.length <= most) return text;
  return `${clean(text.slice(0, most))}… [${text.length - most} characters left out by the device]`;
}
