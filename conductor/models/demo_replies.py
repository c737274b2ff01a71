"""What the demo model understands and says: one table of intents with their patterns, tools and replies.

It matches English sentences, one clause at a time, and knows neither the history nor the offered tools;
that is `conductor.models.demo`.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from conductor.messages import ToolCall, ToolResult

Kind: TypeAlias = Literal[
    "call", "say", "count", "repeat", "recall", "help", "place", "repository", "unclear"
]


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing that was asked for.

    ``call`` runs ``tool`` with ``slots`` (arguments by role), or with the JSON text ``said`` if ``slots`` is
    None. Otherwise ``said`` is how the user put it. ``repository`` and ``place`` answer an earlier question.
    """

    kind: Kind
    tool: str = ""
    slots: Mapping[str, Any] | None = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call and its outcome; ``said`` is how the user put the request."""

    call: ToolCall
    success: bool
    data: Any
    error_type: str = "none"
    message: str = ""
    said: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments, none where they are no JSON object."""
        given = decoded(self.call.arguments)
        return given if isinstance(given, dict) else {}


Read: TypeAlias = Callable[[re.Match[str]], Intent]
Say: TypeAlias = str | Callable[[CallResult], str]


class IntentRow(NamedTuple):
    """A row of the table: what is said, the intent it makes, and the reply to the tool's result."""

    tool: str
    pattern: re.Pattern[str] | None
    read: Read
    takes_all: bool  # the request reaches to the end of the utterance, and not only of the clause
    reply: Say
    subject: str  # "The time" did not work
    effect: str  # I don't know whether "the agent was started"


def _slots(match: re.Match[str]) -> dict[str, Any]:
    slots: dict[str, Any] = {}
    for role, text in match.groupdict().items():
        if role == "agent":
            # "" stands for the agent that was started last.
            name = re.sub(r"(?i)\b(?:please|doing|going|now|getting on)\b", "", text or "").strip(" .,?!:")
            slots[role] = "" if name.casefold() in ("it", "one") else name
        elif text:
            slots[role] = text.strip() if role == "prompt" else text.strip(" .")
    return slots


def _own(kind: Kind, said: str) -> IntentRow:
    return _row("", said, read=lambda match: Intent(kind, slots=_slots(match)))


# fmt: off
def _row(
    tool: str, said: str = "", *, read: Read | None = None, takes_all: bool = False, reply: Say = "",
    subject: str = "", effect: str = "", **fixed: str,
) -> IntentRow:
    # A blank in a pattern stands for white space.
    pattern = re.compile(said.replace(" ", r"\s+"), re.I | re.S) if said else None
    read = read or (lambda match: Intent("call", tool, _slots(match) | fixed))
    return IntentRow(tool, pattern, read, takes_all, reply, subject, effect)
# fmt: on


# Each role's usual names in a tool's schema. The first is taken when the schema names none of them.
ROLES: Mapping[str, Sequence[str]] = {
    "zone": ("timezone", "time_zone", "timeZone", "zone", "tz"),
    "expression": ("expression", "expr", "formula", "input"),
    "prompt": ("prompt", "message", "instructions", "task", "text", "followup"),
    "repository": ("repository", "repo", "repositoryUrl", "repository_url", "repoUrl", "repositoryId"),
    "agent": ("agentId", "agent_id", "id", "agent", "name"),
    "task": ("id", "task_id", "taskId", "task"),
    "status": ("status", "state"),
    "title": ("title", "description", "task", "text", "content", "name"),
    "path": ("path", "file_path", "file", "filename", "directory", "root"),
    "content": ("content", "contents", "text"),
    "filter": ("filter", "query", "search"),
    "pull_request": ("autoCreatePr", "autoCreatePR", "auto_create_pr"),
    "branch": ("autoBranch", "auto_branch"),
}


# -- from a match to an intent, where the groups alone do not say it


def _any_tool(match: re.Match[str]) -> Intent:
    given = (match["arguments"] or "").strip()
    name = match["tool"] if given else match["tool"].rstrip(".")
    return Intent("call", name, None, given[: given.rfind("}") + 1] or given or "{}")


