// utterances.js: what both sides have said, and what it means.
import assert from "node:assert/strict";
import { test } from "node:test";
import { essentials, heardAt, Transcript, verdict } from "../utterances.js";

/** Fragments of [words, start, end]. */
const fragmentsOf = (...said) => said.map(([text, startMs, endMs]) => ({ text, startMs, endMs }));
const question = essentials({ prompt: "Set it to 9?", arguments: { to: 9 } });

test("an utterance counts as an answer only if it began after the question was heard, in silence, and is no echo", () => {
  const asked = [" Set it to 9?", 1_100, 2_000];
  const rows = [
    // why, the question was given at, what the voice has said, the person's words, which began at
    ["counts", 1_000, [asked], "yes", 2_500],
    ["counts", 1_000, [[" Set it to", 1_100, 1_500], [" 9?", 1_500, 2_000]], "yes", 2_500],
    ["unheard", null, [asked], "yes", 2_500],
    ["unheard", 1_200, [asked], "yes", 2_500],
    ["unheard", 1_000, [[" Shall I?", 1_100, 2_000]], "yes", 2_500],
    ["unheard", 1_000, [], "yes", 2_500],
    ["early", 1_000, [asked], "yes", 1_999],
    ["over the voice", 1_000, [asked], "yes", 2_499],
    ["over the voice", 1_000, [asked, [" Or not?", 2_600, 3_000]], "yes", 2_700],
    ["counts", 1_000, [asked, [" Or not?", 2_600, 3_000]], "yes", 2_550],
    ["echo", 1_000, [asked, [" Yes, or no?", 2_600, 3_000]], "yes", 3_999],
    ["counts", 1_000, [asked, [" Yes, or no?", 2_600, 3_000]], "yes", 4_000],
  ];
  for (const [why, fromMs, said, text, beganMs] of rows) {
    assert.equal(verdict({ text, beganMs }, { fromMs, ...question }, fragmentsOf(...said)), why, `${text} at ${beganMs}`);
  }
});

test("a question is heard if the voice has said each of its values, and each as the question does", () => {
  const pay = { prompt: "May I pay 50 euros to Anna?", arguments: { amount: 50, to: "Anna" } };
  const set = { prompt: "May I set it to 18?", arguments: { to: 18 } };
  const note = (title) => ({ prompt: `May I note ${title}?`, arguments: { title } });
  const remove = (path, prompt) => ({ prompt, arguments: { path } });
  const tilde = remove("~/a*", "May I remove the files tilde slash a star?");
  const rows = [
    [true, pay, "Shall I send 50 euros to Anna?"],
    [true, pay, "Anna gets 50 euros, shall I?"],
    [false, { prompt: "Move 3 to 5?", arguments: { from: 3, to: 5 } }, "Shall I move 5 to 3?"],
    [true, { prompt: "May I pay Anna 50? Say yes or no.", arguments: { to: "Anna", amount: 50 } }, "I pay Anna 50, okay?"],
    [true, { prompt: "May I pay Anna 50? Say yes or no.", arguments: { to: "Anna", amount: 50 } }, "Pay Anna 50. Should I do that now?"],
    [false, { prompt: "May I pay Anna 50? Say yes or no.", arguments: { to: "Anna", amount: 50 } }, "I pay Anna 50 thousand, okay?"],
    [false, { prompt: "From Savings to Checking?", arguments: { from: "Savings", to: "Checking" } }, "From Checking to Savings?"],
    ...["50 tausend", "50 mil", "50 mille", "50 Millionen", "minus 50", "50 Komma 5", "moins 50", "50 por ciento", "50 pour cent"]
      .map((sum) => [false, { prompt: "Zahle ich 50?", arguments: { amount: 50 } }, `Zahle ich ${sum}?`]),
    [false, { prompt: "May I buy with a 50 AAPL?", arguments: { shares: { AAPL: 50 } } }, "Shall I buy 50?"],
    [false, { prompt: "May I share empty and empty with Anna?", arguments: { a: null, b: "", to: "Anna" } }, "Shall I share it with Anna?"],
    [true, pay, "50? To Anna?"],
    [true, pay, "50 thousand? No: 50 euros to Anna."],
    [true, set, "18 it is, shall I?"],
    [true, set, "Shall I set 18 in the hall?"],
    [true, { prompt: "Move 3 to 5?", arguments: { from: 3, to: 5 } }, "Shall I move 3 to 5?"],
    [true, { prompt: "Add 5 and 5?", arguments: { one: 5, other: 5 } }, "Shall I add 5 and 5?"],
    [false, { prompt: "Add 5 and 5?", arguments: { one: 5, other: 5 } }, "Shall I add 5?"],
    ...["50 thousand euros", "50k", "50 k", "50 grand", "50 hundred", "minus 50 euros", "$50", "50 dollars", "50 cents", "50%", "50 percent"]
      .concat(["one hundred 50 euros", "a hundred and 50 euros", "1 50 euros", "20 50 euros", "50 20", "50-60", "50 to 60", "50/60 euros"])
      .concat(["50 point 5", "50 euros and 20 cents", ".50 euros", "50 and a half", "50th", "half of 50 euros", "50 of the 80 euros", "fifty 50 euros"])
      .map((sum) => [false, pay, `Shall I pay ${sum} to Anna?`]),
    ...["negative 18", ".18", "zero point 18", "-18", "18 and a half", "18 thousand", "18.5", "18%"]
      .map((degrees) => [false, set, `Shall I set it to ${degrees}?`]),
    ...["no", "yes", "May", "note"].map((title) => [false, note(title), "May I note that? Say yes or no."]),
    ...["no", "yes", "May", "note"].map((title) => [true, note(title), `So: may I note ${title}? Say yes or no.`]),
    [true, note("Milk, eggs and so on"), "A note of milk, eggs and so on?"],
    [false, tilde, "Shall I remove a file?"],
    [true, tilde, "May I remove the files tilde slash a star?"],
    [false, remove("*.txt", "May I remove the files star dot txt?"), "Shall I remove the txt files?"],
    [false, remove("/photos*", "May I remove slash photos star?"), "Shall I remove photos?"],
    [false, remove("#5", "May I remove number 5?"), "Shall I remove 5?"],
    [false, remove("*", "May I remove star?"), "Shall I remove it?"],
    [false, { prompt: "May I share star with Anna?", arguments: { path: "*", to: "Anna" } }, "Shall I share it with Anna?"],
  ];
  for (const [isHeard, request, text] of rows) {
    const said = fragmentsOf([text, 1_000, 2_000]);
    assert.equal(heardAt({ fromMs: 500, ...essentials(request) }, said), isHeard ? 2_000 : null, `${request.prompt} ${text}`);
  }
});

