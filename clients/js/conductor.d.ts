/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Arguments = Record<string, any>;

/** One frame of the protocol (docs/protocol.md). */
export interface WireEvent {
  id: string;
  type: string;
  timestamp: string;
  sessionId: string;
  protocolVersion?: number;
  payload: Record<string, any>;
}

/** A tool of the Model Context Protocol, with Conductor's fields under `_meta.conductor`. */
export interface ToolDeclaration {
  name: string;
  title?: string;
  description?: string;
  inputSchema: object;
  annotations?: {
    readOnlyHint?: boolean;
    destructiveHint?: boolean;
    idempotentHint?: boolean;
    openWorldHint?: boolean;
  };
  _meta?: { conductor?: Record<string, Json> };
}

/** One running call. */
export interface ToolRun {
  readonly callId: string;
  readonly name: string;
  /**
   * Aborted when the call is cancelled; `signal.reason` is the server's reason, such as `barge_in`. A handler
   * that goes on holds later events for three more seconds, and its result is reported when it ends.
   */
  readonly signal: AbortSignal;
  /** Tell that the call goes on: its time limit starts again. */
  progress(report?: { message?: string; percent?: number }): void;
}

/** An image as the wire has it: JPEG, PNG or WebP in base64. */
export interface Picture {
  mimeType: "image/jpeg" | "image/png" | "image/webp";
  data: string;
}

/** An image that the library scales to 1,568 pixels and encodes as JPEG, in a browser, or one for the wire. */
export type PictureSource = Picture | ImageBitmapSource;

/** Make an image for the wire. */
export function picture(source: PictureSource): Promise<Picture>;

/**
 * Returns a string or a JSON value, or `{result?, images}` with up to three images for a model that sees. An exception
 * becomes the call's error.
 */
export type ToolHandler = (args: Arguments, run: ToolRun) => unknown | Promise<unknown>;

/** Thrown by a handler whose `signal` was aborted: how much of the call took effect. */
export class ToolCancelled extends Error {
  constructor(effect: "none" | "partial" | "complete", result?: Json);
  readonly effect: "none" | "partial" | "complete";
  readonly result?: Json;
}

/** One run of `speak`. */
export interface SpeechRun {
  /** Aborted to stop the speech. */
  signal: AbortSignal;
  /** The text's language (BCP 47). Without it, the locale's. */
  lang?: string;
  /** The reply that it is a part of, its number in that reply, and whether it is the last: with `segments`. */
  speechId?: string;
  segment?: number;
  last?: boolean;
}

/** A request for consent. A model and the server wrote its texts: show them as plain text. */
export interface Approval {
  approvalId: string;
  batchId: string;
  callId: string;
  name: string;
  arguments: Arguments;
  argumentsDigest: string;
  risk: "safe" | "medium" | "high";
  reasons: string[];
  prompt: string;
  scopes: Scope[];
  expiresAt: string;
  /** What the call would do, in lines; for a file that is replaced, a unified diff. */
  preview?: string;
  /** The headline: the tool's `spoken` filled in, else its `title`; absent without both. */
  title?: string;
  /** Why the server refused the last edit; the question is asked again. */
  refused?: string;
}

export type Scope = "once" | "session" | "always";
export type Decision = "allow" | "deny" | "edit";

export interface DecisionOptions {
  /** How far an `allow` reaches: one of the request's `scopes`. Default `once`. */
  scope?: Scope;
  /** All of the arguments, for an `edit`. */
  arguments?: Arguments;
  /** What the person says about it, for the model. */
  words?: string;
}

/** What is known of a session, as JSON. */
export type SavedState = Json;

/** Where a session is kept over a reload. Each method may be asynchronous. */
export interface SessionStorage {
  load(sessionId: string): SavedState | undefined | Promise<SavedState | undefined>;
  save(sessionId: string, state: SavedState): unknown | Promise<unknown>;
}

export interface Reconnect {
  /**
   * The pause before the first try, in milliseconds. Default 500. Each further pause is twice as long. `say()` and the
   * browser's event `online` end a pause.
   */
  firstMs?: number;
  /** The longest pause. Default 15000. A random part of up to half is taken off. */
  mostMs?: number;
  /** Tries in a row before the client gives up. Default: it never does. */
  tries?: number;
}