def _time_at(name: str) -> Intent:
    name = re.sub(r"(?i)\b(?:now|right now|today|please|at the moment)\b", "", name).strip(" ,.?!")
    if not name or name.casefold() in ("here", "it"):
        return Intent("call", "get_current_time")
    if found := place(name):
        return Intent("call", "get_current_time", {"zone": found[1]}, found[0])
    return Intent("place", said=name)


def _spawn(match: re.Match[str]) -> Intent:
    task, slots = " ".join(match["rest"].split()), dict[str, Any]()
    for pattern in (_REPOSITORY_FIRST, _REPOSITORY_LAST):
        if (found := pattern.search(task)) and (name := _repository_name(found)):
            slots["repository"] = name
            task = (task[: found.start()] + " " + task[found.end() :]).strip()
            break
    # Both stay false unless they were asked for; any "no" or "not" leaves them so.
    asked = not re.search(r"(?i)\b(?:not|never|without|no)\b|n['\u2019]t\b", task)
    slots["pull_request"] = asked and bool(_PULL_REQUEST.search(task))
    slots["branch"] = asked and bool(_BRANCH.search(task))
    slots["prompt"] = re.sub(
        r"(?i)^[\s,:]*(?:to|that should|that will|that|which|for)\b[\s,:]*", "", task
    ).strip(" .,:")
    return Intent("call", "agent.spawn", slots)


# -- from a tool's result to a reply


def _say_time(result: CallResult) -> str:
    data, said = result.data, result.said
    zone = str(_first_of(result.arguments, *ROLES["zone"]) or "")
    city = said if said and said != "date" else _zone_name(zone)
    moment = _moment_in(data)
    if moment is None:
        return f"In {city} it is {sentence(spoken(data))}" if city else f"It is {sentence(spoken(data))}"
    if said == "date":
        return f"Today is {moment:%A}, {moment:%B} {moment.day}, {moment.year}."
    clock, told = _clock(moment), _first_of(data, *ROLES["zone"])
    universal = told in ("UTC", "Etc/UTC") or (told is None and moment.utcoffset() == timedelta(0))
    if city == "UTC" or (not city and universal):
        return f"It is {clock} in universal time, {moment:%A}."
    return f"In {city} it is {clock}, {moment:%A}." if city else f"It is {clock}, {moment:%A}."


def _say_sum(result: CallResult) -> str:
    value = _first_of(result.data, "result", "value", "answer")
    number = spoken(result.data if value is None else value).replace("-", "minus ", 1)
    said = result.said
    return f"{said[:1].upper()}{said[1:]} is {number}." if said else f"That comes to {number}."


def _say_spawned(result: CallResult) -> str:
    texts = [value for value in result.arguments.values() if isinstance(value, str)]
    where = next((f" on {_short_repository(text)}" for text in texts if _is_repository(text)), "")
    name, identity = _first_of(result.data, "name", "title"), _first_of(result.data, *_AGENT_ID)
    words = f"I started an agent{where}" + (f", called {name}." if name else ".")
    return f"{words} Its id is {identity}." if identity else words


def _say_status(result: CallResult) -> str:
    data = result.data
    status = _first_of(data, "status", "state")
    if status is None:
        return f"The agent's status: {sentence(spoken(data))}"
    label = _first_of(data, "name", "title", "id", "agentId") or next(iter(result.arguments.values()), "")
    summary = _first_of(data, "summary", "message")
    words = f"The agent {label} is {_lowered(status)}."
    return f"{words} {sentence(str(summary))}" if summary else words


def _say_selected(result: CallResult) -> str:
    name = picked_repository(result.data)
    return f"You picked {_short_repository(name)}." if name else "No repository was picked."


def _say_added(result: CallResult) -> str:
    title = _first_of(result.data, "title", "description", "text") or next(
        iter(result.arguments.values()), ""
    )
    return f"I added the task: {sentence(str(title))}"


def _say_file(result: CallResult) -> str:
    text = _first_of(result.data, "content", "text", "contents")
    path = next((value for value in result.arguments.values() if isinstance(value, str)), "The file")
    return f"{path} says: {sentence(spoken(result.data if text is None else text))}"


def _say_list(noun: str, nouns: str) -> Callable[[CallResult], str]:
    def words(result: CallResult) -> str:
        items = _items_of(result.data)
        if items is None:
            return f"Your {nouns}: {sentence(spoken(result.data))}"
        if not items:
            return f"There are no {nouns}."
        count = f"There is 1 {noun}" if len(items) == 1 else f"There are {len(items)} {nouns}"
        return f"{count}: {_series(items)}."

    return words


