"""The wire as JSON Schema, Draft 2020-12: each event as a whole frame, in one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conductor.events.envelope import PROTOCOL_VERSION
from conductor.events.reference import Direction, Event, Json, Reference

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NAMES: Mapping[Direction, str] = {"client": "ClientEvent", "server": "ServerEvent"}

ENVELOPE: Mapping[str, tuple[Json, str]] = {
    "id": (
        {"type": "string", "minLength": 1, "maxLength": 128},
        "Unique. An event whose id was seen before is not acted upon again, on either side.",
    ),
    "type": (
        {"type": "string", "minLength": 1},
        "Which event it is. A type that a receiver does not know is ignored.",
    ),
    "timestamp": (
        {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
        "When it was sent: ISO 8601, UTC, with exactly three decimals. "
        "The server wants a string and does not read it.",
    ),
    "sessionId": (
        {"type": "string", "pattern": r"^[A-Za-z0-9._:\-]{1,128}$"},
        "The session that it belongs to; the client makes it up. The same on all events of a connection; "
        "`unknown` in an error about a frame that named none.",
    ),
    "protocolVersion": (
        {"type": "integer", "const": PROTOCOL_VERSION},
        "The version of the protocol. A client may leave it out.",
    ),
    "payload": (
        {"type": "object"},
        "The event's own fields. Fields that a receiver does not know are ignored.",
    ),
}
"""The fields around every event, each with its schema and what it means; `conductor.events.codec` checks
those of clients."""

_LENIENT: Mapping[str, Json] = {"timestamp": {"type": "string"}}
"""What is asked of clients where it is less than what the server keeps."""


def json_schema(reference: Reference) -> Json:
    """Make the document. It accepts every frame whose type this version knows, sent by either side."""
    definitions = definitions_of(reference, "#/$defs/")
    for direction, name in _NAMES.items():
        definitions[name] = {
            "description": f"Any event that the {direction} may send.",
            "oneOf": [{"$ref": f"#/$defs/{event.type}"} for event in reference.sent_by(direction)],
        }
    return {
        "$schema": DIALECT,
        "title": f"Conductor's events, protocol version {reference.protocol_version}",
        "description": "One frame of the WebSocket. Events of types that are not here are ignored.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in _NAMES.values()],
        "$defs": definitions,
    }


def definitions_of(reference: Reference, prefix: str) -> dict[str, Any]:
    """Give the schemas of all frames, by the event's type, and of all payloads, by the struct's name.

    ``prefix`` is where they will stand, as the beginning of a reference to them.
    """
    frames = {event.type: _frame(event, prefix) for event in reference.events}
    return {**frames, **{name: _moved(schema, prefix) for name, schema in reference.payloads.items()}}


def _frame(event: Event, prefix: str) -> Json:
    lenient = _LENIENT if event.direction == "client" else {}
    properties = {name: {**lenient.get(name, schema)} for name, (schema, _) in ENVELOPE.items()}
    properties["type"] = {"const": event.type}
    properties["payload"] = {"$ref": f"{prefix}{event.struct}"}
    optional = {"protocolVersion"} if event.direction == "client" else set()
    return {
        "title": event.type,
        "description": event.description,
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        "examples": [event.example],
    }


def _moved(schema: Any, prefix: str) -> Any:
    """Point a schema's references to where the definitions stand."""
    if isinstance(schema, list):
        return [_moved(one, prefix) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: prefix + value.rpartition("/")[2] if key == "$ref" else _moved(value, prefix)
        for key, value in schema.items()
    }
