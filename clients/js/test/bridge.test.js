// openai-live.js between a client and a channel that are played here: orders of events that no server brings about at will.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bridge } from "../openai-live.js";

const QUIET_MS = 20;
const wait = (times) => new Promise((resolve) => setTimeout(resolve, times * QUIET_MS));

async function until(isSo) {
  for (let tries = 0; tries < 500 && !isSo(); tries += 1) await wait(1);
  assert.ok(isSo());
}

class Channel extends EventTarget {
  readyState = "open";
  sent = [];
  send = (text) => this.sent.push(JSON.parse(text));
  said = (kind) => this.sent.filter(({ type }) => type === `session.${kind}.append`);
  tell = (type, more = {}) => this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify({ type, ...more }) }));
  close = () => this.dispatchEvent(new Event("close"));
  voice = (delta, startMs) => this.tell("session.output_transcript.delta", { delta, start_ms: startMs, end_ms: startMs + 100 });
  person = (delta, startMs) => this.tell("session.input_transcript.delta", { delta, start_ms: startMs, end_ms: startMs + 100 });
  delegate = (id, offsetMs) => this.tell("session.delegation.created", { delegation: { id, target: "client" }, offset_ms: offsetMs });
  accept = (startMs, { event_id: id } = this.sent.at(-1)) =>
    this.tell("session.commentary.appended", { client_event_id: id, start_ms: startMs, end_ms: startMs });
}

/** A bridge, and what the client behind was told. `turn` is what comes of each transcript. */
function joined({ quietMs = QUIET_MS, turn = { finals: [], errors: [], ending: "idle" } } = {}) {
  const [sent, said, facts, decided] = [[], [], [], []];
  const channel = new Channel();
  const client = {
    connection: "open",
    attach: (voice) => (client.voice = voice),
    say: async (words) => {
      said.push(words);
      for (const text of turn.finals) client.voice.notice({ type: "assistant.speech.final", payload: { text } });
      return turn;
    },
    addContext: (text) => facts.push(text),
    decide: (approvalId, decision) => decided.push(`${approvalId}: ${decision}`),
    send: (type) => sent.push(type),
  };
  const errors = [];
  const made = bridge(client, channel, { quietMs, onError: (error) => errors.push(error) });
  channel.tell("session.started");
  return { bridge: made, channel, client, decided, errors, facts, said, sent, voice: client.voice };
}