# -- the table; the first row that matches is taken

_IS = r"(?:'s|\u2019s| is| are)?"
_LIST = rf"(?:.*\b)?(?:list|show|name|read|what{_IS}|which) (?:me )?(?:all )?(?:of )?(?:on )?(?:(?:my|the) )?"
_TASK = r"task[\s_]+(?P<task>\w+)"
_AN_AGENT = r"(?:(?:a|an|another|new|coding|cloud|background)\s+){0,4}agent\b"
_THE_AGENT = r"(?:(?:the|my|that)\s+)?(?:(?:last|coding|cloud)\s+)?agent\b"

# fmt: off
INTENTS = (
    _row("", r"(?:repeat after me|say)\b(?! (?:that|it) again)[:,]? (?P<words>\S.*)", takes_all=True,
         read=lambda match: Intent("say", said=match["words"])),
    _row("", r"call (?:the )?(?:tool )?(?P<tool>[\w.-]+)(?: tool)?(?: with\b\s*(?P<arguments>.*)|[.!?\s]*)$",
         takes_all=True, read=_any_tool),
    _own("repeat", r"(?:repeat(?: (?:that|it|yourself))?|say (?:that|it) again|what did you (?:just )?say)$"),
    _own("recall", r"what did i (?:just )?say$"),
    _own("help", r"(?:help(?: me)?|what can (?:you do|i (?:say|ask)))$"),
    _own("count", r"count (?:from (?P<first>\d{1,9}) )?(?:up )?to (?P<last>\d{1,9})$"),
    _row("calculator", reply=_say_sum, subject="The sum"),  # `sum_of` understands it
    _row("agent.spawn", rf"(?:start|spawn|launch|run|create|kick off) {_AN_AGENT}(?P<rest>.*)",
         takes_all=True, read=_spawn, reply=_say_spawned, subject="Starting the agent",
         effect="the agent was started"),
    _row("agent.followup", rf"(?:tell|ask|message) {_THE_AGENT}(?: (?P<agent>\S.{{0,60}}?))?? (?:to|that)"
         r" (?P<prompt>\S.*)", takes_all=True, reply="I told the agent.", subject="Telling the agent",
         effect="the agent got the message"),
    _row("agent.status", rf"(?:.*\bstatus (?:of|for|on) (?:{_THE_AGENT}|(?=it$))|(?:how{_IS}|check(?: on)?)"
         rf" {_THE_AGENT})(?P<agent>.*)", reply=_say_status, subject="Asking for the status"),
    _row("agent.cancel", rf"(?:cancel|stop|kill|abort) {_THE_AGENT}(?P<agent>.*)",
         reply="The agent is cancelled.", subject="Cancelling the agent", effect="the agent was cancelled"),
    _row("agent.list", rf"{_LIST}agents\b", reply=_say_list("agent", "agents"), subject="Listing the agents"),
    _row("repositories.list", rf"{_LIST}repo(?:sitorie)?s\b", reply=_say_list("repository", "repositories"),
         subject="Listing the repositories"),
    _row("repositories.select", r"(?:(?:let me )?(?:pick|choose|select)"
         r" (?:(?:a|the|my|another|one|from) ){0,3}repo(?:sitory)?"
         r"(?: (?:matching|called|named|with|like) (?P<filter>\S.*))?"
         r"|let me (?:pick|choose|select)(?: (?:one|it))?)$",
         reply=_say_selected, effect="a repository was picked"),
    _row("add_task", r"add (?:a |another )?(?:new )?task\b[:,]? (?:to |called )?(?P<title>\S.*)",
         takes_all=True, reply=_say_added, effect="the task was added"),
    _row("list_tasks", rf"{_LIST}(?:tasks\b|task list\b)", reply=_say_list("task", "tasks")),
    _row("update_task", rf"(?:(?:mark|set) )?{_TASK} (?:is |as |to )?(?:done|completed?|finished)$",
         status="completed", reply="The task is changed.", effect="the task was changed"),
    _row("update_task", rf"(?:finish|complete) {_TASK}$", status="completed"),
    _row("update_task", rf"(?:start|begin) {_TASK}$", status="in_progress"),
    _row("create_file", r"create (?:a |the )?(?:new )?(?:text )?file (?:called |named )?(?P<path>[\w./-]*\w)"
         r" (?:containing|saying|with(?: the (?:text|content|words))?)[:,]? (?P<content>\S.*)",
         takes_all=True, reply="The file is created.", effect="the file was created"),
    _row("get_file_tree", rf"{_LIST}(?:file tree|files)\b(?: in (?P<path>\S+))?"),
    _row("read_file", r"read (?:me )?(?:the )?(?:file )?(?P<path>[\w./-]*[./][\w./-]*\w)$", reply=_say_file),
    _row("get_current_time", rf"(?:.*\bwhat{_IS} (?:the )?time\b(?: is it| it is)?(?: (?:right )?now)?"
         r"|(?:.*\b(?:tell|give) me )?(?:the )?(?:current )?time(?= (?:in|at) |$))"
         r"(?: (?:in|at) (?P<place>.*))?",
         read=lambda match: _time_at(match["place"] or ""), reply=_say_time, subject="The time"),
    _row("get_current_time", rf".*\bwhat{_IS} (?:the |today's )?(?:day|date)\b",
         read=lambda _: Intent("call", "get_current_time", said="date")),
)
# fmt: on
# The first row of a tool has its reply.
_BY_TOOL = {row.tool: row for row in reversed(INTENTS)}

