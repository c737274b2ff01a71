// The tools of this session: all of them where the server lists them, else the page's own.
import { button, byId, el, json } from "./dom.js";
import { ownTools, riskOf } from "./own_tools.js";
import { schemaForm } from "./schema_form.js";

const SOURCES = { device: "This page", builtin: "The server's own" };
const DECISIONS = { allow: "runs at once", ask: "a person is asked", deny: "denied", disabled: "not offered to the model" };
const RISKS = { safe: "safe", medium: "medium risk", high: "high risk" };
const HINTS = {
  "changes something": { destructiveHint: false },
  "read-only": { readOnlyHint: true },
  "cannot be undone": { destructiveHint: true },
};
const FORM = {
  required: ["name", "schema"],
  properties: {
    name: { type: "string", title: "Name", default: "door.open" },
    description: { type: "string", title: "Description, for the model", default: "" },
    schema: {
      type: "object",
      title: "Schema of its arguments (JSON Schema)",
      default: { type: "object", properties: { door: { type: "string" } }, required: ["door"] },
    },
    risk: { enum: Object.keys(HINTS), title: "It" },
    result: { type: "string", title: "Its answer, each time", default: '{"door":"open"}' },
    fails: { type: "boolean", title: "The answer is an error", default: false },
    delayMs: { type: "integer", title: "It takes, in milliseconds", minimum: 0, maximum: 600_000, default: 300 },
  },
};

/** `changed()` is called when the declarations are others; `tryOut(text)` puts words into the composer. */
export function toolList({ changed, tryOut }) {
  let listed = [];
  let accepted = [];
  let rejected = [];

  function status({ name }) {
    const refusal = rejected.find((tool) => tool.name === name);
    if (refusal) return `refused: ${refusal.reason}`;
    return accepted.includes(name) ? "offered to the model" : "not declared yet";
  }

  function row({ name, risk, decision, reason, inputSchema }) {
    const own = ownTools.find(name);
    const facts = [own && riskOf(own.declaration), RISKS[risk] ?? risk, DECISIONS[decision] ?? decision, own && status(own.declaration)];
    return el(
      "details",
      { class: "tool" },
      el("summary", {}, el("span", { class: "name", text: name }), el("span", { class: "quiet", text: facts.filter(Boolean).join(" · ") })),
      el("p", { text: [own?.declaration.description, reason].filter(Boolean).join(" ") }),
      el("pre", { text: json(inputSchema), tabindex: "0" }),
      ...(own ? [controls(own)] : []),
    );
  }

  function controls(tool) {
    const { name, inputSchema } = tool.declaration;
    const scripted = tool.answer.error ?? tool.answer.result;
    return el(
      "div",
      { class: "bar" },
      button("Try it", () => tryOut(`call ${name} with ${JSON.stringify(example(inputSchema))}`)),
      button("Remove", () => (ownTools.remove(name), changed(), draw())),
      el("span", { class: "quiet", text: scripted ? `Answers ${scripted}` : "Acts on what this page draws" }),
    );
  }

  function draw() {
    const own = ownTools.all().map(({ declaration }) => ({ ...declaration, source: "device" }));
    const missing = own.filter(({ name }) => !listed.some((tool) => tool.source === "device" && tool.name === name));
    const bySource = Map.groupBy([...missing, ...listed], ({ source }) => source);
    const sources = [...bySource].map(([source, tools]) =>
      el("section", { class: "source" }, el("h2", { text: SOURCES[source] ?? source }), ...tools.map(row)),
    );
    const note = listed.length ? "The decision is that for a call without arguments." : "This server does not list its own tools to clients.";
    byId("tool-list").replaceChildren(...sources, el("p", { class: "quiet", text: note }));
  }

  function learn({ type, payload }) {
    if (type === "tools.listed") listed = payload.tools;
    else if (type === "session.started" || type === "tools.changed") {
      accepted = payload.acceptedTools ?? accepted;
      rejected = payload.rejectedTools ?? [];
    } else return;
    draw();
  }

  const form = schemaForm(FORM, Object.fromEntries(Object.entries(FORM.properties).map(([name, field]) => [name, field.default])));
  const element = el("form", { id: "declaration" }, form.element, el("button", { class: "primary", text: "Declare" }));
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    const value = form.value();
    if (!value) return;
    const { name, description, schema: inputSchema, risk, result, fails, delayMs } = value;
    const answer = { [fails ? "error" : "result"]: result, delayMs };
    ownTools.put({ declaration: { name, description, inputSchema, annotations: HINTS[risk] }, answer });
    changed();
    draw();
  });
  byId("declaration").replaceWith(element);
  draw();
  return {
    learn,
    schemaOf: (name) => (listed.find((tool) => tool.name === name) ?? ownTools.find(name)?.declaration)?.inputSchema,
    clear: () => ((listed = []), (accepted = []), draw()),
  };
}

function example({ properties = {} }) {
  const value = ({ type, enum: choices }) => choices?.[0] ?? { string: "…", boolean: true, integer: 1, number: 1, array: [], object: {} }[type] ?? null;
  return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, value(schema)]));
}
