"""The demo model: it needs no key and no network, and understands a short list of requests.

It is a demonstration and a test fake, not an assistant. It calls tools through the same loop as any model
does, decides from the request's messages and tools alone, and keeps nothing itself. docs/models.md lists what
it understands; `INTENTS` is the table behind that list.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from zoneinfo import available_timezones

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models import demo_replies as replies
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

# As far as the demo counts aloud: enough to be interrupted, and an end for who does not.
MAX_COUNT = 1000
# Longer transcripts are no requests; the bound keeps an utterance of any size cheap.
_MAX_UNDERSTOOD = 2000


@dataclass(frozen=True, slots=True)
class Intent:
    """What one clause asks for: to call ``tool`` with ``arguments``, or without a tool to say ``text``.

    The argument ``id`` of an agent's tool is empty for the agent that was started last.
    """

    tool: str = ""
    arguments: Mapping[str, Any] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What there is to react to: what the user said (and the notes beside it), or the results of calls.

    ``before`` is the history ahead of ``utterance``, or ahead of what the results belong to.
    """

    utterance: str | None
    notes: tuple[str, ...]
    results: tuple[tuple[ToolCall, ToolResult], ...]
    before: Sequence[Message]

    @property
    def last_utterance(self) -> str | None:
        return next((each.text for each in reversed(self.before) if isinstance(each, UserMessage)), None)

    @property
    def last_reply(self) -> str:
        """The last reply as far as it was heard: without the history's marks of a cut."""
        mark = re.compile(r"(?:\s*\[(?:The user interrupted|Done, though) [^\]]*\])+\s*\Z")
        replies = (
            mark.sub("", each.text).strip()
            for each in reversed(self.before)
            if isinstance(each, AssistantMessage)
        )
        return next(filter(None, replies), "")

    @property
    def waiting_task(self) -> str | None:
        """The task of an agent whose repository the demo has just asked for."""
        asked = re.match(r"In which repository shall the agent (.*)\? Say its owner", self.last_reply, re.S)
        return asked[1] if asked else None


def dialogue_of(messages: Sequence[Message]) -> Dialogue:
    """Look at the end of the history."""
    start = len(messages)
    while start and isinstance(messages[start - 1], UserMessage | Note):
        start -= 1
    spoken = [index for index, each in enumerate(messages) if isinstance(each, UserMessage)]
    last = spoken[-1] if spoken else -1
    # Notes ahead of an utterance are context for it; notes behind it are still to be told.
    notes = tuple(each.text for each in messages[max(start, last + 1) :] if isinstance(each, Note))
    before = messages[: max(last, 0)]
    said = messages[last] if last >= start else None
    if isinstance(said, UserMessage):
        return Dialogue(said.text, notes, (), before)
    reports = start > 0 and isinstance(messages[start - 1], ToolResult)
    results = next(_calls_with_results(messages[:start]), []) if reports else []
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


def _say(match: re.Match[str], _: Dialogue) -> Intent:
    return Intent(text=match["words"])


def _any_tool(match: re.Match[str], _: Dialogue) -> Intent:
    given = (match["arguments"] or "").strip()
    arguments = replies.decoded(given[: given.rfind("}") + 1] or given or "{}")
    if not isinstance(arguments, dict):
        return Intent(text="What follows the word with has to be a JSON object, so I called nothing.")
    return Intent(match["tool"].rstrip("."), arguments)


def _repeat(_: re.Match[str], dialogue: Dialogue) -> Intent:
    return Intent(text=dialogue.last_reply or "I have not said anything yet.")


def _recall(_: re.Match[str], dialogue: Dialogue) -> Intent:
    said = dialogue.last_utterance
    return Intent(text=f"You said: {said}" if said else "You have not said anything before that.")


def _count(match: re.Match[str], _: Dialogue) -> Intent:
    first, last = int(match["first"] or 1), int(match["last"])
    if first > last or last > MAX_COUNT or last < 1:
        return Intent(text=f"I count upwards, and to {MAX_COUNT} at most.")
    return Intent(text=", ".join(str(number) for number in range(first, last + 1)) + ".")


