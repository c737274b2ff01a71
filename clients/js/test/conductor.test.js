// Conversations with a real server. test_javascript_client.py runs them, and looks at what the server kept.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ToolCancelled } from "../conductor.js";
import { token, PNG, FIND, NOTES, WebSocket, breaking, memoryStorage, open, signal } from "./helpers.js";

const allow = () => ({ decision: "allow" });

test("a turn", async () => {
  const seen = { partials: [], finals: [], states: [], spoken: [], out: [], in: [] };
  const client = open("js-turn", {
    onPartial: (text) => seen.partials.push(text),
    onFinal: (text) => seen.finals.push(text),
    onState: (state) => seen.states.push(state),
    onEvent: (direction, event) => seen[direction].push(event.type),
    speak: (text) => void seen.spoken.push(text),
  });
  assert.equal((await client.started).resumed, false);
  const turn = await client.say("say good morning");
  assert.deepEqual([turn.ending, turn.reason], ["idle", "answered"]);
  assert.deepEqual(turn.finals, seen.finals);
  assert.match(turn.text, /good morning/);
  assert.equal(seen.spoken.length, 1);
  assert.deepEqual(seen.states, ["thinking", "speaking", "idle"]);
  assert.equal(client.state, "idle");
  assert.ok(seen.partials.length && seen.in.includes("tool.call"));
  assert.deepEqual(seen.out.slice(0, 2), ["session.start", "user.audio.transcript.final"]);
  await client.close();
  assert.equal(client.connection, "closed");
  assert.equal((await client.say("too late")).ending, "closed");
});

test("sentences are spoken one after the other, beside the rest, until the person interrupts", async () => {
  const spoken = [];
  const begun = [signal(), signal()];
  const ends = [signal(), signal()];
  const speak = async (text, { signal: stop, segment, last }) => {
    const at = spoken.push([text, segment, last]) - 1;
    begun[at].resolve();
    await Promise.race([ends[at].promise, new Promise((resolve) => stop.addEventListener("abort", resolve))]);
  };
  const final = signal();
  const client = open("js-segments", { speak, onFinal: final.resolve });
  const turn = client.say("say The first sentence is here. The second sentence follows it. The third one ends it.");
  await begun[0].promise;
  await final.promise; // it came while the first sentence is still being said
  ends[0].resolve();
  await begun[1].promise;
  client.interrupt({ spokenText: "The second" });
  assert.equal((await turn).interrupted, true);
  assert.deepEqual(spoken.map(([, segment, last]) => [segment, last]), [[0, false], [1, false]]);
  assert.match(spoken[1][0], /second/);
  await client.close();
});

test("the halves of a sentence are one turn, and both get its answer", async () => {
  const unfinished = signal();
  const client = open("js-halves", { onUnfinished: unfinished.resolve, holdUnfinishedMs: 10_000 });
  const first = client.say("say good morning and");
  await unfinished.promise;
  const turns = await Promise.all([first, client.say("good night")]);
  for (const turn of turns) {
    assert.deepEqual([turn.ending, turn.reason, turn.finals.length], ["idle", "answered", 1]);
    assert.match(turn.text, /good morning and good night/);
  }
  await client.close();
});

test("the recogniser learns the words of the tools", async () => {
  const hinted = signal();
  const client = open("js-hints", { onHints: hinted.resolve, tools: [{ ...NOTES, title: "Add a note" }] });
  assert.deepEqual(await hinted.promise, ["Add a note"]);
  await client.close();
});

/** A voice that plays its first sentence until it is stopped or the test ends it. */
function lastingVoice() {
  const voice = { begun: signal(), end: signal(), stopped: signal(), resumed: signal(), spoken: [] };
  voice.speak = async (text, { signal: stop }) => {
    voice.spoken.push(text);
    if (voice.spoken.length > 1) return;
    stop.addEventListener("abort", voice.stopped.resolve);
    voice.begun.resolve();
    await Promise.race([voice.end.promise, voice.stopped.promise]);
  };
  return voice;
}

const TWO = "say The first sentence is here. The second sentence follows it.";

