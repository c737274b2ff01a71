// The tools of this page: two that act on what it draws, and declarations with a scripted answer, kept in this tab.
import { ACTIONS } from "./room.js";
import { keep, recall } from "./store.js";

const object = (properties, required = Object.keys(properties)) => ({ type: "object", properties, required, additionalProperties: false });

const EXAMPLES = [
  {
    declaration: {
      name: "lamp.switch",
      description: "Switch the lamp of a room on or off.",
      inputSchema: object({ room: { type: "string", enum: ["hall", "kitchen", "office"] }, on: { type: "boolean" } }),
      annotations: { destructiveHint: false, idempotentHint: true },
    },
    answer: { delayMs: 600 },
  },
  {
    declaration: {
      name: "note.delete",
      description: "Delete a note.",
      inputSchema: object({ title: { type: "string" } }),
      annotations: { destructiveHint: true },
    },
    answer: { delayMs: 600 },
  },
];

let tools = recall("tools", EXAMPLES);

export const ownTools = {
  all: () => tools,
  find: (name) => tools.find((tool) => tool.declaration.name === name),
  put(tool) {
    tools = [...tools.filter((one) => one.declaration.name !== tool.declaration.name), tool];
    keep("tools", tools);
  },
  remove(name) {
    tools = tools.filter((tool) => tool.declaration.name !== name);
    keep("tools", tools);
  },
};

/** Act, or give the scripted answer, after its time. Throws where the call is to fail. */
export async function answer(name, given) {
  const { result, error, delayMs = 0 } = ownTools.find(name)?.answer ?? { error: "This page has no such tool." };
  await new Promise((resolve) => setTimeout(resolve, delayMs));
  if (error) throw new Error(error);
  return result ?? ACTIONS[name](given);
}

export function riskOf({ annotations = {} }) {
  if (annotations.readOnlyHint) return "read-only";
  return annotations.destructiveHint ? "cannot be undone" : "changes something";
}
