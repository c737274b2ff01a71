// What a turn did with its time, told from the frames alone.
import { parsed } from "./dom.js";

/** Takes frames as {at, direction, event}; gives turns as {number, title, start, end, spans, metrics}. */
export function turns(changed) {
  const all = [];
  let turn;
  let open = new Map(); // spans that have not ended, by what ends them

  let number = 0;

  function begin(at, title) {
    number += 1;
    turn = { number, title, start: at, end: at, spans: [], metrics: null };
    open = new Map();
    all.push(turn);
    if (all.length > 100) all.shift();
  }

  function start(key, name, kind, at) {
    if (!turn || open.has(key)) return;
    const span = { key, name, kind, start: at, end: null };
    open.set(key, span);
    turn.spans.push(span);
  }

  function end(key, at) {
    const span = open.get(key);
    if (!span) return;
    span.end = at;
    open.delete(key);
    const working = [...open.values()].some(({ kind }) => kind === "tool");
    if (span.kind === "tool" && !working && !turn.ended) waitForModel(at);
  }

  function waitForModel(at) {
    start("model", "Waiting for the model", "wait", at);
  }

  /** A turn that the server starts by itself is not announced: its first event begins it. */
  function beginIfEnded(at) {
    if (!turn || turn.ended) begin(at, "The server's own turn");
  }

  function state(name, at) {
    end("accepted", at);
    if (name === "thinking") {
      beginIfEnded(at);
      waitForModel(at);
    }
    if (name === "idle" && turn) {
      end("model", at);
      end("writing", at);
      // Beside a card the state is idle too: the turn goes on with the decision.
      turn.ended = ![...open.values()].some((span) => span.kind === "decision");
    }
  }

  function call({ callId, name, arguments: given }, at) {
    if (name === "convo.setState") return state(parsed(given).state, at);
    if (name === "tts.speak") {
      return start(callId, "Speech", "spoken", at);
    }
    if (name?.startsWith("convo.")) return undefined;
    beginIfEnded(at);
    end("model", at);
    return start(callId, name, "tool", at);
  }

  const incoming = {
    "tool.call": (payload, at) => call(payload, at),
    "assistant.speech.partial": (_, at) => {
      beginIfEnded(at);
      end("model", at);
      start("writing", "Reply is written", "text", at);
    },
    "assistant.speech.final": (_, at) => {
      end("model", at);
      end("writing", at);
    },
    "approval.request": ({ approvalId, name }, at) => {
      end("model", at);
      start(approvalId, `${name}: a person decides`, "decision", at);
    },
    "approval.resolved": ({ approvalId }, at) => end(approvalId, at),
    "tool.activity": ({ callId, name, status, executionTimeMs }, at) => {
      if (status === "started") {
        end("model", at);
        start(callId, name, "tool", at);
      } else if (open.has(callId)) end(callId, at);
      else if (turn && !turn.spans.some((span) => span.key === callId))
        turn.spans.push({ key: callId, name, kind: "tool", start: at - (executionTimeMs ?? 0), end: at });
    },
    "event.ack": ({ eventIds = [] }, at) => eventIds.forEach((id) => end(id, at)),
    "turn.metrics": (payload) => {
      if (turn) turn.metrics = payload;
    },
  };

  function outgoing({ id, type, payload }, at) {
    if (type === "user.audio.transcript.final") {
      begin(at, payload.text);
      start("accepted", "Taken by the server", "wait", at);
      start(id, "Recorded", "commit", at);
    }
    if (type === "tool.result") end(payload.callId, at);
    if (type === "audio.output.interrupted") for (const key of [...open.keys()]) end(key, at);
  }

  function add({ at, direction, event }) {
    if (direction === "out") outgoing(event, at);
    else incoming[event.type]?.(event.payload ?? {}, at);
    if (turn && event.type !== "session.ping") turn.end = Math.max(turn.end, ...turn.spans.map((span) => span.end ?? at));
    changed(all);
    return turn;
  }

  return { add, all, clear: () => (all.splice(0), (turn = undefined), changed(all)) };
}