def _time(match: re.Match[str], _: Dialogue) -> Intent:
    return _time_in(match["place"] or "")


def _time_in(name: str) -> Intent:
    name = re.sub(r"(?i)\b(?:now|right now|today|at the moment|here)\b", "", name).strip(" ,.?!")
    if not name:
        return Intent("get_current_time", {})
    if zone := _zone(name):
        return Intent("get_current_time", {"timezone": zone})
    hint = "Name a larger city, or a zone such as Europe slash Berlin."
    return Intent(text=f"I do not know the time zone of {name}. {hint}")


def _zone(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z_]{2,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2}", name):
        return name
    # Fold accents: transcripts hold "Sao Paulo" and "São Paulo" alike.
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _zones().get(plain.casefold())


@cache
def _zones() -> Mapping[str, str]:
    zones = {zone.rpartition("/")[2].replace("_", " ").casefold(): zone for zone in available_timezones()}
    return zones | {"san francisco": "America/Los_Angeles", "munich": "Europe/Berlin"}


def _spawn(match: re.Match[str], _: Dialogue) -> Intent:
    task, arguments = " ".join(match["rest"].split()), dict[str, Any]()
    for place in (rf"^[\s,]*(?:in|on|for)\s+{_REPOSITORY}(?![\w/])", rf"\s+(?:in|on|for)\s+{_REPOSITORY}$"):
        found = re.search(place, task.rstrip(".?! "), re.I)
        if found and (name := _repository(found)):
            arguments["repository"] = name
            task = f"{task[: found.start()]} {task[found.end() :]}"
            break
    task = re.sub(r"(?i)^[\s,:]*(?:to|that should|that will|for)\b[\s,:]*", "", task).strip(" .,:?!")
    return _started(task, arguments)


def _started(task: str, arguments: Mapping[str, Any]) -> Intent:
    if not task:
        return Intent(
            text="What should the agent do? Say it in one sentence, such as: start an agent to fix it."
        )
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
    said = match.groupdict()
    arguments: dict[str, Any] = {"text": said["text"].strip(" .")}
    if unit := said.get("unit"):
        number = said["number"]
        arguments["in_minutes"] = (float(number) if number[0].isdigit() else 1.0) * _MINUTES[unit.lower()]
    else:
        arguments["at"] = f"{int(said['hour']):02}:{said['minute'] or '00'}"
    if every := said.get("every"):
        arguments["repeat"] = _REPEATS[every.lower()]
    return Intent("", arguments)


_REPOSITORY = (
    r"(?:the\s+)?(?:repo(?:sitory)?\s+)?(?:https?://)?(?:github\.com/)?(?P<owner>[A-Za-z0-9][\w-]{0,60})"
    r"(?:\s?/\s?|\s+slash\s+)(?P<name>[\w.-]{1,100})"
)
_FOLDERS = ("src", "lib", "app", "test", "tests", "docs", "pkg", "scripts", "bin", "etc", "handlers")


def _repository(match: re.Match[str]) -> str | None:
    # None for what is rather a file: a repository is never guessed.
    owner, name = match["owner"], match["name"].rstrip(".")
    looks_like_a_file = owner.casefold() in _FOLDERS or re.search(r"\.[a-z]{1,4}$", name.casefold())
    return None if looks_like_a_file or not name else f"{owner}/{name}"


_SUM_WORDS = (
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"\bplus\b", " + "),
    (r"\bminus\b", " - "),
    (r"\b(?:times|multiplied by|x)\b", " * "),
    (r"\b(?:divided by|over)\b", " / "),
    (r"\bsquared\b|\u00b2", " ** 2 "),
    (r"\b(?:raised )?to the power of\b|\^", " ** "),
    (r"\b(?:the )?square root of (\d+(?:\.\d+)?)", r"sqrt(\1)"),
    (r" ?\bper ?cent\b", "%"),
)
_SUM_LEAD = re.compile(r"(?i)(?:what(?:'s|\u2019s| is)|how much is|calculate|compute|work out)\s+")
_SUM = re.compile(r"(?:[\d.+*/%() \u00d7\u00f7\u2212-]|sqrt\(|of\b)*")
_OPERATION = re.compile(r"[\d)]%? *(?:[-+*/%\u00d7\u00f7\u2212]|of )[-*/+ (]*[\d.s]|sqrt\(")


