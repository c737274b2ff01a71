// What was said in front of a voice model, and what it means (openai-live.js): utterances of the fragments of both transcripts, the words
// that a delegation means, and whether words answer a question. There is no clock, no channel and no client here. Times are in
// milliseconds of the voice session.

const ECHO_MS = 500; // what begins so soon after the voice may be its echo, however it is written
const TAIL_MS = 1_000; // and so soon, if the voice has said the same
const ESTIMATE_MS = 500; // so much later words than a delegation may be its own: the times of both are estimates
const TOKENS = 450; // of the 500 that a command may have, since they are counted roughly
const REMEMBERED = 200; // utterances
const INPUT = 128; // messages that a voice session may begin with
const SHORT = 200; // characters of an utterance of the voice in a fact: the person's are dearer

// How many quiet times a delegation waits for words: behind words that nobody has answered, behind those that the voice has, for any.
const [PAUSED_WAIT, ANSWERED_WAIT, SILENT_WAIT] = [1, 6, 12];
export const WAITS = [PAUSED_WAIT, ANSWERED_WAIT, SILENT_WAIT];

// Words

/** The words of a text without case, accents of letters and signs, other than those of numbers: `-9.50 €` is no `9`. */
const wordsOf = (text) => plain(text).match(/(?:(?<![\p{L}\p{N}])[-−.])*\p{N}+(?:[.,:]\p{N}+)*[a-z]*|[\p{L}\p{M}]+|[\p{Sc}%]/gu) ?? [];
const plain = (text) => text.normalize("NFKD").replace(/[\u0300-\u036f]|(?<=\d),(?=\d{3}(?!\d))/gu, "").toLowerCase();
const isAt = (words, part, place) => part.every((word, index) => words[place + index] === word);
const placesOf = (words, part) => [...words.keys()].filter((place) => isAt(words, part, place));

/** Whether a text has the words of another one. */
export const says = (text, other) => placesOf(wordsOf(text), wordsOf(other)).length > 0;
/** Whether no word was said: a recogniser's `(music)`, or signs. */
export const isNoise = (text) => !/[\p{L}\p{N}]/u.test(text.replace(/\(.*?\)|\[.*?\]/gs, ""));
export const textOf = (fragments) => fragments.map(({ text }) => text).join("");
export const endOf = (text, bytes) => new TextDecoder().decode(new TextEncoder().encode(text).slice(-bytes)).replace(/^\ufffd+/, "");
export const isLong = (text) => text.match(/[a-z]{1,3}|[^\sa-z]/giu)?.length > TOKENS;

/** A text in two: between sentences, else words, else letters. */
export function halved(text) {
  const startOf = (granularity) => new Intl.Segmenter([], { granularity }).segment(text).containing(text.length >> 1).index;
  const middle = ["sentence", "word", "grapheme"].map(startOf).find((start) => start > 0);
  return [text.slice(0, middle), text.slice(middle)];
}

// Consent