# -- understanding an utterance

# Longer transcripts are no requests; the bound keeps an utterance of any size cheap.
_MAX_UNDERSTOOD = 2000
UNCLEAR = Intent("unclear")

_POLITE = re.compile(
    r"(?i)(?:(?:please|hey|hi|hello|ok|okay|so|well|now|and|then|also|conductor|thanks|thank you"
    r"|can you|could you|would you|will you|i want you to|i would like you to|i'd like you to)\b"
    r"[\s,.!:]*){1,6}"
)
_CUT = re.compile(
    r"(?i)(?:[;?!]|[.,](?=\s)|\s(?:and|then|also)(?=\s))(?:\s+(?:and|then|also|please)(?=\s))*\s*"
)
# "The sum of 3 and 4" in a form that survives the cut at "and".
# fmt: off
_BEFORE_CUT = (
    (r"\b(?:the )?sum of (\S+) and (\S+)", r"\1 plus \2"), (r"\bdivide (\S+) by (\S+)", r"\1 divided by \2"),
    (r"\b(?:the )?product of (\S+) and (\S+)|\bmultiply (\S+) (?:and|by) (\S+)", r"\1\3 times \2\4"),
    (r"\badd ([\w.]+) (?:and|to) ([\w.]+)", r"\1 plus \2"), (r"\bsubtract (\S+) from (\S+)", r"\2 minus \1"),
    (r"\b(?:the )?difference between (\S+) and (\S+)", r"\1 minus \2"),
    (r"\b(hundred|thousand|million) and (?=[a-z])", r"\1 "),
)
# fmt: on


def understand(text: str) -> tuple[Intent, ...]:
    """Return what the utterance asks for, in its order; `UNCLEAR` stands where words made no sense."""
    text = text.strip()
    if match := _POLITE.match(text):
        text = text[match.end() :]
    if whole := _matched(text, takes_all=True):
        return (whole,)
    if (match := _REPOSITORY_ALONE.match(text[:_MAX_UNDERSTOOD])) and (name := _repository_name(match)):
        return (Intent("repository", slots={"repository": name}),)
    text = " ".join(text[:_MAX_UNDERSTOOD].split())
    for pattern, replacement in _BEFORE_CUT:
        text = re.sub(f"(?i){pattern}", replacement, text)
    intents: list[Intent] = []
    start = 0
    for cut in [*_CUT.finditer(text), None]:
        clause = text[start : cut.start()] if cut else text[start:]
        start = cut.end() if cut else len(text)
        if intent := _clause(clause, intents[-1] if intents else None):
            intents.append(intent)
        # What is dictated goes to the end: an "and" in it does not begin another request.
        if cut and (rest := _matched(text, start, takes_all=True)):
            intents.append(rest)
            break
    return tuple(each for index, each in enumerate(intents) if each not in intents[:index]) or (UNCLEAR,)