test("a paused voice goes on after a backchannel, and the next sentence waits", async () => {
  const voice = lastingVoice();
  const out = [];
  const onEvent = (direction, { type, payload }) => direction === "out" && out.push([type, payload]);
  const client = open("js-pause", { speak: voice.speak, onResume: voice.resumed.resolve, onEvent });
  const turn = client.say(TWO);
  assert.equal(client.pause(), false, "nothing is spoken yet");
  await voice.begun.promise;
  assert.equal(client.pause({ spokenText: "The first" }), true);
  assert.equal(client.pause({ spokenText: "The first sentence" }), true);
  const pauses = out.filter(([type]) => type === "audio.output.paused");
  assert.equal(pauses.length, 1);
  assert.equal(pauses[0][1].spokenText, "The first");
  voice.end.resolve();
  const { reason, text } = await client.say("Mhm.");
  assert.deepEqual([reason, text], ["resumed", ""]);
  await voice.resumed.promise;
  assert.equal((await turn).interrupted, false);
  assert.equal(voice.spoken.length, 2);
  await client.close();
});

test("words that interrupt drop the paused voice and what waits behind it", async () => {
  const voice = lastingVoice();
  const client = open("js-pause-cut", { speak: voice.speak, onResume: () => assert.fail("it must not go on") });
  client.say(TWO);
  await voice.begun.promise;
  client.pause({ spokenText: "The first" });
  const turn = client.say("say Something else.");
  await voice.stopped.promise;
  assert.match((await turn).text, /Something else/);
  assert.equal(voice.spoken.length, 2);
  assert.match(voice.spoken[1], /Something else/);
  await client.close();
});

test("a stop in a pause drops the paused voice and what waits behind it", async () => {
  const voice = lastingVoice();
  const whole = signal();
  const onEvent = (direction, { type }) => direction === "in" && type === "turn.ended" && whole.resolve();
  const client = open("js-pause-stop", { speak: voice.speak, onEvent, onResume: () => assert.fail("it must not go on") });
  client.say(TWO);
  await voice.begun.promise;
  await whole.promise;
  client.pause({ spokenText: "The first" });
  client.cancelResponse();
  await voice.stopped.promise;
  assert.match((await client.say("say Something else.")).text, /Something else/);
  assert.equal(voice.spoken.length, 2);
  assert.match(voice.spoken[1], /Something else/);
  await client.close();
});

test("a paused voice goes on where the next connection is without pauses", async () => {
  const voice = lastingVoice();
  const sent = [];
  class Downgraded extends WebSocket {
    send(data) {
      sent.push(JSON.parse(data).type);
      if (sent.at(-1) === "audio.output.paused") this.terminate();
      else super.send(sent.includes("audio.output.paused") ? data.replace('"pause",', "") : data);
    }
  }
  const client = open("js-pause-gone", { speak: voice.speak, onResume: voice.resumed.resolve, WebSocket: Downgraded });
  const turn = client.say(TWO);
  await voice.begun.promise;
  client.pause({ spokenText: "The first" });
  await voice.resumed.promise;
  voice.end.resolve();
  assert.equal((await turn).interrupted, false);
  assert.equal(voice.spoken.length, 2);
  assert.equal(sent.filter((type) => type === "audio.output.paused").length, 1);
  await client.close();
});

test("a pause outlasts a lost connection, and goes on after two seconds", async () => {
  const voice = lastingVoice();
  let cuts = 0;
  class Cut extends WebSocket {
    send(data) {
      if (data.includes("audio.output.paused") && cuts++ === 0) this.terminate();
      else super.send(data);
    }
  }
  const client = open("js-pause-cut-off", { speak: voice.speak, onResume: voice.resumed.resolve, WebSocket: Cut });
  client.say(TWO);
  await voice.begun.promise;
  client.pause({ spokenText: "The first" });
  await voice.resumed.promise;
  assert.equal(cuts, 2);
  voice.end.resolve();
  await client.close();
});

test("the language of the words, and of the question about them", async () => {
  const heard = [];
  const sent = [];
  const client = open("js-lang", {
    locale: "de-DE",
    lang: "en",
    tools: [NOTES],
    handlers: { "notes.add": () => "added" },
    onEvent: (direction, { type, payload }) => direction === "out" && payload.lang && sent.push([type, payload.lang]),
    onState: (state) => state === "idle" && heard.length === 1 && client.say("Sí, adelante", { lang: "es" }),
    speak: (text, { lang }) => void heard.push([text, lang]),
  });
  const turn = await client.say('call notes.add with {"number": 1}', { lang: "es" });
  assert.equal(turn.calls.length, 1);
  assert.match(heard[0][0], /^¿Puedo/);
  assert.deepEqual(heard.map(([, lang]) => lang), ["es", undefined]);
  assert.deepEqual(sent, [["session.start", "en"], ...Array(2).fill(["user.audio.transcript.final", "es"])]);
  await client.close();
});

