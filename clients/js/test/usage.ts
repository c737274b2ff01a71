// Compiled by `tsc`, never run: how an app uses the types.
import { ToolCancelled, connect, indexedDbStorage, memoryStorage, type Approval, type Client, type TurnResult } from "../conductor.js";
import { bridge, type Bridge } from "../openai-live.js";

const client: Client = connect({
  url: "ws://127.0.0.1:8080/ws",
  token: "secret",
  sessionId: "s-1",
  model: "home",
  tools: [{ name: "lamp.switch", inputSchema: { type: "object" }, annotations: { readOnlyHint: false } }],
  handlers: {
    "lamp.switch": async ({ room }, { signal, progress }) => {
      progress({ percent: 50 });
      if (signal.aborted) throw new ToolCancelled("none");
      return { room };
    },
  },
  onPartial: (text) => text.length,
  onFinal: (text) => text.length,
  onState: (state) => state === "idle",
  onApproval: (request: Approval) => ({ decision: "allow", scope: request.scopes[0] }),
  onQuestion: (text) => text.length,
  onEvent: (direction, event) => direction === "in" && event.type,
  onConnection: (state, close) => state === "closed" && close?.code,
  lang: "de",
  speak: async (text, { signal, lang = text.slice(0, 2) }) => signal.throwIfAborted(),
  storage: indexedDbStorage(),
  storageMs: 2_000,
  reconnect: { firstMs: 0 },
});
connect({ onApproval: ({ approvalId }) => client.decide(approvalId, "edit", { arguments: {}, words: "later" }), storage: memoryStorage() });

const result: TurnResult = await client.say("hello", { lang: "en" });
client.interrupt({ playedMs: 200 });
client.interrupt({ spokenText: result.text });
await client.close();

// @ts-expect-error a decision is one of three words
client.decide("a", "yes");
// @ts-expect-error an option that does not exist
connect({ adress: "" });

const front: Bridge = bridge(client, new RTCPeerConnection().createDataChannel("events"), {
  onTalk: (side, text) => side === "person" && text.length,
  onError: ({ code }) => code.length,
});
front.use(new WebSocket("ws://127.0.0.1:1"));
front.close();
// @ts-expect-error a side is the person or the voice
bridge(client, new WebSocket("ws://127.0.0.1:1"), { onTalk: (side) => side === "user" });
