"""The demo model: it needs no key and no network, and calls tools by a table of sentences and by their words.

It is a demonstration and a test fake, not an assistant.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import available_timezones

import msgspec

from conductor.messages import AssistantMessage, Image, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage
from conductor.plugins.models.demo_words import example_of, match_words, spaced

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

# The demo counts aloud up to this number, matches this much of a sentence, and says this much of a result.
MAX_COUNT, MAX_CHARS, MAX_SPOKEN, MAX_ITEMS = 1000, 2000, 300, 5


class DemoOutput(NamedTuple):
    """The reply's text, and its calls: (name, arguments as JSON text)."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


# -- values of arguments; None if the words are no such value

_SUM_WORDS = (
    (r"^.*?\b(?:what(?:'s|\u2019s| is)|how much is|calculate|compute)\s+", ""),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"\bplus\b", " + "),
    (r"\bminus\b", " - "),
    (r"\btimes\b", " * "),
    (r"\bdivided by\b", " / "),
    (r"\b(?:the )?square root of (\d+(?:\.\d+)?)", r"sqrt(\1)"),
    (r" ?\bper ?cent\b", "%"),
)


def _sum(text: str) -> str | None:
    for words, symbol in _SUM_WORDS:
        text = re.sub(words, symbol, text, flags=re.I)
    text = " ".join(text.strip(" ?.=,!").split())
    is_sum = re.fullmatch(r"(?:[\d.+*/%() -]|sqrt\(|of\b)*", text)
    return text if is_sum and re.search(r"[\d)]%? *(?:[-+*/%]|of )[-*/+ (]*[\d.s]|sqrt\(", text) else None


def _zone(text: str) -> str | None:
    end = "/" + text.casefold().replace(" ", "_")
    return next((zone for zone in _zones() if f"/{zone}".casefold().endswith(end)), None)


def _minutes(text: str) -> float:
    number, unit = text.casefold().split()
    return (1 if number[0] == "a" else float(number)) * {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}[unit[0]]


_text = operator.methodcaller("strip", "\"'\u201c\u201d")
_zones = cache(available_timezones)
_READERS: Mapping[str, Callable[[str], Any]] = {
    "expression": _sum,
    "timezone": _zone,
    "in_minutes": _minutes,
    "count": int,
    "on": lambda text: text.casefold() == "on",
    **dict.fromkeys(("room", "id", "status"), lambda text: text.casefold().replace(" ", "_")),
    "repository": lambda text: re.sub(r"(?i) slash ", "/", text),
}
"""By argument; of others the quotes are removed."""