test("a fact is told without a turn, also over a lost connection, and a bad one throws", async () => {
  const acknowledged = signal();
  const sent = [];
  const onEvent = (direction, { id, type, payload }) => {
    if (type === "context.add") sent.push(id);
    if (type === "event.ack" && payload.eventIds.includes(sent.at(-1)) && sent.length > 2) acknowledged.resolve();
  };
  const client = open("js-facts", { greeting: "Good morning.", onEvent });
  client.addContext("Three items.", { key: "cart" });
  await client.started;
  client.addContext("Four items.", { key: "cart", ttlS: 60 });
  client.addContext("A message.", { key: "message \ud83d", untrusted: true }); // half a character
  await acknowledged.promise;
  assert.equal(new Set(sent).size, 3);
  for (const bad of [["x".repeat(2_001)], [""], [" \n"]]) assert.throws(() => client.addContext(...bad), RangeError);
  await client.close();
});

test("a tool, its error, and one that is missing", async () => {
  const handlers = {
    "notes.find": async ({ number }, run) => {
      run.progress({ message: "looking", percent: 50 });
      if (number === 2) throw new Error("no such note");
      return { note: `number ${number}` };
    },
  };
  const client = open("js-tool", { tools: [FIND, { ...FIND, name: "notes.lost" }], handlers });
  const found = await client.say('call notes.find with {"number": 1}');
  assert.deepEqual(found.calls.map(({ name, arguments: given }) => [name, JSON.parse(given)]), [["notes.find", { number: 1 }]]);
  assert.match(found.text, /number 1/);
  assert.match((await client.say('call notes.find with {"number": 2}')).text, /no such note/);
  assert.match((await client.say('call notes.lost with {"number": 3}')).text, /no tool notes.lost/);
  await client.close();
});

test("a tool and words with images, which the demo does not see", async () => {
  const image = { mimeType: "image/png", data: PNG };
  const handlers = { "camera.look": () => ({ result: "a photo", images: [image] }) };
  const look = { name: "camera.look", description: "Look.", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } };
  const sent = [];
  const onEvent = (direction, { type, payload }) => payload.images && sent.push([type, payload.result, payload.images]);
  const client = open("js-images", { tools: [look], handlers, onEvent });
  assert.match((await client.say("What do you see?")).text, /I got a picture \(1 by 1 pixels, .* cannot see it/);
  assert.match((await client.say("What is this?", { images: [image] })).text, /I got a picture/);
  assert.deepEqual(sent, [["tool.result", "a photo", [image]], ["user.audio.transcript.final", undefined, [image]]]);
  await client.close();
});

test("a fourth image is refused before anything is sent", async () => {
  const images = Array(4).fill({ mimeType: "image/png", data: PNG });
  const look = { name: "camera.look", description: "Look.", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } };
  const sent = [];
  const onEvent = (direction, { type, payload }) => direction === "out" && sent.push([type, payload.error]);
  const client = open("js-fourth-image", { tools: [look], handlers: { "camera.look": () => ({ images }) }, onEvent });
  await client.started;
  await assert.rejects(client.say("What is this?", { images }), RangeError);
  assert.deepEqual(sent.map(([type]) => type), ["session.start"]);
  await client.say("What do you see?");
  const [error] = sent.filter(([type]) => type === "tool.result").map(([, error]) => error).filter(Boolean);
  assert.equal(error, "There are 4 images; the most is 3.");
  await client.close();
});

test("an approval: allowed by the hook, edited by decide(), denied with words", async () => {
  const runs = [];
  const asked = [];
  const hooks = [allow, ({ approvalId }) => client.decide(approvalId, "edit", { arguments: { number: 20 } })];
  hooks.push(({ approvalId }) => client.decide(approvalId, "deny", { words: "not that one" }));
  const client = open("js-approval", {
    tools: [NOTES],
    handlers: { "notes.add": ({ number }) => void runs.push(number) },
    onApproval: (request, run) => {
      asked.push([request.arguments.number, run.signal]);
      return hooks[asked.length - 1](request);
    },
  });
  for (const number of [1, 2, 3]) assert.equal((await client.say(`call notes.add with {"number": ${number}}`)).ending, "idle");
  assert.deepEqual(runs, [1, 20]);
  assert.deepEqual(asked.map(([number]) => number), [1, 2, 3]);
  assert.ok(asked.every(([, { aborted }]) => aborted));
  assert.throws(() => client.decide("nothing", "allow"), /no open question/);
  await client.close();
});