/** Ask a question, and return what settles it. */
function question(voice, hasCard = true) {
  const stop = new AbortController();
  voice.ask({ approvalId: "a", prompt: "Set it to 9?", arguments: { to: 9 } }, { signal: stop.signal, hasCard });
  return () => stop.abort();
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
  for (let tries = 0; tries < 30 && !sent.length; tries += 1) await wait(1);
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

test("a delegation waits for the transcript of its words", async () => {
  const { bridge: made, channel, facts, said } = joined();
  channel.person("hello", 0);
  await wait(2);
  channel.voice("Hi.", 500);
  await wait(2);
  channel.delegate("d-1", 3_000);
  channel.delegate("d-2", 3_000);
  await wait(4);
  assert.deepEqual([said, channel.said("thinking")], [[], []]);
  channel.person("Any news?", 1_500);
  await wait(2);
  assert.deepEqual(said, ["Any news?"]);
  assert.deepEqual(facts, ["The person said: hello\nThe voice said: Hi."]);
  made.close();
});

test("a delegation whose words never come is answered by silence", async () => {
  const { bridge: made, channel, said } = joined();
  channel.delegate("d-1", 3_000);
  await wait(15);
  assert.deepEqual(said, []);
  assert.deepEqual(channel.said("thinking").map(({ delegation_id: id }) => id), ["d-1"]);
  made.close();
});

test("a delegation without words before it means those that follow", async () => {
  const { bridge: made, channel, said } = joined();
  channel.delegate("d-1", 3_000);
  await wait(3);
  channel.person("Any news?", 5_000);
  channel.delegate("d-2", 5_100);
  await wait(3);
  assert.deepEqual(said, ["Any news?"]);
  assert.deepEqual(channel.said("thinking").map(({ delegation_id: id }) => id).sort(), ["d-1", "d-2"]); // nothing came of either
  made.close();
});

test("a delegation ends with its voice session", async () => {
  const { bridge: made, channel, said } = joined();
  channel.delegate("d-1", 3_000);
  channel.close();
  const next = new Channel();
  made.use(next);
  next.tell("session.started");
  next.person("Any news?", 100);
  await wait(14);
  assert.deepEqual([said, next.sent], [[], []]);
  made.close();
});

test("a question that is asked again leaves no listeners on its signal", async () => {
  const { bridge: made, channel, voice } = joined();
  const { signal } = new AbortController();
  const listeners = new Set();
  signal.addEventListener = (_, act) => listeners.add(act);
  signal.removeEventListener = (_, act) => listeners.delete(act);
  voice.ask({ approvalId: "a", prompt: "Set it to 9?", arguments: { to: 9 } }, { signal, hasCard: true });
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  channel.voice("Set it to 9?", 1_100);
  await wait(2);
  assert.equal(listeners.size, 1); // the question's own
  made.close();
});

test("the second delegation of an utterance is answered at once", async () => {
  const { bridge: made, channel, said } = joined();
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await wait(3);
  channel.delegate("d-2", 110);
  await wait(3);
  assert.deepEqual(said, ["Any news?"]);
  assert.ok(channel.said("thinking").some(({ delegation_id: id }) => id === "d-2"));
  made.close();
});

test("a reply that was never spoken is given to the voice", async () => {
  const { bridge: made, channel } = joined({ turn: { text: "No news.", finals: ["No news."], errors: [], ending: "idle" } });
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await wait(2);
  assert.deepEqual(channel.said("commentary").map(({ content, delegation_id: id }) => [content, id]), [["No news.", "d-1"]]);
  channel.accept(200);
  await wait(0);
  channel.voice("No news.", 300);
  await wait(2);
  assert.deepEqual(channel.said("thinking"), []);
  made.close();
});

test("a last reply that was never spoken is given to the voice, though one before it was", async () => {
  const { bridge: made, channel, client, voice } = joined();
  let end;
  client.say = () => new Promise((resolve) => (end = resolve));
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await wait(2);
  voice.notice({ type: "assistant.speech.final", payload: { text: "Let me look." } });
  voice.notice({ type: "tool.call", payload: { name: "tts.speak" } });
  const spoken = voice.speak("Let me look.", { signal: new AbortController().signal });
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  channel.voice("Let me look.", 1_100);
  await spoken;
  voice.notice({ type: "assistant.speech.final", payload: { text: "No news." } });
  end({ text: "No news.", finals: ["Let me look.", "No news."], errors: [], ending: "idle" });
  await wait(2);
  assert.deepEqual(channel.said("commentary").map(({ content }) => content), ["Let me look.", "No news."]);
  made.close();
});

test("what the app has stopped is not given to the voice", async () => {
  const { bridge: made, channel } = joined({ turn: { text: "No news.", finals: ["No news."], errors: [], ending: "idle", interrupted: true } });
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await wait(2);
  assert.deepEqual(channel.said("commentary"), []);
  made.close();
});

test("a question that nobody else can ask is denied when the voice is left", async () => {
  const { bridge: made, channel, decided, said, voice } = joined();
  const settle = question(voice, false);
  channel.person("yes please", 0); // a request from before it was asked
  channel.delegate("d-1", 100);
  await wait(2);
  made.close();
  await wait(1);
  assert.deepEqual([decided, said], [["a: deny"], []]);
  settle();
  assert.deepEqual(said, ["yes please"]);
});

test("a question with a card is left to the card", async () => {
  const { bridge: made, decided, voice } = joined();
  question(voice);
  made.close();
  await wait(1);
  assert.deepEqual(decided, []);
});

test("no timer outlives the bridge", async () => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const before = timers();
  const { bridge: made, channel, voice } = joined({ quietMs: 60_000 });
  channel.tell("session.output_audio.fixture.playing");
  channel.tell("session.output_audio.fixture.played");
  channel.delegate("d-1", 100);
  channel.person("Any news?", 0);
  voice.speak("None.", { signal: new AbortController().signal });
  await new Promise(setImmediate);
  channel.accept(200);
  await new Promise(setImmediate);
  assert.ok(timers() > before);
  made.close();
  assert.equal(timers(), before);
});

