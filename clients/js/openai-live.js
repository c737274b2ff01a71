// A voice model in front of Conductor (docs/voice-models.md): a session of OpenAI's Live API hears, talks and takes turns; behind it a
// client of conductor.js reasons, runs tools, asks for consent and remembers. The events are those of `openai` 3.57, types/live.

const QUIET_MS = 800; // no event ends a transcript: so long without a fragment ends an utterance
const ECHO_MS = 500; // what begins so soon after the voice may be its echo, however it is written
const TAIL_MS = 1_000; // and so soon, if the voice has said the same
const SHOWN_MS = 300; // the server counts a yes only a while after `approval.shown`
const FIXTURE_MS = 31_000; // the longest audio fixture: no event tells that one was cancelled
const PATIENCE = 12; // quiet times until a voice that says nothing has nothing to say
const [ASKS, UNSETTLED] = [3, 4]; // questions, and the quiet times until an answer that settled nothing leads to the next
const TOKENS = 450; // of the 500 that a command may have, since they are counted roughly
const SHORT = 100; // characters; what is refused so short is not too long
const [FACTS, FACT_BYTES] = [6, 600]; // of small talk; a new one replaces the oldest, and none the app's (a session has 8 KiB)
const UTTERANCES = 200; // that are remembered
const ASK = "Ask the person, with these words and every value in them, then wait for the answer:";
const SILENCE = "There is nothing to say to this: it is done, or being worked on already.";
const FAILED = "The request did not get through. Ask the person to say it again.";
const REFUSED = "The answer could not be given to you. Tell the person that it is on the screen.";
const TYPED = "The question is open: typed words do not answer it. Have the person answer aloud or on the screen.";
const NOT_ASKED = "The voice could not ask this question.";
const ONE_AT_A_TIME = "By voice one question is asked at a time. Make this call again after the other one.";

/** Join a client and a channel to a voice session, in the same task as `connect()`. The options are in openai-live.d.ts. */
export const bridge = (client, channel, options) => new Bridge(client, channel, options);

/** The words of a text without case, accents of letters and signs, other than those of numbers: `-9.50 €` is no `9`. */
const wordsOf = (text) => plain(text).match(/(?:(?<![\p{L}\p{N}])[-−])?\p{N}+(?:[.,:]\p{N}+)*|[\p{L}\p{M}]+|[\p{Sc}%]/gu) ?? [];
const plain = (text) => text.normalize("NFKD").replace(/[\u0300-\u036f]|(?<=\d),(?=\d{3}(?!\d))/gu, "").toLowerCase();
const placeOf = (words, part) => words.findIndex((_, place) => part.every((word, index) => words[place + index] === word));
const textOf = (fragments) => fragments.map(({ text }) => text).join("");
const endOf = (text, most) => new TextDecoder().decode(new TextEncoder().encode(text).slice(-most)).replace(/^\ufffd+/, "");
const leavesOf = (value) => (typeof value === "object" && value ? Object.values(value).flatMap(leavesOf) : [String(value ?? "")]);
const isLong = (text) => text.match(/[a-z]{1,3}|[^\sa-z]/giu)?.length > TOKENS;

/** What the person must have heard: the words of each value; the whole question if it says one in other words, such as a date. */
function essentials({ arguments: values, prompt }) {
  const parts = leavesOf(values).map(wordsOf).filter((words) => words.length);
  const isSaidAsWritten = parts.length && parts.every((words) => placeOf(wordsOf(prompt), words) >= 0);
  return isSaidAsWritten ? parts.sort((one, other) => other.length - one.length) : [wordsOf(prompt.replace(/\?[^?]*$/, ""))];
}

/** Whether a text has all parts, each at a place of its own. */
function holds(text, parts) {
  const words = wordsOf(text);
  return parts.every((part) => {
    const place = placeOf(words, part);
    return place >= 0 && words.splice(place, part.length, ...part.map(() => ""));
  });
}