// Signs that `wordsOf` leaves out, but a value does not: `~/a*`, `--all`, `.env`, `+5`.
const SIGN = /[^\P{S}\p{Sc}]|[#*/\\@&_]|(?<![\p{L}\p{N}])[-−.](?=\p{L})/u;
// Who asks for an answer says them, too.
const VAGUE = /^(?:yes|(?:\p{L}\p{M}*){1,2})$/u;
// What makes another number of the one beside it: in each language digits and signs, of words those of English. And words between them.
const OF_NUMBERS = /^(?:[^\p{L}].*|k|grand|dozen|hundred|[mbt]r?illion|thousand|point|half|third|quarter|minus|negative|plus|percent|per|times)s?$/u;
const BETWEEN = ["and", "a", "an", "or", "to", "of"];

/**
 * What the person must have heard of a question: the words of each value. It is the whole question if that says one in other words, such
 * as a date, or says its words elsewhere, too.
 */
export function essentials({ arguments: values, prompt }) {
  const words = wordsOf(prompt);
  const leaves = leavesOf(values).filter((leaf) => leaf.trim());
  const parts = leaves.map(wordsOf).sort((one, other) => other.length - one.length);
  const countOf = (part) => parts.filter((other) => other.join(" ") === part.join(" ")).length;
  const isPlain = (part) => part.length && !VAGUE.test(part.join(" ")) && placesOf(words, part).length === countOf(part);
  const isSaidAsWritten = parts.length && parts.every(isPlain) && !leaves.some((leaf) => SIGN.test(leaf));
  return { words, parts: isSaidAsWritten ? parts : [wordsOf(prompt.replace(/\?[^?]*$/, ""))] };
}
const leavesOf = (value) => (typeof value === "object" && value ? Object.values(value).flatMap(leavesOf) : [String(value ?? "")]);

/** Whether a part is the same at a place of what was said and at its own in the question: a number with its unit, and no other one beside it. */
function isSame(part, said, place, question, own) {
  const [isFirst, isLast] = [part[0], part.at(-1)].map((word) => /^\P{L}/u.test(word));
  const beside = (words, at, step) => (BETWEEN.includes(words[at]) ? beside(words, at + step, step) : words[at]);
  const isOther = (at, step) => {
    const word = beside(said, place + at, step);
    return OF_NUMBERS.test(word ?? "") && word !== beside(question, own + at, step);
  };
  const [unit, word] = [question[own + part.length], said[place + part.length]];
  const hasUnit = !unit || !word || question.includes(word);
  return (!isFirst || !isOther(-1, -1)) && (!isLast || (hasUnit && !isOther(part.length, 1) && !isOther(part.length + 1, 1)));
}

/** When the voice had said all `parts` of a question, which it took at `fromMs`, each at a place of its own; null if it has not. */
export function heardAt({ fromMs, parts, words }, voice) {
  const said = fromMs === null ? [] : voice.filter(({ startMs }) => startMs >= fromMs);
  const all = wordsOf(textOf(said));
  const rest = [...all];
  let end = 0;
  for (const part of parts) {
    const place = placesOf(rest, part).find((at) => placesOf(words, part).some((own) => isSame(part, all, at, words, own)));
    if (place === undefined) return null;
    rest.fill("", place, place + part.length);
    end = Math.max(end, place + part.length);
  }
  const until = (index) => wordsOf(textOf(said.slice(0, index + 1)));
  return said.find((_, index) => until(index).length >= end && isAt(all, until(index), 0)).endMs; // "9" may be the beginning of "9.50"
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

/** Whether an utterance had begun when something was delegated. */
export const isOwn = ({ startMs }, offsetMs) => startMs <= offsetMs + ESTIMATE_MS;

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

  /** What was said up to an utterance, or in all, and is not known. */
  talk(last) {
    const until = last ? this.all().slice(0, this.all().indexOf(last) + 1) : this.all();
    const unknown = until.filter(({ isOpen, knownMs, text }) => !isOpen && knownMs === undefined && !isNoise(text));
    return unknown.map(({ side, text }) => `The ${side} said: ${text.trim().slice(0, side === "voice" ? SHORT : text.length)}`).join("\n");
  }

  /** What was said, as the first messages of another voice session. */
  history() {
    const message = (role, type, text) => ({ role, content: [{ type, text }] });
    const of = { person: (text) => message("user", "input_text", text), voice: (text) => message("assistant", "output_text", text) };
    return this.all().filter(({ text }) => text.trim()).slice(-INPUT).map(({ side, text }) => of[side](text.trim()));
  }

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
    const words = this.of("person").filter(({ text }) => !isNoise(text));
    const own = words.filter((utterance) => isOwn(utterance, offsetMs));
    const [last, reply] = [own.at(-1), this.replyBefore(offsetMs)];
    const isKnown = last?.knownMs !== undefined;
    const isAnswered = reply?.endMs > last?.endMs; // or only acknowledged
    // From when on, and from how many quiet times on, there is room for other words; and how many it waits for them.
    let [fromMs, room, wait] = [last?.endMs, 1, PAUSED_WAIT];
    if (!last) [fromMs, wait] = [-Infinity, SILENT_WAIT];
    else if (isKnown) [fromMs, wait] = [last.knownMs, SILENT_WAIT];
    else if (isAnswered) [fromMs, room, wait] = [reply.endMs, 2, ANSWERED_WAIT];
    const mayCome = offsetMs - fromMs >= room * this.#quietMs && words.length === own.length; // a side's come in order
    if (mayCome && waited < wait) return null;
    const beganMs = this.replyBefore(last?.startMs)?.startMs ?? -Infinity; // of the exchange
    return isKnown ? [] : own.filter(({ knownMs, startMs }) => knownMs === undefined && startMs >= beganMs);
  }
}
