// Cards for calls that a person decides.
import { byId, el, json } from "./dom.js";
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

  function clear() {
    for (const id of [...cards.keys()]) close(id);
  }

  function makeCard(request) {
    const countdown = el("span", { class: "countdown quiet", text: remaining(request.expiresAt) });
    const heading = el("h2", { text: request.name, id: `card-${request.approvalId}` });
    const element = el("article", { class: `card ${request.risk === "high" ? "high" : ""}`, tabindex: "-1" });
    element.setAttribute("aria-labelledby", heading.id);
    const send = (decision, options) => {
      for (const button of element.querySelectorAll("button")) button.disabled = true;
      decide(request, decision, options);
    };
    element.append(
      el("div", { class: "head" }, heading, el("span", { class: "risk", text: RISKS[request.risk] ?? request.risk }), countdown),
      argumentsOf(request),
      ...(request.preview ? [el("pre", { text: request.preview, tabindex: "0", "aria-label": "What it would do" })] : []),
      ...(request.refused ? [el("p", { class: "problem", role: "alert", text: request.refused })] : []),
      ...(request.reasons ?? []).map((reason) => el("p", { text: reason })),
    );
    element.append(choices(request, element, send));
    return { element, timer: setInterval(() => (countdown.textContent = remaining(request.expiresAt)), 1000) };
  }

  function argumentsOf(request) {
    const entries = Object.entries(request.arguments ?? {});
    if (!entries.length) return el("p", { class: "quiet", text: "Without arguments" });
    const parts = entries.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: written(value) })]);
    return el("dl", { class: "arguments", tabindex: "0", "aria-label": "Arguments" }, ...parts);
  }

  function choices(request, element, send) {
    const offered = ["once", ...["session", "always"].filter((one) => (request.scopes ?? []).includes(one))];
    const first = request.risk === "high" ? "" : "primary";
    const buttons = el(
      "div",
      { class: "buttons" },
      ...offered.map((scope) =>
        el("button", { type: "button", class: scope === "once" ? first : "", text: SCOPES[scope], onclick: () => send("allow", { scope }) }),
      ),
      el("button", { type: "button", text: "Edit", onclick: () => edit(request, buttons, send) }),
      el("button", { type: "button", class: "danger", text: "Deny", onclick: () => deny(buttons, send) }),
    );
    return buttons;
  }

  function edit(request, buttons, send) {
    const form = schemaForm(schemaOf(request.name), request.arguments ?? {});
    const run = () => {
      const edited = form.value();
      if (edited) send("edit", { arguments: edited });
    };
    const row = el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "primary", text: "Run with these", onclick: run }),
      el("button", { type: "button", text: "Back", onclick: () => restore(box, buttons) }),
    );
    const box = el("div", { class: "fields" }, form.element, row);
    buttons.replaceWith(box);
    box.querySelector("input, select, textarea, button").focus();
  }

  function deny(buttons, send) {
    const words = el("input", { "aria-label": "Why not, for the model", placeholder: "Why not? The model is told (optional)" });
    const box = el(
      "form",
      { class: "denial" },
      words,
      el("button", { class: "danger", text: "Deny" }),
      el("button", { type: "button", text: "Back", onclick: () => restore(box, buttons) }),
    );
    box.addEventListener("submit", (event) => {
      event.preventDefault();
      send("deny", { words: words.value.trim() || undefined });
    });
    buttons.replaceWith(box);
    words.focus();
  }

  function restore(box, buttons) {
    box.replaceWith(buttons);
    buttons.querySelector("button").focus();
  }

  return { show, close, clear };
}
