"""The words of the demo model: it reads sums, zones and repositories, and says the results of tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias
from zoneinfo import available_timezones

import msgspec

from conductor.messages import ToolCall, ToolResult

# Characters, and items of a list, that a listener can follow.
_MAX_SPOKEN = 300
_MAX_ITEMS = 5
_LABELS = ("name", "title", "fullName", "repository", "path", "description", "text", "id")


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call and its outcome; ``data`` is the result, ``message`` the text of an error."""

    call: ToolCall
    data: Any
    error_type: str = "none"
    message: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments; empty if they are no JSON object."""
        value = decoded(self.call.arguments)
        return value if isinstance(value, dict) else {}


Reply: TypeAlias = str | Callable[[CallResult], str]


def read_result(call: ToolCall, result: ToolResult) -> CallResult:
    """Read a result: a tool outcome as JSON, or other text, which is data or an error's message."""
    value = decoded(result.content)
    if isinstance(value, dict) and isinstance(value.get("success"), bool):
        data = value.get("data")
        data = decoded(data) if isinstance(data, str) and data[:1] in "{[" else data
        kind, message = str(value.get("error_type") or "none"), str(value.get("error_message") or "")
        return CallResult(call, data, kind, message)
    if not result.is_error:
        return CallResult(call, value)
    # The text of a result that the server made for an interrupted call.
    kind = "unknown" if "may or may not" in result.content else "internal_error"
    return CallResult(call, None, kind, result.content)


def answer(result: CallResult, reply: Reply) -> str:
    """Put one result into words; ``reply`` is the table's reply to a success."""
    name = titled(result.call.name)
    match result.error_type:
        case "none":
            if not isinstance(reply, str):
                return reply(result)
            return reply or f"{name} answered: {sentence(in_words(result.data))}"
        case "unknown":
            return f"{name}: I don't know whether that happened. It may have, so I am not trying again."
        case "permission_denied":
            return "All right, I left it."
        case "approval_timeout":
            return "I had no clear yes from you, so I left it."
    return f"{name} did not work: {sentence(result.message or result.error_type.replace('_', ' '))}"


# -- from the person's words