test("an edit that is refused is asked again", async () => {
  const asked = [];
  const runs = [];
  const client = open("js-refused", {
    tools: [NOTES],
    handlers: { "notes.add": ({ number }) => void runs.push(number) },
    onApproval: ({ refused }) => {
      asked.push(refused);
      return { decision: "edit", arguments: { number: asked.length === 1 ? "many" : 4 } };
    },
  });
  await client.say('call notes.add with {"number": 1}');
  assert.equal(asked[0], undefined);
  assert.equal(typeof asked[1], "string");
  assert.deepEqual(runs, [4]);
  await client.close();
});

test("without a card the question is spoken", async () => {
  const question = signal();
  let asked;
  const client = open("js-question", {
    tools: [NOTES],
    handlers: { "notes.add": () => "added" },
    onQuestion: (text) => (asked = text),
    onState: (state) => asked && state === "idle" && question.resolve(asked), // its speech is over
  });
  const turn = client.say('call notes.add with {"number": 1}');
  assert.match(await question.promise, /notes/);
  const answer = await client.say("yes");
  assert.deepEqual([answer.calls.length, answer.reason], [1, "answered"]);
  assert.deepEqual([(await turn).calls, (await turn).text], [answer.calls, answer.text]); // it is the same turn
  await client.close();
});

test("a barge-in: the voice stops, and the server knows what was heard", async () => {
  const speaking = signal();
  const stopped = signal();
  const client = open("js-barge-in", {
    speak: (_text, run) => {
      run.signal.addEventListener("abort", stopped.resolve);
      speaking.resolve();
      return new Promise(() => {}); // a voice that would never end
    },
  });
  const turn = client.say("say one two three four");
  await speaking.promise;
  client.interrupt({ spokenText: "one two" });
  await stopped.promise;
  assert.equal((await turn).interrupted, true);
  await client.close();
});

test("a call that is cancelled says how much took effect", async () => {
  const began = signal();
  const out = signal();
  const client = open("js-cancel", {
    tools: [FIND],
    handlers: {
      "notes.find": (_args, run) =>
        new Promise((_, reject) => {
          run.signal.addEventListener("abort", () => reject(new ToolCancelled("partial", "half")));
          began.resolve();
        }),
    },
    onEvent: (direction, { type, payload }) => direction === "out" && type === "tool.cancelled" && out.resolve(payload),
  });
  client.say('call notes.find with {"number": 1}');
  await began.promise;
  client.interrupt();
  const { effect, result } = await out.promise;
  assert.deepEqual([effect, result], ["partial", "half"]);
  await client.close();
});

test("a tool that goes on after its cancellation lets the next words be answered", async (context) => {
  const later = globalThis.setTimeout;
  context.after(() => (globalThis.setTimeout = later));
  const began = signal();
  const end = signal();
  const out = signal();
  const client = open("js-goes-on", {
    tools: [FIND],
    handlers: {
      "notes.find": () => {
        began.resolve();
        return end.promise; // it does not look at the signal
      },
    },
    onEvent: (direction, { type, payload }) => direction === "out" && type === "tool.cancelled" && out.resolve(payload),
  });
  client.say('call notes.find with {"number": 1}');
  await began.promise;
  globalThis.setTimeout = (act, ms, ...more) => later(act, ms === 3_000 ? 0 : ms, ...more);
  client.interrupt();
  assert.equal((await client.say("what is 1+1")).text, "1+1 is 2.");
  end.resolve("late");
  const { effect, result } = await out.promise;
  assert.deepEqual([effect, result], ["complete", "late"]);
  await client.close();
});

