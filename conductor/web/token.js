// The server's token: from the address (as the QR code of --lan has it), or asked for once; kept in this tab.
import { byId } from "./dom.js";
import { keep, recall } from "./store.js";

/** Take `#token=…` out of the address, so that it is not in the history or on the screen. */
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname);
    keep("token", given);
  }
}

/** Ask the server what it thinks of a token. The browser gives no reason to the WebSocket itself. */
export async function refused(token) {
  try {
    const answer = await fetch("/ws", { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    return answer.status === 401;
  } catch {
    return false; // away: connecting will tell
  }
}

function asked(problem) {
  byId("token-problem").textContent = problem;
  const dialog = byId("token-dialog");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      resolve(byId("token").value.trim());
    };
  });
}

/** Give the token to connect with, or undefined where none is needed. */
export async function token() {
  fromAddress();
  const { token: needed } = await (await fetch("/page.json")).json();
  if (!needed) return undefined;
  byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
  let known = recall("token", "");
  let problem = "";
  while (!known || (await refused(known))) {
    if (known) problem = "The server does not know this token.";
    known = await asked(problem);
  }
  keep("token", known);
  byId("token-dialog").close();
  return known;
}
