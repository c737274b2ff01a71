// 300 cuts: at each frame of a turn with a card and a tool in turn, and then wherever the seed says.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cutTalks } from "./cutting.js";
import { NOTES, WebSocket, open, seed } from "./helpers.js";

const CUTS = 300;

test(`${CUTS} cuts, seed ${seed}`, async () => {
  function check(turn, runs, number) {
    assert.deepEqual([turn.ending, turn.errors, runs], ["idle", [], [number]], `talk ${number}`);
    assert.match(turn.text, new RegExp(`number ${number}\\b`));
  }
  console.log(await cutTalks({ open, WebSocket, tool: NOTES, check, seed, cuts: CUTS, atOnce: 15, name: "js-cuts" }));
});
