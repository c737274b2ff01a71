// What the cuts in Node and in a browser share: turns over sockets that break.

/** Numbers from 0 to 1 that a seed gives (mulberry32). */
export function chance(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * A WebSocket that breaks at a frame, counted both ways. `next()` gives `{frame, arrives}` for each connection:
 * the number from 1, or 0 for no break, and whether that frame still reaches the other side.
 */
export function breaking(WebSocket, next) {
  return class extends WebSocket {
    #listener = () => {};
    #count = 0;
    #broken = false;
    #at = next();

    constructor(...options) {
      super(...options);
      super.onmessage = (message) => this.#pass(() => this.#listener(message));
    }

    set onmessage(listener) {
      this.#listener = listener;
    }

    send(data) {
      this.#pass(() => super.send(data));
    }

    #pass(deliver) {
      if (this.#broken) return;
      this.#count += 1;
      this.#broken = this.#count === this.#at.frame;
      if (!this.#broken || this.#at.arrives) deliver();
      if (!this.#broken) return;
      this.#at.broke?.();
      if (this.terminate) this.terminate();
      else this.close(); // a browser's
    }
  };
}

export const STEPS = 30; // frames of such a turn, both ways

/**
 * Hold turns with a card and a tool until there were so many cuts: at each frame in turn, and then wherever the seed says.
 * `open(sessionId, options)` connects; `check(turn, runs, number)` throws if something was lost or doubled.
 */
export async function cutTalks({ open, WebSocket, tool, check, seed, cuts: wanted, atOnce, name }) {
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
    const client = open(`${name}-${number}`, {
      WebSocket: breaking(WebSocket, next),
      tools: [tool],
      handlers: {
        [tool.name]: async (args) => {
          runs.push(args.number);
          if (random() < 0.5) await new Promise((resolve) => setTimeout(resolve, random() * 20));
          return `number ${args.number}`;
        },
      },
      onApproval: () => ({ decision: "allow" }),
    });
    check(await client.say(`call ${tool.name} with {"number": ${number}}`), runs, number);
    await client.close();
  }

  async function talker() {
    while (cuts < wanted || talks < 2 * STEPS) await talk();
  }
  await Promise.all(Array.from({ length: atOnce }, talker));
  return `seed ${seed}: ${cuts} cuts in ${talks} turns, ${places.size} places`;
}
