"""How the demo model puts tool results and notes into words, for the ear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.messages import ToolCall, ToolResult
from conductor.models.demo_places import zone_name
from conductor.models.demo_values import (
    ZONE_NAMES,
    decoded,
    first_of,
    is_repository,
    is_utc,
    items_of,
    lowered,
    moment_in,
    picked_repository,
    sentence,
    series,
    spoken,
    spoken_time,
    titled,
    unwrapped,
)

_HAPPENED = {
    "agent.spawn": "the agent was started",
    "agent.followup": "the agent got the message",
    "agent.cancel": "the agent was cancelled",
    "add_task": "the task was added",
    "update_task": "the task was changed",
    "create_file": "the file was created",
    "repositories.select": "a repository was picked",
}
_SUBJECTS = {
    "get_current_time": "The time",
    "calculator": "The sum",
    "agent.spawn": "Starting the agent",
    "agent.status": "Asking for the status",
    "agent.followup": "Telling the agent",
    "agent.cancel": "Cancelling the agent",
    "agent.list": "Listing the agents",
    "repositories.list": "Listing the repositories",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool result says, read from a `ToolOutcome`'s JSON or from any other text."""

    success: bool
    data: Any
    error_type: str = "none"
    message: str = ""


def outcome_of(result: ToolResult) -> Outcome:
    """Read a result; text that is no outcome is its own data, or its own message if it is an error."""
    read = decoded(result.content)
    if isinstance(read, dict) and isinstance(read.get("success"), bool):
        message = read.get("error_message")
        kind = str(read.get("error_type") or "none")
        return Outcome(read["success"], unwrapped(read.get("data")), kind, str(message or ""))
    if not result.is_error:
        return Outcome(True, unwrapped(read))
    # A result that the server made up for a call that was cut off says so in these words.
    doubtful = "may or may not" in result.content
    return Outcome(False, None, "unknown" if doubtful else "internal_error", result.content)


_LEFT = {
    "permission_denied": "All right, I left it.",
    "approval_timeout": "I had no clear yes from you, so I left it.",
}


def answer(call: ToolCall, result: ToolResult, *, said: str = "", alone: bool = True) -> str:
    """Put one result into words.

    ``said`` is how the user put the request; ``alone`` says that it is the only one of its reply.
    """
    outcome = outcome_of(result)
    if outcome.error_type == "unknown":
        happened = _HAPPENED.get(call.name, f"the call of {titled(call.name)} took effect")
        return f"I don't know whether {happened}. It may have, so I am not trying again."
    if outcome.error_type in _LEFT:
        return _LEFT[outcome.error_type]
    if not outcome.success:
        subject = "That" if alone else _SUBJECTS.get(call.name, titled(call.name))
        return f"{subject} did not work: {sentence(outcome.message or outcome.error_type.replace('_', ' '))}"
    given = decoded(call.arguments)
    arguments = given if isinstance(given, dict) else {}
    return _ANSWERS.get(call.name, _any)(call, outcome.data, arguments, said)


def narrated(notes: Sequence[str]) -> str:
    """Tell of what the server noted."""
    return "Here is some news. " + " ".join(sentence(note) for note in notes)


# -- one function a tool


def _time(_: ToolCall, data: Any, arguments: Mapping[str, Any], said: str) -> str:
    moment = moment_in(data)
    zone = next((str(arguments[name]) for name in ZONE_NAMES if arguments.get(name)), "")
    city = said if said and said != "date" else zone_name(zone) if zone else ""
    if moment is None:
        return f"In {city} it is {sentence(spoken(data))}" if city else f"It is {sentence(spoken(data))}"
    if said == "date":
        return f"Today is {moment:%A}, {moment:%B} {moment.day}, {moment.year}."
    clock = spoken_time(moment)
    if city == "UTC" or (not city and is_utc(data, moment)):
        return f"It is {clock} in universal time, {moment:%A}."
    return f"In {city} it is {clock}, {moment:%A}." if city else f"It is {clock}, {moment:%A}."


def _sum(_: ToolCall, data: Any, __: Mapping[str, Any], said: str) -> str:
    value = first_of(data, "result", "value", "answer")
    number = spoken(data if value is None else value).replace("-", "minus ", 1)
    return f"{said[:1].upper()}{said[1:]} is {number}." if said else f"That comes to {number}."


def _spawned(_: ToolCall, data: Any, arguments: Mapping[str, Any], __: str) -> str:
    where = next(
        (str(value) for value in arguments.values() if isinstance(value, str) and is_repository(value)), ""
    )
    name, identity = first_of(data, "name", "title"), first_of(data, "id", "agentId", "agent_id")
    words = f"I started an agent on {where}" if where else "I started an agent"
    words += f", called {name}." if name else "."
    return f"{words} Its id is {identity}." if identity else words


def _status(_: ToolCall, data: Any, arguments: Mapping[str, Any], __: str) -> str:
    status = first_of(data, "status", "state")
    if status is None:
        return f"The agent's status: {sentence(spoken(data))}"
    label = first_of(data, "name", "title", "id", "agentId") or next(iter(arguments.values()), "")
    summary = first_of(data, "summary", "message")
    words = f"The agent {label} is {lowered(status)}."
    return f"{words} {sentence(str(summary))}" if summary else words


def _selected(_: ToolCall, data: Any, __: Mapping[str, Any], ___: str) -> str:
    name = picked_repository(data)
    return f"You picked {name}." if name else "No repository was picked."


def _listed(noun: str, nouns: str) -> Callable[[ToolCall, Any, Mapping[str, Any], str], str]:
    def words(_: ToolCall, data: Any, __: Mapping[str, Any], ___: str) -> str:
        items = items_of(data)
        if items is None:
            return f"Your {nouns}: {sentence(spoken(data))}"
        if not items:
            return f"There are no {nouns}."
        count = f"There is 1 {noun}" if len(items) == 1 else f"There are {len(items)} {nouns}"
        return f"{count}: {series(items)}."

    return words


def _fixed(words: str) -> Callable[[ToolCall, Any, Mapping[str, Any], str], str]:
    return lambda _, __, ___, ____: words


def _added(_: ToolCall, data: Any, arguments: Mapping[str, Any], __: str) -> str:
    title = first_of(data, "title", "description", "text") or next(iter(arguments.values()), "")
    return f"I added the task: {sentence(str(title))}"


def _read(_: ToolCall, data: Any, arguments: Mapping[str, Any], __: str) -> str:
    text = first_of(data, "content", "text", "contents")
    path = next((str(value) for value in arguments.values() if isinstance(value, str)), "The file")
    return f"{path} says: {sentence(spoken(data if text is None else text))}"


def _any(call: ToolCall, data: Any, _: Mapping[str, Any], __: str) -> str:
    return f"{titled(call.name)} answered: {sentence(spoken(data))}"


_ANSWERS: Mapping[str, Callable[[ToolCall, Any, Mapping[str, Any], str], str]] = {
    "get_current_time": _time,
    "calculator": _sum,
    "agent.spawn": _spawned,
    "agent.status": _status,
    "agent.followup": _fixed("I told the agent."),
    "agent.cancel": _fixed("The agent is cancelled."),
    "agent.list": _listed("agent", "agents"),
    "repositories.list": _listed("repository", "repositories"),
    "repositories.select": _selected,
    "add_task": _added,
    "list_tasks": _listed("task", "tasks"),
    "update_task": _fixed("The task is changed."),
    "read_file": _read,
    "create_file": _fixed("The file is created."),
}
