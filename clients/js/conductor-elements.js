// Elements for a page of one's own: a transcript, a card for a decision, and a microphone button. They need no
// framework. Their styles are in the cascade layer `conductor`: any rule of the page goes before.

const STYLES = `@layer conductor {
  conductor-transcript { display: flex; flex-direction: column; gap: 8px; padding-block: 8px; overflow-y: auto; }
  conductor-transcript .message { max-width: 88%; white-space: pre-wrap; overflow-wrap: anywhere; }
  conductor-transcript .user { align-self: flex-end; padding: 6px 12px; border-radius: 14px; background: color-mix(in srgb, currentcolor 10%, transparent); }
  conductor-transcript .cut::after { content: " (interrupted)"; opacity: .75; }
  conductor-card { display: grid; gap: 10px; margin-block: 12px; padding: 12px 14px; border: 1px solid; border-radius: 12px; }
  conductor-card .fields { display: grid; gap: 8px; }
  conductor-card > :empty { position: absolute; }
  conductor-card .risk { font-weight: 600; }
  conductor-card .countdown { margin-left: auto; }
  :is(conductor-card, conductor-microphone) button { padding: 5px 12px; border: 1px solid; border-radius: 10px; background: none; color: inherit; font: inherit; cursor: pointer; }
  conductor-microphone [aria-pressed="true"] { background: color-mix(in srgb, currentcolor 18%, transparent); }
  conductor-card input { flex: 1; min-width: 0; padding: 5px 8px; font: inherit; }
  conductor-card h2 { margin: 0; font-size: 1em; }
  conductor-card .head, conductor-card .buttons, conductor-card .denial { display: flex; flex-wrap: wrap; gap: 8px; align-items: baseline; }
  conductor-card .arguments { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0; overflow-wrap: anywhere; }
  conductor-card :is(p, dd) { margin: 0; }
  conductor-microphone { display: contents; }
  ::highlight(conductor-spoken) { background-color: color-mix(in srgb, currentcolor 14%, transparent); }
}`;
const styles = new CSSStyleSheet();
styles.replaceSync(STYLES);
document.adoptedStyleSheets.push(styles);

// Control characters, and those that turn the direction of text around or are invisible tags.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

/** The text with what could disguise it written out, cut after `most` characters. */
export function plain(text, most = 20_000) {
  const shown = String(text).slice(0, most);
  const rest = String(text).length - shown.length;
  const code = (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return shown.replace(UNSEEN, code) + (rest > 0 ? ` … ${rest.toLocaleString("en")} more characters` : "");
}

/** Make an element: `text`, `class`, listeners as `onclick`, all else as attributes. Text is only ever text. */
export function el(tag, { text, class: names, ...rest } = {}, ...children) {
  const made = document.createElement(tag);
  if (names) made.className = names;
  if (text !== undefined) made.textContent = plain(text);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const button = (text, onclick, names) => el("button", { type: "button", text, onclick, class: names });

/** Write a value as JSON for people; a string stays as it is. */
export const written = (value) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "null"));