test("a connection that is lost while a tool runs", async () => {
  let socket;
  const back = signal();
  const states = [];
  class Kept extends WebSocket {
    constructor(...options) {
      super(...options);
      socket = this;
    }
  }
  const runs = [];
  const client = open("js-reconnect", {
    WebSocket: Kept,
    tools: [FIND],
    handlers: {
      "notes.find": async ({ number }) => {
        runs.push(number);
        socket.terminate();
        await back.promise;
        return "found after all";
      },
    },
    onConnection: (state) => {
      states.push(state);
      if (states.filter((name) => name === "open").length === 2) back.resolve();
    },
  });
  const turn = await client.say('call notes.find with {"number": 7}');
  assert.match(turn.text, /found after all/);
  assert.deepEqual(runs, [7]);
  assert.deepEqual(states, ["open", "connecting", "open"]);
  await client.close();
});

test("events that come twice, and calls under another id, are handled once", async () => {
  class Twice extends WebSocket {
    set onmessage(listener) {
      super.onmessage = (message) => {
        listener(message);
        listener(message);
        const event = JSON.parse(message.data);
        if (event.type === "tool.call" && event.payload.name === "notes.find") listener({ data: JSON.stringify({ ...event, id: `${event.id}-again` }) });
      };
    }
  }
  const runs = [];
  const finals = [];
  const client = open("js-twice", {
    WebSocket: Twice,
    tools: [FIND],
    handlers: { "notes.find": ({ number }) => runs.push(number) && "found" },
    onFinal: (text) => finals.push(text),
  });
  const turn = await client.say('call notes.find with {"number": 1}');
  assert.deepEqual(runs, [1]);
  assert.deepEqual(finals, turn.finals);
  await client.close();
});

test("a reload: a card stands again, and a call that was running is told as unknown", async () => {
  const storage = memoryStorage();
  const shown = signal();
  const running = signal();
  const options = { storage, tools: [NOTES] };
  const first = open("js-reload", { ...options, onApproval: shown.resolve });
  first.say('call notes.add with {"number": 1}');
  await shown.promise;
  await first.close();
  const second = open("js-reload", {
    ...options,
    handlers: { "notes.add": () => new Promise(running.resolve) },
    onApproval: allow,
  });
  await running.promise;
  await second.close();
  const final = signal();
  const third = open("js-reload", { ...options, handlers: { "notes.add": () => assert.fail("run twice") }, onApproval: allow, onFinal: final.resolve });
  assert.equal(await final.promise, "I don't know whether that happened. It may have, so I am not trying again.");
  await third.close();
});

test("a wrong token is told, and the client does not try again", { skip: !token && "the server needs no token" }, async () => {
  const errors = [];
  const over = signal();
  const client = open("js-refused", {
    token: "wrong",
    onError: (error) => errors.push(error),
    onConnection: (state, close) => state === "closed" && over.resolve(close),
  });
  await assert.rejects(client.started, /valid bearer token/);
  assert.match((await over.promise).reason, /valid bearer token/);
  assert.deepEqual(errors.map(({ code }) => code), ["unauthorized"]);
});

test("a server that is away is named", async () => {
  const away = signal();
  const client = open("js-away", { url: "ws://127.0.0.1:1/ws", onConnection: (_state, close) => away.resolve(close) });
  assert.match((await away.promise).reason, /ECONNREFUSED/);
  await client.close();
});

test("another client takes the session: this one does not come back", async () => {
  const over = signal();
  const first = open("js-taken", { onConnection: (state, close) => state === "closed" && over.resolve(close) });
  await first.started;
  const second = open("js-taken");
  assert.equal((await over.promise).code, 4409);
  await second.close();
});

test("a wrong token, and a missing WebSocket, end after the tries", async () => {
  const refused = open("js-refused-token", { token: "wrong/one=", reconnect: { firstMs: 0, tries: 2 } });
  await assert.rejects(refused.started);
  const none = open("js-none", { WebSocket: null });
  await assert.rejects(none.started, /no global WebSocket/);
});

test("a first connection that breaks before its answer", async () => {
  const cuts = [1, 2];
  const client = open("js-first", { WebSocket: breaking(() => ({ frame: cuts.shift() ?? 0, arrives: true })) });
  assert.equal((await client.say("say still here")).ending, "idle");
  await client.close();
});

/** A WebSocket that reaches no server while `network.down`; `network.cut()` cuts its connection. */
function unsteady(network) {
  return class extends WebSocket {
    constructor(url, ...options) {
      super(network.down ? "ws://127.0.0.1:1/ws" : url, ...options);
      network.cut = () => this.terminate();
    }
  };
}

