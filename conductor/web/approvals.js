// Cards for calls that a person decides.
import { titled } from "./calls.js";
import { button, byId, el, json } from "./dom.js";
import { schemaForm } from "./schema_form.js";

const RISKS = { high: "High risk", medium: "Medium risk", safe: "Safe" };
const SCOPES = { once: "Allow once", session: "For this session", always: "Always" };

const written = (value) => (typeof value === "string" ? value : json(value));

function remaining(expiresAt) {
  const seconds = Math.max(0, Math.round((Date.parse(expiresAt) - Date.now()) / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} left`;
}

/** Shows cards; `decide(request, decision, options)` sends, `schemaOf(name)` finds a schema or undefined. */
export function approvals({ decide, schemaOf, changed }) {
  const cards = new Map();
  const place = byId("approvals");
  let away = false;

  function show(request) {
    // The same question comes again after a reconnect, or because the server refused an edit of it.
    if (cards.has(request.approvalId) && !request.refused) return;
    close(request.approvalId);
    const card = makeCard(request);
    cards.set(request.approvalId, card);
    place.append(card.element);
    // One who types is not interrupted: the focus moves only from where nothing is written.
    if (!byId("words").value) card.element.focus();
    changed(cards.size);
  }

  function close(approvalId) {
    const card = cards.get(approvalId);
    if (!card) return;
    clearInterval(card.timer);
    const held = card.element.contains(document.activeElement);
    card.element.remove();
    cards.delete(approvalId);
    if (held) byId("words").focus();
    changed(cards.size);
  }

  function makeCard(request) {
    const countdown = el("span", { class: "countdown quiet", text: remaining(request.expiresAt) });
    const heading = el("h2", { text: request.title || titled(request.name), id: `card-${request.approvalId}` });
    const element = el("article", { class: `card ${request.risk === "high" ? "high" : ""}`, tabindex: "-1" });
    element.setAttribute("aria-labelledby", heading.id);
    const answered = el("p", { class: "quiet", role: "status" });
    const send = (decision, options) => {
      for (const choice of element.querySelectorAll("button")) choice.disabled = true;
      element.setAttribute("data-answered", "");
      decide(request, decision, options);
      wait();
    };
    element.append(
      el("div", { class: "head" }, heading, el("code", { text: request.name }), el("span", { class: "risk", text: RISKS[request.risk] ?? request.risk }), countdown),
      argumentsOf(request),
      ...(request.preview ? [el("pre", { text: request.preview, tabindex: "0", "aria-label": "What it would do" })] : []),
      ...(request.refused ? [el("p", { class: "problem", role: "alert", text: request.refused })] : []),
      ...(request.reasons ?? []).map((reason) => el("p", { text: reason })),
      choices(request, send),
      answered,
    );
    return { element, answered, timer: setInterval(() => (countdown.textContent = remaining(request.expiresAt)), 1000) };
  }

  /** Answered cards say what becomes of the answer while the server is away. */
  function wait(now = away) {
    away = now;
    for (const { element, answered } of cards.values()) {
      answered.textContent = away && "answered" in element.dataset ? "Your answer will be sent when the server is back." : "";
    }
  }

  function argumentsOf(request) {
    const entries = Object.entries(request.arguments ?? {});
    if (!entries.length) return el("p", { class: "quiet", text: "Without arguments" });
    const parts = entries.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: written(value) })]);
    return el("dl", { class: "arguments", tabindex: "0", "aria-label": "Arguments" }, ...parts);
  }

  function choices(request, send) {
    const high = request.risk === "high";
    const offered = ["once", "session", "always"].filter((scope) => scope === "once" || request.scopes?.includes(scope));
    const label = (scope) => (high && scope === "always" ? "Always, these arguments only" : SCOPES[scope]);
    const allow = (scope) => button(label(scope), () => send("allow", { scope }), scope === "once" && !high ? "primary" : "");
    const words = el("input", { "aria-label": "Why not, for the model", placeholder: "Why not? (optional)", autocomplete: "off" });
    const denial = el("form", { class: "denial" }, el("button", { class: "danger", text: "Deny" }), words);
    denial.addEventListener("submit", (event) => {
      event.preventDefault();
      send("deny", { words: words.value.trim() || undefined });
    });
    const buttons = el("div", { class: "buttons" }, ...offered.map(allow), button("Edit", () => edit(request, box, send)));
    const box = el("div", { class: "fields" }, buttons, denial);
    return box;
  }

  function edit(request, before, send) {
    const form = schemaForm(schemaOf(request.name), request.arguments ?? {});
    const run = () => {
      const edited = form.value();
      if (edited) send("edit", { arguments: edited });
    };
    const back = () => (box.replaceWith(before), before.querySelector("button").focus());
    const buttons = el("div", { class: "buttons" }, button("Run with these", run, "primary"), button("Back", back));
    const box = el("div", { class: "fields" }, form.element, buttons);
    before.replaceWith(box);
    box.querySelector("input, select, textarea, button").focus();
  }

  return { show, close, wait, clear: () => [...cards.keys()].forEach(close) };
}