def _matched(text: str, position: int = 0, *, takes_all: bool) -> Intent | None:
    for row in INTENTS:
        if row.pattern and row.takes_all == takes_all and (match := row.pattern.match(text, position)):
            return row.read(match)
    return None


def _clause(clause: str, before: Intent | None) -> Intent | None:
    # Return the clause's intent, or None for nothing but politeness.
    clause = clause.strip(" ,.?!")
    if match := _POLITE.match(clause):
        clause = clause[match.end() :]
    clause = re.sub(r"(?i)[\s,]+(?:please|thanks|thank you)$", "", clause).strip(" ,.?!")
    if not clause or clause.casefold() == "please":
        return None
    if found := sum_of(clause):
        return Intent("call", "calculator", {"expression": found[1]}, found[0])
    if intent := _matched(_digits(clause) if clause[:5].casefold() == "count" else clause, takes_all=False):
        return intent
    if before and before.tool.endswith("list") and (named := re.fullmatch(r"(?i)(?:my |the )?(\w+)", clause)):
        return _clause(f"list {named[1]}", None)
    if before and (before.tool == "get_current_time" or before.kind == "place"):
        # "…in Tokyo, Paris and in New York": a place goes on with the question before it.
        name = re.sub(r"(?i)^in\s+", "", clause)
        if place(name) or len(name.split()) <= 2:
            return _time_at(name)
    return UNCLEAR


# -- answering with a result


def call_result(call: ToolCall, result: ToolResult, said: str = "") -> CallResult:
    """Read a result: a tool outcome as JSON, or any other text, which is data or an error's message."""
    read = decoded(result.content)
    if isinstance(read, dict) and isinstance(read.get("success"), bool):
        kind, message = str(read.get("error_type") or "none"), str(read.get("error_message") or "")
        return CallResult(call, read["success"], _unwrapped(read.get("data")), kind, message, said)
    if not result.is_error:
        return CallResult(call, True, _unwrapped(read), said=said)
    # A result that the server made up for a call that was cut off says so in these words.
    kind = "unknown" if "may or may not" in result.content else "internal_error"
    return CallResult(call, False, None, kind, result.content, said)


def answer(result: CallResult, *, alone: bool) -> str:
    """Put one result into words; ``alone`` says that it is the only one of its reply."""
    name, row = result.call.name, _BY_TOOL.get(result.call.name)
    if result.error_type == "unknown":
        happened = (row and row.effect) or f"the call of {titled(name)} took effect"
        return f"I don't know whether {happened}. It may have, so I am not trying again."
    if result.error_type == "permission_denied":
        return "All right, I left it."
    if result.error_type == "approval_timeout":
        return "I had no clear yes from you, so I left it."
    if not result.success:
        subject = "That" if alone else (row and row.subject) or titled(name)
        return f"{subject} did not work: {sentence(result.message or result.error_type.replace('_', ' '))}"
    if row is None or not row.reply:
        return f"{titled(name)} answered: {sentence(spoken(result.data))}"
    return row.reply if isinstance(row.reply, str) else row.reply(result)


# -- sums: "17% of 2340" is (17 / 100) * 2340

_DIGITS = "zero one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS = {word: value for value, word in enumerate(f"{_DIGITS} {_TEENS}".split())}
_NUMBERS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_ONE, _TEEN, _TEN = (words.replace(" ", "|") for words in (_DIGITS, _TEENS, _TENS))
_BELOW_100 = rf"(?:(?:{_TEN})(?:[ -](?:{_ONE}))?|{_TEEN}|{_ONE})(?![a-z])"
_BELOW_1000 = rf"(?:{_BELOW_100}(?: hundred\b(?: (?:and )?{_BELOW_100})?)?)"
_THOUSANDS = rf"(?:{_BELOW_1000}(?: thousand\b(?: (?:and )?{_BELOW_1000})?)?)"
_NUMBER_WORDS = re.compile(rf"(?i)\b{_THOUSANDS}(?: million\b(?: (?:and )?{_THOUSANDS})?)?")


def _digits(text: str) -> str:
    # Write number words as digits: "twenty five times one hundred and two" is "25 times 102".
    def value(match: re.Match[str]) -> str:
        total = current = 0
        for word in re.findall("[a-z]+", match[0].casefold()):
            current = current * _SCALES[word] if word in _SCALES else current + _NUMBERS.get(word, 0)
            if word in ("thousand", "million"):
                total, current = total + current, 0
        return str(total + current)

    return _NUMBER_WORDS.sub(value, " ".join(text.split()))