def time_zone(name: str) -> str | None:
    """Give the time zone of a city, or of a zone's own name."""
    if re.fullmatch(r"[A-Za-z_]{2,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2}", name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _zones().get(plain.casefold())


@cache
def _zones() -> Mapping[str, str]:
    zones = {zone.rpartition("/")[2].replace("_", " ").casefold(): zone for zone in available_timezones()}
    return zones | {"san francisco": "America/Los_Angeles", "munich": "Europe/Berlin"}


REPOSITORY = (
    r"(?:the\s+)?(?:repo(?:sitory)?\s+)?(?:https?://)?(?:github\.com/)?(?P<owner>[A-Za-z0-9][\w-]{0,60})"
    r"(?:\s?/\s?|\s+slash\s+)(?P<name>[\w.-]{1,100})"
)
_FOLDERS = ("src", "lib", "app", "test", "tests", "docs", "pkg", "scripts", "bin", "etc", "handlers")


def repository(match: re.Match[str]) -> str | None:
    """Give the repository of a match of `REPOSITORY`; None for a file."""
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


def read_sum(clause: str) -> str | None:
    """Read an expression for the calculator; None for other words."""
    clause = _SUM_LEAD.sub("", clause, count=1)
    for spoken_form, symbol in _SUM_WORDS:
        clause = re.sub(spoken_form, symbol, clause, flags=re.I)
    text = " ".join(clause.strip(" ?.=,").split())
    return text if _SUM.fullmatch(text) and _OPERATION.search(text) else None


# -- replies of single tools


def say_time(result: CallResult) -> str:
    """Say the time and the date."""
    zone = str(result.arguments.get("timezone") or "")
    start = f"In {zone.rpartition('/')[2].replace('_', ' ')} it is" if zone else "It is"
    try:
        moment = datetime.fromisoformat(str(first_of(result.data, "time", "datetime")))
    except ValueError:
        return f"{start} {sentence(in_words(result.data))}"
    universal = " in universal time" if first_of(result.data, "time_zone") == "UTC" and not zone else ""
    return f"{start} {_clock(moment)}{universal}, {moment:%A}, {moment:%B} {moment.day}, {moment.year}."


def _clock(moment: datetime) -> str:
    hour, minute = moment.hour, moment.minute
    if minute == 0 and hour in (0, 12):
        return "noon" if hour else "midnight"
    clock = f"{(hour - 1) % 12 + 1}:{minute:02}" if minute else f"{(hour - 1) % 12 + 1} o'clock"
    if hour < 5 or hour >= 22:
        return f"{clock} at night"
    return f"{clock} in the {'morning' if hour < 12 else 'afternoon' if hour < 18 else 'evening'}"


def say_sum(result: CallResult) -> str:
    """Say a sum and its value; a voice reads "*" as "asterisk"."""
    text = str(result.arguments.get("expression", ""))
    for symbol, word in (("**", "to the power of"), ("*", "times"), ("/", "divided by"), (" - ", " minus ")):
        text = text.replace(symbol, word)
    text = re.sub(r"sqrt\(([\d.]+)\)", r"the square root of \1", text.replace("+", "plus"))
    value = in_words(first_of(result.data, "result", "value") or result.data).replace("-", "minus ", 1)
    return f"{text[:1].upper()}{text[1:]} is {value}."


def say_started(result: CallResult) -> str:
    """Say which agent was started, and where."""
    name = result.arguments.get("repository")
    identity = agent_id(result.data)
    words = f"I started an agent on {name}." if name else "I started an agent."
    return f"{words} Its id is {identity}." if identity else words


def say_status(result: CallResult) -> str:
    """Say the status of an agent."""
    status = first_of(result.data, "status", "state")
    if status is None:
        return f"The agent's status: {sentence(in_words(result.data))}"
    label = first_of(result.data, "name", "id") or next(iter(result.arguments.values()), "")
    words = f"The agent {label} is {_lowered(status)}."
    summary = first_of(result.data, "summary", "message")
    return f"{words} {sentence(str(summary))}" if summary else words


def say_picked(result: CallResult) -> str:
    """Say which repository was picked."""
    name = picked_repository(result.data)
    return f"You picked {name}." if name else "No repository was picked."


def say_added(result: CallResult) -> str:
    """Say which task was added."""
    title = first_of(result.data, "title") or next(iter(result.arguments.values()), "")
    return f"I added the task: {sentence(str(title))}"


def say_scheduled(result: CallResult) -> str:
    """Say when the person will be reminded."""
    reminder = first_of(result.data, "reminder") or {}
    try:
        moment = datetime.fromisoformat(str(first_of(reminder, "at")))
    except ValueError:
        return "I will remind you."
    return f"I will remind you on {moment:%A}, {moment:%B} {moment.day}, at {_clock(moment)}."


def say_note(text: str) -> str:
    """Say a note of the server's."""
    reminder = re.match(r"The user asked to be reminded on .*? of this: (.*)$", text, re.M)
    return f"You asked me to remind you: {sentence(reminder[1])}" if reminder else sentence(text)


def say_file(result: CallResult) -> str:
    """Read a file out."""
    path = next(iter(result.arguments.values()), "The file")
    return f"{path} says: {sentence(in_words(first_of(result.data, 'content', 'text') or result.data))}"


def say_list(noun: str, nouns: str) -> Callable[[CallResult], str]:
    """Make the reply that counts things and names a few of them."""

    def words(result: CallResult) -> str:
        items = _items_of(result.data)
        if items is None:
            return f"Your {nouns}: {sentence(in_words(result.data))}"
        if not items:
            return f"There are no {nouns}."
        count = f"There is 1 {noun}" if len(items) == 1 else f"There are {len(items)} {nouns}"
        return f"{count}: {_series(items)}."

    return words


def agent_id(data: Any) -> str | None:
    """Return the id in an agent tool's result."""
    identity = first_of(first_of(data, "agent") or data, "id", "agentId")
    return None if identity is None else str(identity)


def picked_repository(data: Any) -> str | None:
    """Return the choice of a repository picker; None if nothing was picked."""
    value = first_of(data, "repository", "fullName", "name", "url") or data
    text = str(first_of(value, "fullName", "name", "url") or value or "").strip()
    return text if re.fullmatch(r"(?:https?://[\w.-]+/)?[\w.-]+/[\w.-]+/?", text) else None


# -- any JSON value


def decoded(text: str) -> Any:
    """Read JSON, or leave the text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def first_of(data: Any, *names: str) -> Any:
    """Return the first of an object's fields that has a value."""
    if not isinstance(data, dict):
        return None
    return next((data[name] for name in names if data.get(name) is not None), None)


def in_words(value: Any) -> str:
    """Say any JSON value in at most about 300 characters; with a hint at a cut."""
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
            return in_words(items)
        case dict():
            plain = {key: part for key, part in value.items() if not isinstance(part, dict | list | None)}
            words = [f"{titled(key).lower()} is {in_words(part)}" for key, part in list(plain.items())[:6]]
            return _shortened(_joined(words)) if words else "nothing that can be said in words"
        case _:
            return _shortened(" ".join(str(value).split())) or "nothing"


def sentence(text: str) -> str:
    """Shorten a text, and end it with a full stop."""
    text = _shortened(" ".join(text.split()))
    return text if text.endswith((".", "!", "?", "\u2026")) else f"{text}."


def titled(name: str) -> str:
    """Say an identifier: "battery.level" and "batteryLevel" are "Battery level"."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace(".", " ").replace("_", " ")).lower()
    return words[:1].upper() + words[1:]


def _items_of(data: Any) -> list[Any] | None:
    # The list itself, or the only list in an object.
    values = data.values() if isinstance(data, Mapping) else [data]
    lists = [value for value in values if isinstance(value, list)]
    return lists[0] if len(lists) == 1 else None


def _series(items: Sequence[Any]) -> str:
    more = [f"{len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else []
    return _joined([_label(item) for item in items[:_MAX_ITEMS]] + more)


def _label(item: Any) -> str:
    if not isinstance(item, dict):
        return "another list" if isinstance(item, list) else in_words(item)
    label, status = first_of(item, *_LABELS), first_of(item, "status", "state")
    words = str(label) if isinstance(label, str | int) else "one without a name"
    return f"{words}, which is {_lowered(status)}" if status else words


def _joined(words: Sequence[str]) -> str:
    separator = "; " if any(", " in word for word in words) else ", "
    return separator.join([*words[:-2], " and ".join(words[-2:])])


def _lowered(status: Any) -> str:
    return str(status).replace("_", " ").lower()


def _shortened(text: str) -> str:
    if len(text) <= _MAX_SPOKEN:
        return text
    return f"{text[:_MAX_SPOKEN].rpartition(' ')[0]}, and there is more."