_LAMP = r"(?:lamp|light)s?"
_LAMP_OF = rf"(?:{_LAMP}(?: in the (?P<room>.+))?|(?P<room2>.+) {_LAMP})"
_WAIT = r"(?P<in_minutes>(?:\d{1,6}(?:\.\d{1,6})?|an?) (?:second|minute|hour|day))s?"
_AGENT = r"(?:start|launch|spawn) (?:an?|another) (?:new |coding )?agent"
_REPOSITORY = r"(?:in|on|for) (?:the repository )?(?P<repository>\S+(?:/| slash )\S+)"
_LIST = r"(?:list|show)(?: me)?(?: my| the| all)?"
_AGENT_ID = r"(?:the )?agent (?P<id>\S+)"
ROWS: Sequence[tuple[str, str]] = (
    ("agent.spawn", rf"{_AGENT} to (?P<prompt>.+) {_REPOSITORY}"),
    ("agent.spawn", rf"{_AGENT} {_REPOSITORY} (?:to|and) (?P<prompt>.+)"),
    ("repositories.list", rf"{_LIST} repositories|(?:what|which) repositories .+"),
    ("repositories.select", r"(?:let me )?(?:choose|pick|select) a repository"),
    ("agent.list", rf"{_LIST} (?:coding )?agents|(?:what|which) agents .+"),
    ("agent.status", rf"(?:how is|what is|look up) (?:the status of )?{_AGENT_ID}(?: doing)?"),
    ("agent.followup", rf"tell {_AGENT_ID} to (?P<prompt>.+)"),
    ("agent.cancel", rf"(?:stop|cancel) {_AGENT_ID}"),
    ("calculator", r"(?P<expression>.+)"),
    ("get_current_time", r"what (?:time|day|date) is it(?: (?:in|at) (?P<timezone>.+))?"),
    ("lamp.switch", rf"(?:switch|turn) (?P<on>on|off) the {_LAMP_OF}"),
    ("lamp.switch", rf"(?:switch|turn) the {_LAMP_OF} (?P<on>on|off)"),
    ("camera.look", r"(?:what|who) (?:do|can) you see(?: now)?|what is (?:this|that)|(?:have|take) a look"),
    ("lamp.list", rf"(?:which|what) {_LAMP} are on"),
    ("photos.delete", r"delete (?:my )?(?P<count>\d{1,6}) (?:newest )?photos of (?:album )?(?P<album>.+)"),
    ("note.delete", r"(?:delete|remove) the note (?P<title>.+)"),
    ("add_task", r"add a task (?:to |called )?(?P<title>.+)"),
    ("list_tasks", r"(?:list|show)(?: me)? my tasks"),
    ("update_task", r"(?:mark|set) (?P<id>task[_ ]\d+) as (?P<status>pending|in progress|completed)"),
    ("schedule_task", rf"remind me in {_WAIT} (?:to |of )?(?P<text>.+)"),
    ("list_scheduled_tasks", r"(?:list|show)(?: me)? my reminders"),
    ("cancel_scheduled_task", r"cancel (?:the |my )?reminder (?P<id>\S+)"),
    ("read_file", r"read(?: me)? the file (?P<path>\S+)"),
    ("create_file", r"create a file (?P<path>\S+) (?:saying|with the text)[: ]+(?P<content>.+)"),
)  # fmt: skip
"""The tool, and a sentence that calls it; a group is the argument of its name."""
EXAMPLES: Mapping[str, str] = {
    "agent.spawn": "start an agent to fix the tests in acme/website",
    "repositories.list": "list my repositories",
    "lamp.switch": "switch on the lamp in the hall",
    "note.delete": "delete the note Milk",
    "calculator": "what is 17% of 2,340",
    "get_current_time": "what time is it in Tokyo",
    "schedule_task": "remind me in 10 minutes to stretch",
    "list_tasks": "list my tasks",
    "agent.list": "list my agents",
}
"""Sentences that the demo proposes, the best ones first."""
# Sentences that need no tool.
_OWN_EXAMPLES = ("count to 5", "say good morning", "what did I say")


def _tool_output(clause: str, request: ModelRequest) -> DemoOutput | None:
    text = re.sub(r"(?i),? please\Z", "", _POLITE.sub("", clause).strip(" \t\n.,!?"))
    text = re.sub(r"(?i)\A(what|how|who|where)['\u2019]s\b", r"\1 is", text)
    names = {tool.name for tool in request.tools}
    for name, pattern in ROWS:
        if name in names and (match := re.fullmatch(f"(?is){pattern}", text)):
            groups = [(group.removesuffix("2"), words) for group, words in match.groupdict().items() if words]
            arguments = {group: _READERS.get(group, _text)(words) for group, words in groups}
            if None not in arguments.values():
                return _call_output(name, arguments, request)
    if call := match_words(text, _tools_without_row(request)):
        return _call_output(*call, request)
    return None


def _tools_without_row(request: ModelRequest) -> list[ToolDefinition]:
    """List the tools that have no row."""
    rows = {name for name, _ in ROWS}
    return [tool for tool in request.tools if tool.name not in rows]


# -- from an utterance to calls and words


def _call(match: re.Match[str], request: ModelRequest) -> DemoOutput:
    text = (match["arguments"] or "").strip()
    arguments = _decoded(text[: text.rfind("}") + 1] or text or "{}")
    if not isinstance(arguments, dict):
        return DemoOutput("The arguments after the word with must be a JSON object. I called no tool.")
    name = spaced(match["tool"].rstrip("."))  # a person may say an underscore for a dot
    tools = [tool.name for tool in request.tools if spaced(tool.name).casefold() == name.casefold()]
    unknown = DemoOutput(f"The tool {name} is not available here.")
    return _call_output(tools[0], arguments, request) if tools else unknown


def _call_output(name: str, arguments: Mapping[str, Any], request: ModelRequest) -> DemoOutput:
    if request.tool_choice == "none":
        return DemoOutput("I may not use any tools just now.")
    return DemoOutput(calls=((name, msgspec.json.encode(arguments).decode()),))