const HOUR_MS = 3_600_000;

test("after an outage the pauses begin anew, and grow with connections that do not last", async (context) => {
  const pauses = [];
  const { setTimeout } = globalThis;
  context.after(() => (globalThis.setTimeout = setTimeout));
  globalThis.setTimeout = (act, ms, ...more) => {
    if (ms < HOUR_MS / 2) return setTimeout(act, ms, ...more);
    pauses.push(ms / HOUR_MS);
    if (pauses.length === 6) network.down = false;
    return setTimeout(act, 0);
  };
  const network = { down: false };
  let opened = signal();
  const client = open("js-outage", {
    WebSocket: unsteady(network),
    reconnect: { firstMs: HOUR_MS, mostMs: 100 * HOUR_MS },
    onConnection: (state) => state === "open" && opened.resolve(),
  });
  for (const down of [true, false, false]) {
    await opened.promise;
    opened = signal();
    network.down = down;
    network.cut();
  }
  await opened.promise;
  await client.close();
  const grown = [1, 2, 4, 8, 16, 32, /* back, and lost at once */ 2, 4];
  assert.equal(pauses.length, grown.length);
  for (const [at, most] of grown.entries()) assert.ok(most / 2 <= pauses[at] && pauses[at] <= most, `${pauses}`);
});

test("words, and a network that is back, are tried at once", async (context) => {
  const page = new EventTarget();
  globalThis.addEventListener = page.addEventListener.bind(page);
  globalThis.removeEventListener = page.removeEventListener.bind(page);
  context.after(() => {
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
  });
  const network = { down: false };
  let waits = signal();
  const client = open("js-at-once", {
    WebSocket: unsteady(network),
    reconnect: { firstMs: HOUR_MS, mostMs: HOUR_MS },
    onConnection: (state) => state === "connecting" && waits.resolve(),
  });
  for (const comes of [() => {}, () => page.dispatchEvent(new Event("online"))]) {
    await client.say("say hello");
    waits = signal();
    network.cut();
    await waits.promise;
    comes();
  }
  assert.equal((await client.say("say hello again")).text, "hello again");
  await client.close();
});

/** A storage that tells `seen` of each call and of its end; `load` and `save` wait for `turns` of the event loop. */
function told(kept, seen) {
  const slowly = (name) => async (...values) => {
    seen.push(name);
    for (let turns = 0; turns < 5; turns += 1) await new Promise(setImmediate);
    const value = await kept[name](...values);
    seen.push(`${name} ended`);
    return value;
  };
  return { load: slowly("load"), save: slowly("save") };
}

const OFFLINE = { url: "ws://127.0.0.1:1/ws", reconnect: { firstMs: HOUR_MS, mostMs: HOUR_MS } };

/** Leave a session while its write runs on the device. */
async function leftRunning(sessionId, storage) {
  const running = signal();
  const client = open(sessionId, { storage, tools: [NOTES], handlers: { "notes.add": () => new Promise(running.resolve) }, onApproval: allow });
  client.say('call notes.add with {"number": 1}');
  await running.promise;
  return client;
}

/** Come back after a reload: the write must not run again. */
async function comesBack(sessionId, storage, said = /^I don.t know whether that happened/) {
  const final = signal();
  const runs = [];
  const client = open(sessionId, { storage, tools: [NOTES], handlers: { "notes.add": () => void runs.push(1) }, onApproval: allow, onFinal: final.resolve });
  const text = await final.promise;
  assert.deepEqual(runs, []);
  assert.match(text, said);
  await client.close();
}

test("a client that is closed at once leaves the saved state as it is", async () => {
  for (const [at, storage] of [memoryStorage(), told(memoryStorage(), [])].entries()) {
    await (await leftRunning(`js-at-once-closed-${at}`, storage)).close();
    open(`js-at-once-closed-${at}`, { storage }).close();
    await comesBack(`js-at-once-closed-${at}`, storage);
  }
});

test("a client that another one replaced does not save over that one's state", async () => {
  const storage = memoryStorage();
  const over = signal();
  const first = open("js-replaced", { storage, onConnection: (state) => state === "closed" && over.resolve() });
  await first.started;
  const second = await leftRunning("js-replaced", storage);
  await over.promise;
  await first.close();
  await comesBack("js-replaced", storage);
  await second.close();
});