test("a channel that is left is not listened to", async () => {
  const { bridge: made, channel } = joined();
  for (const leave of [(next) => next.close(), (next) => next.tell("session.closed"), () => made.use(channel), () => made.close()]) {
    const next = new Channel();
    const listeners = new Map();
    next.addEventListener = (type, act) => (listeners.set(type, act), EventTarget.prototype.addEventListener.call(next, type, act));
    next.removeEventListener = (type, act) => listeners.get(type) === act && listeners.delete(type);
    made.use(next);
    assert.equal(listeners.size, 2);
    leave(next);
    assert.equal(listeners.size, 0);
  }
});

test("a refused commentary is given once more, without its delegation, and then told to be on the screen", async () => {
  const { bridge: made, channel, errors, voice } = joined();
  const given = () => channel.said("commentary").map(({ content }) => content);
  const spoken = voice.speak("No news.", { signal: new AbortController().signal });
  await wait(0);
  const refuse = async () => {
    channel.tell("error", { error: { type: "x", code: "x", message: "x", client_event_id: channel.sent.at(-1).event_id } });
    await wait(0);
  };
  await refuse();
  assert.deepEqual(given(), ["No news.", "No news."]);
  channel.accept(100);
  await wait(0);
  channel.voice("No news.", 200);
  assert.equal(await spoken, "No news.");
  assert.equal(errors.length, 1);
  const again = voice.speak("No news.", { signal: new AbortController().signal });
  await wait(0);
  await refuse();
  await refuse();
  assert.match(given().at(-1), /on the screen/);
  assert.equal(errors.at(-1).code, "reply_refused");
  await refuse();
  await refuse();
  assert.equal(await again, "");
  assert.equal(given().length, 6);
  made.close();
});

test("a text that is refused at every length ends in a few tries", async () => {
  const { bridge: made, channel, voice } = joined();
  const spoken = voice.speak("One two three four five. ".repeat(60), { signal: new AbortController().signal });
  await wait(0);
  for (let seen = 0; seen < channel.sent.length; ) {
    seen = channel.sent.length;
    channel.tell("error", { error: { type: "x", code: "x", message: "x", client_event_id: channel.sent.at(-1).event_id } });
    await wait(0);
  }
  assert.equal(await spoken, "");
  assert.ok(channel.sent.length < 20, `${channel.sent.length} commands`);
  made.close();
});

test("a text without spaces is halved, too", async () => {
  const { bridge: made, channel, voice } = joined();
  const text = "ሰላም".repeat(400);
  voice.speak(text, { signal: new AbortController().signal });
  await wait(0);
  for (let count = 0; count < channel.sent.length; ) {
    count = channel.sent.length;
    channel.accept(100);
    await wait(0);
  }
  assert.ok(channel.sent.length > 2);
  assert.equal(channel.sent.map(({ content }) => content).join(""), text);
  made.close();
});

test("the pause that ends an utterance is the option's", async () => {
  const { bridge: made, channel, sent, voice } = joined();
  const settle = question(voice);
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  channel.person("Well,", 1_050);
  channel.voice("Set it to 9?", 1_100);
  await wait(2);
  channel.person("yes", 1_850); // 700 ms after the utterance before
  await until(() => sent.includes("approval.shown"));
  settle();
  made.close();
});

test("a question is asked three times in all, and anew after a cut", async () => {
  const { bridge: made, channel, client, voice } = joined();
  const settle = question(voice);
  for (const [asks, startMs] of [[1, 10_000], [2, 20_000], [3, 30_000]]) {
    await until(() => channel.said("commentary").length === asks);
    channel.accept(startMs);
    await wait(0);
    channel.voice("Set it to 9?", startMs + 100);
    await wait(2);
    channel.person("well, well", startMs + 2_000); // settles nothing
    await wait(2);
  }
  await wait(8);
  const asked = () => channel.said("commentary").filter(({ content }) => content.startsWith("Ask")).length;
  assert.equal(asked(), 3);
  assert.match(channel.said("commentary").at(-1).content, /on the screen/);
  client.connection = "connecting";
  voice.connectionIs("connecting");
  client.connection = "open";
  voice.connectionIs("open");
  await until(() => asked() === 4);
  settle();
  made.close();
});