_SUM_LEAD = re.compile(
    r"(?i)(?:what(?:'s|\u2019s| is| are| does)|how much (?:is|are|does)|calculate|compute|work out|evaluate"
    r"|solve|tell me|do)\s+(?:the (?:result|value|answer) of\s+)?"
)
_OPERAND = r"\d+(?:\.\d+)?|\.\d+|pi"
# What people say, and what the calculator reads, in this order.
# fmt: off
_SUM_WORDS = (
    (r"(?<=\d),(?=\d{3}(?!\d))", ""), ("(?:raised )?to the power of|\\^", " ** "), ("the", ""),
    ("square root of", " sqrt "), ("half of", " 0.5 * "), ("factorial of", " factorial "),
    (rf"({_OPERAND})\s*(?:!|factorial)", r" factorial(\1) "),
    (r"%(?=\s*[\d(.])", " mod "),  # "10 % 3" is a remainder; "17% of" and "17%" are parts of a hundred
    ("per ?cent", "%"), (rf"({_OPERAND})\s*%", r" (\1 / 100) "), (r"\)\s*%", ") / 100 "),
    ("squared", " ** 2 "), ("cubed", " ** 3 "), ("modulo|mod", " % "), ("plus", " + "),
    ("minus|\u2212", " - "), ("multiplied by|times|of|x|\u00d7|\u00b7", " * "),
    ("divided by|over|\u00f7", " / "), (rf"(sqrt|factorial)\s+({_OPERAND})", r"\1(\2)"),
)
# fmt: on
_SUM_TOKEN = re.compile(rf"\s*(sqrt|factorial|{_OPERAND}|\*\*|[-+*/%()])")
_IN_WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by", "**": "to the power of"}
_IN_WORDS |= {"^": "to the power of", "\u00d7": "times", "\u00f7": "divided by", "\u2212": "minus"}


def sum_of(clause: str) -> tuple[str, str] | None:
    """Return (how it was said, the expression) if the whole clause is a sum, else None."""
    said = _digits(clause.strip(" ?.=,"))
    if lead := _SUM_LEAD.match(said):
        said = said[lead.end() :]
    said = re.sub(r"(?i)\s+equals?$", "", said)
    text = said.casefold()
    for spoken_word, written in _SUM_WORDS:
        text = re.sub(rf"(?<![a-z])(?:{spoken_word})(?![a-z])", written, text)
    if _SUM_TOKEN.sub("", text).strip():
        return None
    text = " ".join(_SUM_TOKEN.findall(text)).replace("( ", "(").replace(" )", ")")
    text = re.sub(r"(sqrt|factorial) \(", r"\1(", text)
    if re.search(r"[\di)] ?\(|\(\)", text) or not _is_expression(text):
        return None
    # A voice reads "*" as "asterisk".
    said = re.sub(r"(?<=[\d)])\s*(\*\*|[*+/^\u00d7\u00f7\u2212-])\s*(?=[\d(.])", r" \1 ", said)
    return " ".join(_IN_WORDS.get(word, word) for word in said.split()), text


def _is_expression(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):
        return False
    return isinstance(tree, (ast.BinOp, ast.UnaryOp, ast.Call))  # a lone number is no sum


# -- repositories

_REPOSITORY = (
    r"(?:https?://)?(?:github\.com/)?(?P<owner>[A-Za-z0-9][\w-]{0,60})(?:\s?/\s?|\s+slash\s+)"
    r"(?P<name>[\w.-]{1,100})(?:\s+repo(?:sitory)?)?"
)
_THE_REPOSITORY = rf"(?:the\s+)?(?:repo(?:sitory)?\s+)?{_REPOSITORY}"
_REPOSITORY_FIRST = re.compile(rf"(?i)^[\s,]*(?:in|on|for)\s+{_THE_REPOSITORY}(?![\w/])")
_REPOSITORY_LAST = re.compile(rf"(?i)[\s,]+(?:in|on|for|from|using|with)\s+{_THE_REPOSITORY}[.?!\s]*$")
_REPOSITORY_ALONE = re.compile(
    rf"(?i)^(?:(?:in|on|use|for|it's|it is|the|yes|please|take|repo|repository)[\s,]+){{0,5}}{_REPOSITORY}"
    r"(?:[\s,]+(?:please|then))?[.?!\s]*$"
)
_FOLDERS = "src lib app apps test tests docs doc cmd pkg packages internal scripts bin etc usr".split()
_FILE = re.compile(r"\.(?:py|tsx?|jsx|go|rs|java|swift|kt|c|h|cpp|md|json|ya?ml|toml|txt|sh|html|css)$")
_PULL_REQUEST = re.compile(r"(?i)\b(?:open|create|make|raise|file)\s+(?:a\s+|the\s+)?(?:pull request|pr)\b")
_BRANCH = re.compile(r"(?i)\b(?:on|in|create|make|use)\s+(?:a|its)\s+(?:new\s+|own\s+|separate\s+)?branch\b")
_AGENT_ID = ("id", "agentId", "agent_id")


