import type { Client } from "./conductor.js";

/** A data channel (RTCDataChannel) or a WebSocket of a voice session: events of OpenAI's Live API as JSON texts. */
export interface Channel {
  readonly readyState: string | number;
  send(data: string): void;
  addEventListener(type: "message" | "close", act: (event: any) => void): void;
  removeEventListener(type: "message" | "close", act: (event: any) => void): void;
}

export interface BridgeOptions {
  /** Each utterance of both sides, when it is over. */
  onTalk?(side: "person" | "voice", text: string): void;
  /**
   * An `error` event of the voice session. What was refused is given again, in other pieces. Refusals while an audio fixture
   * plays are no errors. The code `reply_refused` is the bridge's own: a reply, or the rest of it, was not taken, and the voice
   * is told to name the screen.
   */
  onError?(error: { type: string; code: string; message: string; client_event_id?: string | null; param?: string | null }): void;
  /** The voice session was lost, also by its own end. Replies wait for `use()` or `close()`. */
  onLost?(): void;
  /**
   * How long a side is silent when its utterance is over, in milliseconds. Default 800. The waits of the bridge grow with it: a
   * delegation waits up to twelve times as long for its transcript, a yes three times for the voice's.
   */
  quietMs?: number;
}

export interface Bridge {
  /**
   * The talk so far, of the voice sessions before, too: the latest 128 utterances, as a new voice session takes them for its
   * `input`.
   */
  readonly history: { role: "user" | "assistant"; content: [{ type: "input_text" | "output_text"; text: string }] }[];
  /**
   * Go on with the channel of another voice session, after the loss of the one before. What was not appended is appended
   * there, and questions are asked anew. The channel before is not listened to any more.
   */
  use(channel: Channel): void;
  /**
   * End the voice session (`session.close`). The client goes on without a voice in front, and its own `speak` says what waits and
   * what comes. An open question is left to its card. Without `onApproval` it is denied, unless the app decides it in the same task.
   */
  close(): void;
}

/**
 * Let a voice model speak for a client: what it delegates is said to the session, what the session speaks is given to the voice.
 * Call it in the same task as `connect()`, and before the channel has opened. The voice session must be made with
 * `delegation: { type: "client" }`.
 */
export function bridge(client: Client, channel: Channel, options?: BridgeOptions): Bridge;
