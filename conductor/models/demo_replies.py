"""How the demo model puts the results of tools into words for the ear."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

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
        """The call's arguments, none where they are no JSON object."""
        given = decoded(self.call.arguments)
        return given if isinstance(given, dict) else {}


Reply: TypeAlias = str | Callable[[CallResult], str]


def read_result(call: ToolCall, result: ToolResult) -> CallResult:
    """Read a result: a tool outcome as JSON, or any other text, which is data or an error's message."""
    read = decoded(result.content)
    if isinstance(read, dict) and isinstance(read.get("success"), bool):
        data = read.get("data")
        data = decoded(data) if isinstance(data, str) and data[:1] in "{[" else data
        kind, message = str(read.get("error_type") or "none"), str(read.get("error_message") or "")
        return CallResult(call, data, kind, message)
    if not result.is_error:
        return CallResult(call, read)
    # A result that the server made up for a call that was cut off says so in these words.
    kind = "unknown" if "may or may not" in result.content else "internal_error"
    return CallResult(call, None, kind, result.content)


def answer(result: CallResult, reply: Reply) -> str:
    """Put one result into words; ``reply`` is what its row of the table says of a success."""
    name = titled(result.call.name)
    match result.error_type:
        case "none":
            if not isinstance(reply, str):
                return reply(result)
            return reply or f"{name} answered: {sentence(spoken(result.data))}"
        case "unknown":
            return f"{name}: I don't know whether that happened. It may have, so I am not trying again."
        case "permission_denied":
            return "All right, I left it."
        case "approval_timeout":
            return "I had no clear yes from you, so I left it."
    return f"{name} did not work: {sentence(result.message or result.error_type.replace('_', ' '))}"


# -- replies of single tools


def say_time(result: CallResult) -> str:
    """Say the time and the date."""
    zone = str(result.arguments.get("timezone") or "")
    where = f"In {zone.rpartition('/')[2].replace('_', ' ')} it is" if zone else "It is"
    try:
        moment = datetime.fromisoformat(str(first_of(result.data, "time", "datetime")))
    except ValueError:
        return f"{where} {sentence(spoken(result.data))}"
    universal = " in universal time" if first_of(result.data, "time_zone") == "UTC" and not zone else ""
    return f"{where} {_clock(moment)}{universal}, {moment:%A}, {moment:%B} {moment.day}, {moment.year}."


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
    said = str(result.arguments.get("expression", ""))
    for symbol, word in (("**", "to the power of"), ("*", "times"), ("/", "divided by"), (" - ", " minus ")):
        said = said.replace(symbol, word)
    said = re.sub(r"sqrt\(([\d.]+)\)", r"the square root of \1", said.replace("+", "plus"))
    value = spoken(first_of(result.data, "result", "value") or result.data).replace("-", "minus ", 1)
    return f"{said[:1].upper()}{said[1:]} is {value}."


def say_started(result: CallResult) -> str:
    """Say which agent was started, and where."""
    where = result.arguments.get("repository")
    identity = agent_id(result.data)
    words = f"I started an agent on {where}." if where else "I started an agent."
    return f"{words} Its id is {identity}." if identity else words


def say_status(result: CallResult) -> str:
    """Say how an agent is getting on."""
    status = first_of(result.data, "status", "state")
    if status is None:
        return f"The agent's status: {sentence(spoken(result.data))}"
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
    made = first_of(result.data, "reminder") or {}
    try:
        moment = datetime.fromisoformat(str(first_of(made, "at")))
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
    return f"{path} says: {sentence(spoken(first_of(result.data, 'content', 'text') or result.data))}"


def say_list(noun: str, nouns: str) -> Callable[[CallResult], str]:
    """Make the reply that counts things and names a few of them."""

    def words(result: CallResult) -> str:
        items = _items_of(result.data)
        if items is None:
            return f"Your {nouns}: {sentence(spoken(result.data))}"
        if not items:
            return f"There are no {nouns}."
        count = f"There is 1 {noun}" if len(items) == 1 else f"There are {len(items)} {nouns}"
        return f"{count}: {_series(items)}."

    return words


def agent_id(data: Any) -> str | None:
    """Return the id in an agent tool's result."""
    found = first_of(first_of(data, "agent") or data, "id", "agentId")
    return None if found is None else str(found)


def picked_repository(data: Any) -> str | None:
    """Return a repository picker's choice as it was given, None if nothing was picked."""
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
            plain = {key: part for key, part in value.items() if not isinstance(part, dict | list | None)}
            words = [f"{titled(key).lower()} is {spoken(part)}" for key, part in list(plain.items())[:6]]
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


def _items_of(data: Any) -> list[Any] | None:
    # The list that a result is, or the only list it holds.
    values = data.values() if isinstance(data, Mapping) else [data]
    lists = [value for value in values if isinstance(value, list)]
    return lists[0] if len(lists) == 1 else None


def _series(items: Sequence[Any]) -> str:
    more = [f"{len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else []
    return _joined([_label(item) for item in items[:_MAX_ITEMS]] + more)


def _label(item: Any) -> str:
    if not isinstance(item, dict):
        return "another list" if isinstance(item, list) else spoken(item)
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