def _recall(_: re.Match[str], request: ModelRequest) -> DemoOutput:
    texts = [message.text for message in request.messages if isinstance(message, UserMessage)][:-1]
    return DemoOutput(f"You said: {texts[-1]}" if texts else "You have not said anything before that.")


def _count(match: re.Match[str], _: ModelRequest) -> DemoOutput:
    if not 1 <= int(match["last"]) <= MAX_COUNT:
        return DemoOutput(f"I count upwards, and to {MAX_COUNT} at most.")
    return DemoOutput(", ".join(map(str, range(1, int(match["last"]) + 1))) + ".")


# Sentences without a tool. The first match is taken, before any tool.
SENTENCES: Sequence[tuple[str, Callable[[re.Match[str], ModelRequest], DemoOutput]]] = (
    (r"(?:repeat after me|say)\b[:,]?\s+(?P<text>\S.*)", lambda match, _: DemoOutput(match["text"])),
    (r"call\s+(?:the\s+)?(?:tool\s+)?(?P<tool>[\w.-]+)(?:\s+with\b\s*(?P<arguments>.*)|[.!?\s]*)$", _call),
    (r"what did i (?:just )?say[.!?\s]*$", _recall),
    (r"count\s+(?:up\s+)?to\s+(?P<last>\d{1,9})[.!?\s]*$", _count),
)
_POLITE = re.compile(
    r"(?i)\A\s*(?:(?:please|hey|hi|hello|ok|okay|so|and|then|(?:can|could|would) you)\b[\s,.!:]*){1,6}"
)
_CUT = re.compile(r"(?i)[;?!.,]*\s+(?:and|then|also)\s+|[;?!]+\s*|\.\s+")


def understand(text: str, request: ModelRequest) -> list[DemoOutput]:
    """Read the requests of an utterance: all of it, or of each of its clauses if every clause has one."""
    if output := _sentence(text, request):
        return [output]
    clauses = [clause for clause in _CUT.split(text[:MAX_CHARS], maxsplit=8) if clause.strip()]
    outputs = [output for clause in clauses if (output := _tool_output(clause, request))]
    if clauses and len(outputs) == len(clauses):
        return outputs
    return [_tool_output(text[:MAX_CHARS], request) or DemoOutput(_help(request))]


def _sentence(text: str, request: ModelRequest) -> DemoOutput | None:
    matches = (
        (re.match(f"(?is){pattern}", _POLITE.sub("", text).strip()), read) for pattern, read in SENTENCES
    )
    return next((read(match, request) for match, read in matches if match), None)


def _help(request: ModelRequest) -> str:
    names = {tool.name for tool in request.tools}
    known = [example for name, example in EXAMPLES.items() if name in names]
    own = filter(None, map(example_of, reversed(_tools_without_row(request))))  # a client's tools come last
    examples = [*own, *known, *_OWN_EXAMPLES]
    first, second, third = [f"\u201c{example}\u201d" for example in examples[:3]]
    return f"I'm the demo model and glad to help: try {first}, {second} or {third}."


# -- from results to words

_REMINDER = re.compile(r"(?s)\AThe user asked to be reminded on .*? of this: (.*?)(\n.*)?\Z")
_MAY_HAVE_HAPPENED = "I don't know whether that happened. It may have, so I am not trying again."
_FAILURES = {
    "permission_denied": "All right, I left it.",
    "approval_timeout": "I had no clear yes from you, so I left it.",
}


def _report(messages: Sequence[Message]) -> list[DemoOutput]:
    results = {message.call_id: message for message in messages if isinstance(message, ToolResult)}
    calls = [message.calls for message in messages if isinstance(message, AssistantMessage)][-1:]
    return [
        DemoOutput(_answer(call, results[call.call_id])) for call in sum(calls, ()) if call.call_id in results
    ]