/** What came of one transcript. */
export interface TurnResult {
  transcript: string;
  /** The last final text, or an empty text. */
  text: string;
  finals: string[];
  calls: { callId: string; name: string; arguments: string }[];
  errors: { code: string; message: string }[];
  interrupted: boolean;
  /**
   * `followed`: a later transcript replaced it. `lost`: the server did not take it. `closed`: by `close()`, or by a server
   * that refuses the page's origin, which `errors` tells.
   */
  ending: "idle" | "followed" | "lost" | "closed";
  /** The server's reason for the end, from servers with the capability `turns`. */
  reason?: "answered" | "interrupted" | "resumed" | "session_end" | "timed_out" | "failed";
}

export type ConnectionState = "connecting" | "open" | "closed";
export type State = "idle" | "listening" | "transcribing" | "thinking" | "speaking";

export interface ConnectOptions {
  /** `ws://HOST:PORT/ws`. Default in a browser: the page's own server. */
  url?: string;
  /** One of the server's AUTH_TOKENS. Sent as a subprotocol, or in the query where that cannot carry it. */
  token?: string;
  /** Default: a new session. The same id resumes it. */
  sessionId?: string;
  /** One of the models that the server lets clients choose. */
  model?: string;
  locale?: string;
  /** The person's language (BCP 47), in which questions are spoken. Default: the locale's. */
  lang?: string;
  timeZone?: string;
  /** Added to the system prompt; at most 4 KiB. */
  instructions?: string;
  /** The values of all `{{name}}` in the server's system prompt, each of at most 200 characters. */
  variables?: Record<string, string>;
  /** Spoken first in a new session, without the model. */
  greeting?: string;
  /** The device's tools. */
  tools?: ToolDeclaration[];
  /** Their handlers by name; `convo.*` may be handled, too. Calls are handled one at a time. */
  handlers?: Record<string, ToolHandler>;
  /** The reply so far, to be drawn in place of the one before. */
  onPartial?(text: string): void;
  /** A reply that is whole. */
  onFinal?(text: string): void;
  onState?(state: State): void;
  /**
   * Show a card. Called again with `refused` if an edit was refused. `signal` is aborted when the question
   * is settled. The decision is returned, or given later by `decide()`.
   */
  onApproval?(
    request: Approval,
    run: { signal: AbortSignal },
  ): void | Answer | undefined | Promise<void | Answer | undefined>;
  /**
   * A message of the assistant that is no reply of the model: a question that the person answers by voice,
   * or the sentence that tells of a failure. It is spoken, too.
   */
  onQuestion?(text: string): void;
  /**
   * An error of the server, such as `rate_limited`, or `storage_failed`: the storage could not load the session, which
   * then begins without its saved state, or could not save it, so that a reload may lose it.
   */
  onError?(error: { code: string; message: string; retryAfterMs?: number }): void;
  onConnection?(state: ConnectionState, close?: { code: number; reason: string }): void;
  /** Every frame that is sent or read, including duplicates. */
  onEvent?(direction: "in" | "out", event: WireEvent): void;
  /** Words to listen for, the likeliest first: phrases or key terms of the recogniser. */
  onHints?(phrases: string[]): void;
  /** The transcript is half a sentence: the server waits for the other half, so listen on. */
  onUnfinished?(): void;
  /** How long half a sentence waits for the other half; 0 is not at all. Default: the operator's. */
  holdUnfinishedMs?: number;
  /** Say a text and return at its end; the signal is aborted to stop it. Without it the voice is silent. */
  speak?(text: string, run: SpeechRun): void | Promise<void>;
  /** Let the paused voice go on where it was: the person has not interrupted it. */
  onResume?(): void;
  /** Default: IndexedDB where there is one, else memory. */
  storage?: SessionStorage;
  /** How long one `load` or `save` of the storage may take, in milliseconds. Default 5000. */
  storageMs?: number;
  /** Default: global WebSocket. Node 20 lacks it: `import { WebSocket } from "ws"`. */
  WebSocket?: new (url: string, protocols: string[]) => any;
  reconnect?: Reconnect;
  /** Names of protocol extensions; default: all that the library serves. */
  capabilities?: string[];
}

