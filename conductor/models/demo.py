"""The demo model: it needs no key and no network, and understands a short list of requests.

It is a demonstration and a test fake, not an assistant. It calls tools through the same loop as any model
does, decides from the request's messages and tools alone, and keeps nothing itself.

==========================================  ========================================================
what is said                                what it does
==========================================  ========================================================
"what time is it (in Tokyo, Paris …)"       get_current_time, one call a place; also "what day is it"
"what is 17% of 2340", "3 + 4 * (2 - 1)"    calculator; also "square root of", "squared", number words
two of these in one sentence                both calls in one reply
"start an agent to … (in owner/repo)"       agent.spawn; asks for the repository if none was named
"owner/repo", "pick a repository"           answers that question; repositories.select, then agent.spawn
"status of agent X", "how is the agent"     agent.status; without a name, of the agent started last
"tell agent X to …", "cancel agent X"       agent.followup, agent.cancel
"list my agents", "list my repositories"    agent.list, repositories.list
"add a task to …", "list my tasks",         add_task, list_tasks, update_task
"task 2 is done", "start task 2"
"read the file X", "list the files",        read_file, get_file_tree, create_file
"create a file X saying …"
"call TOOL with {json}"                     that tool, with those arguments
"say …"                                     says exactly that
"count to N"                                counts, up to 1000
"repeat", "what did I say"                  says its last reply, or the user's last words, again
"help", anything else                       names what it can do
==========================================  ========================================================
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, Usage
from conductor.models.demo_agents import Wish
from conductor.models.demo_answers import answer, narrated, outcome_of
from conductor.models.demo_history import (
    Now,
    asked_for_place,
    last_reply,
    last_utterance,
    latest_agent,
    now,
    waiting_agent,
)
from conductor.models.demo_places import place
from conductor.models.demo_requests import UNCLEAR, understand
from conductor.models.demo_tools import arguments, offered
from conductor.models.demo_values import picked_repository
from conductor.settings import Settings

MAX_COUNT = 1000

ASK_REPOSITORY = 'In which repository? Say its owner, slash, and its name, or say "pick a repository".'
ASK_TASK = "What should the agent do? Say it in one sentence, such as: start an agent to fix the login page."
_ABILITIES = (
    ("get_current_time", "tell the time"),
    ("calculator", "work out sums"),
    ("agent.spawn", "start, follow and cancel agents"),
    ("repositories.list", "list your repositories"),
    ("add_task", "keep tasks"),
    ("read_file", "read files"),
)
_WORD = re.compile(r"\s*\S+(?:\s+\Z)?")


@dataclass(frozen=True, slots=True)
class Reply:
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
        reply = reply_to(request)
        for word in _WORD.findall(reply.text):
            yield TextDelta(word)
            await self._sleep(self._pace_s)
        for name, given in reply.calls:
            yield ToolCall(self._new_id(), name, given)
        yield Finished("tool_use" if reply.calls else "end_turn", _usage(request, reply))

    async def start(self) -> None:
        """Get nothing ready."""

    async def aclose(self) -> None:
        """Let go of nothing: there is no connection."""


def reply_to(request: ModelRequest) -> Reply:
    """Decide what to say and call; the same request gets the same reply."""
    moment = now(request.messages)
    if moment.utterance is not None:
        wishes = _wishes(moment.utterance, moment)
        replies = [_fulfil(wish, request, moment) for wish in wishes]
        if wishes == (UNCLEAR,):
            replies = [Reply(f"I did not understand that. {_help(request)}")]
    elif moment.results:
        replies = _report(request, moment)
    else:
        replies = []
    if moment.notes:
        replies.insert(0, Reply(narrated(moment.notes)))
    if not replies:
        replies = [Reply(_help(request))]
    text = " ".join(dict.fromkeys(reply.text for reply in replies if reply.text))
    return Reply(text, tuple(dict.fromkeys(call for reply in replies for call in reply.calls)))


def _wishes(utterance: str, moment: Now) -> tuple[Wish, ...]:
    """Understand an utterance, also as the answer to a question that the demo asked before."""
    wishes = understand(utterance)
    if len(wishes) != 1 or wishes[0].kind not in ("repository", "unclear"):
        return wishes
    name = utterance.strip(" .?!").removeprefix("in ").removeprefix("In ")
    if asked_for_place(moment.before) and (found := place(name)):
        return (Wish("call", "get_current_time", {"zone": found[1]}, found[0]),)
    waiting = waiting_agent(moment.before)
    if waiting is None or waiting.values is None:
        return wishes
    # An answer that makes no sense leaves the wish without a repository, and so the question is asked again.
    return (Wish("call", "agent.spawn", {**waiting.values, **(wishes[0].values or {})}),)


def _fulfil(wish: Wish, request: ModelRequest, moment: Now) -> Reply:
    match wish.kind:
        case "call":
            return _call(wish, request, moment)
        case "say":
            return Reply(wish.said)
        case "count":
            return Reply(_counted(wish.values or {}))
        case "repeat":
            return Reply(last_reply(moment.before) or "I have not said anything yet.")
        case "recall":
            said = last_utterance(moment.before)
            return Reply(f"You said: {said}" if said else "You have not said anything before that.")
        case "place":
            known = "Name a larger city, or a zone such as Europe slash Berlin."
            return Reply(f"I do not know the time zone of {wish.said}. {known}")
        case "repository":
            named = (wish.values or {})["repository"]
            return Reply(f"You named {named}. Say what an agent should do there, and the repository with it.")
        case "help":
            return Reply(_help(request))
        case "unclear":
            return Reply("I did not understand all of that.")


def _call(wish: Wish, request: ModelRequest, moment: Now) -> Reply:
    values = dict(wish.values or {})
    tool = offered(request.tools, wish.tool)
    if tool is None:
        return Reply(f"The tool {wish.tool.replace('.', ' ').replace('_', ' ')} is not available here.")
    if request.tool_choice == "none":
        return Reply("I may not use any tools just now.")
    if wish.values is None:
        return _call_as_written(tool.name, wish.said)
    if wish.tool == "agent.spawn" and not values["prompt"]:
        return Reply(ASK_TASK)
    if wish.tool == "agent.spawn" and "repository" not in values:
        return Reply(ASK_REPOSITORY)
    if values.get("agent") == "":
        latest = latest_agent(moment.before)
        if latest is None:
            return Reply("Which agent? Say its name, or ask me to list your agents.")
        values["agent"] = latest
    return Reply(calls=((tool.name, _json(arguments(tool, values))),))


def _call_as_written(name: str, text: str) -> Reply:
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return Reply("What follows the word with has to be a JSON object, so I called nothing.")
    return Reply(calls=((name, text),))


def _report(request: ModelRequest, moment: Now) -> list[Reply]:
    """Put results into words; a repository that was picked for a waiting agent starts it."""
    replies: list[Reply] = []
    labels = _labels(request, moment)
    for call, result in moment.results:
        said = labels.get((call.name, call.arguments), "")
        words = answer(call, result, said=said, alone=len(moment.results) == 1)
        replies.append(Reply(words))
        outcome = outcome_of(result)
        if call.name != "repositories.select" or not outcome.success:
            continue
        picked, waiting = picked_repository(outcome.data), waiting_agent(moment.before)
        if picked and waiting:
            wish = Wish("call", "agent.spawn", {**(waiting.values or {}), "repository": picked})
            replies.append(_call(wish, request, moment))
    return replies


def _labels(request: ModelRequest, moment: Now) -> Mapping[tuple[str, str], str]:
    """Return how the user put each call: the utterance is understood once more, since nothing is kept."""
    labels: dict[tuple[str, str], str] = {}
    for wish in _wishes(moment.asked, moment) if moment.asked else ():
        tool = offered(request.tools, wish.tool) if wish.kind == "call" and wish.values is not None else None
        if tool and wish.values is not None:
            labels.setdefault((tool.name, _json(arguments(tool, wish.values))), wish.said)
    return labels


def _counted(values: Mapping[str, Any]) -> str:
    first, last = values["first"], values["last"]
    if first > last or last > MAX_COUNT or last < 1:
        return f"I count upwards, and to {MAX_COUNT} at most."
    return ", ".join(str(number) for number in range(first, last + 1)) + "."


def _help(request: ModelRequest) -> str:
    able = [words for tool, words in _ABILITIES if offered(request.tools, tool)]
    listed = ", ".join([*able, "say what you tell me to", "count"])
    return (
        f"I am the demo model: a demonstration, not an assistant. I can {listed}, and repeat what was said."
    )


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _usage(request: ModelRequest, reply: Reply) -> Usage:
    """Count tokens as roughly four characters each."""
    read = len(request.system) + sum(len(tool.name) + len(tool.description) for tool in request.tools)
    for message in request.messages:
        if isinstance(message, ToolResult):
            read += len(message.content)
        else:
            read += len(message.text)
            if isinstance(message, AssistantMessage):
                read += sum(len(call.arguments) for call in message.calls)
    written = len(reply.text) + sum(len(name) + len(given) for name, given in reply.calls)
    return Usage(input_tokens=1 + read // 4, output_tokens=1 + written // 4)


def from_settings(settings: Settings) -> DemoProvider:
    """Make the provider from the settings: the demo needs none."""
    return DemoProvider()
