// A connection that ended for good: why, and what to do.
import { button, byId, el } from "./dom.js";

const PARTS = ["stage", "composer", "approvals", "welcome"];
const AGAIN = ["Use it here", "again"];
const NEW = ["New session", "renew"];
const ENDINGS = {
  4409: ["This session is open in another tab", "One tab at a time talks in a session.", AGAIN, NEW],
  unauthorized: ["The server does not accept this tab's token", "It may have been replaced or removed.", ["Enter a token", "identify"]],
  unsupported_protocol_version: ["The server speaks another version of the protocol", "It may have been updated since this page was opened.", ["Reload", "reload"]],
  session_mismatch: ["The server refused this session", "Its id belongs to another connection.", NEW],
};

/** `actions` has `again`, `renew`, `identify` and `reload`. */
export function ending(actions) {
  const place = byId("ending");

  function off(now) {
    for (const part of PARTS) byId(part).inert = now;
  }

  return {
    show({ code, reason }) {
      const other = ["The connection has ended", `${reason || "The server gave no reason"} (${code}).`, AGAIN, NEW];
      const [title, why, ...choices] = ENDINGS[reason] ?? ENDINGS[code] ?? other;
      off(true);
      place.replaceChildren(
        el("h2", { text: title }),
        el("p", { class: "quiet", text: why }),
        el("div", { class: "buttons" }, ...choices.map(([text, action], index) => button(text, actions[action], index ? "" : "primary"))),
      );
      place.hidden = false;
      place.querySelector("button").focus();
    },
    hide() {
      off(false);
      place.hidden = true;
    },
  };
}
