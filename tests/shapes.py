"""How tests read and name the events of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

Event: TypeAlias = dict[str, Any]

PLAIN_TURN = [
    "state thinking",
    "append user",
    "assistant.speech.final",
    "append assistant",
    "state speaking",
    "tts.speak",
    "state idle",
]
"""The shape of a plain turn."""


@dataclass(frozen=True)
class Call:
    """A ``tool.call`` of the server."""

    call_id: str
    name: str
    arguments: dict[str, Any]

    @property
    def is_interface(self) -> bool:
        """Whether it shows or speaks something; all other calls are of tools."""
        return self.name.startswith(("convo.", "tts."))


def call_of(event: Event) -> Call:
    """Read a ``tool.call``."""
    payload = event["payload"]
    return Call(payload["callId"], payload["name"], msgspec.json.decode(payload["arguments"]))


def arguments_of(event: Event) -> dict[str, Any]:
    """Read the arguments of a ``tool.call``."""
    return call_of(event).arguments


def shape_of(event: Event) -> str:
    """Name an event: its type; of a call its name, ``state ...`` or ``append ...``."""
    if event["type"] != "tool.call":
        return str(event["type"])
    call = call_of(event)
    if call.name == "convo.setState":
        return f"state {call.arguments['state']}"
    if call.name == "convo.appendMessage":
        return f"append {call.arguments['role']}"
    return call.name


def matches(event: Event, condition: str | Callable[[Event], bool], payload: Mapping[str, Any]) -> bool:
    """Whether an event has a shape or a type, or fits a predicate, and has these fields in its payload."""
    fits = condition in (shape_of(event), event["type"]) if isinstance(condition, str) else condition(event)
    return fits and event["payload"].items() >= payload.items()
