// Who answers, and what the session has used so far. Kept in this tab.
import { byId, count, el } from "./dom.js";
import { keep, recall } from "./store.js";

const DEMO = "demo";
const NOTHING = { turns: 0, read: 0, written: 0, cost: 0 };

const MAX_INSTRUCTIONS = 4_096; // bytes

/**
 * `choose(profile)` opens the session again with another of the operator's models, `instruct(text)` with other
 * instructions of the app.
 */
export function who({ choose, instruct }) {
  const profiles = byId("profile");
  let model = recall("model");
  let used = recall("used", NOTHING);

  // A price list may be in any currency.
  const cost = () => (used.cost ? used.cost.toLocaleString("en", { maximumSignificantDigits: 3 }) : "");

  function draw() {
    const demo = model === DEMO;
    const tokens = used.turns ? `${count(used.read + used.written)} tokens${used.cost ? `, cost ${cost()}` : ""}` : "";
    byId("model").textContent = demo ? "demo model" : (model ?? "Model");
    byId("usage").textContent = [demo && "use Claude", tokens].filter(Boolean).map((part) => ` · ${part}`).join("");
    byId("use-claude").hidden = !demo;
    const facts = { "Tokens read": count(used.read), "Tokens written": count(used.written), Cost: cost() || "None known: the server has no prices for this model", Session: recall("session", "") };
    byId("facts").replaceChildren(...Object.entries(facts).flatMap(([name, text]) => [el("dt", { text: name }), el("dd", { text })]));
  }

  function listed({ model: name, promptName, prompt, models = [] }) {
    keep("model", (model = name));
    byId("prompt").hidden = !prompt;
    byId("prompt-name").textContent = `System prompt: ${promptName}`;
    byId("prompt-text").textContent = prompt ?? "";
    byId("profile-choice").hidden = !models.length;
    profiles.replaceChildren(...[...new Set([name, ...models])].map((each) => el("option", { value: each, text: each, selected: each === name })));
  }

  const learned = {
    "session.started": (payload) => payload.model && keep("model", (model = payload.model)),
    "tools.listed": listed,
    "turn.metrics"({ inputTokens, outputTokens, cost: price = 0 }) {
      used = { turns: used.turns + 1, read: used.read + inputTokens, written: used.written + outputTokens, cost: used.cost + price };
      keep("used", used);
    },
  };

  function add(event) {
    event.preventDefault();
    const text = byId("instructions").value.trim();
    const long = new TextEncoder().encode(text).length > MAX_INSTRUCTIONS;
    byId("instructions-note").textContent = long ? "These are more than 4,096 bytes." : "The model reads them from the next turn on.";
    if (!long) instruct(text);
  }

  byId("instructions").value = recall("instructions", "");
  byId("instructions-form").addEventListener("submit", add);
  profiles.addEventListener("change", () => choose(profiles.value));
  draw();
  return {
    learn({ type, payload }) {
      if (!learned[type]) return;
      learned[type](payload);
      draw();
    },
    clear() {
      keep("used", (used = NOTHING));
      draw();
    },
  };
}
