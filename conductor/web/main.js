// Starts the page: makes its parts once, opens a session by the library, and passes on what comes.
import { approvals } from "./approvals.js";
import { away } from "./away.js";
import { composer } from "./composer.js";
import { connect } from "./conductor.js";
import { conversation } from "./conversation.js";
import { callLog } from "./calls.js";
import { byId } from "./dom.js";
import { ending } from "./ending.js";
import { FaultySocket, faultButtons } from "./faults.js";
import { isEcho, microphone } from "./microphone.js";
import { answer, clearRoom, ownTools } from "./own_tools.js";
import { recordReader, recordedCall, recordedLog, replay } from "./replay.js";
import { rehearsal } from "./rehearsal.js";
import { stage } from "./stage.js";
import { keep, recall } from "./store.js";
import { tabs, views } from "./tabs.js";
import { timeline } from "./timeline.js";
import { refused, token } from "./token.js";
import { toolList } from "./tools.js";
import { voice } from "./voice.js";
import { waterfall } from "./waterfall.js";
import { who } from "./who.js";

const HOLD_MS = 1_200; // for the other half of a sentence
const CAPABILITIES = [
  "resume", "tools", "approval", "cancel", "lease", "late", "activity", "pause", "segments", "images", "metrics", "turns", "inspect",
  "goaway", "diagnostics", "hints",
];

const read = recordReader({ session: () => recall("session"), token: () => known });
const log = conversation((id) => calls.line(id));
const calls = callLog({ append: log.call, lookUp: (id) => recordedCall(read, id).catch(() => ({})), looksUp: () => inspects });
const events = timeline({ asRehearsal: (frames) => rehearsal(declared()[0], frames) });
const turn = waterfall();
const speech = voice((text, end) => log.light(text, end));
const state = stage(() => ears.ready());
const words = composer(say);
const cards = approvals({
  decide: (request, decision, options) => client.decide(request.approvalId, decision, options),
  schemaOf: (name) => tools.schemaOf(name),
  changed: (questions) => state.set({ questions }),
});
const records = replay(read);
const tools = toolList({ changed: () => client.declare(...declared()), tryOut: words.put });
const model = who({ choose: (profile) => reopen("profile", profile), instruct: (text) => reopen("instructions", text) });
const absence = away({ tryNow: () => client.reconnect(), changed: cards.wait });
const over = ending({
  again: takeBack,
  renew,
  reload: () => location.reload(),
  identify: () => (keep("token", undefined), location.reload()),
});
const ears = microphone({
  started: () => (speech.on(), state.set({ open: true })),
  partial: hear,
  final: heard,
  ended: () => state.set({ open: false, hearing: false }),
  interrupt() {
    const { running } = state;
    if (running) stop();
    return running;
  },
});
state.draw();
log.restore();

const drawn = new Set(); // ids of events

let client;
let inspects = false; // the server lists the session's tools
let failures = 0; // to connect, in a row
let known; // the token
let half = ""; // of a sentence, while the server waits for the rest
let unfinished; // shows the last words as half a sentence

async function say(text) {
  const words = `${half} ${text}`.trim();
  unfinished = () => ((half = words), log.unfinished());
  // Words over a paused voice are drawn once the server has taken them: it may have been a mere "mhm".
  if (!speech.paused) {
    if (state.running) stop();
    if (half) log.heard();
    log.said(words, !state.connected);
    state.set({ name: "thinking" });
  }
  const before = log.answers;
  const turn = await client.say(text);
  const silent = turn.ending === "idle" && turn.reason !== "resumed" && !turn.interrupted && !turn.errors.length && log.answers === before;
  if (silent) log.notice("The turn ended without an answer. Say it again, or look for the reason in Inspect.");
  if (turn.ending !== "lost") return;
  log.notice("The server did not take this. Say it again.");
  state.set({ name: "idle" });
}

/** Barge in: the speech ends first; then the server learns how much was heard. */
function stop() {
  const spokenText = speech.heard;
  speech.stop();
  client.interrupt({ spokenText });
  log.stop();
  log.light();
  state.set({ name: "idle" });
}

/** The person speaks over the voice, or it hears itself; returns whether it does. */
function overheard(text) {
  if (!speech.speaking || speech.paused) return false;
  if (isEcho(text, speech.text)) return true;
  if (client.pause({ spokenText: speech.heard })) speech.pause();
  else stop();
  return false;
}

function goOn() {
  speech.goOn();
  log.heard();
  state.set({ name: "speaking", hearing: false });
}

function hear(text) {
  if (overheard(text)) return;
  state.set({ hearing: true });
  client.hearing(text);
  log.hearing(`${half} ${text}`.trim());
}

