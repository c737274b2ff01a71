// What the page's own tools act on, drawn: three lamps and a list of notes. Kept in this tab.
import { byId, el } from "./dom.js";
import { keep, recall } from "./store.js";

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
export const ACTIONS = {
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
};

export const clearRoom = () => change(START);

draw();
