// What was said in front of a voice model, and what it means (openai-live.js): utterances of the fragments of both transcripts, the words
// that a delegation means, and whether words answer a question. There is no channel and no client here, and no timer. Times are in
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

const NUMBER = String.raw`(?:(?<![\p{L}\p{N}])[-−.])*\p{N}+(?:[.,:]\p{N}+)*[a-z]*`;
const WORD = new RegExp(`(${NUMBER}|[\\p{L}\\p{M}]+|[\\p{Sc}%])(?:[^\\s\\p{L}\\p{N}\\p{Sc}%]*[.,;:?!](?=\\s|$))?`, "gu");
const plain = (text) => text.normalize("NFKD").replace(/[\u0300-\u036f]|(?<=\d),(?=\d{3}(?!\d))/gu, "").toLowerCase();

/** The words of a text without case, accents of letters and signs, other than those of numbers: `-9.50 €` is no `9`. */
const wordsOf = (text) => Array.from(plain(text).matchAll(WORD), ([, word]) => word);
/** They, and for each whether a clause ends behind it. */
const clausesOf = (text) => ({ words: wordsOf(text), ends: Array.from(plain(text).matchAll(WORD), ([all, word]) => all !== word) });
const isAt = (words, part, place) => part.every((word, index) => words[place + index] === word);
const placesOf = (words, part) => [...words.keys()].filter((place) => isAt(words, part, place));

/** Whether a text has the words of another one. */
export const says = (text, other) => placesOf(wordsOf(text), wordsOf(other)).length > 0;
/** Whether words begin with a no, in English, German, Spanish or French. */
export const refuses = (text) => "no nope nein nee non stop stopp halt alto arrete cancel cancela annule".split(" ").includes(wordsOf(text)[0]);
/** Whether no word was said: a recogniser's `(music)`, or signs. */
export const isNoise = (text) => !/[\p{L}\p{N}]/u.test(text.replace(/\(.*?\)|\[.*?\]/gs, ""));
/** Whether somebody only hums to show that they listen: "Mm-hmm." */
const isHum = (text) => wordsOf(text).every((word) => /^[hmu]+$/.test(word));
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
// What makes another number of the one beside it: digits and signs in each language, and words of these. And what may be between them.
const OF_NUMBERS = [
  "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty ninety",
  "k grand double dozen hundred thousand million billion trillion point half third quarter minus negative plus percent times", // English
  "dutzend hundert tausend millionen milliarde milliarden komma punkt halb halbe drittel viertel prozent mal", // German
  "docena cien ciento mil millon millones coma punto medio media tercio cuarto menos mas", // Spanish
  "douzaine cent mille milliard virgule demi demie tiers quart moins fois", // French
].flatMap((words) => words.split(" "));
const BETWEEN = "and a an the or to of per und oder bis von y o de por et ou pour".split(" ");
const isNumber = (word) => /^\P{L}/u.test(word);
const changesNumbers = (word = "") => /^[^\p{L}]/u.test(word) || OF_NUMBERS.includes(word.replace(/s$/, "")) || OF_NUMBERS.includes(word);

/**
 * What the person must have heard of a question, numbers and words each in this order: the words of each value, where the question has
 * them. It is the whole question if that says a value in other words, such as a date, or the words of one elsewhere, too.
 */
export function essentials({ arguments: values, prompt }) {
  const question = clausesOf(prompt);
  const parts = Object.values(values).flatMap(partsOf);
  const countOf = (part) => parts.filter((other) => other.join(" ") === part.join(" ")).length;
  const isPlain = (part) => part.length && !VAGUE.test(part.join(" ")) && placesOf(question.words, part).length === countOf(part);
  const whole = wordsOf(prompt.replace(/\?[^?]*$/, ""));
  const partAt = (place) => parts.find((part) => isAt(question.words, part, place)) ?? [];
  const isSaidAsWritten = parts.length && parts.every(isPlain);
  const needed = isSaidAsWritten ? question.words.map((_, place) => ({ part: partAt(place), place })) : [{ part: whole, place: 0 }];
  return { question, needed: needed.filter(({ part }) => part.length) };
}

