// The server cannot be reached: what comes of what one says, and a button that tries at once.
import { byId } from "./dom.js";

const PATIENCE_MS = 1_000; // most interruptions are shorter

/** `changed(away)` hears of it; gives a function that takes the state of the connection. */
export function away({ tryNow, changed }) {
  const bar = byId("away");
  let timer;

  function show(shown) {
    bar.hidden = !shown;
    changed(shown);
  }

  byId("try-now").addEventListener("click", tryNow);
  return (connection) => {
    if (connection === "connecting") return void (timer ??= setTimeout(show, PATIENCE_MS, true));
    clearTimeout(timer);
    timer = undefined;
    return show(false);
  };
}
