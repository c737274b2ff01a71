"""The demo model: it needs no key and no network, and understands a short list of requests.

It is a demonstration and a test fake, not an assistant. It calls tools through the same loop as any model
does, decides from the request's messages and tools alone, and keeps nothing itself. README.md lists what
it understands; `conductor.models.demo_replies` holds the table.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage
from conductor.models.demo_replies import (
    ROLES,
    UNCLEAR,
    Intent,
    agent_id,
    answer,
    call_result,
    decoded,
    picked_repository,
    place,
    sentence,
    understand,
)
from conductor.settings import Settings

# As far as the demo counts aloud: enough to be interrupted, and an end for who does not.
MAX_COUNT = 1000

ASK_REPOSITORY = 'In which repository? Say its owner, slash, and its name, or say "pick a repository".'
ASK_TASK = "What should the agent do? Say it in one sentence, such as: start an agent to fix the login page."
_ABILITIES = {
    "get_current_time": "tell the time",
    "calculator": "work out sums",
    "agent.spawn": "start, follow and cancel agents",
    "repositories.list": "list your repositories",
    "add_task": "keep tasks",
    "read_file": "read files",
}
# How many of the user's messages back a question of the demo's may lie.
_LOOK_BACK = 4
_ONLY_IF_OFFERED = ("filter", "pull_request", "branch")


@dataclass(frozen=True, slots=True)
class DemoOutput:
    """What the demo says, and the tools it calls: (name, arguments as JSON text)."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


