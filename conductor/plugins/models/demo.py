"""The demo model: it needs no key and no network, and matches patterns in English.

It is a demonstration and a test fake, not an assistant. `INTENTS` is the table of its patterns.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage
from conductor.plugins.models import demo_words as words

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

# The demo counts aloud up to this number.
MAX_COUNT = 1000
# Characters of a transcript that are matched, so that a long one stays cheap.
_MAX_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Intent:
    """A request: call ``tool`` with ``arguments``, or, without a tool, say ``text``.

    The argument ``id`` of an agent's tool is empty for the agent that was started last.
    """

    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The end of the history: the user's last words and the notes after them, or the results of calls.

    ``before`` is the history before the user's last words.
    """

    utterance: str | None
    notes: tuple[str, ...]
    results: tuple[tuple[ToolCall, ToolResult], ...]
    before: Sequence[Message]

    @property
    def last_reply(self) -> str:
        """The part of the last reply that was heard, without the history's marks of an interruption."""
        mark = re.compile(r"(?:\s*\[(?:The user interrupted|Done, though) [^\]]*\])+\s*\Z")
        replies = (item.text for item in reversed(self.before) if isinstance(item, AssistantMessage))
        return next(filter(None, (mark.sub("", reply).strip() for reply in replies)), "")

    @property
    def waiting_task(self) -> str | None:
        """The task of an agent if the last reply asked for its repository."""
        question = re.match(
            r"In which repository shall the agent (.*)\? Say its owner", self.last_reply, re.S
        )
        return question[1] if question else None


def dialogue_of(messages: Sequence[Message]) -> Dialogue:
    """Read the end of the history."""
    start = len(messages)
    while start and isinstance(messages[start - 1], UserMessage | Note):
        start -= 1
    last = max((n for n, message in enumerate(messages) if isinstance(message, UserMessage)), default=-1)
    # A note before the user's words is only their context.
    notes = tuple(item.text for item in messages[max(start, last + 1) :] if isinstance(item, Note))
    before = messages[: max(last, 0)]
    message = messages[last] if last >= start else None
    if isinstance(message, UserMessage):
        return Dialogue(message.text, notes, (), before)
    ends_with_results = start > 0 and isinstance(messages[start - 1], ToolResult)
    results = next(_calls_with_results(messages[:start]), []) if ends_with_results else []
    return Dialogue(None, notes, tuple(results), before)


def _calls_with_results(messages: Sequence[Message]) -> Iterator[list[tuple[ToolCall, ToolResult]]]:
    results: dict[str, ToolResult] = {}
    for message in reversed(messages):
        if isinstance(message, ToolResult):
            results[message.call_id] = message
        elif isinstance(message, AssistantMessage):
            yield [(call, results[call.call_id]) for call in message.calls if call.call_id in results]


# -- from a clause to an intent

Read: TypeAlias = Callable[[re.Match[str], Dialogue], Intent]


def _any_tool(match: re.Match[str], _: Dialogue) -> Intent:
    text = (match["arguments"] or "").strip()
    arguments = words.decoded(text[: text.rfind("}") + 1] or text or "{}")
    if not isinstance(arguments, dict):
        return Intent(text="The arguments after the word with must be a JSON object. I called no tool.")
    return Intent(match["tool"].rstrip("."), arguments)


def _recall(_: re.Match[str], dialogue: Dialogue) -> Intent:
    text = next((item.text for item in reversed(dialogue.before) if isinstance(item, UserMessage)), None)
    return Intent(text=f"You said: {text}" if text else "You have not said anything before that.")


def _count(match: re.Match[str], _: Dialogue) -> Intent:
    first, last = int(match["first"] or 1), int(match["last"])
    if first > last or last > MAX_COUNT or last < 1:
        return Intent(text=f"I count upwards, and to {MAX_COUNT} at most.")
    return Intent(text=", ".join(str(number) for number in range(first, last + 1)) + ".")


def _time_in(name: str) -> Intent:
    name = re.sub(r"(?i)\b(?:now|right now|today|at the moment|here)\b", "", name).strip(" ,.?!")
    if not name:
        return Intent("get_current_time", {})
    if zone := words.time_zone(name):
        return Intent("get_current_time", {"timezone": zone})
    hint = "Name a larger city, or a zone such as Europe slash Berlin."
    return Intent(text=f"I do not know the time zone of {name}. {hint}")


