"""Hints to an app's developer, from the app's own events."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from conductor.conversation.state import MAX_FACTS, MAX_FACTS_BYTES
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.server import CAPABILITIES, Diagnostic
from conductor.tools.declarations import unknown_fields
from conductor.tools.reminders import find_zone

# Characters of a client's own name in a message.
_MAX_NAME = 80
# W3C Trace Context: no version ff, and no ids of zeros only; versions after 00 may append fields.
_TRACEPARENT = re.compile(
    r"(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


def of_start(event: client.SessionStart, model: str | None = None) -> Iterator[Diagnostic]:
    """Check ``session.start``; ``model`` is the one that the session chose and may have."""
    if event.model not in (None, model):
        message = f"{_quoted(event.model)} is no model that this server lets clients choose."
        yield Diagnostic("warning", "unknown_model", message)
    for name in event.capabilities:
        if name not in CAPABILITIES:  # "info": a later version may have it
            yield Diagnostic("info", "unknown_capability", f"There is no capability {_quoted(name)}.")
    if event.time_zone is not None and find_zone(event.time_zone) is None:
        message = f"{_quoted(event.time_zone)} is not an IANA time zone such as 'Europe/London'."
        yield Diagnostic("warning", "unknown_time_zone", message)
    if event.traceparent is not None and not _TRACEPARENT.fullmatch(event.traceparent):
        message = f"{_quoted(event.traceparent)} is not a traceparent of W3C Trace Context; it is ignored."
        yield Diagnostic("warning", "invalid_traceparent", message)
    for name, value in (("tools", event.tools), ("resume", event.resume)):
        if value is not None and name not in event.capabilities:
            message = f"{name!r} is ignored without the capability {name!r}."
            yield Diagnostic("warning", "missing_capability", message)
    if "tools" in event.capabilities:
        yield from of_tools(event.tools or ())


def of_variables(names: Collection[str], given: Mapping[str, str] | None) -> Iterator[Diagnostic]:
    """Check the variables of a session against the ``names`` in the system prompt."""
    for name in sorted(set(names).difference(given or ())):
        message = f"The system prompt's variable {_quoted(name)} has no value, and is empty."
        yield Diagnostic("warning", "missing_variable", message)


def of_tools(tools: Sequence[Any], event_id: str | None = None) -> Iterator[Diagnostic]:
    """Check tool declarations."""
    for tool in tools:
        for field in unknown_fields(tool):
            message = f"The tool {_quoted(str(tool.get('name')))} has the unknown field {_quoted(field)}."
            yield Diagnostic("warning", "unknown_field", message, event_id)


def of_images(event_id: str) -> Diagnostic:
    """Explain images that are ignored."""
    message = "'images' is ignored without the capability 'images'."
    return Diagnostic("warning", "missing_capability", message, event_id)


def of_refused_images(refusals: Sequence[str], event_id: str) -> Diagnostic:
    """Explain images that are refused."""
    return Diagnostic("warning", "refused_image", " ".join(refusals), event_id)


def of_dropped_facts(event_id: str) -> Diagnostic:
    """Explain facts that went because there were too many."""
    message = f"A session has at most {MAX_FACTS} facts with {MAX_FACTS_BYTES:,} bytes; the oldest went."
    return Diagnostic("warning", "dropped_facts", message, event_id)


def of_ignored(inbound: Inbound) -> Diagnostic:
    """Explain an ignored event: unknown type, or missing capability."""
    name = _quoted(inbound.type)
    if inbound.event is None:
        return Diagnostic("warning", "unknown_event", f"There is no event type {name}.", inbound.id)
    message = f"{name} needs a capability that session.start did not name."
    return Diagnostic("warning", "missing_capability", message, inbound.id)


def _quoted(name: str | None) -> str:
    return repr((name or "")[:_MAX_NAME])