/** The words of a value's parts; none of one that words do not show: empty, with signs, or with keys. */
function partsOf(value) {
  if (Array.isArray(value) && value.length) return value.flatMap(partsOf);
  return [typeof value === "object" || SIGN.test(value) ? [] : wordsOf(String(value))];
}

/** Whether a part is the same in what was said: if it is a number, with its unit, and without another number or a sign beside it. */
function isSame({ part, place: own }, question, said, place) {
  const [isFirst, isLast] = [part[0], part.at(-1)].map(isNumber);
  const isOther = (by, step) => {
    const word = beside(said, place + by, step);
    return changesNumbers(word) && word !== beside(question, own + by, step);
  };
  if (isFirst && isOther(-1, -1)) return false;
  const { length } = part;
  if (!isLast || said.ends[place + length - 1]) return true;
  const [unit, word] = [question.ends[own + length - 1] ? undefined : question.words[own + length], said.words[place + length]];
  return (!unit || !word || question.words.includes(word)) && !isOther(length, 1) && !isOther(length + 1, 1);
}

/** The word at a place, or behind small words there, unless another clause begins. */
function beside({ words, ends }, place, step) {
  if (ends[step > 0 ? place - 1 : place]) return undefined;
  return BETWEEN.includes(words[place]) ? beside({ words, ends }, place + step, step) : words[place];
}

/** When the voice had said all that is needed of a question, which it took at `fromMs`; null if it has not. */
export function heardAt({ fromMs, question, needed }, voice) {
  const fragments = fromMs === null ? [] : voice.filter(({ startMs }) => startMs >= fromMs);
  const said = clausesOf(textOf(fragments));
  const ends = { number: 0, word: 0 };
  for (const one of needed) {
    const kind = isNumber(one.part[0]) ? "number" : "word";
    const place = placesOf(said.words, one.part).find((at) => at >= ends[kind] && isSame(one, question, said, at));
    if (place === undefined) return null;
    ends[kind] = place + one.part.length;
  }
  const until = (index) => wordsOf(textOf(fragments.slice(0, index + 1)));
  const isUntil = (words) => words.length >= Math.max(ends.number, ends.word) && isAt(said.words, words, 0); // "9" may be the beginning of "9.50"
  return fragments.find((_, index) => isUntil(until(index)))?.endMs ?? null;
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
  number; // of the voice session; each has delegations of its own
  beganAt = Infinity; // by the clock, as far as known
  lateMs = 0; // how long, at most, the voice had begun a fragment before it was here

  constructor(quietMs, earlier) {
    this.#quietMs = quietMs;
    this.#before = earlier?.all() ?? [];
    this.number = (earlier?.number ?? -1) + 1;
  }

  all = () => [...this.#before, ...this.#utterances].slice(-REMEMBERED);
  of = (side) => this.#utterances.filter((utterance) => utterance.side === side);
  open = (side) => this.of(side).find(({ isOpen }) => isOpen);
  voice = (fromMs = -Infinity) => this.of("voice").flatMap(({ fragments }) => fragments).filter(({ startMs }) => startMs >= fromMs);
  replyBefore = (timeMs, isReply = () => true) => this.of("voice").filter(isReply).findLast(({ startMs }) => startMs <= timeMs);

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
  take(side, { delta, start_ms: startMs, end_ms: endMs }, now) {
    if (side === "voice") this.lateMs = Math.max(this.lateMs, now - this.beganAt - startMs);
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
   * The person's utterances that a delegation means: those since the voice last said a word, and none if they are known. Null while its
   * words may be on their way, since a transcript comes late. `waited` is how many quiet times the delegation has waited.
   */
  meant({ offsetMs, waited }) {
    const words = this.of("person").filter(({ text }) => !isNoise(text));
    const before = words.filter((utterance) => isOwn(utterance, offsetMs));
    const own = before.length ? before : words; // a delegation of nothing means what follows
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
    const beganMs = this.replyBefore(last?.startMs, ({ text }) => !isHum(text))?.startMs ?? -Infinity; // of the exchange
    return isKnown ? [] : own.filter(({ knownMs, startMs }) => knownMs === undefined && startMs >= beganMs);
  }
}
