// utterances.js: what both sides have said, and what it means.
import assert from "node:assert/strict";
import { test } from "node:test";
import { essentials, Transcript, verdict } from "../utterances.js";

/** Fragments of [words, start, end]. */
const fragmentsOf = (...said) => said.map(([text, startMs, endMs]) => ({ text, startMs, endMs }));
const parts = essentials({ prompt: "Set it to 9?", arguments: { to: 9 } });

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
    assert.equal(verdict({ text, beganMs }, { fromMs, parts }, fragmentsOf(...said)), why, `${text} at ${beganMs}`);
  }
});

test("a delegation means the words since the voice last spoke, and waits for words that come late", () => {
  const [hello, hi, news] = [["person", "hello", 0, 500], ["voice", "Hi.", 900, 1_200], ["person", "any news?", 2_000, 2_500]];
  const rows = [
    // the words, or null to wait; what was said and whether it is known until a time; the delegation; the quiet times that it has waited
    ["hello", [hello], 600, 0],
    ["hello any news?", [hello, news], 2_600, 0],
    ["any news?", [hello, hi, news], 2_600, 0],
    [null, [hello], 1_400, 0], // there may be more
    ["hello", [hello], 1_400, 1],
    [null, [], 600, 11], // they may come late
    ["", [], 600, 12],
    ["hello", [hello, hi], 1_100, 0], // the voice has acknowledged it
    ["hello", [hello, hi], 2_799, 0],
    [null, [hello, hi], 2_800, 0],
    [null, [hello, hi], 3_000, 4], // or answered it
    ["hello", [hello, hi], 3_000, 5],
    ["hello", [hello, hi, news], 1_900, 0], // what was said before is here
    ["", [[...hello, 600]], 700, 0], // a second delegation
    ["", [[...hello, 600]], 1_399, 0],
    [null, [[...hello, 600]], 1_400, 11],
    ["", [[...hello, 600]], 1_400, 12],
    ["any news?", [[...hello, 600], hi, news], 2_600, 0],
  ];
  for (const [words, said, offsetMs, waited] of rows) {
    const transcript = new Transcript(800);
    for (const [side, delta, startMs, endMs, knownMs] of said) {
      const utterance = transcript.take(side, { delta, start_ms: startMs, end_ms: endMs });
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
      transcript.take("person", { delta, start_ms: startMs, end_ms: startMs + 100 });
    }
    assert.deepEqual(transcript.all().map(({ text, beganMs, endMs }) => [text, beganMs, endMs]), utterances);
  }
});