def _answer(call: ToolCall, result: ToolResult) -> str:
    """Put a result into words: a tool outcome as JSON, or other text, which is data or an error's message."""
    outcome = _decoded(result.content)
    if not isinstance(outcome, dict) or not isinstance(outcome.get("success"), bool):
        outcome = {"success": not result.is_error, "data": outcome, "error_message": result.content}
    name = spaced(call.name).capitalize()
    if not outcome["success"]:
        kind = str(outcome.get("error_type", "internal_error"))
        message = str(outcome.get("error_message") or "")
        if "Do not repeat it" in message:  # nobody knows, or a part was done
            return _MAY_HAVE_HAPPENED
        if kind == "unknown":
            return f"{name} did not answer in time."
        return _FAILURES[kind] if kind in _FAILURES else f"{name} did not work: {_ended(message or kind)}"
    if result.images:
        return _unseen(result.images)
    data = outcome.get("data")
    data = _decoded(data) if isinstance(data, str) else data
    match data, _decoded(call.arguments):
        case {"result": value}, {"expression": expression}:
            return f"{expression} is {value}."
        case {"time": str(time), "weekday": day, "time_zone": str(zone)}, _:
            place = zone.rpartition("/")[2].replace("_", " ")
            return f"It is {time[11:16]} on {day} in {place}."
        case str(), _ if re.fullmatch(r"[A-Z].*[.!?]", data.strip(), re.S):  # already a sentence
            return _ended(data)
    return f"{name} answered: {_ended(_in_words(data))}"


def _unseen(images: Sequence[Image]) -> str:
    """Say that there is an image which the demo does not see, or why one was refused."""
    if refused := next((image.refused for image in images if image.refused), None):
        return f"I got no picture. {refused}"
    first = images[0]
    size = f"{first.width} by {first.height} pixels, {max(1, round(first.size / 1_024))} kilobytes"
    what = f"a picture ({size})" if len(images) == 1 else f"{len(images)} pictures, the first of {size}"
    return f"I got {what}, but I am a demo and cannot see it. A model that sees can."


def _in_words(value: Any, depth: int = 4) -> str:
    match value:
        case None | "":
            return "done"
        case bool():
            return "yes" if value else "no"
        case list() | dict() if not depth:
            return "more"
        case list():
            return _joined([_in_words(item, depth - 1) for item in value[: MAX_ITEMS + 1]]) or "none"
        case {"name": str(label)} | {"title": str(label)} if label and depth < 4:
            return label
        case dict():
            parts = [(key, part) for key, part in value.items() if part is not None][:MAX_ITEMS]
            return (
                _joined([f"{spaced(key).lower()} is {_in_words(part, depth - 1)}" for key, part in parts])
                or "done"
            )
    return " ".join(str(value).split())


def _joined(words: Sequence[str]) -> str:
    words = [*words[:MAX_ITEMS], "more"] if len(words) > MAX_ITEMS else words
    return ", ".join([*words[:-2], " and ".join(words[-2:])])


def _ended(text: str) -> str:
    text = " ".join(text.split())
    if len(text) > MAX_SPOKEN:
        text = f"{text[:MAX_SPOKEN].rpartition(' ')[0]}, and there is more"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _decoded(text: str) -> Any:
    """Read JSON, or leave the text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


# -- the provider


PACE_S = 0.02


class DemoProvider:
    """The demo model as a provider. ``pace_s`` is the pause after each word, in seconds."""

    name = "demo"

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply's words, then its calls."""
        output = output_for(request)
        for word in re.findall(r"\s*\S+(?:\s+\Z)?", output.text):
            yield TextDelta(word)
            await asyncio.sleep(self._pace_s)
        for name, arguments in output.calls:
            yield ToolCall(f"call_{uuid.uuid4().hex}", name, arguments)
        usage = Usage(1 + len(repr(request)) // 4, 1 + len(repr(output)) // 4)  # a token is four characters
        yield Finished("tool_use" if output.calls else "end_turn", usage)

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def from_profile(profile: ModelProfile, settings: Settings) -> DemoProvider:
    """Make the provider; it has no settings."""
    return DemoProvider(PACE_S)


def output_for(request: ModelRequest) -> DemoOutput:
    """Return the output of a request; the same request gives the same output."""
    notes = itertools.takewhile(lambda message: isinstance(message, Note), reversed(request.messages))
    outputs = [
        DemoOutput(_ended(_REMINDER.sub(r"You asked me to remind you: \1", note.text)))
        for note in notes
        if isinstance(note, Note)
    ]
    if outputs:
        outputs = [DemoOutput("Here is some news."), *reversed(outputs)]
    elif request.messages and isinstance(last := request.messages[-1], UserMessage):
        outputs = [DemoOutput(_unseen(last.images))] if last.images else understand(last.text, request)
    outputs = outputs or _report(request.messages) or [DemoOutput(_help(request))]
    text = " ".join(dict.fromkeys(output.text for output in outputs if output.text))
    return DemoOutput(text, tuple(dict.fromkeys(call for output in outputs for call in output.calls)))