export interface Answer extends DecisionOptions {
  decision: Decision;
}

/** A voice model in front of a session. It says replies whole, asks the questions, and tells when they were heard. */
export interface VoiceModel {
  /**
   * As `ConnectOptions.speak`; returns the words in which it was said, which are sent with the result of `tts.speak`. Null: it
   * was left before it has said anything, and `ConnectOptions.speak` says it.
   */
  speak(text: string, run: SpeechRun): Promise<string | null>;
  /** `say` was called without an `id`: the voice model has not heard these words. Its own have an `id` or null. */
  typed?(): void;
  /** A question is asked. `hasCard`: the app shows a card, too. A yes by voice counts after `approval.shown` only. */
  ask(request: Approval, run: { signal: AbortSignal; hasCard: boolean }): void;
  /** Each event of the server, once. */
  notice(event: WireEvent): void;
  connectionIs(state: ConnectionState): void;
}

export interface Client {
  readonly sessionId: string;
  readonly state: State | undefined;
  readonly connection: ConnectionState;
  /** The payload of the first `session.started`; rejected when the client is closed or refused before. */
  readonly started: Promise<Record<string, any>>;
  /**
   * Send a final transcript; `lang` is the language that the recogniser heard (BCP 47), `images` are what the words are
   * about, at most three. The server takes an `id` once; by default each call has one of its own. The promise may be
   * ignored; it is rejected only for an image that cannot be read, or a fourth one: nothing is sent then.
   */
  say(text: string, options?: { lang?: string; images?: PictureSource[]; id?: string | null }): Promise<TurnResult>;
  /** Send an interim transcript while the person speaks. */
  hearing(text: string): void;
  /**
   * The person begins to speak over the speech: pause the voice if this returns true, else call `interrupt()`. The voice
   * goes on at `onResume`, unless its signal is aborted. `spokenText` or `playedMs` is the heard part.
   */
  pause(heard?: { spokenText?: string; playedMs?: number }): boolean;
  /** Barge in: stop the speech, queued speeches and the turn. `spokenText` or `playedMs` is the heard part. */
  interrupt(heard?: { spokenText?: string; playedMs?: number; reason?: string }): void;
  /** Stop the running turn, but not the speech, unless it is paused. */
  cancelResponse(): void;
  /**
   * Tell the model a fact without a turn. A fact with a `key` replaces the former one, and an empty text removes it. It ends
   * after `ttlS` seconds. `untrusted`: others have written it. It waits for a connection, and throws for a fact that the
   * server would refuse.
   */
  addContext(text: string, options?: { key?: string; ttlS?: number; untrusted?: boolean }): void;
  /** Decide a card. Throws `Error` for a question that is not open. */
  decide(approvalId: string, decision: Decision, options?: DecisionOptions): void;
  /** Use a new token of the same person, also for later connections; `session.goaway` says `token_expires`. */
  renew(token: string): void;
  /** Connect now, where the client waits before the next try. */
  reconnect(): void;
  /** Replace the declared tools, and with `handlers` their handlers. */
  declare(tools: ToolDeclaration[], handlers?: Record<string, ToolHandler>): void;
  /** Put a voice model in front of the session, from its next start on: `bridge()` of openai-live.js does. */
  attach(voice: VoiceModel | null): void;
  /** Send any event once, if there is a connection. */
  send(type: string, payload: Record<string, any>): void;
  /**
   * Close the connection and stop the handlers; resolves when the state is saved. The session goes on until the server
   * ends it, and a new client may continue it at once.
   */
  close(): Promise<void>;
}

/** Connect, and stay connected until `close()`. */
export function connect(options?: ConnectOptions): Client;

/** Keep sessions in this browser. */
export function indexedDbStorage(name?: string): SessionStorage;

/** Keep sessions as long as the process. */
export function memoryStorage(): SessionStorage;
