// What the tests share. The server's address comes from the environment; `ws` is found by NODE_PATH.
import { createRequire } from "node:module";
import { after } from "node:test";
import { connect, memoryStorage } from "../conductor.js";

const { WebSocket } = createRequire(import.meta.url)("ws");
export const url = process.env.CONDUCTOR_URL;
export const token = process.env.CONDUCTOR_TOKEN;
export const seed = Number(process.env.CONDUCTOR_SEED ?? 1);
export { WebSocket, memoryStorage };

export const NOTES = { name: "notes.add", description: "Add a note.", inputSchema: { type: "object", properties: { number: { type: "integer" } } } };
export const FIND = { ...NOTES, name: "notes.find", description: "Find a note.", annotations: { readOnlyHint: true } };

const clients = [];
after(() => Promise.all(clients.map((client) => client.close()))); // a test that failed may have left one

export function open(sessionId, options = {}) {
  const client = connect({ url, token, sessionId, WebSocket, storage: memoryStorage(), reconnect: { firstMs: 0, mostMs: 0 }, ...options });
  clients.push(client);
  return client;
}

/** A promise with its own `resolve`. */
export function signal() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}

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
export function breaking(next) {
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
      this.terminate();
    }
  };
}