def _sum(clause: str) -> str | None:
    # Only what people say is rewritten; what an expression means is the calculator's to know.
    for said, written in _SUM_WORDS:
        clause = re.sub(said, written, clause, flags=re.I)
    text = " ".join(clause.strip(" ?.=,").split())
    return text if _SUM.fullmatch(text) and _OPERATION.search(text) else None


# -- the table


class Row(NamedTuple):
    """The tool that a request calls, what is said for it, and the reply to the tool's result.

    In ``said`` a blank stands for white space, and groups are the tool's arguments, unless ``read`` makes the
    intent. With ``takes_all`` a request reaches to the end of the utterance, not only of its clause.
    """

    tool: str
    said: str
    reply: replies.Reply = ""
    read: Read | None = None
    takes_all: bool = False
    fixed: Mapping[str, str] = {}

    def match(self, text: str, dialogue: Dialogue, position: int = 0) -> Intent | None:
        """Make the intent, if the pattern matches at the position."""
        match = _compiled(self.said).match(text, position)
        if match is None:
            return None
        if self.read is None:
            groups = {name: part.strip(" .") for name, part in match.groupdict().items() if part}
            return Intent(self.tool, {**groups, **self.fixed})
        intent = self.read(match, dialogue)
        return Intent(self.tool, intent.arguments) if self.tool and not intent.text else intent


@cache
def _compiled(said: str) -> re.Pattern[str]:
    return re.compile(said.replace(" ", r"\s+"), re.I | re.S)


_IS = r"(?:'s|\u2019s| is| are)?"
_LIST = rf"(?:.*\b)?(?:list|show|name|read|what{_IS}|which) (?:me )?(?:all )?(?:of )?(?:(?:my|the) )?"
_TASK = r"task[\s_]+(?P<id>\w+)"
_AN_AGENT = r"(?:(?:a|an|another|new|coding|cloud|background)\s+){0,4}agent\b"
_THE_AGENT = r"(?:(?:the|my|that)\s+)?(?:(?:last|coding|cloud)\s+)?agent\b"