test("what was said to a question that is asked anew is no request", async () => {
  const { bridge: made, channel, client, said, voice } = joined();
  const settle = question(voice);
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  channel.voice("Set it to 9?", 1_100);
  await wait(2);
  voice.connectionIs("connecting");
  voice.connectionIs("open"); // asked anew, and not taken yet
  client.connection = "connecting";
  channel.person("yes", 3_000);
  await wait(2);
  client.connection = "open";
  settle();
  channel.person("Any news?", 9_000);
  channel.delegate("d-1", 9_100);
  await wait(3);
  assert.deepEqual(said, ["Any news?"]);
  made.close();
});

test("a reply over two voice sessions is timed by the later one", async () => {
  const { bridge: made, channel, voice } = joined();
  const text = "One two three four five. ".repeat(60);
  const spoken = voice.speak(text, { signal: new AbortController().signal });
  await wait(0);
  const [first] = channel.said("commentary");
  channel.accept(100, first);
  channel.close();
  const next = new Channel();
  made.use(next);
  next.tell("session.started");
  next.voice("I am back.", 1_000); // of its own
  await wait(2);
  assert.notEqual(next.said("commentary")[0].event_id, first.event_id);
  for (let count = 0; count < next.sent.length; ) {
    count = next.sent.length;
    next.accept(5_000);
    await wait(1);
  }
  next.voice("Five.", 5_100);
  assert.equal(await spoken, "Five.");
  made.close();
});

/** A question that the voice has asked, with a yes that counts and waits for its `approval.shown` to arrive. */
async function agreed() {
  const join = joined();
  const settle = question(join.voice);
  await wait(0);
  join.channel.accept(1_000);
  await wait(0);
  join.channel.voice("Set it to 9?", 1_100);
  await wait(2);
  join.channel.person("yes please", 5_000);
  await until(() => join.sent.includes("approval.shown"));
  return { ...join, settle };
}

test("a yes is not said once its question is settled, replaced, or forgotten by the server", async () => {
  const cut = ({ client, voice }) => {
    client.connection = "connecting";
    voice.connectionIs("connecting");
    client.connection = "open";
    voice.connectionIs("open");
  };
  const replace = ({ settle, voice }) => {
    settle();
    question(voice);
  };
  for (const happens of [({ settle }) => settle(), replace, cut, ({ channel }) => channel.close(), ({ bridge: made, settle }) => settle(made.close())]) {
    const join = await agreed();
    happens(join);
    await wait(20);
    assert.deepEqual(join.said, []);
    join.bridge.close();
  }
});

test("words from before the question do not count, in whichever order they come", async () => {
  const orders = [
    { late: "yes", said: [] },
    { first: "well", late: " yes", said: [] }, // in one utterance
    { first: "hello", late: "yes", said: ["hello"] },
  ];
  for (const { first, late, said } of orders) {
    const { bridge: made, channel, voice, ...join } = joined({ quietMs: 100 });
    const settle = question(voice);
    await wait(0);
    channel.accept(1_000);
    await wait(0);
    channel.voice("Set it to 9?", 1_100);
    await wait(8);
    if (first) channel.person(first, 5_000);
    if (said.length) await until(() => join.said.length);
    channel.person(late, 300);
    await wait(10);
    assert.deepEqual([join.said, join.sent], [said, said.length ? ["approval.shown"] : []]);
    settle();
    made.close();
  }
});

test("small talk leaves room for the facts of the app", async () => {
  const { bridge: made, channel, client } = joined();
  const facts = new Map();
  client.addContext = (text, { key }) => facts.set(key, text);
  for (let number = 0; number < 12; number += 1) {
    channel.person("天".repeat(1_500), number * 10_000);
    await wait(2);
    channel.voice("地", number * 10_000 + 3_000);
    await wait(2);
  }
  assert.match([...facts.values()].join(""), /天\nThe voice said: 地$/);
  assert.ok(new TextEncoder().encode([...facts.values()].join("")).length < 4_500); // of 8,192
  made.close();
});