/** A text in two, by its sentences, else its words. */
function halved(text) {
  const split = (granularity) => Array.from(new Intl.Segmenter([], { granularity }).segment(text), ({ segment }) => segment);
  const parts = ["sentence", "word"].map(split).find(({ length }) => length > 1) ?? [...text];
  return [parts.slice(0, parts.length >> 1), parts.slice(parts.length >> 1)].map((some) => some.join(""));
}

/** What both sides say, in utterances. Their `state` is "new", "asked" (the session behind knows them) or "told" (as a fact). */
class Ears {
  entries = [];
  of = (side) => this.entries.filter((entry) => entry.side === side);
  isOpen = (side) => this.of(side).at(-1)?.isOpen ?? false;
  since = (fromMs) => this.of("voice").flatMap(({ fragments }) => fragments).filter(({ startMs }) => startMs >= fromMs);
  /** Hear a fragment. Fragments may come late, and in any order: what follows without a pause began with what was before. */
  take(side, { delta, start_ms: startMs, end_ms: endMs }) {
    const last = this.of(side).at(-1);
    const follows = last && startMs - last.endMs < this.quietMs;
    if (last?.isOpen && !follows) this.#end(last);
    const entry = last?.isOpen ? last : { side, text: "", fragments: [], startMs, endMs, isOpen: true, state: "new" };
    if (entry !== last) this.entries = [...this.entries, entry].slice(-UTTERANCES);
    const count = entry.fragments.push({ text: follows || entry.text ? delta : ` ${delta}`, startMs, endMs });
    Object.assign(entry, { text: entry.text + delta, beganMs: follows ? Math.min(startMs, last.beganMs) : startMs, endMs: Math.max(entry.endMs, endMs) });
    this.later(this.quietMs, () => entry.isOpen && entry.fragments.length === count && this.#end(entry));
  }
  #end = (entry) => this.ended(Object.assign(entry, { isOpen: false }));
}

/** Commands to the voice in their order: each is sent until it is appended, to one voice session after the other. */
class Commands {
  #waiting = new Set(); // { event, isSent, settle }
  #send = null; // without a voice session that has started
  isOver = false;
  session = 0; // the number of the voice session; each has times of its own
  #fixture = null; // the timer of an audio fixture, during which commands are refused
  /** Resolves to the time at which it was appended and the voice session; to null if it was refused or stopped. */
  add(kind, content, delegationId = null, signal) {
    const event = { type: `session.${kind}.append`, event_id: `bridge-${Math.random().toString(36).slice(2)}`, delegation_id: delegationId, content };
    const command = { event, isSent: false };
    const stop = () => command.settle(null);
    return new Promise((resolve) => {
      command.settle = (timeMs) => this.#waiting.delete(command) && resolve(timeMs === null ? null : { timeMs, session: this.session });
      this.#waiting.add(command);
      signal?.addEventListener("abort", stop);
      if (signal?.aborted || this.isOver) stop();
      this.flush();
    }).finally(() => signal?.removeEventListener("abort", stop));
  }
  flush(send = this.#send) {
    this.#send = send;
    if (!send || this.#fixture) return;
    for (const command of this.#waiting) {
      if (!command.isSent) send(command.event);
      command.isSent = true;
    }
  }
  /** The voice session is over. Another one knows none of its delegations, and has no use for silent context. */
  end(isForGood) {
    this.#send = null;
    this.isOver = isForGood;
    this.session += 1;
    this.fixture(false);
    for (const command of this.#waiting) {
      Object.assign(command, { isSent: false, event: { ...command.event, delegation_id: null } });
      if (isForGood || command.event.type === "session.thinking.append") command.settle(null);
    }
  }
  fixture(plays) {
    clearTimeout(this.#fixture);
    this.#fixture = plays ? setTimeout(() => this.fixture(false), FIXTURE_MS) : null;
    this.flush();
  }
  /** The service's answer to a command. Whether a refusal is no fault: a fixture began while the command was on its way. */
  answered(id, startMs) {
    const command = [...this.#waiting].find(({ event }) => event.event_id === id);
    const isForLater = startMs === null && this.#fixture !== null && Boolean(id?.startsWith("bridge-"));
    if (command && isForLater) command.isSent = false;
    else command?.settle(startMs);
    return isForLater;
  }
}

class Bridge {
  #client;
  #options;
  #channel = null;
  #commands = new Commands();
  #ears;
  #timers = new Set();
  #checks = new Set(); // of those that wait for the voice to fall silent
  #floor = Promise.resolve(); // one text at a time is given to the voice
  #delegations = []; // that wait for the person's words: { id, offsetMs, isLate }
  #seen = new Set(); // ids of delegations
  #waiting = []; // requests: { id, to, words, said }: ids of the transcript and of the delegation, how many replies the voice has taken
  #running = []; // the one that it works on, and answers to its questions
  #questions = []; // that stand: { request, signal, hasCard, parts, givenMs, fromMs, asks, isAsking, isShown }; `givenMs` is the first
  #answers = []; // what was said while a question stands, until the voice is silent: { entry, id }
  #deciding = Promise.resolve();
  #facts = 0;

  constructor(client, channel, options) {
    this.#client = client;
    this.#options = { quietMs: QUIET_MS, ...options };
    this.#ears = Object.assign(new Ears(), { quietMs: this.#options.quietMs, later: this.#later, ended: this.#ended });
    client.attach(this);
    this.use(channel);
  }
  #acts = Object.entries({ message: ({ data }) => this.#read(JSON.parse(data)), close: () => this.#lose("lost") });
  #send = (command) => ["open", 1].includes(this.#channel?.readyState) && this.#channel.send(JSON.stringify(command));
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
    const unasked = this.#questions.splice(0).filter(({ hasCard }) => !hasCard);
    // The app may decide in the same task.
    for (const question of unasked) Promise.resolve().then(() => this.#deny(question, NOT_ASKED)).catch(() => {});
  }
  #later = (ms, act) => {
    const timer = setTimeout(() => this.#timers.delete(timer) && act(), ms);
    this.#timers.add(timer);
  };
  #read({ type, ...event }) {
    if (type.startsWith("session.")) this.#commands.flush(this.#send); // any event tells that the session has started
    if (type === "session.input_transcript.delta") this.#ears.take("person", event);
    else if (type === "session.output_transcript.delta") this.#ears.take("voice", event);
    else if (type === "session.delegation.created") this.#delegated(event);
    else if (type.endsWith(".appended")) this.#commands.answered(event.client_event_id, event.start_ms);
    else if (type.startsWith("session.output_audio.fixture.")) this.#commands.fixture(type.endsWith("playing"));
    else if (type === "session.closed") this.#lose("lost");
    else if (type === "error" && !this.#commands.answered(event.error.client_event_id, null)) this.#options.onError?.(event.error);
  }
  /** The voice session is over. What was asked for goes on; what was said approves nothing in a later one. */
  #lose(why) {
    for (const [type, act] of this.#acts) this.#channel?.removeEventListener(type, act);
    this.#channel = null;
    for (const entry of this.#ears.entries) entry.isOpen = false;
    for (const delegation of this.#delegations) delegation.isLate = true;
    this.#delegate();
    this.#commands.end(why === "closed");
    for (const task of [...this.#waiting, ...this.#running]) task.to = null;
    for (const check of [...this.#checks]) check();
    this.#tell();
    this.#ears.entries = [];
    this.#answers = [];
    this.#askAnew({ asks: 0, givenMs: null });
    if (why === "lost") this.#options.onLost?.();
  }
  #ended = (entry) => {
    this.#options.onTalk?.(entry.side, entry.text.trim());
    for (const check of [...this.#checks]) check();
    if (entry.side === "person" && entry.beganMs >= (this.#questions[0]?.givenMs ?? Infinity)) {
      entry.state = "asked";
      const own = this.#delegations.find(({ offsetMs }) => offsetMs >= entry.startMs);
      this.#delegations = this.#delegations.filter((delegation) => delegation !== own);
      this.#answers.push({ entry, id: own?.id });
    }
    if (entry.side === "person" && !this.#delegations.length) this.#tell(this.#replyBefore(entry.startMs)?.startMs ?? -Infinity);
    this.#delegate();
    this.#deciding = this.#deciding.then(() => this.#decide());
  };
  #delegated({ delegation: { id, target }, offset_ms: offsetMs }) {
    if (target !== "client" || this.#seen.has(id)) return;
    this.#seen.add(id);
    const delegation = { id, offsetMs, isLate: false };
    this.#delegations.push(delegation);
    this.#later(this.#options.quietMs, () => this.#delegate());
    this.#later(PATIENCE * this.#options.quietMs, () => this.#delegate((delegation.isLate = true)));
  }
  /** Ask the session behind. The second delegation of an utterance finds no new words. */
  #delegate() {
    for (const delegation of this.#ears.isOpen("person") ? [] : this.#delegations) {
      const [{ id, offsetMs }, meant] = [delegation, this.#meant(delegation)];
      if (!meant) continue;
      this.#delegations = this.#delegations.filter((one) => one !== delegation);
      for (const entry of meant) Object.assign(entry, { state: "asked", untilMs: Math.max(entry.endMs, offsetMs) });
      const words = meant.map(({ text }) => text.trim()).join(" ");
      if (words) this.#waiting.push({ id: `delegation-${id.slice(-100)}`, to: id, words });
      else this.#commands.add("thinking", SILENCE, id);
    }
    this.#next();
  }
  /** The utterances that a delegation means: none if they are asked already, null while its transcript may be yet to come. */
  #meant({ offsetMs, isLate }) {
    const own = this.#ears.of("person").filter(({ startMs }) => startMs <= offsetMs);
    const [last, reply] = [own.at(-1), this.#replyBefore(offsetMs)];
    const isAnswered = reply?.endMs > last?.endMs && reply.endMs + ECHO_MS <= offsetMs; // as small talk
    const isPast = last?.state === "asked" ? (last.untilMs ?? last.endMs) + this.#options.quietMs <= offsetMs : isAnswered;
    if ((!last || isPast) && !isLate) return null;
    const beganMs = this.#replyBefore(last?.startMs)?.startMs ?? -Infinity; // of the exchange
    return last?.state === "asked" ? [] : own.filter(({ state, startMs }) => state !== "asked" && startMs >= beganMs);
  }
  #replyBefore = (timeMs) => this.#ears.of("voice").findLast(({ startMs }) => startMs <= timeMs);
  /** One request at a time, since a second one would interrupt the first; none while a question stands, whose answer it is not. */
  #next() {
    if (this.#waiting.length && !this.#running.length && !this.#questions.length) this.#run(this.#waiting.shift());
  }
  async #run(task) {
    this.#running.push(Object.assign(task, { said: 0 }));
    this.#tell();
    const { text, finals, errors, ending, interrupted } = await this.#client.say(task.words, { id: task.id ?? null });
    const isLost = task.id && (ending === "lost" || errors.length > 0);
    // The server repeats no older speech to a client that was away.
    const isUnsaid = task.id && finals.length > task.said && !isLost && !interrupted && ending === "idle";
    if (isUnsaid) await this.speak(text, { signal: new AbortController().signal });
    this.#running = this.#running.filter((one) => one !== task);
    if (isLost && !task.said) this.#commands.add("commentary", FAILED, task.to);
    else if (task.to && !task.said) this.#commands.add("thinking", SILENCE, task.to);
    this.#next();
  }
  /** What was said without a request is a fact for the model behind, and starts no turn. */
  #tell(untilMs = Infinity) {
    const talk = this.#ears.entries.filter(({ isOpen, state, startMs }) => !isOpen && state === "new" && startMs <= untilMs);
    for (const entry of talk) entry.state = "told";
    const text = talk.map(({ side, text: words }) => `The ${side} said: ${words.trim()}`).join("\n");
    if (text) this.#fact(`voice-talk-${(this.#facts += 1) % FACTS}`, text);
  }
  #fact = (key, text) => this.#client.addContext(endOf(text, FACT_BYTES), { key });
  speak = (text, { signal }) =>
    this.#onFloor(async () => {
      const [task = { said: 0 }] = this.#running;
      const heard = await this.#give(text, signal);
      if (heard === null && this.#commands.isOver) return null; // the app's own voice says it
      if (heard !== null || !signal.aborted) task.said += 1;
      const isAsWritten = placeOf(wordsOf(heard ?? ""), wordsOf(text)) >= 0;
      if (!isAsWritten && !signal.aborted) this.#fact("voice-said", `Of your last reply the voice said: ${heard || "nothing"}`);
      return heard ?? "";
    });
  notice = ({ type, payload: { display } }) =>
    type === "tool.activity" && this.#commands.add("thinking", display.slice(0, TOKENS), this.#running[0]?.to);
  /** The app says something that the voice has not heard: if it settles no question, such as a typed yes, the person must know. */
  typed = ([question] = this.#questions) =>
    this.#later(this.#options.quietMs, () => this.#questions.includes(question) && this.#commands.add("commentary", TYPED, null, question.signal));
  #isOnline = () => this.#client.connection === "open";
  #onFloor = (act) => (this.#floor = this.#floor.then(act, act));
  /** What the voice says of a text, or null if it takes none of it. What is refused is given without its delegation, then in halves. */
  async #give(text, signal, taken) {
    const [task] = this.#running;
    const append = (piece, to) => this.#commands.add("commentary", piece, to, signal);
    let [left, fromMs, session] = [[text], null, null];
    while (left.length) {
      const [piece, ...rest] = left;
      const one = isLong(piece) ? null : (await append(piece, task?.to)) ?? (await append(piece));
      if (one && one.session !== session) ({ timeMs: fromMs, session } = one);
      const isOver = signal.aborted || this.#commands.isOver;
      if (one) left = rest;
      else if (!isOver && piece.length > SHORT) left = [...halved(piece), ...rest];
      else left = isOver || taken || piece === REFUSED ? [] : [REFUSED]; // silence would tell the voice that all is done
      if (left[0] === REFUSED) this.#options.onError?.({ type: "bridge_error", code: "reply_refused", message: "A reply was not taken." });
    }
    if (fromMs === null) return null;
    taken?.(fromMs);
    return this.#silence(fromMs, signal, session);
  }
  /** What the voice says from a time on until it falls silent, is stopped, or has nothing to say. */
  #silence(fromMs, signal, session) {
    return new Promise((resolve) => {
      let isLate = false;
      const check = () => {
        const hasSpoken = !this.#ears.isOpen("voice") && (isLate || this.#ears.since(fromMs).length);
        if (!hasSpoken && !signal.aborted && session === this.#commands.session) return;
        clearTimeout(timer);
        this.#checks.delete(check);
        signal.removeEventListener("abort", check);
        for (const entry of this.#ears.of("voice")) if (entry.endMs > fromMs && entry.state === "new") entry.state = "asked";
        resolve(textOf(this.#ears.since(fromMs)).trim());
      };
      const timer = setTimeout(() => check((isLate = true)), PATIENCE * this.#options.quietMs);
      signal.addEventListener("abort", check);
      this.#checks.add(check);
      check();
    });
  }
  ask = (request, { signal, hasCard }) => {
    const question = { request, signal, hasCard, parts: essentials(request), givenMs: null, fromMs: null, asks: 0 };
    if (this.#questions.length && !hasCard) return this.#deny(question, ONE_AT_A_TIME);
    this.#questions.push(question);
    signal.addEventListener("abort", () => this.#settled(question));
    this.#present();
  };
  #deny = ({ request }, words) => this.#client.decide(request.approvalId, "deny", { words });
  #settled(question) {
    this.#questions = this.#questions.filter((one) => one !== question);
    this.#askAnew();
    this.#next();
  }
  /** Words that were on their way at a cut approve nothing: the question must be heard anew. */
  connectionIs = (state) => {
    for (const question of this.#questions) question.isShown = false; // the server counts no yes
    if (state === "open") this.#askAnew({ asks: 0 });
  };
  #askAnew(more) {
    for (const question of this.#questions) Object.assign(question, { fromMs: null, ...more });
    this.#present();
  }
  /** Have the one question that stands asked until it was heard: what a voice left out, it did not ask. Else the card decides. */
  async #present() {
    const [question, ...others] = this.#questions;
    if (!question || others.length || question.isAsking || !this.#isOnline()) return; // `connectionIs` asks later
    question.isAsking = true;
    const given = (timeMs) => Object.assign(question, { fromMs: timeMs, givenMs: question.givenMs ?? timeMs });
    const isUnheard = () => this.#isOnline() && this.#questions.includes(question) && this.#heardAt(question) === null;
    while (question.asks < ASKS && isUnheard()) {
      question.asks += 1;
      await this.#onFloor(() => this.#give(`${ASK} ${question.request.prompt}`, question.signal, given));
    }
    question.isAsking = false;
    if (question.hasCard || !isUnheard()) return;
    this.#deny(question, NOT_ASKED);
    this.#settled(question);
  }
  /** When the voice had said all that is consented to, on the voice session's time; null if it has not. */
  #heardAt({ fromMs, parts }) {
    const said = fromMs === null ? [] : this.#ears.since(fromMs);
    const [all, until] = [wordsOf(textOf(said)), (index) => textOf(said.slice(0, index + 1))];
    return said.find((_, index) => placeOf(all, wordsOf(until(index))) === 0 && holds(until(index), parts))?.endMs ?? null;
  }
  /** Whether an utterance began after the question was heard, in a silence, and is no echo of the voice. */
  #counts({ beganMs, text }, question) {
    const heardAt = this.#heardAt(question);
    if (heardAt === null || beganMs < heardAt) return false;
    const before = this.#ears.since(-Infinity).filter(({ startMs }) => startMs <= beganMs);
    const recent = textOf(before.filter(({ endMs }) => endMs > beganMs - TAIL_MS));
    return before.every(({ endMs }) => endMs + ECHO_MS <= beganMs) && placeOf(wordsOf(recent), wordsOf(text)) < 0;
  }
  /** Pass on what was said while a question stands. No yes counts before `approval.shown`, which only words that count bring about. */
  async #decide() {
    while (this.#answers.length && !this.#ears.isOpen("voice")) {
      const { entry, id } = this.#answers.shift();
      const [question] = this.#questions;
      const counts = this.#questions.length === 1 && this.#counts(entry, question);
      if (counts && !question.isShown) {
        question.isShown = true;
        this.#client.send("approval.shown", { approvalId: question.request.approvalId });
        await new Promise((resolve) => this.#later(SHOWN_MS, resolve));
      }
      // What the server would take for an answer, or gets too late, is left out: a question may have been settled meanwhile.
      const isIn = counts ? question.isShown && this.#questions.includes(question) : !this.#questions.some(({ isShown }) => isShown);
      if (this.#isOnline() && isIn) this.#run({ to: id, words: entry.text.trim() });
      else if (id) this.#commands.add("thinking", SILENCE, id);
      const fromMs = question?.fromMs;
      const again = () => this.#questions[0] === question && question.fromMs === fromMs && question.asks < ASKS && this.#askAnew();
      if (question) this.#later(UNSETTLED * this.#options.quietMs, again);
    }
  }
}