def _repository_name(match: re.Match[str]) -> str | None:
    # Return owner/name, or None for what is rather a file: a repository is never guessed.
    owner, name = match["owner"], match["name"].rstrip(".")
    if not name or owner.casefold() in _FOLDERS or _FILE.search(name.casefold()):
        return None
    return f"{owner}/{name}"


def _short_repository(text: str) -> str:
    return re.sub(r"^(?:https?://)?(?:www\.)?github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?$", r"\1", text)


def _is_repository(text: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", _short_repository(text)))


def picked_repository(data: Any) -> str | None:
    """Return a repository picker's choice as it was given, None if nothing was picked."""
    names = ("fullName", "full_name", "name", "url")
    value = data if isinstance(data, str) else _first_of(data, "repository", *names[:2], "repo", *names[2:])
    text = str((_first_of(value, *names) if isinstance(value, dict) else value) or "").strip()
    return text if _is_repository(text) else None


def agent_id(data: Any) -> str | None:
    """Return the id in an agent tool's result."""
    if isinstance(data, dict) and isinstance(data.get("agent"), dict):
        data = data["agent"]
    found = _first_of(data, *_AGENT_ID)
    return None if found is None else str(found)


# -- places and times

_CITIES = {
    "Africa": "Cairo Johannesburg Lagos Nairobi",
    "America": "Bogotá Chicago Denver Lima Los_Angeles Mexico_City New_York São_Paulo Toronto Vancouver",
    "Asia": "Bangkok Dubai Hong_Kong Jakarta Kathmandu Manila Seoul Shanghai Singapore Taipei Tokyo",
    "Australia": "Melbourne Sydney",
    "Europe": "Amsterdam Athens Berlin Copenhagen Dublin Helsinki Istanbul Lisbon London Madrid Moscow Oslo "
    "Paris Prague Rome Stockholm Vienna Warsaw Zurich",
    "Pacific": "Auckland Honolulu",
}
# fmt: off
_OTHER_CITIES = {
    "Beijing": "Asia/Shanghai", "Boston": "America/New_York", "Cape Town": "Africa/Johannesburg",
    "Buenos Aires": "America/Argentina/Buenos_Aires", "Delhi": "Asia/Kolkata", "Mumbai": "Asia/Kolkata",
    "Munich": "Europe/Berlin", "San Francisco": "America/Los_Angeles", "Seattle": "America/Los_Angeles",
}
# fmt: on


def _plain(name: str) -> str:
    # Fold accents: transcripts hold "Sao Paulo" and "São Paulo" alike.
    return "".join(mark for mark in unicodedata.normalize("NFKD", name) if not unicodedata.combining(mark))


def _zone_name(zone: str) -> str:
    return zone.rpartition("/")[2].replace("_", " ")


_PLACES = {_plain(city).casefold(): (city, zone) for city, zone in _OTHER_CITIES.items()} | {
    _plain(_zone_name(city)).casefold(): (_zone_name(city), f"{region}/{_plain(city)}")
    for region, cities in _CITIES.items()
    for city in cities.split()
}
_PLACES |= dict.fromkeys(("utc", "gmt", "universal time", "greenwich"), ("UTC", "UTC"))


def place(name: str) -> tuple[str, str] | None:
    """Return (how to say it, IANA zone) of a city, of "UTC", or of a zone's own name; None if unknown."""
    name = name.strip()
    if re.fullmatch(r"[A-Za-z_]{2,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2}", name):
        return _zone_name(name), name
    return _PLACES.get(_plain(name).casefold())


def _clock(moment: datetime) -> str:
    # Say a time of day: "3:42 in the afternoon", "noon", "7 o'clock in the evening".
    hour, minute = moment.hour, moment.minute
    if minute == 0 and hour in (0, 12):
        return "noon" if hour else "midnight"
    clock = f"{(hour - 1) % 12 + 1}:{minute:02}" if minute else f"{(hour - 1) % 12 + 1} o'clock"
    if hour < 5 or hour >= 22:
        return f"{clock} at night"
    return f"{clock} in the {'morning' if hour < 12 else 'afternoon' if hour < 18 else 'evening'}"


def _moment_in(data: Any) -> datetime | None:
    candidates = [data] if isinstance(data, str) else []
    if isinstance(data, dict):
        candidates = [data[key] for key in sorted(data, key=lambda key: "utc" in key.casefold())]
    for text in candidates:
        if isinstance(text, str) and "T" in text:
            try:
                return datetime.fromisoformat(text)
            except ValueError:
                continue
    return None


# -- JSON values in words, for the ear

# Characters, and items of a list, that a listener can follow.
_MAX_SPOKEN = 300
_MAX_ITEMS = 5
_LABELS = "name title fullName full_name repository path description text id agentId".split()


def spoken(value: Any) -> str:
    """Say any JSON value in a few words, at most about 300 characters; what is left out is not hidden."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            number = f"{abs(value):.15g}" if isinstance(value, float) else str(abs(value))
            return f"minus {number}" if value < 0 else number
        case list():
            return _shortened(_series(value)) if value else "none"
        case dict() if (items := _items_of(value)) is not None:
            return spoken(items)
        case dict():
            plain = [
                (key, part) for key, part in value.items() if not isinstance(part, (dict, list, type(None)))
            ]
            words = [f"{titled(key).lower()} is {spoken(part)}" for key, part in plain[:6]]
            return _shortened(_joined(words)) if words else "nothing that can be said in words"
        case _:
            return _shortened(" ".join(str(value).split())) or "nothing"


def sentence(text: str) -> str:
    """Make one sentence or more of any text: short, and ended."""
    text = _shortened(" ".join(text.split()))
    return text if text.endswith((".", "!", "?", "\u2026")) else f"{text}."


def titled(name: str) -> str:
    """Say an identifier: "battery.level" and "batteryLevel" are "Battery level"."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace(".", " ").replace("_", " ")).lower()
    return words[:1].upper() + words[1:]


def _first_of(data: Any, *names: str) -> Any:
    if not isinstance(data, dict):
        return None
    return next((data[name] for name in names if data.get(name) is not None), None)


def _items_of(data: Any) -> list[Any] | None:
    # Return the list that a result is, or the only list it holds.
    lists = [data] if isinstance(data, list) else []
    if isinstance(data, dict):
        lists = [part for part in data.values() if isinstance(part, list)]
    return lists[0] if len(lists) == 1 else None


def _series(items: Sequence[Any]) -> str:
    more = [f"{len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else []
    return _joined([_label(item) for item in items[:_MAX_ITEMS]] + more)


def _label(item: Any) -> str:
    if isinstance(item, str):
        return _short_repository(item)
    if not isinstance(item, dict):
        return "another list" if isinstance(item, list) else spoken(item)
    label, status = _first_of(item, *_LABELS), _first_of(item, "status", "state")
    words = _short_repository(str(label)) if isinstance(label, (str, int)) else "one without a name"
    return f"{words}, which is {_lowered(status)}" if status else words


def _joined(words: Sequence[str]) -> str:
    separator = "; " if any(", " in word for word in words) else ", "
    return separator.join([*words[:-2], " and ".join(words[-2:])])


def _lowered(status: Any) -> str:
    return str(status).replace("_", " ").lower()


def _shortened(text: str) -> str:
    return (
        text if len(text) <= _MAX_SPOKEN else text[:_MAX_SPOKEN].rpartition(" ")[0] + ", and there is more."
    )


def decoded(text: str) -> Any:
    """Read JSON, or leave the text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _unwrapped(data: Any) -> Any:
    # Read a device's text result that is JSON itself.
    return decoded(data) if isinstance(data, str) and data[:1] in "{[" else data