test("another voice session can be given the talk so far", async () => {
  const { bridge: made, channel } = joined();
  channel.person(" hello", 0);
  channel.voice(" Hi.", 300);
  channel.person("  ", 900);
  await wait(2);
  channel.person(" any", 2_000);
  channel.close(); // it has no end
  made.use(new Channel());
  assert.deepEqual(made.history, [
    { role: "user", content: [{ type: "input_text", text: "hello" }] },
    { role: "assistant", content: [{ type: "output_text", text: "Hi." }] },
    { role: "user", content: [{ type: "input_text", text: "any" }] },
  ]);
  made.close();
});

test("what is answered late, after an acknowledgement, is asked for when the person goes on", async () => {
  const { bridge: made, channel, said } = joined();
  channel.person("Any news?", 0);
  channel.voice("Let me look.", 300);
  await wait(2);
  channel.delegate("d-1", 5_000);
  await wait(2);
  assert.deepEqual(said, []); // there may be words after the voice's
  channel.person("Hello?", 6_000);
  await wait(2);
  assert.deepEqual(said, ["Any news?"]);
  made.close();
});

/** A question that the voice has asked, on a session's time that begins now. */
async function asked(join) {
  const settle = question(join.voice);
  await wait(0);
  join.channel.accept(1_000);
  await wait(0);
  join.channel.voice("Set it to 9?", 1_100);
  await wait(2);
  return settle;
}

test("an echo does not count when the voice's words come after it", async () => {
  const join = joined();
  const settle = await asked(join);
  join.channel.person("yes", 5_000);
  await wait(2); // the utterance is over
  join.channel.voice("Yes? Shall I?", 4_800);
  await wait(10);
  assert.deepEqual([join.sent, join.said], [[], []]);
  settle();
  join.bridge.close();
});

test("a yes waits as long as the voice's words were late, to a bound", async () => {
  for (const [lateMs, echo] of [[250, "Yes?"], [60_000, null]]) {
    const join = joined({ quietMs: 50 });
    const settle = question(join.voice);
    await wait(0);
    join.channel.accept(1_000);
    await wait(0);
    join.channel.voice("Well:", 1_000 - lateMs);
    join.channel.voice("Set it to 9?", 1_100);
    await wait(4);
    join.channel.person("yes", 5_000);
    await wait(10); // 50 ms to its end, and 100 of the least wait
    assert.deepEqual(join.sent, []);
    if (echo) join.channel.voice(echo, 4_800);
    for (let tries = 0; tries < 40 && !join.sent.length; tries += 1) await wait(1);
    assert.deepEqual(join.sent, echo ? [] : ["approval.shown"]);
    settle();
    join.bridge.close();
  }
});

test("a delegation of noise is answered by silence", async () => {
  const { bridge: made, channel, facts, said } = joined();
  channel.person(" ... (music) [BLANK_AUDIO]", 0);
  channel.delegate("d-1", 100);
  await wait(14);
  made.close();
  assert.deepEqual([said, facts], [[], []]);
  assert.deepEqual(channel.said("thinking").map(({ delegation_id: id }) => id), ["d-1"]);
});

test("a later voice session may have a delegation of the same id", async () => {
  const { bridge: made, channel, client } = joined();
  const ids = [];
  client.say = async (words, { id }) => (ids.push(id), { finals: [], errors: [], ending: "idle" });
  const next = new Channel();
  for (const one of [channel, next]) {
    if (one === next) made.use(one);
    one.tell("session.started");
    one.person("Any news?", 0);
    one.delegate("d-1", 100);
    await until(() => one.said("thinking").length);
  }
  assert.equal(new Set(ids).size, 2);
  assert.ok(ids.every((id) => id.includes("d-1")));
  made.close();
});