test("a delegation means the words since the voice last spoke, and waits for words that come late", () => {
  const [hello, hi, news] = [["person", "hello", 0, 500], ["voice", "Hi.", 900, 1_200], ["person", "any news?", 2_000, 2_500]];
  const rows = [
    // the words, or null to wait; what was said and whether it is known until a time; the delegation; the quiet times that it has waited
    ["hello", [hello], 600, 0],
    ["hello any news?", [hello, ["voice", "Mm-hmm.", 900, 1_200], news], 2_600, 0], // the voice only listens
    ["hello any news?", [hello, news], 2_600, 0],
    ["any news?", [hello, hi, news], 2_600, 0],
    [null, [hello], 1_400, 0], // there may be more
    ["hello", [hello], 1_400, 1],
    [null, [], 600, 11], // they may come late
    ["", [], 600, 12],
    ["hello", [hello, hi], 1_100, 0], // the voice has acknowledged it
    ["hello", [hello, hi], 2_799, 0],
    [null, [hello, hi], 2_800, 0],
    [null, [hello, hi], 3_000, 5], // or answered it
    ["hello", [hello, hi], 3_000, 6],
    ["any news?", [hello, hi, news], 1_500, 0], // the times are estimates
    ["hello", [hello, hi, news], 1_499, 0], // what was said before is here
    ["any news?", [news], 900, 0], // later words, where there are no others
    ["", [[...hello, 600]], 700, 0], // a second delegation
    ["", [[...hello, 600]], 1_399, 0],
    [null, [[...hello, 600]], 1_400, 11],
    ["", [[...hello, 600]], 1_400, 12],
    ["any news?", [[...hello, 600], hi, news], 2_600, 0],
  ];
  for (const [words, said, offsetMs, waited] of rows) {
    const transcript = new Transcript(800);
    for (const [side, delta, startMs, endMs, knownMs] of said) {
      const utterance = transcript.take(side, { delta, start_ms: startMs, end_ms: endMs }, 0);
      Object.assign(utterance, { isOpen: false, knownMs });
    }
    const meant = transcript.meant({ offsetMs, waited });
    assert.equal(meant && meant.map(({ text }) => text).join(" "), words, `${JSON.stringify(said)} at ${offsetMs}, ${waited}`);
  }
});

test("a fragment goes on with an open utterance, or begins one that began with what it follows", () => {
  const rows = [
    // fragments of [words, start, whether the utterance before has ended], the utterances of [words, began, ended]
    [[["Set", 0], [" it", 200]], [["Set it", 0, 300]]],
    [[["Set", 0], [" it", 899]], [["Set it", 0, 999]]],
    [[["Set", 0], ["it", 900]], [["Set", 0, 100], ["it", 900, 1_000]]],
    [[["well", 0], [" yes", 400, true]], [["well", 0, 100], [" yes", 0, 500]]],
    [[["well", 5_000], [" yes", 300]], [["well yes", 300, 5_100]]],
    [[["well", 5_000], [" yes", 300, true]], [["well", 5_000, 5_100], [" yes", 300, 400]]],
  ];
  for (const [fragments, utterances] of rows) {
    const transcript = new Transcript(800);
    for (const [delta, startMs, hasEnded] of fragments) {
      if (hasEnded) transcript.open("person").isOpen = false;
      transcript.take("person", { delta, start_ms: startMs, end_ms: startMs + 100 }, 0);
    }
    assert.deepEqual(transcript.all().map(({ text, beganMs, endMs }) => [text, beganMs, endMs]), utterances);
  }
});