def _spawn(match: re.Match[str], _: Dialogue) -> Intent:
    task, arguments = " ".join(match["task"].split()), dict[str, Any]()
    for pattern in (
        rf"^[\s,]*(?:in|on|for)\s+{words.REPOSITORY}(?![\w/])",
        rf"\s+(?:in|on|for)\s+{words.REPOSITORY}$",
    ):
        location = re.search(pattern, task.rstrip(".?! "), re.I)
        if location and (name := words.repository(location)):
            arguments["repository"] = name
            task = f"{task[: location.start()]} {task[location.end() :]}"
            break
    task = re.sub(r"(?i)^[\s,:]*(?:to|that should|that will|for)\b[\s,:]*", "", task).strip(" .,:?!")
    return _started(task, arguments)


def _started(task: str, arguments: Mapping[str, Any]) -> Intent:
    if not task:
        return Intent(text="What should the agent do? For example: start an agent to fix the tests.")
    if "repository" not in arguments:
        hint = 'Say its owner, slash, and its name, or say "pick a repository".'
        return Intent(text=f"In which repository shall the agent {task}? {hint}")
    return Intent("agent.spawn", {"prompt": task, **arguments})


def _agent(match: re.Match[str], _: Dialogue) -> Intent:
    name = re.sub(r"(?i)\b(?:please|doing|going|now|it|one)\b", "", match["id"] or "").strip(" .,?!:")
    prompt = {"prompt": match["prompt"].strip()} if "prompt" in match.re.groupindex else {}
    return Intent("", {"id": name, **prompt})


_MINUTES = {"second": 1 / 60, "minute": 1.0, "hour": 60.0, "day": 24 * 60.0}
_REPEATS = {"day": "daily", "weekday": "weekdays", "week": "weekly", "month": "monthly"}


def _remind(match: re.Match[str], _: Dialogue) -> Intent:
    parts = match.groupdict()
    arguments: dict[str, Any] = {"text": parts["text"].strip(" .")}
    if unit := parts.get("unit"):
        number = parts["number"]
        arguments["in_minutes"] = (float(number) if number[0].isdigit() else 1.0) * _MINUTES[unit.lower()]
    else:
        arguments["at"] = f"{int(parts['hour']):02}:{parts['minute'] or '00'}"
    if every := parts.get("every"):
        arguments["repeat"] = _REPEATS[every.lower()]
    return Intent("", arguments)


# -- the table


class Row(NamedTuple):
    """A tool, the ``pattern`` of its request, and the reply to its result.

    A blank in the pattern matches any white space. Groups are the tool's arguments, unless ``read`` makes the
    intent. With ``takes_all`` the request reaches to the end of the utterance, not of its clause.
    """

    tool: str
    pattern: str
    reply: words.Reply = ""
    read: Read | None = None
    takes_all: bool = False
    fixed: Mapping[str, str] = {}

    def match(self, text: str, dialogue: Dialogue, position: int = 0) -> Intent | None:
        """Make the intent; None if the pattern does not match at the position."""
        match = _compiled(self.pattern).match(text, position)
        if match is None:
            return None
        if self.read is None:
            groups = {name: part.strip(" .") for name, part in match.groupdict().items() if part}
            return Intent(self.tool, {**groups, **self.fixed})
        intent = self.read(match, dialogue)
        return Intent(self.tool, intent.arguments) if self.tool and not intent.text else intent


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.I | re.S)


_IS = r"(?:'s|\u2019s| is| are)?"
_LIST = rf"(?:.*\b)?(?:list|show|name|read|what{_IS}|which) (?:me )?(?:all )?(?:of )?(?:(?:my|the) )?"
_TASK = r"task[\s_]+(?P<id>\w+)"
_AN_AGENT = r"(?:(?:a|an|another|new|coding|cloud|background)\s+){0,4}agent\b"
_THE_AGENT = r"(?:(?:the|my|that)\s+)?(?:(?:last|coding|cloud)\s+)?agent\b"