/** A tool's name as words. */
export function titled(name) {
  const words = name.replace(/[._]/g, " ").replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** `<conductor-transcript>`: what was said, and the reply while it grows. Child elements stay below the messages. */
export class ConductorTranscript extends HTMLElement {
  #tail = null; // the children that were there first
  #growing = null; // the bubble of the reply that is being written
  #stopped = false; // what still comes of a reply that the person stopped is not drawn
  #pending = null; // what the person said and the server has not yet taken
  #lit = null; // the speech whose words are lit, and where its last word ends
  #atEnd = true;
  #height = 0;
  #watch = new ResizeObserver(() => {
    // Cards and the keyboard of a phone take room: the last sentence stays in sight.
    this.#height = this.clientHeight;
    if (this.#atEnd) this.scrollTo(0, this.scrollHeight);
  });

  connectedCallback() {
    this.#tail ??= this.firstElementChild;
    if (!this.hasAttribute("role")) this.setAttribute("role", "log");
    if (!this.hasAttribute("tabindex")) this.tabIndex = 0; // it scrolls by the keyboard, too
    this.addEventListener("scroll", this.#scrolled);
    this.#watch.observe(this);
  }

  disconnectedCallback() {
    this.removeEventListener("scroll", this.#scrolled);
    this.#watch.disconnect();
  }

  #scrolled = () => {
    // What takes room is no scrolling of the person's.
    if (this.clientHeight === this.#height) this.#atEnd = this.scrollHeight - this.scrollTop - this.#height < 120;
  };

  /** Put an element below what was said. */
  add(element) {
    this.insertBefore(element, this.#tail);
    if (this.#atEnd) this.scrollTo(0, this.scrollHeight);
    return element;
  }

  #bubble(role, text) {
    return this.add(el("div", { class: `message ${role}`, text }));
  }

  /** The reply so far: for `onPartial` and `onFinal`. */
  partial(text) {
    if (this.#stopped) return;
    this.#growing ??= this.add(el("div", { class: "message assistant partial", "aria-hidden": "true" }));
    this.#growing.textContent = plain(text);
    this.#relight();
    this.scrollTop = this.scrollHeight;
  }

  /** A whole message, as it is recorded: it takes the place of what was drawn of it. */
  message(role, text) {
    if (role === "user") {
      this.#pending?.remove();
      this.#pending = null;
    } else {
      this.#growing?.remove();
      this.#growing = null;
    }
    this.#bubble(role, text);
    this.#relight();
  }

  /** What the person has said, before the server has it; `note` is written below. */
  said(text, note) {
    this.#pending?.classList.remove("partial");
    this.#pending = this.#bubble("user", text);
    if (note) this.#pending.append(el("small", { text: note }));
    this.scrollTop = this.scrollHeight;
  }

  /** What the person has said is half a sentence, and `hearing` follows. */
  unfinished() {
    this.#pending?.classList.add("partial");
  }

  /** What is heard so far of what the person is saying; nothing: it was no speech, or `said` follows. */
  hearing(text) {
    const isPartial = this.#pending?.classList.contains("partial");
    if (!text) {
      if (!isPartial) return;
      this.#pending.remove();
      this.#pending = null;
      return;
    }
    if (!isPartial) this.#pending = this.#bubble("user partial", "");
    this.#pending.textContent = plain(text);
    this.scrollTop = this.scrollHeight;
  }

  /** The reply was interrupted: what came of it stays, and says so. Nothing more of it is drawn until `goOn`. */
  stop() {
    this.goOn();
    this.#stopped = true;
  }

  /** A turn begins or has ended: no more comes of a reply that had no final. */
  goOn() {
    this.#growing?.classList.replace("partial", "cut");
    this.#growing?.removeAttribute("aria-hidden");
    this.#growing = null;
    this.#stopped = false;
  }

  /** Light the words of the last reply up to `end` in a speech of it; without a speech, none. */
  light(speech, end) {
    this.#lit = speech ? { speech, end } : null;
    this.#relight();
  }

  #relight() {
    const highlights = globalThis.CSS?.highlights;
    const words = this.querySelector(".message.assistant:not(:has(~ .message))")?.firstChild;
    const start = this.#lit && words ? words.data.lastIndexOf(this.#lit.speech) : -1;
    if (start < 0) return void highlights?.delete("conductor-spoken");
    const range = document.createRange();
    range.setStart(words, 0);
    range.setEnd(words, start + Math.min(this.#lit.end, this.#lit.speech.length));
    highlights?.set("conductor-spoken", new Highlight(range));
  }

  get isWaiting() {
    return this.#pending !== null;
  }

  clear() {
    this.#growing = this.#pending = this.#lit = null;
    this.#stopped = false;
    while (this.firstElementChild !== this.#tail) this.firstElementChild.remove();
  }
}

const RISKS = { high: "High risk", medium: "Medium risk", safe: "Safe" };
const SCOPES = { once: "Allow once", session: "For this session", always: "Always" };

function remaining(expiresAt) {
  const seconds = Math.max(0, Math.round((Date.parse(expiresAt) - Date.now()) / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} left`;
}

/**
 * `<conductor-card>`: asks about a call. Set `request`, as `onApproval` gets it, and listen to `decide`, whose `detail`
 * has the `decision` and its options, as `client.decide` takes them. `form(request)` gives the fields to edit the arguments
 * with, as `{ element, value() }`: without it, there is no Edit. Its classes are `card` and the risk.
 */
export class ConductorCard extends HTMLElement {
  form = null;
  #request = null;
  #timer;
  #countdown = el("span", { class: "countdown quiet" });
  #note = el("p", { class: "quiet", role: "status" });

  connectedCallback() {
    this.#timer = setInterval(() => this.#request && this.#tick(), 1_000);
    if (this.#request && !this.firstChild) this.#draw();
  }

  disconnectedCallback() {
    clearInterval(this.#timer);
  }

  get request() {
    return this.#request;
  }

  set request(request) {
    this.#request = request;
    if (this.isConnected) this.#draw();
  }

  /** A sentence below the buttons, such as what becomes of the answer. */
  set note(text) {
    this.#note.textContent = text;
  }

  get isAnswered() {
    return this.hasAttribute("data-answered");
  }

  #tick() {
    this.#countdown.textContent = remaining(this.#request?.expiresAt);
  }

  #draw() {
    const { approvalId, name, title, risk, preview, refused, reasons = [] } = this.#request;
    const id = `card-${approvalId}`;
    const heading = el("h2", { text: title || titled(name), id });
    const danger = el("span", { class: "risk", text: RISKS[risk] ?? risk, id: `${id}-risk` });
    const why = reasons.map((reason, index) => el("p", { text: reason, id: `${id}-${index}` }));
    this.className = `card ${risk}`;
    this.tabIndex = -1;
    this.role = "alertdialog"; // is announced, and takes nothing of the page away
    this.setAttribute("aria-labelledby", id);
    this.setAttribute("aria-describedby", [danger, ...why].map((part) => part.id).join(" "));
    this.removeAttribute("data-answered");
    this.#tick();
    this.replaceChildren(
      el("div", { class: "head" }, heading, el("code", { text: name }), danger, this.#countdown),
      this.#arguments(),
      ...(preview ? [el("pre", { text: preview, tabindex: "0", "aria-label": "What it would do" })] : []),
      ...(refused ? [el("p", { class: "problem", role: "alert", text: refused })] : []),
      ...why,
      this.#choices(),
      this.#note,
    );
  }

  #arguments() {
    const entries = Object.entries(this.#request.arguments ?? {});
    if (!entries.length) return el("p", { class: "quiet", text: "Without arguments" });
    const parts = entries.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: written(value) })]);
    return el("dl", { class: "arguments", tabindex: "0", "aria-label": "Arguments" }, ...parts);
  }

  #decide(decision, options = {}) {
    for (const choice of this.querySelectorAll("button")) choice.disabled = true;
    this.setAttribute("data-answered", "");
    this.dispatchEvent(new CustomEvent("decide", { detail: { decision, ...options } }));
  }

  #choices() {
    const high = this.#request.risk === "high";
    const offered = ["once", "session", "always"].filter((scope) => scope === "once" || this.#request.scopes?.includes(scope));
    const label = (scope) => (high && scope === "always" ? "Always, these arguments only" : SCOPES[scope]);
    const allow = (scope) => button(label(scope), () => this.#decide("allow", { scope }), scope === "once" && !high ? "primary" : "");
    const words = el("input", { "aria-label": "Why not, for the model", placeholder: "Why not? (optional)", autocomplete: "off" });
    const denial = el("form", { class: "denial" }, el("button", { class: "danger", text: "Deny" }), words);
    denial.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#decide("deny", { words: words.value.trim() || undefined });
    });
    const edit = this.form ? [button("Edit", ({ target }) => this.#edit(box, target))] : [];
    const box = el("div", { class: "fields" }, el("div", { class: "buttons" }, ...offered.map(allow), ...edit), denial);
    return box;
  }

  #edit(before, pressed) {
    const form = this.form(this.#request);
    const run = () => {
      const edited = form.value();
      if (edited) this.#decide("edit", { arguments: edited });
    };
    const back = () => (box.replaceWith(before), pressed.focus());
    const buttons = el("div", { class: "buttons" }, button("Run with these", run, "primary"), button("Back", back));
    const box = el("div", { class: "fields" }, form.element, buttons);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // the page has another use for it
      back();
    });
    before.replaceWith(box);
    box.querySelector("input, select, textarea, button").focus();
  }
}

/** For `onApproval`: show a card in `place` until the question is settled, and give the person's decision. */
export function ask(request, { signal, place = document.body }) {
  return new Promise((resolve) => {
    const card = document.createElement("conductor-card");
    card.request = request;
    card.addEventListener("decide", ({ detail }) => resolve(detail));
    signal.addEventListener("abort", () => (card.remove(), resolve()));
    place.append(card);
    card.focus();
  });
}

const Recognition = globalThis.SpeechRecognition ?? globalThis.webkitSpeechRecognition;
const HOLD_MS = 350;
const INSECURE = "Over plain HTTP a browser gives no microphone. Type instead, or use HTTPS.";
const DEAF = "This browser has no speech recognition. Type instead.";
// By the code of the browser's error.
const REFUSALS = {
  "not-allowed": "The browser does not let this page use the microphone. Allow it beside the address, or type.",
  "service-not-allowed": "This browser gives pages no speech recognition. Type, or use Chrome, Edge or Safari.",
  "audio-capture": "The browser finds no microphone. Connect one, or type.",
  network: "The browser's speech service cannot be reached. Try again, or type.",
  "language-not-supported": "The browser's speech service does not know this browser's language. Type instead.",
};

/**
 * `<conductor-microphone>`: a button that is held (push to talk), or tapped (hands-free), and the browser's recognition of
 * speech. Its own `<button>` is used where it has one. Events: `press` (prevented: the press has interrupted something),
 * `listening`, `hearing` and `said` with the text as `detail`, `silent`, `problem` with a sentence.
 */
export class ConductorMicrophone extends HTMLElement {
  /** Why there is no recognition in this browser, or an empty text. */
  static problem = globalThis.isSecureContext ? (Recognition ? "" : DEAF) : INSECURE;
  /** Gives the track of a microphone to listen to, or undefined for the browser's default. */
  track = async () => undefined;
  #button;
  #recognition = null;
  #handsFree = false;
  #downAt = 0; // 0: nobody holds the button
  #interrupted = false; // by this press
  #phrases = []; // what was heard since the button is held

  connectedCallback() {
    if (this.#button) return;
    this.#button = this.querySelector("button") ?? this.appendChild(button("Talk"));
    this.#button.ariaPressed = "false";
    this.#listen();
  }

  disconnectedCallback() {
    this.stop();
  }

  #tell(type, detail) {
    return this.dispatchEvent(new CustomEvent(type, { detail, cancelable: type === "press" }));
  }

  #listen() {
    const own = this.#button;
    own.addEventListener("pointerdown", (event) => event.button === 0 && this.#down());
    for (const name of ["pointerup", "pointercancel", "blur"]) own.addEventListener(name, () => this.#up());
    own.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
    own.addEventListener("keydown", (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      if (!event.repeat) this.#down();
    });
    own.addEventListener("keyup", (event) => {
      event.preventDefault();
      this.#up();
    });
    // Screen readers and voice control click without a pointer.
    own.addEventListener("click", (event) => event.detail === 0 && !event.pointerType && (this.#down(), this.#up()));
  }

  #down() {
    if (ConductorMicrophone.problem) return void this.#tell("problem", ConductorMicrophone.problem);
    this.#downAt = Date.now();
    this.#interrupted = !this.#tell("press");
    if (!this.#handsFree) this.#start();
  }

  #up() {
    if (!this.#downAt) return;
    const held = this.#phrases.length > 0 || Date.now() - this.#downAt > HOLD_MS;
    this.#downAt = 0;
    if (this.#handsFree ? !this.#interrupted : held) this.stop();
    else this.#handsFree = true;
  }

  async #start() {
    if (this.#recognition) return;
    const mine = (this.#recognition = new Recognition());
    Object.assign(mine, { lang: this.lang || navigator.language, continuous: true, interimResults: true });
    mine.addEventListener("result", (event) => this.#hear(event));
    mine.addEventListener("error", ({ error }) => this.#failed(error));
    mine.addEventListener("end", () => this.#ended());
    const track = await this.track();
    if (this.#recognition !== mine) return;
    mine.start(...(track ? [track] : []));
    this.#button.ariaPressed = "true";
    this.#tell("listening");
  }

  #hear({ resultIndex, results }) {
    for (let index = resultIndex; index < results.length; index += 1) {
      const text = results[index][0].transcript.trim();
      if (!text) continue;
      const { isFinal } = results[index];
      if (this.#handsFree) this.#tell(isFinal ? "said" : "hearing", text);
      else this.#tell("hearing", [...this.#phrases, text].join(" "));
      if (isFinal && !this.#handsFree) this.#phrases.push(text);
    }
  }

  #failed(error) {
    if (error === "no-speech" || error === "aborted") return;
    this.#handsFree = false;
    this.#tell("problem", REFUSALS[error] ?? `The microphone does not work (${error}). Type instead.`);
  }

  #ended() {
    this.#recognition = null;
    // What was said while the button was held is one utterance.
    const text = this.#phrases.splice(0).join(" ");
    if (text) this.#tell("said", text);
    if (this.#handsFree) return void this.#start(); // browsers end it after a silence
    this.#button.ariaPressed = "false";
    this.#tell("silent");
  }

  stop() {
    this.#handsFree = false;
    this.#recognition?.stop();
  }
}

customElements.define("conductor-transcript", ConductorTranscript);
customElements.define("conductor-card", ConductorCard);
customElements.define("conductor-microphone", ConductorMicrophone);
