// Apps with a voice model in front, for tests/system/test_voice_models.py: one client, one bridge and one channel for each key.
// It reads the plan from VOICES, and writes what the apps saw as JSON when all conversations are over.
import { createRequire } from "node:module";
import { connect, memoryStorage } from "../../../clients/js/conductor.js";
import { bridge } from "../../../clients/js/openai-live.js";

const { WebSocket } = createRequire(import.meta.url)("ws");
const { voice, quietMs, apps } = JSON.parse(process.env.VOICES);
const DONE = 4000;
const GONE = 4001; // no voice session follows
const AT_ONCE = 60; // the server's limits of one person are higher

const tool = (name, more) => ({ name, description: "Notes.", inputSchema: { type: "object", properties: { number: { type: "integer" } } }, ...more });
const TOOLS = [tool("notes.add"), tool("notes.find", { annotations: { readOnlyHint: true } })];

/** The channel of a new voice session; it stands in for a WebRTC data channel. */
const channelOf = (key) => new WebSocket(`${voice}?key=${key}`);

async function talk({ key, card, found }) {
  const seen = { key, runs: [], errors: [], talk: [], asked: [], settled: [], spoken: [], typed: [], lost: 0 };
  const run = ({ number }) => {
    seen.runs.push(number);
    return found ?? `number ${number}`;
  };
  const sockets = [];
  const open = new Set(); // questions
  let ended;
  let [isGone, isLeft, spoke, waits] = [false, false, null, null];
  const said = new Promise((resolve) => (spoke = resolve));
  const replied = new Promise((resolve) => (waits = resolve));
  const client = connect({
    url: process.env.CONDUCTOR_URL,
    token: process.env.CONDUCTOR_TOKEN,
    sessionId: key,
    WebSocket: class extends WebSocket {
      constructor(...options) {
        super(...options);
        sockets.push(this);
      }
    },
    storage: memoryStorage(),
    reconnect: { firstMs: 20, mostMs: 200 },
    tools: TOOLS,
    handlers: { "notes.add": run, "notes.find": run },
    speak: (text) => spoke(seen.spoken.push(text)),
    onApproval: card ? ({ approvalId }) => (seen.asked.push(approvalId), card === "tap" ? { decision: "allow" } : undefined) : undefined,
    onEvent: (direction, { type, payload }) => {
      if (type === "approval.request") open.add(payload.approvalId);
      if (type === "turn.ended") ended?.();
      if (payload.name === "tts.speak") setTimeout(waits, quietMs); // the bridge has it then
      if (type !== "approval.resolved" || !open.delete(payload.approvalId)) return;
      seen.settled.push(payload.outcome);
    },
  });
  let joined;
  let leave;
  let cut; // the stand-in has the app act, at its next event
  const obey = ({ target, data }) => {
    if (cut === "leave") leave();
    if (cut === "type") client.say("yes").then(({ ending }) => seen.typed.push(ending));
    if (cut === "cut_server") sockets.at(-1).terminate();
    if (cut === "cut_voice") target.terminate();
    cut = JSON.parse(data).code;
  };
  const over = new Promise((resolve) => {
    leave = () => {
      isLeft = true;
      joined.close();
      resolve();
    };
    const follow = (channel) => {
      channel.on("error", () => {});
      channel.addEventListener("message", obey);
      channel.on("close", (code) => {
        if (code === GONE) isGone = Boolean(replied.then(leave));
        else if (code === DONE) resolve();
        else if (!isLeft) setTimeout(() => joined.use(follow(channelOf(key))), 20);
      });
      return channel;
    };
    joined = bridge(client, follow(channelOf(key)), { quietMs, onError: (error) => seen.errors.push(error), onLost: () => (seen.lost += 1), onTalk: (side, text) => seen.talk.push([side, text]) });
  });
  await over;
  joined.close();
  if (isGone) await said;
  const turn = open.size && new Promise((resolve) => (ended = resolve));
  for (const approvalId of open) client.decide(approvalId, "deny");
  await turn;
  await client.close();
  return seen;
}

process.on("unhandledRejection", (error) => {
  console.error(error);
  process.exitCode = 1;
});
const seen = [];
const waiting = [...apps];
async function talker() {
  while (waiting.length) seen.push(await talk(waiting.shift()));
}
await Promise.all(Array.from({ length: AT_ONCE }, talker));
console.log(JSON.stringify(seen));