# The first row that matches is taken.
# fmt: off
INTENTS = (
    Row("", r"(?:repeat after me|say)\b(?! (?:that|it) again)[:,]? (?P<text>\S.*)",
        read=lambda match, _: Intent(text=match["text"]), takes_all=True),
    Row("", r"call (?:the )?(?:tool )?(?P<tool>[\w.-]+)(?: tool)?(?: with\b\s*(?P<arguments>.*)|[.!?\s]*)$",
        read=_any_tool, takes_all=True),
    Row("", r"(?:repeat(?: (?:that|it|yourself))?|say (?:that|it) again|what did you (?:just )?say)$",
        read=lambda _, dialogue: Intent(text=dialogue.last_reply or "I have not said anything yet.")),
    Row("", r"what did i (?:just )?say$", read=_recall),
    Row("", r"count (?:from (?P<first>\d{1,9}) )?(?:up )?to (?P<last>\d{1,9})$", read=_count),
    Row("agent.spawn", rf"(?:start|spawn|launch|run|create) {_AN_AGENT}(?P<task>.*)", words.say_started,
        _spawn, takes_all=True),
    Row("agent.followup", rf"(?:tell|ask) {_THE_AGENT}(?: (?P<id>\S.{{0,60}}?))??"
        r" (?:to|that) (?P<prompt>\S.*)", "I told the agent.", _agent, takes_all=True),
    Row("agent.status", rf"(?:.*\bstatus (?:of|for|on)|how{_IS}|check(?: on)?) {_THE_AGENT}(?P<id>.*)",
        words.say_status, _agent),
    Row("agent.cancel", rf"(?:cancel|stop|kill|abort) {_THE_AGENT}(?P<id>.*)", "The agent is cancelled.",
        _agent),
    Row("agent.list", rf"{_LIST}agents\b", words.say_list("agent", "agents")),
    Row("repositories.list", rf"{_LIST}repo(?:sitorie)?s\b", words.say_list("repository", "repositories")),
    Row("repositories.select", r"(?:let me )?(?:pick|choose) (?:one|(?:a|the|my) repo(?:sitory)?)$",
        words.say_picked),
    Row("add_task", r"add (?:a |another )?(?:new )?task\b[:,]? (?:to |called )?(?P<title>\S.*)",
        words.say_added, takes_all=True),
    Row("list_tasks", rf"{_LIST}tasks\b", words.say_list("task", "tasks")),
    Row("update_task", rf"(?:mark |set )?{_TASK} (?:is |as )?(?:done|completed?|finished)$",
        "The task is changed.", fixed={"status": "completed"}),
    Row("update_task", rf"(?:finish|complete) {_TASK}$", fixed={"status": "completed"}),
    Row("update_task", rf"(?:start|begin) {_TASK}$", fixed={"status": "in_progress"}),
    Row("schedule_task", r"remind me in (?P<number>\d{1,6}(?:\.\d{1,6})?|an?)"
        r" (?P<unit>second|minute|hour|day)s? (?:to|that|about|of) (?P<text>\S.*)",
        words.say_scheduled, _remind, takes_all=True),
    Row("schedule_task", r"remind me (?:every (?P<every>day|weekday|week|month) )?at (?P<hour>\d{1,2})"
        r"(?::(?P<minute>\d\d))? (?:to|that|about|of) (?P<text>\S.*)", read=_remind, takes_all=True),
    Row("list_scheduled_tasks", rf"{_LIST}reminders\b", words.say_list("reminder", "reminders")),
    Row("create_file", r"create (?:a |the )?(?:new )?(?:text )?file (?:called |named )?(?P<path>[\w./-]*\w)"
        r" (?:containing|saying|with)[:,]? (?P<content>\S.*)", "The file is created.", takes_all=True),
    Row("get_file_tree", rf"{_LIST}(?:file tree|files)\b(?: in (?P<path>\S+))?"),
    Row("read_file", r"read (?:me )?(?:the )?(?:file )?(?P<path>(?<=file\s)\S+|[\w./-]*[./][\w./-]*\w)$",
        words.say_file),
    Row("get_current_time", rf"(?:.*\bwhat{_IS} (?:the )?time\b(?: is it| it is)?(?: (?:right )?now)?"
        r"|(?:tell me )?(?:the )?(?:current )?time(?= (?:in|at) |$))(?: (?:in|at) (?P<place>.*))?",
        words.say_time, lambda match, _: _time_in(match["place"] or "")),
    Row("get_current_time", rf".*\bwhat{_IS} (?:the |today's )?(?:day|date)\b"),
)
# fmt: on
# The first row of a tool has its reply. `demo_words.read_sum` reads the calculator's requests.
_REPLIES: Mapping[str, words.Reply] = {row.tool: row.reply for row in reversed(INTENTS)} | {
    "calculator": words.say_sum
}

