// Node's `ws` as a client: `node node_client.js URL SESSION TEXT LENGTH TOKEN`, the result as JSON on standard output.
// With PIECES=1 in the environment every message goes out as several fragments.

"use strict";

const WebSocket = require("ws");
const { converse } = require("./conversation.js");

const [url, session, text, length, token] = process.argv.slice(2);

class InPieces extends WebSocket {
  send(data) {
    const bytes = Buffer.from(data); // cut between bytes, so also within a character
    const size = Math.max(1, Math.ceil(bytes.length / 5));
    for (let start = 0; start < bytes.length; start += size) {
      const last = start + size >= bytes.length;
      super.send(bytes.subarray(start, start + size), { binary: false, fin: last });
      if (!last) super.ping("between");
    }
  }
}

const Client = process.env.PIECES === "1" ? InPieces : WebSocket;
const socket = new Client(url, ["conductor.v1"], {
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  perMessageDeflate: true,
});
let pongs = 0;
socket.on("pong", () => {
  pongs += 1;
});

converse(socket, session, text, Number(length)).then(
  (seen) => console.log(JSON.stringify({ ...seen, pongs })),
  (error) => {
    console.error(String(error));
    process.exitCode = 1;
  },
);
