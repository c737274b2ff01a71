// Faults on purpose: the library is given this socket, and need not know.
import { button, byId, el } from "./dom.js";

const SLOW_MS = 2_000;
const UI_CALL = /^(?:convo|tts)\./;
const faults = { slow: false, refuse: false };
const sockets = new Set();
const held = [];

export class FaultySocket extends WebSocket {
  #uiCalls = new Set();

  constructor(...given) {
    super(...given);
    sockets.add(this);
    this.addEventListener("close", () => sockets.delete(this));
    this.addEventListener("message", ({ data }) => {
      const { type, payload } = JSON.parse(data);
      if (type === "tool.call" && UI_CALL.test(payload.name)) this.#uiCalls.add(payload.callId);
    });
  }

  send(data) {
    if (faults.refuse && this.#isToolResult(data)) held.push(() => this.#write(data));
    else if (faults.slow) setTimeout(() => this.#write(data), SLOW_MS);
    else super.send(data);
  }

  #isToolResult(data) {
    const { type, payload } = JSON.parse(data);
    return type === "tool.result" && !this.#uiCalls.has(payload.callId);
  }

  #write(data) {
    if (this.readyState === WebSocket.OPEN) super.send(data);
  }
}

function cut() {
  for (const socket of sockets) socket.close(4000, "cut by the page");
}

const REFUSAL =
  "Results of this page's tools stay here. The server waits for its time limit, then says that the outcome is not known. Press again to let them go.";

function refuse(on) {
  faults.refuse = on;
  if (!on) for (const send of held.splice(0)) send();
}

const FAULTS = [
  ["cut", "Cut the socket", "The connection ends at once. The library connects again, and nothing is lost or done twice.", cut],
  ["reload", "Reload", "The page starts again, with the same session.", () => location.reload()],
  ["slow", "Go slow", "Each frame that this page sends waits two seconds.", (on) => (faults.slow = on)],
  ["refuse", "Refuse results", REFUSAL, refuse],
];

export function faultButtons() {
  byId("fault-list").append(
    ...FAULTS.map(([id, name, meaning, act]) => {
      const fault = button(name, () => {
        const on = fault.ariaPressed === "false";
        if (act.length) fault.ariaPressed = String(on);
        act(on);
      });
      fault.id = `fault-${id}`;
      if (act.length) fault.ariaPressed = "false";
      return el("li", {}, fault, el("p", { class: "quiet", text: meaning }));
    }),
  );
}
