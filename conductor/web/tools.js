// The tools that this session knows: the page's own, and those of others as they show on the wire.
import { byId, el, json } from "./dom.js";
import { ownTools, riskOf } from "./own_tools.js";

const SOURCES = { device: "This page (device)", builtin: "The server's own" };

/** `changed()` is called when the declarations are others; `tryOut(text)` puts words into the composer. */
export function toolList({ changed, tryOut }) {
  const seen = new Map(); // others' tools: name -> {source, calls, last, risk}
  let accepted = null;
  let rejected = [];

  function status(name) {
    const refused = rejected.find((one) => one.name === name);
    if (refused) return `refused: ${refused.reason}`;
    return accepted?.includes(name) ? "offered to the model" : "not declared yet";
  }

  function ownTool({ declaration, answer }) {
    const { name, description, inputSchema } = declaration;
    const say = `call ${name} with ${JSON.stringify(example(inputSchema))}`;
    const row = el(
      "div",
      { class: "bar" },
      el("button", { type: "button", text: "Try it", onclick: () => tryOut(say) }),
      ...(answer.error ?? answer.result ? [el("button", { type: "button", text: "Change", onclick: () => fill(declaration, answer) })] : []),
      el("button", { type: "button", text: "Remove", onclick: () => (ownTools.remove(name), changed(), draw()) }),
    );
    const scripted = answer.error ? `Fails: ${answer.error}` : `Answers ${answer.result}`;
    const answered = answer.error ?? answer.result ? scripted : "Acts on what this page draws";
    return el(
      "details",
      { class: "tool" },
      heading(name, riskOf(declaration), status(name)),
      el("p", { text: description ?? "" }),
      el("p", { class: "quiet", text: `${answered}, after ${answer.delayMs ?? 0} ms` }),
      el("pre", { text: json(inputSchema), tabindex: "0" }),
      row,
    );
  }

  const heading = (name, ...facts) =>
    el("summary", {}, el("span", { class: "name", text: name }), el("span", { class: "quiet", text: facts.filter(Boolean).join(" · ") }));

  function otherTool([name, { calls, last, risk }]) {
    const facts = heading(name, risk && `${risk} risk`, `${calls} ${calls === 1 ? "call" : "calls"}`);
    return el("details", { class: "tool" }, facts, el("p", { text: last }));
  }

  function source(title, ...tools) {
    return el("section", { class: "source" }, el("h2", { text: title }), ...tools);
  }

  function draw() {
    const own = ownTools.all().map(ownTool);
    const bySource = new Map();
    for (const entry of seen) {
      if (ownTools.find(entry[0])) continue;
      const title = SOURCES[entry[1].source] ?? entry[1].source;
      bySource.set(title, [...(bySource.get(title) ?? []), otherTool(entry)]);
    }
    const none = el("p", { class: "quiet", text: "Other tools are listed once they were called: the protocol does not list them." });
    byId("tool-list").replaceChildren(
      source(SOURCES.device, ...own),
      ...[...bySource].map(([title, tools]) => source(title, ...tools)),
      none,
    );
  }

  /** Learn of a tool from an event of the server. */
  function learn({ type, payload }) {
    if (type === "session.started" || type === "tools.changed") {
      accepted = payload.acceptedTools ?? accepted;
      rejected = payload.rejectedTools ?? [];
      return draw();
    }
    if (type !== "tool.activity" && type !== "approval.request") return undefined;
    const known = seen.get(payload.name) ?? { source: "device", calls: 0, last: "", risk: "" };
    if (type === "approval.request") known.risk = payload.risk;
    else if (payload.status === "finished") Object.assign(known, { source: payload.source, calls: known.calls + 1, last: payload.display ?? "" });
    else known.source = payload.source;
    seen.set(payload.name, known);
    return draw();
  }

  const { element, fill } = declarationForm((tool) => {
    ownTools.put(tool);
    changed();
    draw();
  });
  byId("declaration").replaceWith(element);
  draw();
  return { learn, clear: () => (seen.clear(), (accepted = null), draw()) };
}

function example({ properties = {} }) {
  const value = ({ type, enum: choices }) => choices?.[0] ?? { string: "…", boolean: true, integer: 1, number: 1, array: [], object: {} }[type] ?? null;
  return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, value(schema)]));
}

const HINTS = { write: { destructiveHint: false }, read: { readOnlyHint: true }, irreversible: { destructiveHint: true } };

function declarationForm(declared) {
  const field = (name, label, made) => el("label", {}, el("span", { text: label }), Object.assign(made, { name }));
  const name = el("input", { required: true, pattern: "[A-Za-z0-9_.:\\/\\-]{1,128}", placeholder: "door.open", autocomplete: "off" });
  const description = el("input", { placeholder: "What it does, and when to use it", autocomplete: "off" });
  const schema = el("textarea", { rows: "4" });
  const risk = el(
    "select",
    {},
    el("option", { value: "write", text: "changes something: it is asked about" }),
    el("option", { value: "read", text: "only reads" }),
    el("option", { value: "irreversible", text: "cannot be undone: asked about, high risk" }),
  );
  const result = el("textarea", { rows: "2" });
  const delay = el("input", { type: "number", min: "0", max: "600000", value: "300" });
  const fails = el("input", { type: "checkbox" });
  const problem = el("p", { class: "problem", role: "alert" });
  schema.value = '{"type":"object","properties":{"door":{"type":"string"}},"required":["door"]}';
  result.value = '{"door":"open"}';

  const form = el(
    "form",
    { id: "declaration" },
    field("name", "Name", name),
    field("description", "Description, for the model", description),
    field("schema", "Schema of its arguments (JSON Schema)", schema),
    field("risk", "It", risk),
    field("result", "Its answer, each time", result),
    el("label", {}, fails, el("span", { text: "The answer is an error" })),
    field("delay", "It takes, in milliseconds", delay),
    problem,
    el("button", { class: "primary", text: "Declare" }),
  );

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const declaration = { name: name.value, description: description.value, inputSchema: JSON.parse(schema.value), annotations: HINTS[risk.value] };
      declared({ declaration, answer: { [fails.checked ? "error" : "result"]: result.value, delayMs: Number(delay.value) } });
    } catch {
      problem.textContent = "The schema is not JSON.";
    }
  });

  function fill(declaration, answer) {
    name.value = declaration.name;
    description.value = declaration.description ?? "";
    schema.value = json(declaration.inputSchema);
    risk.value = { "read-only": "read", "cannot be undone": "irreversible" }[riskOf(declaration)] ?? "write";
    result.value = answer.error ?? answer.result ?? "";
    fails.checked = Boolean(answer.error);
    delay.value = answer.delayMs ?? 0;
    byId("declare").open = true;
    name.focus();
  }

  return { element: form, fill };
}
