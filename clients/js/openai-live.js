// A voice model in front of Conductor (docs/voice-models.md): a session of OpenAI's Live API hears, talks and takes turns; behind it a
// client of conductor.js reasons, runs tools, asks for consent and remembers. The events are those of `openai` 3.57, types/live.
//
// What was said, and what it means, is decided in utterances.js. `Commands` is all that goes to the voice, in order. `Bridge` joins them
// to the client: an event changes its state, and then `#step` does what can be done now.
import { endOf, essentials, halved, heardAt, isLong, isNoise, isOwn, refuses, says, textOf, Transcript, verdict, WAITS } from "./utterances.js";

const QUIET_MS = 800; // no event ends a transcript: so long without a fragment ends an utterance
const SHOWN_MS = 300; // the server counts a yes only a while after `approval.shown`
const FIXTURE_MS = 31_000; // the longest audio fixture: no event tells that one was cancelled
const PATIENCE = 12; // quiet times until a voice that says nothing has nothing to say
const UNSETTLED = 4; // quiet times until an answer that settled nothing leads to the next ask
const [LATE, LATEST] = [2, 6]; // quiet times that a yes waits at least, and at most, for the voice's transcript
const ASKS = 3; // until a question is left to its card
const SHORT = 100; // characters; what is refused so short is not too long
const FACT_BYTES = 2_000; // of each of the two facts; the app's need room, too: a session has 8 KiB

const ASK = "Ask the person, with these words and every value in them, then wait for the answer:";
const ON_SCREEN = "The question is open. Have the person answer it on the screen.";
const REFUSED = "The answer could not be given to you. Tell the person that it is on the screen.";
const TYPED = "The question is open: typed words do not answer it. Have the person answer aloud or on the screen.";
const NOT_ASKED = "The voice could not ask this question.";

/** Join a client and a channel to a voice session, in the same task as `connect()`. The options are in openai-live.d.ts. */
export const bridge = (client, channel, options) => new Bridge(client, channel, options);

/** What an act returns; undefined if it throws. */
function attempt(act) {
  try {
    return act();
  } catch {}
}
/** Commands to the voice in their order: each is sent until it is answered, to one voice session after the other. */
class Commands {
  #waiting = new Set(); // { event, signal, settle, isSent }
  #send = null; // without a voice session that has started
  #fixture = null; // the timer of an audio fixture, during which commands are refused
  isOver = false;

  /** Resolves to what `answered` has for it; to null if it was stopped. */
  add(kind, content, delegationId, signal) {
    const event_id = `bridge-${Math.random().toString(36).slice(2)}`;
    const event = { type: `session.${kind}.append`, event_id, delegation_id: delegationId, content };
    return new Promise((resolve) => {
      const settle = (answer) => this.#waiting.delete(command) && resolve(answer);
      const command = { event, signal, settle, isSent: false };
      this.#waiting.add(command);
      this.flush();
    });
  }