test("what the voice said of a reply is a fact until the next reply", async () => {
  const { bridge: made, channel, client, voice } = joined();
  const facts = new Map();
  client.addContext = (text, { key }) => facts.set(key, text);
  for (const [text, spoken, startMs] of [["The red one.", "The scarlet one.", 1_000], ["It is noon.", "It is noon.", 9_000]]) {
    const heard = voice.speak(text, { signal: new AbortController().signal });
    await wait(0);
    channel.accept(startMs);
    await wait(0);
    channel.voice(spoken, startMs + 100);
    await heard;
    assert.equal(facts.get("voice-said"), text === spoken ? "" : `Of your last reply the voice said: ${spoken}`);
  }
  made.close();
});

test("small talk keeps the person's words, and few of a voice that talks long", async () => {
  const { bridge: made, channel, facts } = joined();
  channel.person("my name is Zebulon", 0);
  await wait(2);
  channel.voice("What a name! ".repeat(200), 1_000);
  await wait(2);
  made.close();
  assert.match(facts.at(-1), /^The person said: my name is Zebulon\nThe voice said: What a name!/);
});

test("what is no event is left alone", async () => {
  const { bridge: made, channel, said } = joined();
  for (const data of ["no JSON", "null", "7", "[]", '{"type":"error"}', '{"type":"session.delegation.created"}', new ArrayBuffer(4)]) {
    channel.dispatchEvent(Object.assign(new Event("message"), { data }));
  }
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await until(() => said.length);
  made.close();
});

test("a command that the channel does not take is sent again", async () => {
  const { bridge: made, channel, voice } = joined();
  const { send } = channel;
  channel.send = () => {
    throw new Error("the buffer is full");
  };
  const heard = voice.speak("No news.", { signal: new AbortController().signal });
  await wait(1);
  channel.send = send;
  channel.tell("session.usage.updated");
  assert.equal(channel.said("commentary").length, 1);
  channel.accept(100);
  await wait(0);
  channel.voice("No news.", 200);
  assert.equal(await heard, "No news.");
  made.close();
});

test("a bridging phrase is no reply", async () => {
  const { bridge: made, channel, client, voice } = joined();
  let end;
  client.say = () => new Promise((resolve) => (end = resolve));
  channel.person("Any news?", 0);
  channel.delegate("d-1", 100);
  await wait(2);
  voice.notice({ type: "tool.call", payload: { name: "tts.speak" } });
  const spoken = voice.speak("One moment.", { signal: new AbortController().signal });
  await wait(0);
  channel.accept(1_000);
  await wait(0);
  channel.voice("One moment.", 1_100);
  await spoken;
  voice.notice({ type: "assistant.speech.final", payload: { text: "No news." } });
  end({ text: "No news.", finals: ["No news."], errors: [], ending: "idle" });
  await wait(2);
  assert.equal(channel.said("commentary").at(-1).content, "No news.");
  made.close();
});

test("an answer to one of two questions is followed by a word about the screen", async () => {
  const join = joined();
  const settle = await asked(join);
  const other = new AbortController();
  join.voice.ask({ approvalId: "b", prompt: "Set it to 8?", arguments: { to: 8 } }, { signal: other.signal, hasCard: true });
  join.channel.person("yes", 5_000);
  await until(() => join.channel.said("commentary").length === 2);
  assert.match(join.channel.sent.at(-1).content, /on the screen/);
  other.abort();
  settle();
  join.bridge.close();
});

test("a pause within an answer does not have the question asked again", async () => {
  const join = joined();
  const settle = await asked(join);
  join.channel.person("hmm", 4_000);
  await wait(3);
  join.channel.person("yes", 5_000);
  await until(() => join.said.includes("yes"));
  settle();
  join.bridge.close();
});

test("a no needs no time: it refuses while the question is asked again, too", async () => {
  const join = joined();
  const settle = await asked(join);
  join.channel.person("yes", 5_000); // the server wants the words repeated
  await until(() => join.said.length);
  await until(() => join.channel.said("commentary").length === 2);
  join.channel.person("no no, stop", 9_000);
  await until(() => join.decided.length);
  assert.deepEqual([join.decided, join.said], [["a: deny"], ["yes"]]);
  settle();
  join.bridge.close();
});