function heard(text) {
  if (overheard(text)) return;
  state.set({ hearing: false });
  log.heard();
  say(text);
}

async function showConnection(name, close) {
  const pill = byId("connection");
  pill.dataset.connection = name;
  pill.textContent = { open: "Connected", connecting: "Connecting", closed: "Closed" }[name];
  state.set({ connected: name === "open" });
  absence(name);
  failures = name === "open" ? 0 : failures + 1;
  if (name === "open") listTools();
  else if (name === "closed" && (close.reason || close.code !== 1000)) over.show(close); // not by this page
  // A browser does not tell why it cannot connect.
  else if (failures === 3 && (await refused(known))) {
    client.close();
    over.show({ reason: "unauthorized" });
  }
}

function listTools() {
  if (inspects) client.send("tools.list", {});
}

const SHOWN = {
  "tool.call": ({ name, arguments: given }) => {
    if (name !== "convo.appendMessage") return;
    const { role, text } = JSON.parse(given);
    if (role === "user") half = "";
    log.message(role, text);
  },
  "session.started"({ resumed, capabilities = [] }) {
    inspects = capabilities.includes("inspect");
    if (resumed && state.name === "idle") state.set({ name: "thinking" }); // where no turn is running an idle follows
  },
  "tools.changed": listTools,
  "approval.resolved": ({ approvalId, outcome, message }) => {
    if (outcome !== "refused") cards.close(approvalId);
    if (message) log.notice(message);
    listTools(); // the decision may cover later calls
  },
  error: ({ code, message }) => log.notice(`${message} (${code})`),
};

/** An event with a line in the place of each image. */
function brief(event) {
  const images = event.payload.images?.map(({ mimeType, data }) => `[${mimeType}, ${Math.round((data.length * 3) / 4_096)} KB]`);
  return images ? { ...event, payload: { ...event.payload, images } } : event;
}

function onEvent(direction, event) {
  const frame = { at: Date.now(), direction, event: brief(event) };
  events.add({ ...frame, turn: turn.add(frame) });
  // An event may come a second time after a reconnect.
  if (drawn.has(event.id)) return;
  drawn.add(event.id);
  calls.add(frame);
  if (direction === "out") return;
  tools.learn(event);
  model.learn(event);
  SHOWN[event.type]?.(event.payload);
}

function onState(name) {
  if (name === "thinking" || name === "idle") log.turnChanged();
  if (name !== "speaking") log.light();
  state.set({ name });
}

async function run(given, { callId, name }) {
  const outcome = await answer(name, given);
  await calls.show(callId, outcome?.images ?? []);
  return outcome;
}

function declared() {
  const declarations = ownTools.all().map((tool) => tool.declaration);
  return [declarations, Object.fromEntries(declarations.map(({ name }) => [name, run]))];
}

function open() {
  let sessionId = recall("session");
  if (!sessionId) {
    sessionId = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    keep("session", sessionId);
  }
  over.hide();
  showConnection("connecting");
  const [declarations, handlers] = declared();
  client = connect({
    token: known,
    sessionId,
    model: recall("profile"),
    instructions: recall("instructions"),
    capabilities: CAPABILITIES,
    tools: declarations,
    handlers,
    onPartial: log.partial,
    onFinal: log.partial,
    onState,
    onApproval: cards.show,
    onUnfinished: () => unfinished(),
    holdUnfinishedMs: HOLD_MS,
    onEvent,
    onConnection: showConnection,
    WebSocket: FaultySocket,
    storage: { load: (id) => recall(`client.${id}`), save: (id, known) => keep(`client.${id}`, known) },
    speak: speech.speak,
    onResume: goOn,
  });
}

/** Open the session again with another of its options, which this tab keeps. */
function reopen(option, value) {
  keep(option, value);
  client.close();
  open();
}

/** Take the session back from another tab, with what was said there. */
async function takeBack() {
  open();
  const history = await recordedLog(read).catch(() => []);
  const entries = history.flatMap(({ type, text, calls: made = [] }) => [
    ...(text && (type === "user" || type === "assistant") ? [{ role: type, text }] : []),
    ...made.map(({ call_id: call }) => ({ call })),
  ]);
  if (entries.length) log.replace(entries);
}

function renew() {
  client.close();
  keep("session", undefined);
  speech.stop();
  for (const part of [log, calls, events, turn, tools, cards, records, model]) part.clear();
  clearRoom();
  state.set({ name: "idle" });
  open();
}

byId("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.running && !document.querySelector(":popover-open, dialog[open]")) stop();
});
byId("new-session").addEventListener("click", renew);

views();
tabs(document.querySelector('[role="tablist"]'));
faultButtons();
known = await token();
open();
