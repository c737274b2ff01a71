// What was said in front of a voice model, and what it means (openai-live.js): utterances of the fragments of both transcripts, the words
// that a delegation means, and whether words answer a question. There is no clock, no channel and no client here. Times are in
// milliseconds of the voice session.

const ECHO_MS = 500; // what begins so soon after the voice may be its echo, however it is written
const TAIL_MS = 1_000; // and so soon, if the voice has said the same
const REMEMBERED = 200; // utterances

// How many quiet times a delegation waits for words: behind words that nobody has answered, behind those that the voice has, for any.
const [PAUSED_WAIT, ANSWERED_WAIT, SILENT_WAIT] = [1, 5, 12];
export const WAITS = [PAUSED_WAIT, ANSWERED_WAIT, SILENT_WAIT];

// Words

/** The words of a text without case, accents of letters and signs, other than those of numbers: `-9.50 €` is no `9`. */
const wordsOf = (text) => plain(text).match(/(?:(?<![\p{L}\p{N}])[-−])?\p{N}+(?:[.,:]\p{N}+)*|[\p{L}\p{M}]+|[\p{Sc}%]/gu) ?? [];
const plain = (text) => text.normalize("NFKD").replace(/[\u0300-\u036f]|(?<=\d),(?=\d{3}(?!\d))/gu, "").toLowerCase();
const placeOf = (words, part) => words.findIndex((_, place) => part.every((word, index) => words[place + index] === word));

/** Whether a text has the words of another one. */
export const says = (text, other) => placeOf(wordsOf(text), wordsOf(other)) >= 0;
export const textOf = (fragments) => fragments.map(({ text }) => text).join("");

// Consent

/** What the person must have heard: the words of each value; the whole question if it says one in other words, such as a date. */
export function essentials({ arguments: values, prompt }) {
  const parts = leavesOf(values).map(wordsOf).filter((words) => words.length);
  const isSaidAsWritten = parts.length && parts.every((words) => placeOf(wordsOf(prompt), words) >= 0);
  return isSaidAsWritten ? parts.sort((one, other) => other.length - one.length) : [wordsOf(prompt.replace(/\?[^?]*$/, ""))];
}
const leavesOf = (value) => (typeof value === "object" && value ? Object.values(value).flatMap(leavesOf) : [String(value ?? "")]);

/** Whether a text has all parts, each at a place of its own. */
function holds(text, parts) {
  const words = wordsOf(text);
  return parts.every((part) => {
    const place = placeOf(words, part);
    return place >= 0 && words.splice(place, part.length, ...part.map(() => ""));
  });
}

/** When the voice had said all `parts` of a question, which it took at `fromMs`; null if it has not. */
export function heardAt({ fromMs, parts }, voice) {
  const said = fromMs === null ? [] : voice.filter(({ startMs }) => startMs >= fromMs);
  const all = wordsOf(textOf(said));
  const until = (index) => textOf(said.slice(0, index + 1));
  const isWhole = (text) => placeOf(all, wordsOf(text)) === 0; // "9" may be the beginning of "9.50"
  return said.find((_, index) => isWhole(until(index)) && holds(until(index), parts))?.endMs ?? null;
}

/** Whether an utterance of the person "counts" as the answer to a question, else why not. `voice` has all fragments of the voice. */
export function verdict({ text, beganMs }, question, voice) {
  const heardMs = heardAt(question, voice);
  if (heardMs === null) return "unheard";
  if (beganMs < heardMs) return "early";
  const before = voice.filter(({ startMs }) => startMs <= beganMs);
  if (before.some(({ endMs }) => beganMs < endMs + ECHO_MS)) return "over the voice";
  const tail = before.filter(({ endMs }) => beganMs < endMs + TAIL_MS);
  return says(textOf(tail), text) ? "echo" : "counts";
}

// Utterances

/**
 * What both sides say in one voice session: utterances { side, text, fragments, startMs, beganMs, endMs, isOpen, knownMs }. `knownMs` is
 * set when the session behind knows the utterance, as a request, an answer or its own reply.
 */
export class Transcript {
  #utterances = [];
  #before; // those of the voice sessions before
  #quietMs;

  constructor(quietMs, before = []) {
    this.#quietMs = quietMs;
    this.#before = before;
  }

  all = () => [...this.#before, ...this.#utterances].slice(-REMEMBERED);
  of = (side) => this.#utterances.filter((utterance) => utterance.side === side);
  open = (side) => this.of(side).find(({ isOpen }) => isOpen);
  voice = (fromMs = -Infinity) => this.of("voice").flatMap(({ fragments }) => fragments).filter(({ startMs }) => startMs >= fromMs);
  replyBefore = (timeMs) => this.of("voice").findLast(({ startMs }) => startMs <= timeMs);

  /**
   * Take a fragment; returns its utterance. An utterance that was open and is not this one has ended. Fragments may come late, and in
   * any order: what follows without a pause began with what was before.
   */
  take(side, { delta, start_ms: startMs, end_ms: endMs }) {
    const last = this.of(side).at(-1);
    const follows = last && startMs - last.endMs < this.#quietMs;
    const beganMs = follows ? Math.min(last.beganMs, startMs) : startMs;
    const goesOn = follows && last.isOpen;
    const utterance = goesOn ? last : { side, text: "", fragments: [], startMs, endMs, isOpen: true };
    if (!goesOn) this.#utterances = [...this.#utterances, utterance].slice(-REMEMBERED);
    utterance.fragments.push({ text: follows ? delta : ` ${delta}`, startMs, endMs });
    return Object.assign(utterance, { text: utterance.text + delta, beganMs, endMs: Math.max(utterance.endMs, endMs) });
  }

  /**
   * The person's utterances that a delegation means: those since the voice last spoke, and none if they are known. Null while its words
   * may be on their way, since a transcript comes late. `waited` is how many quiet times the delegation has waited.
   */
  meant({ offsetMs, waited }) {
    const own = this.of("person").filter(({ startMs }) => startMs <= offsetMs);
    const [last, reply] = [own.at(-1), this.replyBefore(offsetMs)];
    const isKnown = last?.knownMs !== undefined;
    const isAnswered = reply?.endMs > last?.endMs; // or only acknowledged
    // From when on, and from how many quiet times on, there is room for other words; and how many it waits for them.
    let [fromMs, room, wait] = [last?.endMs, 1, PAUSED_WAIT];
    if (!last) [fromMs, wait] = [-Infinity, SILENT_WAIT];
    else if (isKnown) [fromMs, wait] = [last.knownMs, SILENT_WAIT];
    else if (isAnswered) [fromMs, room, wait] = [reply.endMs, 2, ANSWERED_WAIT];
    const mayCome = offsetMs - fromMs >= room * this.#quietMs && this.of("person").length === own.length; // a side's come in order
    if (mayCome && waited < wait) return null;
    const beganMs = this.replyBefore(last?.startMs)?.startMs ?? -Infinity; // of the exchange
    return isKnown ? [] : own.filter(({ knownMs, startMs }) => knownMs === undefined && startMs >= beganMs);
  }
}