_POLITE = re.compile(
    r"(?i)\A\s*(?:(?:please|hey|hi|hello|ok|okay|so|well|now|and|then|also|conductor|thanks|thank you"
    r"|can you|could you|would you|will you)\b[\s,.!:]*){1,6}"
)
_CUT = re.compile(
    r"(?i)(?:[;?!]|[.,](?=\s)|\s(?:and|then|also)(?=\s))(?:\s+(?:and|then|also|please)(?=\s))*\s*"
)


def understand(text: str, dialogue: Dialogue) -> list[Intent | None]:
    """Read the requests of an utterance in order; None for a clause that matches no pattern."""
    text = _POLITE.sub("", text).strip()
    if intent := _matched(text, dialogue, takes_all=True):
        return [intent]
    text = text[:_MAX_CHARS]
    intents: list[Intent | None] = []
    start = 0
    for cut in [*_CUT.finditer(text), None]:
        clause = text[start : cut.start()] if cut else text[start:]
        start = cut.end() if cut else len(text)
        clause = re.sub(r"(?i)[\s,]+(?:please|thanks|thank you)$", "", _POLITE.sub("", clause))
        if clause := " ".join(clause.split()).strip(" ,.?!"):
            intents.append(_clause(clause, intents[-1] if intents else None, dialogue))
        # An "and" in dictated text begins no other request.
        if cut and (intent := _matched(text, dialogue, start, takes_all=True)):
            return [*intents, intent]
    return intents or [None]


def _matched(text: str, dialogue: Dialogue, position: int = 0, *, takes_all: bool) -> Intent | None:
    intents = (row.match(text, dialogue, position) for row in INTENTS if row.takes_all == takes_all)
    return next(filter(None, intents), None)


def _clause(clause: str, before: Intent | None, dialogue: Dialogue) -> Intent | None:
    if expression := words.read_sum(clause):
        return Intent("calculator", {"expression": expression})
    if intent := _matched(clause, dialogue, takes_all=False):
        return intent
    if before is not None and before.tool == "get_current_time" and len(clause.split()) <= 4:
        return _time_in(re.sub(r"(?i)^in ", "", clause))  # "… in Tokyo, Paris and in New York?"
    if before is not None and before.tool.endswith("list"):
        return _matched(f"list {clause}", dialogue, takes_all=False)  # "… my repositories and my agents"
    task = dialogue.waiting_task
    if task is None:
        return None
    match = re.search(rf"(?i)\b{words.REPOSITORY}(?: repo(?:sitory)?)?$", clause)
    name = words.repository(match) if match else None
    return _started(task, {"repository": name} if name else {})


# -- the provider


@dataclass(frozen=True, slots=True)
class DemoOutput:
    """The reply's text, and its calls: (name, arguments as JSON text)."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


class DemoProvider:
    """The demo model as a provider. ``pace_s`` is the pause after each word, in seconds."""

    name = "demo"

    def __init__(self, pace_s: float = 0.02) -> None:
        self._pace_s = pace_s

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply's words, then its calls."""
        output = output_for(request)
        for word in re.findall(r"\s*\S+(?:\s+\Z)?", output.text):
            yield TextDelta(word)
            await asyncio.sleep(self._pace_s)
        for name, arguments in output.calls:
            yield ToolCall(f"call_{uuid.uuid4().hex}", name, arguments)
        yield Finished("tool_use" if output.calls else "end_turn", _usage(request, output))

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def from_profile(profile: ModelProfile, settings: Settings) -> DemoProvider:
    """Make the provider; it has no settings."""
    return DemoProvider()


