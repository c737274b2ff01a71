// Cards for calls that a person decides.
import { byId } from "./dom.js";
import { schemaForm } from "./schema_form.js";

/** Shows cards; `decide(request, decision, options)` sends, `schemaOf(name)` finds a schema or undefined. */
export function approvals({ decide, schemaOf, changed }) {
  const cards = new Map();
  const place = byId("approvals");
  let away = false;

  function show(request) {
    // The same question comes again after a reconnect, or because the server refused an edit of it.
    if (cards.has(request.approvalId) && !request.refused) return;
    close(request.approvalId);
    const card = document.createElement("conductor-card");
    card.form = ({ name, arguments: given }) => schemaForm(schemaOf(name), given ?? {});
    card.request = request;
    card.addEventListener("decide", ({ detail: { decision, ...options } }) => {
      decide(request, decision, options);
      wait();
    });
    cards.set(request.approvalId, card);
    place.append(card);
    // One who types is not interrupted: the focus moves only from where nothing is written.
    if (!byId("words").value) card.focus();
    changed(cards.size);
  }

  function close(approvalId) {
    const card = cards.get(approvalId);
    if (!card) return;
    const held = card.contains(document.activeElement);
    card.remove();
    cards.delete(approvalId);
    if (held) byId("words").focus();
    changed(cards.size);
  }

  /** Answered cards say what becomes of the answer while the server is away. */
  function wait(now = away) {
    away = now;
    for (const card of cards.values()) card.note = away && card.isAnswered ? "Your answer will be sent when the server is back." : "";
  }

  return { show, close, wait, clear: () => [...cards.keys()].forEach(close) };
}
