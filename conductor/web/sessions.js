// The viewer: the stored sessions of all people, read by the HTTP API with a key of the scope `read`.
import { byId, count, el, lazyDetails, parsed } from "./dom.js";
import { replay } from "./replay.js";
import { keep, recall } from "./store.js";
import { tabs } from "./tabs.js";
import { timeline } from "./timeline.js";
import { turns } from "./turns.js";

const events = timeline();
let shown; // the session that is looked at
let listed = [];
let next; // the cursor of the next page
let listing = 0; // answers to an earlier search are dropped

async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const answer = await fetch(`/v1/${path}?${new URLSearchParams(given)}`, { headers: { Authorization: `Bearer ${recall("apiKey", "")}` } });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  const problem = error?.message ?? "This server has no HTTP API: set API_KEYS.";
  if (answer.status === 401 || answer.status === 403) askForKey(problem);
  throw new Error(problem);
}

const of = ({ person, id }, rest = "") => [`sessions/${encodeURIComponent(id)}${rest}`, { person }];

function read(number, session = shown) {
  const [path, query] = of(session, "/records");
  return get(path, { ...query, number });
}
const records = replay(read);

function askForKey(problem = "") {
  keep("apiKey", undefined);
  byId("token").value = "";
  byId("token-problem").textContent = problem;
  if (!byId("token-dialog").open) byId("token-dialog").showModal();
}

const when = (time) => time.slice(0, 19).replace("T", " ");

const some = (number, one, many = `${one}s`) => number > 0 && `${count(number)} ${number === 1 ? one : many}`;
const price = (cost) => cost.toLocaleString("en", { maximumSignificantDigits: 3 });

function row(session) {
  const facts = [
    when(session.updated),
    session.open && "open",
    some(session.messages, "message"),
    some(session.approvals, "question to decide", "questions to decide"),
    some(session.failures, "error"),
    session.cost ? `cost ${price(session.cost)}` : "no known cost",
  ];
  const lines = [facts.filter(Boolean).join(" · "), session.tools.join(", "), `${session.id} of ${session.person}`];
  const title = session.title || (session.readable ? "Nothing was said" : "This version cannot read it");
  const parts = [el("strong", { text: title }), ...lines.filter(Boolean).map((text) => el("span", { class: "quiet", text }))];
  return el("li", {}, el("button", { type: "button", "aria-pressed": "false", onclick: ({ currentTarget }) => open(session, currentTarget) }, ...parts));
}

function filters(after) {
  const value = (id) => byId(id).value.trim();
  return {
    person: value("person"),
    open: value("which"),
    since: value("since"),
    until: value("until"),
    tool: value("tool"),
    failed: byId("failed").checked ? "true" : undefined,
    limit: 50,
    after,
  };
}

/** How many sessions are listed, and what they have used. */
function sum() {
  if (!listed.length) return "No sessions";
  const total = (name) => listed.reduce((all, session) => all + session[name], 0);
  const cost = total("cost");
  const tokens = total("inputTokens") + total("outputTokens");
  return `${some(listed.length, "session")}${next ? ", and more" : ""}: ${count(tokens)} tokens, ${cost ? `cost ${price(cost)}` : "no known cost"}`;
}

async function list(after) {
  const search = (listing += 1);
  try {
    let page = await get("sessions", filters(after));
    // A page of sessions may have none that fits.
    while (search === listing && !page.sessions.length && page.next) page = await get("sessions", filters(page.next));
    if (search !== listing) return;
    if (!after) listed = [];
    listed.push(...page.sessions);
    byId("sessions").replaceChildren(...listed.map(row));
    next = page.next ?? undefined;
    byId("more").hidden = !next;
    byId("note").textContent = sum();
  } catch (error) {
    byId("note").textContent = error.message;
  }
}

const section = (title, ...parts) => el("section", { class: "source" }, el("h2", { text: title }), ...(parts.length ? parts : [el("p", { class: "quiet", text: "None" })]));

/** Say who decided about a call, and how. */
function decision({ consent, decidedBy }) {
  const by = decidedBy ? ` by ${decidedBy}` : "";
  return { given: `allowed${by}`, free: "no question was needed", held: "waits for a decision" }[consent] ?? (consent ? `${consent}${by}` : "decision not known");
}

function call(report) {
  const fact = [report.outcome, decision(report), report.ms !== null && `${report.ms} ms`].filter(Boolean).join(" · ");
  const summary = el("summary", {}, el("span", { class: "name", text: report.name }), el("span", { class: "quiet", text: fact }));
  const value = () => ({ arguments: parsed(report.arguments), result: parsed(report.result), errorType: report.errorType });
  return lazyDetails(summary, value, { class: "tool" });
}

function overview(session) {
  const facts = {
    Session: session.id,
    Person: session.person,
    Updated: when(session.updated),
    State: [session.open ? "open" : "not open", session.running && "a turn runs"].filter(Boolean).join(", "),
    Tokens: `${count(session.inputTokens)} read, ${count(session.outputTokens)} written`,
    Cost: session.cost ? price(session.cost) : "None known: the server has no prices for the model",
  };
  const terms = Object.entries(facts).flatMap(([name, text]) => [el("dt", { text: name }), el("dd", { text })]);
  const asked = session.approvals.map((card) => el("p", { text: `${card.prompt} (${card.risk} risk, until ${when(card.expiresAt)})` }));
  const history = session.history.filter(({ text }) => text).flatMap(({ role, text }) => [el("dt", { text: role }), el("dd", { text })]);
  byId("overview").replaceChildren(
    el("dl", { class: "facts" }, ...terms),
    section("Waiting for a decision", ...asked),
    section("Calls", ...session.calls.map(call)),
    section("What was said and heard", ...(history.length ? [el("dl", { class: "facts" }, ...history)] : [])),
  );
}

/** The stored records as the frames of the timeline: what was said, and each event that the client was shown. */
function frames(moments) {
  const all = turns(() => {});
  const frame = (at, direction, event) => ({ at, direction, event, turn: all.add({ at, direction, event }) });
  return moments.flatMap(({ time, name, record, events: sent }) => {
    const at = Date.parse(time);
    const said = name === "TurnStarted" && record.text ? [{ id: record.event_id, type: "user.audio.transcript.final", payload: { text: record.text } }] : [];
    return [...said.map((event) => frame(at, "out", event)), ...sent.map((event) => frame(at, "in", event))];
  });
}

async function open(session, button) {
  document.querySelector('#sessions [aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
  button.ariaPressed = "true";
  shown = session;
  events.clear();
  records.clear();
  byId("overview").replaceChildren();
  byId("inspect").hidden = false;
  try {
    const [detail, moments] = await Promise.all([get(...of(session)), read(undefined, session)]);
    if (shown !== session) return;
    overview(detail);
    frames(moments).forEach(events.add);
    if (!byId("replay").hidden) byId("read-records").click();
  } catch (error) {
    byId("note").textContent = error.message;
  }
}

byId("search").addEventListener("submit", (event) => (event.preventDefault(), list()));
byId("more").addEventListener("click", () => list(next));
byId("new-session").addEventListener("click", () => {
  askForKey();
  byId("sessions").replaceChildren();
  byId("inspect").hidden = true;
});
byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep("apiKey", byId("token").value.trim());
  byId("token-dialog").close();
  list();
});
tabs(document.querySelector('[role="tablist"]'));
if (recall("apiKey")) list();
else askForKey();