def output_for(request: ModelRequest) -> DemoOutput:
    """Give the output of a request; the same request gives the same output."""
    dialogue = dialogue_of(request.messages)
    outputs: list[DemoOutput] = []
    if dialogue.notes:
        news = " ".join(words.say_note(note) for note in dialogue.notes)
        outputs.append(DemoOutput(f"Here is some news. {news}"))
    if dialogue.utterance is None:
        outputs += _report(request, dialogue)
    else:
        intents = understand(dialogue.utterance, dialogue)
        outputs += [_fulfil(intent, request, dialogue) for intent in intents]
    outputs = outputs or [DemoOutput(_help(request))]
    text = " ".join(dict.fromkeys(output.text for output in outputs if output.text))
    return DemoOutput(text, tuple(dict.fromkeys(call for output in outputs for call in output.calls)))


def _fulfil(intent: Intent | None, request: ModelRequest, dialogue: Dialogue) -> DemoOutput:
    if intent is None:
        return DemoOutput(_help(request))
    if not intent.tool:
        return DemoOutput(intent.text)
    tool = _offered(request.tools, intent.tool)
    if tool is None:
        name = intent.tool.replace(".", " ").replace("_", " ")
        return DemoOutput(f"The tool {name} is not available here.")
    if request.tool_choice == "none":
        return DemoOutput("I may not use any tools just now.")
    arguments = dict(intent.arguments or {})
    if intent.tool.startswith("agent.") and arguments.get("id") == "":
        latest = _latest_agent(dialogue.before)
        if latest is None:
            return DemoOutput("Which agent? Say its id, or ask me to list your agents.")
        arguments["id"] = latest
    if intent.tool == "update_task" and arguments["id"].isdecimal():
        arguments["id"] = f"task_{arguments['id']}"  # a person says only the number
    return DemoOutput(calls=((tool.name, msgspec.json.encode(arguments).decode()),))


def _report(request: ModelRequest, dialogue: Dialogue) -> list[DemoOutput]:
    outputs: list[DemoOutput] = []
    for call, content in dialogue.results:
        result = words.read_result(call, content)
        outputs.append(DemoOutput(words.answer(result, _REPLIES.get(call.name, ""))))
        picked = words.picked_repository(result.data) if call.name == "repositories.select" else None
        if picked and dialogue.waiting_task:
            started = _started(dialogue.waiting_task, {"repository": picked})
            outputs[-1] = _fulfil(started, request, dialogue)
    return outputs


def _latest_agent(before: Sequence[Message]) -> str | None:
    for calls in _calls_with_results(before):
        for call, result in reversed(calls):
            if call.name == "agent.spawn" and (id_ := words.agent_id(words.read_result(call, result).data)):
                return id_
    return None


_ABILITIES = {
    "get_current_time": "tell the time",
    "calculator": "work out sums",
    "agent.spawn": "start, follow and cancel agents",
    "repositories.list": "list your repositories",
    "add_task": "keep tasks",
    "schedule_task": "remind you",
    "read_file": "read files",
}


def _help(request: ModelRequest) -> str:
    abilities = [ability for tool, ability in _ABILITIES.items() if _offered(request.tools, tool)]
    listed = ", ".join([*abilities, "say what you tell me to", "count"])
    return f"I am the demo model: a demonstration, not an assistant. I can {listed}, and repeat my words."


def _offered(tools: Sequence[ToolDefinition], name: str) -> ToolDefinition | None:
    # A person may say an underscore for a dot.
    plain = name.replace(".", "_").casefold()
    matches = [tool for tool in tools if tool.name.replace(".", "_").casefold() == plain]
    return min(matches, key=lambda tool: tool.name != name, default=None)


def _usage(request: ModelRequest, output: DemoOutput) -> Usage:
    # A token is about four characters.
    parts = (request.system, *request.messages, *request.tools)
    return Usage(1 + sum(len(repr(part)) for part in parts) // 4, 1 + len(repr(output)) // 4)
