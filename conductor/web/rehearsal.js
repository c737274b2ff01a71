// What this tab has seen, as a file for `conductor rehearse run`: the person's words and decisions, and the tools' answers.
import { parsed } from "./dom.js";

const PAGE_CALL = /^(?:convo|tts|bridge)\./;

function decisionOf({ decision, scope, editedArguments: edit }) {
  if (decision === "deny") return "deny";
  if (decision === "edit") return { by: "tap", edit };
  return scope === "once" ? "tap" : { by: "tap", scope };
}

const OUTCOMES = { allow: "allowed", edit: "edited", deny: "denied" };

/** `tools` are the page's declarations, `frames` are {direction, event}. Gives YAML, whose lines are JSON. */
export function rehearsal(tools, frames) {
  const steps = [];
  const answers = new Map(tools.map(({ name }) => [name, []]));
  const calls = new Map();
  const expected = () => (steps.at(-1).expect ??= {});

  function take(name, given) {
    const called = (expected().called ??= []);
    const call = answers.has(name) && Object.keys(given).length ? { tool: name, arguments: given } : { tool: name };
    if (!called.some((other) => JSON.stringify(other) === JSON.stringify(call))) called.push(call);
  }

  function answer({ callId, result, error }) {
    const { name, given } = calls.get(callId) ?? {};
    if (!answers.has(name)) return;
    const fits = JSON.stringify(given);
    const known = answers.get(name).filter(({ when }) => JSON.stringify(when) !== fits);
    answers.set(name, [...known, { when: given, ...(error ? { error } : { result: parsed(result) }) }]);
  }

  const seen = {
    "out user.audio.transcript.final": ({ text }) => steps.push({ say: text }),
    "out approval.response"(response) {
      (steps.at(-1).approve ??= []).push(decisionOf(response));
      (expected().approvals ??= []).push(OUTCOMES[response.decision]);
    },
    "out tool.result": answer,
    "in tool.call"({ callId, name, arguments: text }) {
      if (PAGE_CALL.test(name)) return;
      calls.set(callId, { name, given: parsed(text) });
      take(name, parsed(text));
    },
    "in tool.activity": ({ name, status, errorType = "none" }) =>
      status !== "started" && errorType === "none" && !answers.has(name) && take(name, {}),
    "in assistant.speech.final": () => (expected().said = "\\S"),
  };
  for (const { direction, event } of frames) {
    const type = `${direction} ${event.type}`;
    if (steps.length || type === "out user.audio.transcript.final") seen[type]?.(event.payload);
  }
  const declared = tools.map((tool) => (answers.get(tool.name).length ? { ...tool, answers: answers.get(tool.name) } : tool));
  const list = (name, items) => (items.length ? [`${name}:`, ...items.map((item) => `  - ${JSON.stringify(item)}`)] : []);
  return [...list("tools", declared), ...list("steps", steps), ""].join("\n");
}
