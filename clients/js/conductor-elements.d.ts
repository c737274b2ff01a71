import type { Approval, Arguments, Decision, DecisionOptions } from "./conductor.js";

/** `<conductor-transcript>`: what was said, and the reply while it grows. Child elements stay below the messages. */
export class ConductorTranscript extends HTMLElement {
  /** Put an element below what was said. */
  add<T extends Element>(element: T): T;
  /** The reply so far. */
  partial(text: string): void;
  /** A whole message. It takes the place of what was drawn of it. */
  message(role: "user" | "assistant", text: string): void;
  /** What the person has said, before the server has it. `note` is written below. */
  said(text: string, note?: string): void;
  /** What is heard so far. An empty text removes it. */
  hearing(text: string): void;
  /** The words said last are half a sentence: `hearing` follows. */
  unfinished(): void;
  /** The reply was interrupted. Nothing more of it is drawn until `goOn`. */
  stop(): void;
  /** A turn begins or has ended. */
  goOn(): void;
  /** Light the words of the last reply up to `end` in a `speech` of it. Without a speech, none. */
  light(speech?: string, end?: number): void;
  /** Something was said that no `message` has confirmed. */
  readonly isWaiting: boolean;
  clear(): void;
}

/** The fields of a form. `value` gives null where a field is wrong. */
export interface ArgumentsForm {
  element: Element;
  value(): Arguments | null;
}

/** `<conductor-card>`: a question about a call. Its event `decide` has a `CardDecision` as `detail`. */
export class ConductorCard extends HTMLElement {
  request: Approval | null;
  /** Set before `request`: makes the fields to edit the arguments with. Without it there is no Edit. */
  form: ((request: Approval) => ArgumentsForm) | null;
  /** A sentence below the buttons. */
  set note(text: string);
  readonly isAnswered: boolean;
}

export interface CardDecision extends DecisionOptions {
  decision: Decision;
}

/** For `onApproval`: show a card in `place`, by default the body, until the question is settled. */
export function ask(request: Approval, run: { signal: AbortSignal; place?: Element }): Promise<CardDecision | undefined>;

/**
 * `<conductor-microphone>`: a button to hold or tap, with the browser's recognition of speech. Its language is the attribute
 * `lang`, or the browser's. Events: `press` (prevent it where the press has interrupted something), `listening`, `hearing`
 * and `said` with the text as `detail`, `silent`, `problem` with a sentence as `detail`.
 */
export class ConductorMicrophone extends HTMLElement {
  /** Why this browser has no recognition, or an empty text. */
  static readonly problem: string;
  /** Gives the track to listen to, or undefined for the browser's default. */
  track: () => Promise<MediaStreamTrack | undefined>;
  stop(): void;
}
