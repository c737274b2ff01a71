// 300 cuts: at each frame of a turn with a card and a tool in turn, and then wherever the seed says.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NOTES, breaking, chance, open, seed } from "./helpers.js";

const CUTS = 300;
const STEPS = 30; // frames of such a turn, both ways
const AT_ONCE = 15;

test(`${CUTS} cuts, seed ${seed}`, async () => {
  const random = chance(seed);
  const places = new Set();
  let cuts = 0;
  let talks = 0;

  async function talk() {
    const number = talks++;
    const runs = [];
    let tries = 0;
    const next = () => {
      const frame = tries ? 1 + Math.floor(random() * 12) : 1 + (number % STEPS);
      const arrives = random() < 0.5;
      const broke = () => {
        cuts += 1;
        places.add(`${frame} ${arrives}`);
      };
      return tries++ < 4 ? { frame, arrives, broke } : { frame: 0 };
    };
    const client = open(`js-cuts-${number}`, {
      WebSocket: breaking(next),
      tools: [NOTES],
      handlers: {
        "notes.add": async (args) => {
          runs.push(args.number);
          if (random() < 0.5) await new Promise((resolve) => setTimeout(resolve, random() * 20));
          return `number ${args.number}`;
        },
      },
      onApproval: () => ({ decision: "allow" }),
    });
    const turn = await client.say(`call notes.add with {"number": ${number}}`);
    assert.deepEqual([turn.ending, turn.errors, runs], ["idle", [], [number]], `talk ${number}`);
    assert.match(turn.text, new RegExp(`number ${number}\\b`));
    await client.close();
  }

  async function talker() {
    while (cuts < CUTS || talks < 2 * STEPS) await talk();
  }
  await Promise.all(Array.from({ length: AT_ONCE }, talker));
  console.log(`seed ${seed}: ${cuts} cuts in ${talks} turns, ${places.size} places`);
});