  flush(send = this.#send) {
    this.#send = send;
    for (const command of this.#waiting) {
      if (this.isOver || command.signal?.aborted) command.settle(null);
      else if (send && !this.#fixture && !command.isSent) command.isSent = send(command.event);
    }
  }

  fixture(plays) {
    clearTimeout(this.#fixture);
    this.#fixture = plays ? setTimeout(() => this.fixture(false), FIXTURE_MS) : null;
    this.flush();
  }
  /** An answer of the service, null for a refusal. Whether that is no fault: a fixture began while the command was on its way. */
  answered(id, answer) {
    const command = [...this.#waiting].find(({ event }) => event.event_id === id);
    const isForLater = answer === null && this.#fixture !== null && Boolean(id?.startsWith("bridge-"));
    if (command && isForLater) command.isSent = false;
    else command?.settle(answer);
    return isForLater;
  }

  /** The voice session is over. Another one knows none of its delegations, and has no use for silent context. */
  end(isForGood) {
    this.#send = null;
    this.isOver = isForGood;
    this.fixture(false);
    for (const command of this.#waiting) {
      Object.assign(command, { isSent: false, event: { ...command.event, delegation_id: null } });
      if (isForGood || command.event.type === "session.thinking.append") command.settle(null);
    }
  }
}

class Bridge {
  #client;
  #options;
  #channel = null;
  #transcript;
  #commands = new Commands();
  #ids = new Set(); // of this voice session's delegations
  #delegations = []; // that wait for their words: { id, offsetMs, waited }, in quiet times
  #requests = []; // that wait: { id, to, words, said }; ids of the transcript and the delegation, how many texts the voice took for it
  #running = []; // the request that is worked on, and answers to its questions
  // That stand: { request, signal, hasCard, question, needed, givenMs, fromMs, last, asks, isAsking, isShown }; `givenMs` is when the voice
  // took it first, `fromMs` last, and `last` the person's latest words to it.
  #questions = [];
  #floor = Promise.resolve(); // one text at a time is given to the voice
  #answering = Promise.resolve(); // one answer at a time is judged
  #waits = new Set(); // { isOver, resolve }
  #timers = new Set();
  #facts = new Map(); // for the model behind

  constructor(client, channel, options) {
    this.#client = client;
    this.#options = { quietMs: QUIET_MS, ...options };
    this.#transcript = new Transcript(this.#options.quietMs);
    client.attach(this);
    this.use(channel);
  }

  /** Do what can be done now. One request at a time, since a second one would interrupt; none while a question stands. */
  #step = () => {
    this.#commands.flush();
    for (const wait of this.#waits) if (wait.isOver() && this.#waits.delete(wait)) wait.resolve();
    this.#delegate();
    this.#present();
    if (this.#requests.length && !this.#running.length && !this.#questions.length) this.#run(this.#requests.shift());
  };

  /** Resolves when something is so, at the latest after so many milliseconds. */
  #until(isOver, ms) {
    if (isOver()) return;
    return new Promise((resolve) => {
      const wait = { isOver, resolve };
      this.#waits.add(wait);
      if (ms) this.#later(ms, () => (wait.isOver = () => true));
    });
  }

  #quiets = (times, act) => this.#later(times * this.#options.quietMs, act);
  #later(ms, act) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      act();
      this.#step();
    }, ms);
    this.#timers.add(timer);
  }

