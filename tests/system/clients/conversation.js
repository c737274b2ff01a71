// One conversation over a WebSocket, in the words that browsers and Node's `ws` have in common.
//
// It behaves as a voice app: every call is answered, an own tool with a result of `resultLength` characters,
// and the conversation is over when the microphone is open again. Resolves to what was seen; rejects where the
// connection breaks before.

"use strict";

function converse(socket, sessionId, text, resultLength) {
  return new Promise((resolve, reject) => {
    const seen = { events: [], finals: [], spoken: [], runs: [], foreign: [] };
    let number = 0;
    let asked = false;

    function send(type, payload) {
      number += 1;
      socket.send(
        JSON.stringify({
          id: `${sessionId}-${number}`,
          type,
          timestamp: new Date().toISOString(),
          sessionId,
          protocolVersion: 1,
          payload,
        }),
      );
    }

    function answer(call) {
      const args = JSON.parse(call.arguments);
      let result = '{"ok":true}';
      if (call.name === "tts.speak") {
        seen.spoken.push(args.text);
      } else if (!call.name.startsWith("convo.")) {
        seen.runs.push([call.name, args]);
        result = "ü".repeat(resultLength);
      }
      send("tool.result", { callId: call.callId, result, error: null });
      return call.name === "convo.setState" ? `state ${args.state}` : call.name;
    }

    function take(event) {
      let name = event.type;
      if (event.type === "tool.call") name = answer(event.payload);
      if (event.type === "assistant.speech.final") seen.finals.push(event.payload.text);
      if (event.sessionId !== sessionId) seen.foreign.push(event.sessionId);
      if (event.type !== "assistant.speech.partial") seen.events.push(name);
      if (event.type === "session.started") {
        asked = true;
        send("user.audio.transcript.final", { text });
      } else if (asked && name === "state idle") {
        socket.close(1000, "done");
      }
    }

    socket.addEventListener("open", () => {
      seen.subprotocol = socket.protocol;
      seen.extensions = socket.extensions;
      send("session.start", { sessionId });
    });
    socket.addEventListener("message", (message) => {
      try {
        take(JSON.parse(message.data));
      } catch (error) {
        reject(error);
        socket.close();
      }
    });
    socket.addEventListener("error", (error) => reject(new Error(error.message || "the connection failed")));
    socket.addEventListener("close", (close) => {
      seen.closeCode = close.code;
      seen.wasClean = close.wasClean;
      if (seen.events.includes("state idle")) resolve(seen);
      else reject(new Error(`closed too early: ${close.code} ${close.reason}`));
    });
  });
}

if (typeof module !== "undefined") module.exports = { converse };