# The first row that matches is taken.
# fmt: off
INTENTS = (
    Row("", r"(?:repeat after me|say)\b(?! (?:that|it) again)[:,]? (?P<words>\S.*)", read=_say,
        takes_all=True),
    Row("", r"call (?:the )?(?:tool )?(?P<tool>[\w.-]+)(?: tool)?(?: with\b\s*(?P<arguments>.*)|[.!?\s]*)$",
        read=_any_tool, takes_all=True),
    Row("", r"(?:repeat(?: (?:that|it|yourself))?|say (?:that|it) again|what did you (?:just )?say)$",
        read=_repeat),
    Row("", r"what did i (?:just )?say$", read=_recall),
    Row("", r"count (?:from (?P<first>\d{1,9}) )?(?:up )?to (?P<last>\d{1,9})$", read=_count),
    Row("agent.spawn", rf"(?:start|spawn|launch|run|create) {_AN_AGENT}(?P<rest>.*)", replies.say_started,
        _spawn, takes_all=True),
    Row("agent.followup", rf"(?:tell|ask) {_THE_AGENT}(?: (?P<id>\S.{{0,60}}?))??"
        r" (?:to|that) (?P<prompt>\S.*)", "I told the agent.", _agent, takes_all=True),
    Row("agent.status", rf"(?:.*\bstatus (?:of|for|on)|how{_IS}|check(?: on)?) {_THE_AGENT}(?P<id>.*)",
        replies.say_status, _agent),
    Row("agent.cancel", rf"(?:cancel|stop|kill|abort) {_THE_AGENT}(?P<id>.*)", "The agent is cancelled.",
        _agent),
    Row("agent.list", rf"{_LIST}agents\b", replies.say_list("agent", "agents")),
    Row("repositories.list", rf"{_LIST}repo(?:sitorie)?s\b", replies.say_list("repository", "repositories")),
    Row("repositories.select", r"(?:let me )?(?:pick|choose) (?:one|(?:a|the|my) repo(?:sitory)?)$",
        replies.say_picked),
    Row("add_task", r"add (?:a |another )?(?:new )?task\b[:,]? (?:to |called )?(?P<title>\S.*)",
        replies.say_added, takes_all=True),
    Row("list_tasks", rf"{_LIST}tasks\b", replies.say_list("task", "tasks")),
    Row("update_task", rf"(?:mark |set )?{_TASK} (?:is |as )?(?:done|completed?|finished)$",
        "The task is changed.", fixed={"status": "completed"}),
    Row("update_task", rf"(?:finish|complete) {_TASK}$", fixed={"status": "completed"}),
    Row("update_task", rf"(?:start|begin) {_TASK}$", fixed={"status": "in_progress"}),
    Row("schedule_task", r"remind me in (?P<number>\d{1,6}(?:\.\d{1,6})?|an?)"
        r" (?P<unit>second|minute|hour|day)s? (?:to|that|about|of) (?P<text>\S.*)",
        replies.say_scheduled, _remind, takes_all=True),
    Row("schedule_task", r"remind me (?:every (?P<every>day|weekday|week|month) )?at (?P<hour>\d{1,2})"
        r"(?::(?P<minute>\d\d))? (?:to|that|about|of) (?P<text>\S.*)", read=_remind, takes_all=True),
    Row("list_scheduled_tasks", rf"{_LIST}reminders\b", replies.say_list("reminder", "reminders")),
    Row("create_file", r"create (?:a |the )?(?:new )?(?:text )?file (?:called |named )?(?P<path>[\w./-]*\w)"
        r" (?:containing|saying|with)[:,]? (?P<content>\S.*)", "The file is created.", takes_all=True),
    Row("get_file_tree", rf"{_LIST}(?:file tree|files)\b(?: in (?P<path>\S+))?"),
    Row("read_file", r"read (?:me )?(?:the )?(?:file )?(?P<path>(?<=file\s)\S+|[\w./-]*[./][\w./-]*\w)$",
        replies.say_file),
    Row("get_current_time", rf"(?:.*\bwhat{_IS} (?:the )?time\b(?: is it| it is)?(?: (?:right )?now)?"
        r"|(?:tell me )?(?:the )?(?:current )?time(?= (?:in|at) |$))(?: (?:in|at) (?P<place>.*))?",
        replies.say_time, _time),
    Row("get_current_time", rf".*\bwhat{_IS} (?:the |today's )?(?:day|date)\b"),
)
# fmt: on
# The first row of a tool has its reply; `_sum` understands the calculator's requests.
_REPLIES: Mapping[str, replies.Reply] = {row.tool: row.reply for row in reversed(INTENTS)} | {
    "calculator": replies.say_sum
}

_POLITE = re.compile(
    r"(?i)\A\s*(?:(?:please|hey|hi|hello|ok|okay|so|well|now|and|then|also|conductor|thanks|thank you"
    r"|can you|could you|would you|will you)\b[\s,.!:]*){1,6}"
)
_CUT = re.compile(
    r"(?i)(?:[;?!]|[.,](?=\s)|\s(?:and|then|also)(?=\s))(?:\s+(?:and|then|also|please)(?=\s))*\s*"
)


def understand(text: str, dialogue: Dialogue) -> list[Intent | None]:
    """Return what the utterance asks for, in its order; None stands where words made no sense."""
    text = _POLITE.sub("", text).strip()
    if whole := _matched(text, dialogue, takes_all=True):
        return [whole]
    text = text[:_MAX_UNDERSTOOD]
    intents: list[Intent | None] = []
    start = 0
    for cut in [*_CUT.finditer(text), None]:
        clause = text[start : cut.start()] if cut else text[start:]
        start = cut.end() if cut else len(text)
        clause = re.sub(r"(?i)[\s,]+(?:please|thanks|thank you)$", "", _POLITE.sub("", clause))
        if clause := " ".join(clause.split()).strip(" ,.?!"):
            intents.append(_clause(clause, intents[-1] if intents else None, dialogue))
        # What is dictated goes to the end: an "and" in it does not begin another request.
        if cut and (rest := _matched(text, dialogue, start, takes_all=True)):
            return [*intents, rest]
    return intents or [None]