  // The voice session
  #acts = Object.entries({ message: ({ data }) => this.#read(Object(attempt(() => JSON.parse(data)))), close: () => this.#lose("lost") });
  /** Whether the channel takes a command now. */
  #send = (command) => {
    if (!["open", 1].includes(this.#channel?.readyState)) return false;
    return attempt(() => this.#channel.send(JSON.stringify(command)) ?? true) !== undefined;
  };

  use(channel) {
    this.#lose();
    this.#channel = channel;
    for (const [type, act] of this.#acts) channel.addEventListener(type, act);
  }

  close() {
    this.#send({ type: "session.close" });
    this.#lose("closed");
    this.#timers.forEach(clearTimeout);
    this.#client.attach(null);
    // The app may decide in the same task.
    queueMicrotask(() => this.#questions.forEach((question) => question.hasCard || this.#deny(question, NOT_ASKED)));
  }
  /** The voice session is over. What was asked for goes on; what was said approves nothing in a later one. */
  #lose(why) {
    for (const [type, act] of this.#acts) this.#channel?.removeEventListener(type, act);
    this.#channel = null;
    for (const side of ["person", "voice"]) this.#end(this.#transcript.open(side));
    for (const delegation of this.#delegations) delegation.waited = Infinity;
    this.#delegate();
    this.#ids.clear();
    this.#commands.end(why === "closed");
    this.#tell();
    this.#transcript = new Transcript(this.#options.quietMs, this.#transcript);
    this.#askAnew({ asks: 0, givenMs: Infinity });
    if (why === "lost") this.#options.onLost?.();
  }

  #read({ type = "", ...event }) {
    if (type.startsWith("session.")) this.#commands.flush(this.#send); // any event tells that the session has started
    if (type === "session.input_transcript.delta") this.#hear("person", event);
    else if (type === "session.output_transcript.delta") this.#hear("voice", event);
    else if (type === "session.delegation.created") this.#delegated(event);
    else if (type.endsWith(".appended")) this.#appended(event);
    else if (type.startsWith("session.output_audio.fixture.")) this.#commands.fixture(type.endsWith("playing"));
    else if (type === "session.closed") this.#lose("lost");
    else if (type === "error" && !this.#commands.answered(event.error?.client_event_id, null)) this.#options.onError?.(event.error);
    this.#step();
  }

  #appended({ client_event_id: id, start_ms: fromMs }) {
    this.#transcript.beganAt = Date.now() - fromMs;
    this.#commands.answered(id, { fromMs, transcript: this.#transcript });
  }

  #append = (kind, content, id, signal) => this.#commands.add(kind, content, this.#ids.has(id) ? id : null, signal);
  #hush = (id) => this.#ids.has(id) && this.#append("thinking", "There is nothing to say to this.", id);

  // What is said
  #hear(side, fragment) {
    const last = this.#transcript.open(side);
    const utterance = this.#transcript.take(side, fragment, Date.now());
    if (last !== utterance) this.#end(last);
    const { length } = utterance.fragments;
    this.#quiets(1, () => utterance.fragments.length === length && this.#end(utterance));
  }

  #end(utterance) {
    if (!utterance?.isOpen) return;
    utterance.isOpen = false;
    this.#options.onTalk?.(utterance.side, utterance.text.trim());
    if (utterance.side === "voice" || isNoise(utterance.text)) return;
    if (utterance.beganMs >= this.#questions[0]?.givenMs) {
      utterance.knownMs = utterance.endMs;
      this.#questions[0].last = utterance;
      const own = this.#delegations.find(({ offsetMs }) => isOwn(utterance, offsetMs));
      this.#delegations = this.#delegations.filter((delegation) => delegation !== own);
      const transcript = this.#transcript;
      this.#answering = this.#answering.then(() => this.#answer(utterance, own?.id, transcript));
    }
    const reply = this.#transcript.replyBefore(utterance.startMs);
    if (reply && !this.#delegations.length) this.#tell(reply); // what is behind it may be delegated yet
  }
  /** What was said without a request is a fact for the model behind, and starts no turn. */
  #tell = (last) => this.#fact("voice-talk", this.#transcript.talk(last));
  #fact(key, text) {
    if ((this.#facts.get(key) ?? "") === text) return;
    this.#facts.set(key, text);
    this.#client.addContext(endOf(text, FACT_BYTES), { key });
  }
  /** The talk so far, as another voice session takes it. */
  get history() {
    return this.#transcript.history();
  }

  // Requests
  #delegated({ delegation: { id, target } = {}, offset_ms: offsetMs }) {
    if (target !== "client" || this.#ids.has(id)) return;
    this.#ids.add(id);
    const delegation = { id, offsetMs, waited: 0 };
    this.#delegations.push(delegation);
    for (const waited of WAITS) this.#quiets(waited, () => Object.assign(delegation, { waited }));
  }

  /** A delegation becomes a request, when the person has ended. The second one of an utterance finds no new words. */
  #delegate() {
    for (const delegation of this.#transcript.open("person") ? [] : this.#delegations) {
      const [{ id, offsetMs }, meant] = [delegation, this.#transcript.meant(delegation)];
      if (!meant) continue;
      this.#delegations = this.#delegations.filter((one) => one !== delegation);
      for (const utterance of meant) utterance.knownMs = Math.max(utterance.endMs, offsetMs);
      const words = meant.map(({ text }) => text.trim()).join(" ");
      if (words) this.#requests.push({ id: `delegation-${id.slice(-100)}-${this.#transcript.number}`, to: id, words, said: 0 });
      else this.#hush(id);
    }
  }

  async #run(task) {
    this.#running.push(task);
    this.#tell();
    const { text, errors, ending, interrupted } = await this.#client.say(task.words, { id: task.id ?? null });
    const isLost = task.id && (ending === "lost" || errors.length > 0);
    // The server repeats no older speech to a client that was away.
    const isUnsaid = task.isUnsaid && !isLost && !interrupted && ending === "idle";
    if (isUnsaid) await this.speak(text, { signal: new AbortController().signal });
    this.#running = this.#running.filter((one) => one !== task);
    if (isLost && !task.said) this.#append("commentary", "The request did not get through. Ask the person to say it again.", task.to);
    else if (!task.said) this.#hush(task.to);
    this.#step();
  }

  // Replies
  speak = (text, { signal }) => {
    signal.addEventListener("abort", this.#step);
    return this.#onFloor(async () => {
      const [task = { said: 0 }] = this.#running;
      const heard = await this.#give(text, signal);
      if (heard === null && this.#commands.isOver) return null; // the app's own voice says it
      if (heard !== null || !signal.aborted) task.said += 1;
      const isAsWritten = signal.aborted || says(heard ?? "", text); // the client tells what was heard of a stopped reply
      this.#fact("voice-said", isAsWritten ? "" : `Of your last reply the voice said: ${heard || "nothing"}`);
      return heard ?? "";
    });
  };
  #onFloor = (act) => (this.#floor = this.#floor.then(act, act));
  notice = ({ type, payload: { name, display } }) => {
    const [task = {}] = this.#running;
    if (type === "assistant.speech.final") task.isUnsaid = true;
    if (name === "tts.speak") task.isUnsaid = false;
    if (type === "tool.activity") this.#append("thinking", display.slice(0, 400), task.to);
  };

  /** What the voice says of a text, or null if it takes none of it. What is refused is given without its delegation, then in halves. */
  async #give(text, signal, taken) {
    const to = this.#running[0]?.to;
    const append = (piece, id) => this.#append("commentary", piece, id, signal);
    let [left, since] = [[text], null]; // since when the voice can have said it: since the first piece that its session took
    while (left.length) {
      const [piece, ...rest] = left;
      const appended = isLong(piece) ? null : (await append(piece, to)) ?? (await append(piece));
      if (appended && appended.transcript !== since?.transcript) since = appended;
      if (appended) left = rest;
      else if (signal.aborted || this.#commands.isOver) break;
      else if (piece.length > SHORT) left = [...halved(piece), ...rest];
      else left = taken || piece === REFUSED ? [] : [REFUSED]; // silence would tell the voice that all is done
      if (left[0] === REFUSED) this.#options.onError?.({ type: "bridge_error", code: "reply_refused", message: "A reply was not taken." });
    }
    if (!since) return null;
    if (since.transcript === this.#transcript) taken?.(since.fromMs);
    return this.#heard(since, signal);
  }

  /** What the voice says from a time on until it falls silent, is stopped, or has nothing to say. */
  async #heard({ fromMs, transcript }, signal) {
    const isOver = () => signal.aborted || transcript !== this.#transcript;
    const isSilent = () => isOver() || !transcript.open("voice");
    const hasSpoken = () => isSilent() && (isOver() || transcript.voice(fromMs).length);
    await this.#until(hasSpoken, PATIENCE * this.#options.quietMs);
    await this.#until(isSilent);
    for (const utterance of transcript.of("voice")) if (utterance.endMs > fromMs) utterance.knownMs = utterance.endMs;
    return textOf(transcript.voice(fromMs)).trim();
  }

  // Questions
  ask = (request, { signal, hasCard }) => {
    const state = { givenMs: Infinity, fromMs: null, asks: 0, isAsking: false, isShown: false };
    const question = { request, signal, hasCard, ...essentials(request), ...state };
    if (this.#questions.length && !hasCard) return this.#deny(question, "By voice one question is asked at a time. Make this call again after the other one.");
    this.#questions.push(question);
    signal.addEventListener("abort", () => this.#settled(question));
    this.#step();
  };
  #deny = ({ request: { approvalId } }, words) => attempt(() => this.#client.decide(approvalId, "deny", { words })); // unless the app has
  #settled(question) {
    this.#questions = this.#questions.filter((one) => one !== question);
    this.#askAnew();
  }
  #askAnew(more) {
    for (const question of this.#questions) Object.assign(question, { fromMs: null, ...more });
    this.#step();
  }
  /** Words that were on their way at a cut approve nothing: the server counts no yes, and the question must be heard anew. */
  connectionIs = () => this.#askAnew({ asks: 0, isShown: false });
  #isOnline = () => this.#client.connection === "open";
  /** The app says something that the voice has not heard: if it settles no question, such as a typed yes, the person must know. */
  typed = ([question] = this.#questions) =>
    this.#quiets(1, () => this.#questions.includes(question) && this.#append("commentary", TYPED, null, question.signal));

  /** Have the one question that stands asked until it was heard: what a voice left out, it did not ask. Else the card decides. */
  #present() {
    const [question, ...others] = this.#questions;
    if (!question || others.length || question.isAsking || !this.#isOnline() || this.#commands.isOver) return;
    if ((question.asks === ASKS && question.hasCard) || heardAt(question, this.#transcript.voice()) !== null) return;
    if (question.asks < ASKS) {
      Object.assign(question, { asks: question.asks + 1, isAsking: true });
      const taken = (timeMs) => Object.assign(question, { fromMs: timeMs, givenMs: Math.min(question.givenMs, timeMs) });
      const ask = () => this.#give(`${ASK} ${question.request.prompt}`, question.signal, taken);
      this.#onFloor(ask).then(() => {
        question.isAsking = false;
        this.#step();
      });
    } else {
      this.#deny(question, NOT_ASKED);
      this.#settled(question);
    }
  }

  /** Pass on what was said while a question stands. No yes counts before `approval.shown`, which only words that count bring about. */
  async #answer(utterance, id, transcript) {
    const isLost = () => transcript !== this.#transcript;
    await this.#until(() => isLost() || !transcript.open("voice"));
    const [question] = this.#questions;
    const stands = () => this.#questions.length === 1 && this.#questions[0] === question;
    const words = utterance.text.trim();
    const isNo = refuses(words); // it needs no question, and no time
    const counts = () => !isNo && stands() && verdict(utterance, question, transcript.voice()) === "counts";
    const isAnswer = counts();
    const lateMs = Math.min(Math.max(LATE * this.#options.quietMs, transcript.lateMs), LATEST * this.#options.quietMs);
    if (isAnswer) await this.#until(() => isLost() || !counts(), lateMs); // an echo may be here before the voice's words are
    if (counts() && !question.isShown) {
      question.isShown = true;
      this.#client.send("approval.shown", { approvalId: question.request.approvalId });
      await this.#until(isLost, SHOWN_MS);
    }
    if (isLost()) return;
    // What the server would take for an answer, or gets too late, is left out: a question may have been settled meanwhile.
    const isIn = isAnswer ? question.isShown && counts() : !this.#questions.some(({ isShown }) => isShown);
    if (isNo && !isIn && stands()) this.#deny(question, words);
    if (isIn && this.#isOnline()) this.#run({ to: id, words, said: 0 });
    else if (stands() && !isNo) this.#append("thinking", "These words came too early, or were an echo: the question is open.", id);
    else this.#hush(id);
    const fromMs = question?.fromMs;
    this.#quiets(UNSETTLED, () => {
      const [first, ...others] = this.#questions;
      if (!first || first !== question || first.fromMs !== fromMs || first.last !== utterance) return;
      if (question.asks < ASKS && !others.length) question.fromMs = null;
      else if (question.hasCard) this.#append("commentary", ON_SCREEN, id, question.signal);
    });
  }
}
