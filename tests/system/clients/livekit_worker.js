// Runs LiveKit's agent behind a voice of the Live API: `node livekit_worker.js URL`. It mutes the microphone and opens it again, and answers
// each delegation with the words that came with it; "later" once the voice was lost and another one is there. What it hears and its errors
// are lines of JSON on standard output. It ends when the person says goodbye.

"use strict";

const { initializeLogger, voice } = require("@livekit/agents");
const { realtime } = require("@livekit/agents-plugin-openai");
const { AudioFrame } = require("@livekit/rtc-node");

const FRAME_MS = 100;
const RATE = 24_000;
const [baseURL] = process.argv.slice(2);
const tell = (seen) => process.stdout.write(`${JSON.stringify(seen)}\n`);
const silence = () => new AudioFrame(new Int16Array((RATE * FRAME_MS) / 1000), RATE, 1, (RATE * FRAME_MS) / 1000);

async function main() {
  initializeLogger({ pretty: false, level: "silent" });
  const agent = new voice.Agent({ instructions: "You are the voice." });
  const llm = new realtime.GPTLiveModel({ apiKey: "test-key", baseURL, delegation: "client" });
  const session = new voice.AgentSession({ llm, vad: null, aecWarmupDuration: null });
  session.on(voice.AgentSessionEventTypes.Error, ({ error }) => tell({ error: String(error.error ?? error) }));
  await session.start({ agent });

  const live = agent.duplexSession;
  // The end of what the person says is counted in frames of the microphone.
  const microphone = setInterval(() => live.pushAudio(silence()), FRAME_MS);
  session.on(voice.AgentSessionEventTypes.UserInputTranscribed, async ({ transcript, isFinal }) => {
    if (!isFinal) return;
    tell({ heard: transcript });
    if (!transcript.includes("goodbye")) return;
    clearInterval(microphone);
    await session.close();
    process.exit(0);
  });
  live.on("openai_server_event_received", ({ type }) => type.endsWith("muted") && tell({ microphone: type }));
  live.on("delegation_created", ({ id, pendingTranscript: words }) => {
    live.appendThinking("At work.", { delegationId: id });
    const answer = () => {
      live.appendCommentary(`You said:${words}`, { delegationId: id });
      tell({ answered: id });
    };
    if (words.includes("later")) live.once("session_reconnected", answer);
    else answer();
  });
  live.muteInput();
  live.unmuteInput();
}

main();
