// openai-live.js between a client and a channel that are played here: orders of events that no server brings about at will.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bridge } from "../openai-live.js";

const QUIET_MS = 20;
const wait = (times) => new Promise((resolve) => setTimeout(resolve, times * QUIET_MS));

class Channel extends EventTarget {
  readyState = "open";
  sent = [];
  send = (text) => this.sent.push(JSON.parse(text));
  said = (kind) => this.sent.filter(({ type }) => type === `session.${kind}.append`);
  tell = (type, more = {}) => this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify({ type, ...more }) }));
  close = () => this.dispatchEvent(new Event("close"));
  voice = (delta, startMs) => this.tell("session.output_transcript.delta", { delta, start_ms: startMs, end_ms: startMs + 100 });
  person = (delta, startMs) => this.tell("session.input_transcript.delta", { delta, start_ms: startMs, end_ms: startMs + 100 });
  accept = (startMs, { event_id: id } = this.sent.at(-1)) =>
    this.tell("session.commentary.appended", { client_event_id: id, start_ms: startMs, end_ms: startMs });
}

/** A bridge, and what the client behind was told. */
function joined() {
  const sent = [];
  const channel = new Channel();
  const client = {
    connection: "open",
    attach: (voice) => (client.voice = voice),
    say: async () => ({ errors: [], ending: "done" }),
    addContext: () => {},
    decide: () => {},
    send: (type) => sent.push(type),
  };
  const errors = [];
  const made = bridge(client, channel, { quietMs: QUIET_MS, onError: (error) => errors.push(error) });
  channel.tell("session.started");
  return { bridge: made, channel, errors, sent, voice: client.voice };
}

/** Whether a yes to a question counts, when the voice has asked it with these fragments. */
async function counts(prompt, values, ...fragments) {
  const { bridge: made, channel, sent, voice } = joined();
  const stop = new AbortController();
  voice.ask({ approvalId: "a", prompt, arguments: values }, { signal: stop.signal, hasCard: true });
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  fragments.forEach((delta, index) => channel.voice(delta, 1_100 + 100 * index));
  await wait(2);
  channel.person("yes please", 5_000);
  await wait(2);
  stop.abort();
  made.close();
  return sent.includes("approval.shown");
}

test("a value is heard only if the voice has said that value", async () => {
  assert.ok(await counts("Set it to 9?", { to: 9 }, "Shall I", " set it to 9?"));
  assert.ok(await counts("Set it to 9.50?", { to: "9.50" }, "Set it to 9", ".", "50?"));
  assert.ok(await counts("Pay 1,000?", { sum: "1,000" }, "Pay 1000?"));
  assert.ok(await counts("Call Zoë?", { who: "Zoë" }, "Call Zoe?"));
  assert.ok(await counts("Call मीना?", { who: "मीना" }, "Call मीना?"));
  assert.ok(!(await counts("Set it to 9?", { to: 9 }, "Set it to 9.50?")), "a longer number");
  assert.ok(!(await counts("Set it to 9?", { to: 9 }, "Set it to 9", ".", "50?")), "a longer number in fragments");
  assert.ok(!(await counts("Set it to -5?", { to: -5 }, "Set it to 5?")), "a sign");
  assert.ok(!(await counts("Pay 950 €?", { sum: "950 €" }, "Pay 950 $?")), "a currency");
  assert.ok(!(await counts("Call मीना?", { who: "मीना" }, "Call मुनि?")), "vowels that are marks");
  assert.ok(!(await counts("去がく?", { who: "がく" }, "去かく?")), "sounds that are marks");
});

test("a question mark within a value does not end the question", async () => {
  const [prompt, values] = ["Send Anna: Coming? I pay 500, urgently?", { text: "Coming? I pay 500", urgent: true }];
  assert.ok(await counts(prompt, values, prompt));
  assert.ok(!(await counts(prompt, values, "Send Anna: Coming?")));
});

test("what was stopped is not given to another voice session", async () => {
  const { bridge: made, channel, voice } = joined();
  const stop = new AbortController();
  const spoken = voice.speak("Old news.", { signal: stop.signal });
  await wait(0);
  assert.equal(channel.said("commentary").length, 1);
  stop.abort();
  channel.close();
  const next = new Channel();
  made.use(next);
  next.tell("session.started");
  await wait(1);
  assert.deepEqual(next.said("commentary"), []);
  assert.equal(await spoken, "");
  made.close();
});

test("what was stopped before its turn is not given at all", async () => {
  const { bridge: made, channel, voice } = joined();
  await voice.speak("Old news.", { signal: AbortSignal.abort() });
  assert.deepEqual(channel.said("commentary"), []);
  made.close();
});

test("an error that is no refusal of a command is told while a fixture plays", async () => {
  const { bridge: made, channel, errors } = joined();
  channel.tell("session.output_audio.fixture.playing");
  channel.tell("error", { error: { type: "server_error", code: "x", message: "x", client_event_id: null } });
  assert.equal(errors.length, 1);
  made.close();
});