test("the next client of a session loads after the last one has saved", async () => {
  const seen = [];
  const storage = told(memoryStorage(), seen);
  const first = open("js-next", { storage });
  await first.started;
  first.say("say hello");
  first.close();
  const second = open("js-next", { storage });
  assert.equal((await second.started).resumed, true);
  const [loads, saves] = ["load", "save"].map((name) => seen.lastIndexOf(name, seen.lastIndexOf("load ended")));
  assert.ok(saves < loads && seen.indexOf("save ended", saves) < loads, `${seen}`);
  await second.close();
  assert.equal(seen.at(-1), "save ended");
});

test("words that come before the saved state are saved together with it", async () => {
  const seen = [];
  const kept = memoryStorage();
  await (await leftRunning("js-early", kept)).close();
  const before = kept.load("js-early");
  const saved = signal();
  const storage = { ...told(kept, seen), save: (_id, state) => saved.resolve(state) };
  const client = open("js-early", { storage, ...OFFLINE });
  client.say("say good morning");
  const { calls, outbox } = await saved.promise;
  assert.deepEqual(seen, ["load", "load ended"]);
  assert.deepEqual(calls.map(([callId]) => callId), before.calls.map(([callId]) => callId));
  assert.ok(outbox.some(({ event }) => event.payload.text === "say good morning"));
  await client.close();
});

test("an app that lost its state does not run a call again, also after words without a network and a reload", async (context) => {
  context.mock.method(console, "error", () => {});
  const lost = memoryStorage();
  await (await leftRunning("js-lost-state", memoryStorage())).close();
  const saved = signal();
  const save = (id, state) => saved.resolve(lost.save(id, state));
  const client = open("js-lost-state", { storage: { load: async () => assert.fail("no disk"), save }, ...OFFLINE });
  client.say("say good morning");
  await saved.promise;
  await client.close();
  await comesBack("js-lost-state", lost, /good morning/);
});

const never = () => new Promise(() => {});

test("a storage that does not work is reported, and the session begins without it", async (context) => {
  context.mock.method(console, "error", () => {});
  const state = { known: true, lastEventId: null, handled: [], outbox: [], calls: [] };
  const fails = () => {
    throw new Error("no disk");
  };
  const storages = {
    "a load that hangs": { load: never },
    "a load that throws": { load: fails },
    "a load that is rejected": { load: async () => fails() },
    "no load": { load: undefined },
    "a text": { load: () => "[object Object]" },
    "an empty object": { load: () => ({}) },
    "ids that are no list": { load: () => ({ ...state, handled: 5 }) },
    "an event without a payload": { load: () => ({ ...state, outbox: [{ event: { id: "a", type: "tool.result" }, at: 0 }] }) },
    "a call at an unknown stage": { load: () => ({ ...state, calls: [["call-1", "later"]] }) },
    "a save that hangs": { load: () => null, save: never },
    "a save that throws": { load: () => null, save: fails },
  };
  for (const [name, storage] of Object.entries(storages)) {
    const errors = [];
    const runs = [];
    const client = open(`js-storage-${name.replaceAll(" ", "-")}`, {
      storage: { save() {}, ...storage },
      storageMs: name.endsWith("hangs") ? 50 : undefined,
      tools: [FIND],
      handlers: { "notes.find": ({ number }) => void runs.push(number) },
      onError: ({ code, message }) => errors.push([code, message]),
    });
    const { calls } = await client.say('call notes.find with {"number": 1}');
    await client.close();
    assert.deepEqual([calls.length, runs], [1, [1]], name);
    assert.equal(errors.length, 1, `${name}: ${errors}`);
    assert.equal(errors[0][0], "storage_failed");
    assert.match(errors[0][1], name.includes("save") ? /could not be saved/ : /could not be loaded/);
  }
});

test("a browser that forbids its database is such a storage", async (context) => {
  context.mock.method(console, "error", () => {});
  globalThis.indexedDB = {
    open() {
      throw new Error("The operation is insecure.");
    },
  };
  context.after(() => delete globalThis.indexedDB);
  const errors = [];
  const client = open("js-insecure", { storage: undefined, onError: ({ message }) => errors.push(message) });
  assert.equal((await client.say("say hello")).text, "hello");
  assert.match(errors[0], /could not be loaded: The operation is insecure/);
  await client.close();
});
