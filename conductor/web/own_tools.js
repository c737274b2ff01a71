// The tools of this page: two that act on what it draws, three lamps and a list of notes, and declarations with a
// scripted answer. Kept in this tab.
import { picture } from "./conductor.js";
import { byId, el } from "./dom.js";
import { keep, recall } from "./store.js";

const object = (properties, required = Object.keys(properties)) => ({ type: "object", properties, required, additionalProperties: false });

const EXAMPLES = [
  {
    declaration: {
      name: "lamp.switch",
      description: "Switch the lamp of a room on or off.",
      inputSchema: object({ room: { type: "string", enum: ["hall", "kitchen", "office"] }, on: { type: "boolean" } }),
      annotations: { destructiveHint: false, idempotentHint: true },
      _meta: { conductor: { spoken: "switch the lamp in the {room}" } },
    },
    answer: { delayMs: 600 },
  },
  {
    declaration: {
      name: "note.delete",
      description: "Delete a note.",
      inputSchema: object({ title: { type: "string" } }),
      annotations: { destructiveHint: true },
      _meta: { conductor: { spoken: "delete the note {title}" } },
    },
    answer: { delayMs: 600 },
  },
  {
    declaration: {
      name: "camera.look",
      title: "Look through the camera",
      description: "Take a picture with the camera of this device, and look at it.",
      inputSchema: object({}),
      annotations: { readOnlyHint: true },
      _meta: { conductor: { approval: "ask", spoken: "look through the camera", interactive: true } },
    },
    answer: {},
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

const START = { lamps: { hall: false, kitchen: false, office: false }, notes: ["Milk", "Call Anna", "Book the train"] };

let room = recall("room", START);

function draw() {
  for (const lamp of byId("lamps").children) {
    const on = room.lamps[lamp.dataset.room];
    lamp.classList.toggle("on", on);
    lamp.querySelector(".hidden").textContent = on ? "is on" : "is off";
  }
  byId("notes").replaceChildren(...room.notes.map((title) => el("li", { text: title })));
}

function change(next) {
  room = { ...room, ...next };
  keep("room", room);
  draw();
}

/** What each tool does: takes its arguments, and returns its result or throws. */
const ACTIONS = {
  "lamp.switch"({ room: name, on }) {
    if (!(name in room.lamps)) throw new Error(`There is no lamp in the room ${name}.`);
    change({ lamps: { ...room.lamps, [name]: on } });
    return `The lamp in the ${name} is ${on ? "on" : "off"}.`;
  },
  "note.delete"({ title }) {
    const note = room.notes.find((other) => other.toLowerCase() === title.trim().toLowerCase());
    if (!note) throw new Error(`There is no note ${title}.`);
    change({ notes: room.notes.filter((other) => other !== note) });
    return `The note ${note} is deleted.`;
  },
  async "camera.look"() {
    const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true, srcObject: stream });
    try {
      await video.play();
      return { result: "A picture from the camera.", images: [await picture(video)] };
    } finally {
      for (const track of stream.getTracks()) track.stop();
    }
  },
};

export const clearRoom = () => change(START);

draw();