class DemoProvider:
    """The demo model as a provider. ``pace_s`` is the pause after each word, in seconds."""

    def __init__(
        self,
        pace_s: float = 0.02,
        *,
        name: str = "demo",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}",
    ) -> None:
        self.name = name
        self._pace_s = pace_s
        self._sleep = sleep
        self._new_id = new_id

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Say the reply word by word, then make its calls."""
        output = output_for(request)
        # Word by word, so that an interruption, partials and a barge-in can be tried without a model.
        for word in re.findall(r"\s*\S+(?:\s+\Z)?", output.text):
            yield TextDelta(word)
            await self._sleep(self._pace_s)
        for name, arguments in output.calls:
            yield ToolCall(self._new_id(), name, arguments)
        yield Finished("tool_use" if output.calls else "end_turn", _usage(request, output))

    async def start(self) -> None:
        """Get nothing ready."""

    async def aclose(self) -> None:
        """There is no connection to close."""


def from_settings(settings: Settings) -> DemoProvider:
    """Make the provider from the settings: the demo needs none."""
    return DemoProvider()


def output_for(request: ModelRequest) -> DemoOutput:
    """Decide what to say and call; the same request gets the same output."""
    state = dialogue_state(request.messages)
    if state.utterance is None:
        outputs = _report(request, state)
    elif (intents := _intents(state.utterance, state)) == (UNCLEAR,):
        outputs = [DemoOutput(f"I did not understand that. {_help(request)}")]
    else:
        outputs = [_fulfil(intent, request, state) for intent in intents]
    if state.notes:
        news = " ".join(sentence(note) for note in state.notes)
        outputs.insert(0, DemoOutput(f"Here is some news. {news}"))
    outputs = outputs or [DemoOutput(_help(request))]
    text = " ".join(dict.fromkeys(each.text for each in outputs if each.text))
    return DemoOutput(text, tuple(dict.fromkeys(call for each in outputs for call in each.calls)))


# -- the state of the dialogue: only what the request's messages say


@dataclass(frozen=True, slots=True)
class DialogueState:
    """What there is to react to: what the user said (and the notes beside it), or the results of calls.

    ``asked`` is the utterance that the results belong to; ``before`` is the history ahead of ``utterance``,
    or up to and with ``asked``.
    """

    utterance: str | None
    notes: tuple[str, ...]
    results: tuple[tuple[ToolCall, ToolResult], ...]
    asked: str
    before: Sequence[Message]


def dialogue_state(messages: Sequence[Message]) -> DialogueState:
    """Look at the end of the history."""
    start = len(messages)
    while start and isinstance(messages[start - 1], (UserMessage, Note)):
        start -= 1
    spoken = [(index, each.text) for index, each in enumerate(messages) if isinstance(each, UserMessage)]
    last, asked = spoken[-1] if spoken else (-1, "")
    # Notes ahead of an utterance are context for it; notes behind it are still to be told.
    notes = tuple(each.text for each in messages[max(start, last + 1) :] if isinstance(each, Note))
    if last >= start:
        return DialogueState(asked, notes, (), asked, messages[:last])
    calls = (
        next(_calls_with_results(messages[:start]), []) if isinstance(messages[start - 1], ToolResult) else []
    )
    return DialogueState(None, notes, tuple(calls), asked, messages[: last + 1])


def _calls_with_results(messages: Sequence[Message]) -> Iterator[list[tuple[ToolCall, ToolResult]]]:
    results: dict[str, ToolResult] = {}
    for message in reversed(messages):
        if isinstance(message, ToolResult):
            results[message.call_id] = message
        elif isinstance(message, AssistantMessage):
            yield [(call, results[call.call_id]) for call in message.calls if call.call_id in results]


def _last_utterance(before: Sequence[Message]) -> str | None:
    return next((each.text for each in reversed(before) if isinstance(each, UserMessage)), None)


def _last_reply(before: Sequence[Message]) -> str | None:
    # As far as it was heard: without the history's marks of a cut.
    mark = re.compile(r"(?:\s*\[(?:The user interrupted|Done, though) [^\]]*\])+\s*\Z")
    replies = (
        mark.sub("", each.text).strip() for each in reversed(before) if isinstance(each, AssistantMessage)
    )
    return next(filter(None, replies), None)


def _latest_agent(before: Sequence[Message]) -> str | None:
    for calls in _calls_with_results(before):
        for call, result in reversed(calls):
            if call.name == "agent.spawn" and (found := agent_id(call_result(call, result).data)):
                return found
    return None


def _waiting_agent(before: Sequence[Message]) -> Mapping[str, Any] | None:
    # Return the agent that the user asked for and whose repository is not known yet, if it waits still.
    seen = 0
    for message in reversed(before):
        if isinstance(message, AssistantMessage) and any(
            call.name == "agent.spawn" for call in message.calls
        ):
            return None
        if not isinstance(message, UserMessage):
            continue
        seen += 1
        for intent in understand(message.text):
            if intent.tool == "agent.spawn" and intent.slots and intent.slots["prompt"]:
                return None if "repository" in intent.slots else intent.slots
            if intent.kind != "unclear" and intent.tool not in ("repositories.select", "repositories.list"):
                return None
        if seen == _LOOK_BACK:
            break
    return None


def _intents(utterance: str, state: DialogueState) -> tuple[Intent, ...]:
    # Understand an utterance, also as the answer to a question that the demo asked before.
    intents = understand(utterance)
    if len(intents) != 1 or intents[0].kind not in ("repository", "unclear"):
        return intents
    asked = _last_utterance(state.before)
    if asked is not None and understand(asked)[-1].kind == "place":
        name = utterance.strip(" .?!").removeprefix("in ").removeprefix("In ")
        if found := place(name):
            return (Intent("call", "get_current_time", {"zone": found[1]}, found[0]),)
    waiting = _waiting_agent(state.before)
    if waiting is None:
        return intents
    # An answer that makes no sense leaves the agent without a repository, and so the question is asked again.
    return (Intent("call", "agent.spawn", {**waiting, **(intents[0].slots or {})}),)


# -- from intents and results to an output


def _fulfil(intent: Intent, request: ModelRequest, state: DialogueState) -> DemoOutput:
    slots = intent.slots or {}
    match intent.kind:
        case "call":
            return _call(intent, request, state)
        case "say":
            text = intent.said
        case "count":
            text = _counted(int(slots.get("first", 1)), int(slots["last"]))
        case "repeat":
            text = _last_reply(state.before) or "I have not said anything yet."
        case "recall":
            said = _last_utterance(state.before)
            text = f"You said: {said}" if said else "You have not said anything before that."
        case "place":
            known = "Name a larger city, or a zone such as Europe slash Berlin."
            text = f"I do not know the time zone of {intent.said}. {known}"
        case "repository":
            hint = "Say what an agent should do there, and the repository with it."
            text = f"You named {slots['repository']}. {hint}"
        case "help":
            text = _help(request)
        case "unclear":
            text = "I did not understand all of that."
    return DemoOutput(text)


def _call(intent: Intent, request: ModelRequest, state: DialogueState) -> DemoOutput:
    tool = _offered(request.tools, intent.tool)
    if tool is None:
        return DemoOutput(
            f"The tool {intent.tool.replace('.', ' ').replace('_', ' ')} is not available here."
        )
    if request.tool_choice == "none":
        return DemoOutput("I may not use any tools just now.")
    if intent.slots is None:
        if not isinstance(decoded(intent.said), dict):
            return DemoOutput("What follows the word with has to be a JSON object, so I called nothing.")
        return DemoOutput(calls=((tool.name, intent.said),))
    slots = dict(intent.slots)
    if intent.tool == "agent.spawn" and not slots["prompt"]:
        return DemoOutput(ASK_TASK)
    if intent.tool == "agent.spawn" and "repository" not in slots:
        return DemoOutput(ASK_REPOSITORY)
    if slots.get("agent") == "":
        latest = _latest_agent(state.before)
        if latest is None:
            return DemoOutput("Which agent? Say its name, or ask me to list your agents.")
        slots["agent"] = latest
    return DemoOutput(calls=((tool.name, _arguments(tool, slots)),))


def _report(request: ModelRequest, state: DialogueState) -> list[DemoOutput]:
    # A repository that was picked for a waiting agent starts it.
    # How the user put each call is understood once more, since nothing is kept.
    said: dict[tuple[str, str], str] = {}
    for intent in _intents(state.asked, state) if state.results and state.asked else ():
        tool = _offered(request.tools, intent.tool) if intent.kind == "call" else None
        if tool and intent.slots is not None:
            said.setdefault((tool.name, _arguments(tool, intent.slots)), intent.said)
    outputs: list[DemoOutput] = []
    for call, content in state.results:
        result = call_result(call, content, said.get((call.name, call.arguments), ""))
        outputs.append(DemoOutput(answer(result, alone=len(state.results) == 1)))
        if call.name == "repositories.select" and result.success:
            picked, waiting = picked_repository(result.data), _waiting_agent(state.before)
            if picked and waiting:
                intent = Intent("call", "agent.spawn", {**waiting, "repository": picked})
                outputs.append(_call(intent, request, state))
    return outputs


def _counted(first: int, last: int) -> str:
    if first > last or last > MAX_COUNT or last < 1:
        return f"I count upwards, and to {MAX_COUNT} at most."
    return ", ".join(str(number) for number in range(first, last + 1)) + "."


def _help(request: ModelRequest) -> str:
    able = [words for tool, words in _ABILITIES.items() if _offered(request.tools, tool)]
    listed = ", ".join([*able, "say what you tell me to", "count"])
    return (
        f"I am the demo model: a demonstration, not an assistant. I can {listed}, and repeat what was said."
    )


# -- tools


def _offered(tools: Sequence[ToolDefinition], name: str) -> ToolDefinition | None:
    # People say no dots, and write underscores for them.
    wanted = name.replace(".", "_").casefold()
    alike = [tool for tool in tools if tool.name.replace(".", "_").casefold() == wanted]
    return min(alike, key=lambda tool: tool.name != name, default=None)


def _arguments(tool: ToolDefinition, slots: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    filled: dict[str, Any] = {}
    for role, value in slots.items():
        names = ROLES[role]
        name = next((name for name in names if name in properties and name not in filled), None)
        if name is not None or role not in _ONLY_IF_OFFERED:
            name = name or names[0]
            filled[name] = _typed(role, value, properties.get(name))
    return msgspec.json.encode(filled).decode()


def _typed(role: str, value: Any, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(value, str) and value.isdecimal() and kind in ("integer", "number"):
        return int(value)
    if role == "task" and isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return f"task_{int(value)}"  # tasks are numbered task_1, task_2, …; a person says the number
    return value


def _usage(request: ModelRequest, output: DemoOutput) -> Usage:
    # Count tokens as roughly four characters each.
    read = len(request.system) + sum(len(tool.name) + len(tool.description) for tool in request.tools)
    for message in request.messages:
        read += len(message.content) if isinstance(message, ToolResult) else len(message.text)
        if isinstance(message, AssistantMessage):
            read += sum(len(call.arguments) for call in message.calls)
    written = len(output.text) + sum(len(name) + len(arguments) for name, arguments in output.calls)
    return Usage(input_tokens=1 + read // 4, output_tokens=1 + written // 4)
