// What the tests share. test_javascript_client.py gives the server's address, and the folder of `ws` in NODE_PATH.
import { createRequire } from "node:module";
import { after } from "node:test";
import { connect, memoryStorage } from "../conductor.js";
import { breaking as breakingOf } from "./cutting.js";

export const url = process.env.CONDUCTOR_URL;
if (!url) throw new Error("They need a server and the package ws: run tests/system/test_javascript_client.py with pytest.");
const { WebSocket } = createRequire(import.meta.url)("ws");
export const token = process.env.CONDUCTOR_TOKEN;
export const seed = Number(process.env.CONDUCTOR_SEED ?? 1);
export { WebSocket, memoryStorage };

export const NOTES = { name: "notes.add", description: "Add a note.", inputSchema: { type: "object", properties: { number: { type: "integer" } } } };
export const FIND = { ...NOTES, name: "notes.find", description: "Find a note.", annotations: { readOnlyHint: true } };

/** A PNG of one pixel. */
export const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

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

export const breaking = (next) => breakingOf(WebSocket, next);