def _matched(text: str, dialogue: Dialogue, position: int = 0, *, takes_all: bool) -> Intent | None:
    intents = (row.match(text, dialogue, position) for row in INTENTS if row.takes_all == takes_all)
    return next(filter(None, intents), None)


def _clause(clause: str, before: Intent | None, dialogue: Dialogue) -> Intent | None:
    if expression := _sum(_SUM_LEAD.sub("", clause, count=1)):
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
    named = re.search(rf"(?i)\b{_REPOSITORY}(?: repo(?:sitory)?)?$", clause)
    name = _repository(named) if named else None
    return _started(task, {"repository": name} if name else {})


# -- the provider


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


def from_profile(profile: ModelProfile, settings: Settings) -> DemoProvider:
    """Make the provider: the demo needs no setting."""
    return DemoProvider()


def output_for(request: ModelRequest) -> DemoOutput:
    """Decide what to say and call; the same request gets the same output."""
    dialogue = dialogue_of(request.messages)
    outputs: list[DemoOutput] = []
    if dialogue.notes:
        news = " ".join(replies.say_note(note) for note in dialogue.notes)
        outputs.append(DemoOutput(f"Here is some news. {news}"))
    if dialogue.utterance is None:
        outputs += _report(request, dialogue)
    else:
        outputs += [_fulfil(one, request, dialogue) for one in understand(dialogue.utterance, dialogue)]
    outputs = outputs or [DemoOutput(_help(request))]
    text = " ".join(dict.fromkeys(each.text for each in outputs if each.text))
    return DemoOutput(text, tuple(dict.fromkeys(call for each in outputs for call in each.calls)))


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
        result = replies.read_result(call, content)
        outputs.append(DemoOutput(replies.answer(result, _REPLIES.get(call.name, ""))))
        picked = replies.picked_repository(result.data) if call.name == "repositories.select" else None
        if picked and dialogue.waiting_task:
            started = _started(dialogue.waiting_task, {"repository": picked})
            outputs[-1] = _fulfil(started, request, dialogue)
    return outputs


def _latest_agent(before: Sequence[Message]) -> str | None:
    for calls in _calls_with_results(before):
        for call, result in reversed(calls):
            if call.name == "agent.spawn" and (
                found := replies.agent_id(replies.read_result(call, result).data)
            ):
                return found
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
    able = [words for tool, words in _ABILITIES.items() if _offered(request.tools, tool)]
    listed = ", ".join([*able, "say what you tell me to", "count"])
    return (
        f"I am the demo model: a demonstration, not an assistant. I can {listed}, and repeat what was said."
    )


def _offered(tools: Sequence[ToolDefinition], name: str) -> ToolDefinition | None:
    # People say no dots, and write underscores for them.
    wanted = name.replace(".", "_").casefold()
    alike = [tool for tool in tools if tool.name.replace(".", "_").casefold() == wanted]
    return min(alike, key=lambda tool: tool.name != name, default=None)


def _usage(request: ModelRequest, output: DemoOutput) -> Usage:
    # Count tokens as roughly four characters each.
    read = len(request.system) + sum(len(tool.name) + len(tool.description) for tool in request.tools)
    for message in request.messages:
        read += len(message.content) if isinstance(message, ToolResult) else len(message.text)
        if isinstance(message, AssistantMessage):
            read += sum(len(call.arguments) for call in message.calls)
    written = len(output.text) + sum(len(name) + len(arguments) for name, arguments in output.calls)
    return Usage(input_tokens=1 + read // 4, output_tokens=1 + written // 4)
