"""The wire as JSON Schema, Draft 2020-12, made from the events' structs.

Some facts have no type: ``CAPABILITY`` of an event, ``needs`` in the ``Meta`` of a field that a capability
adds, and ``CONDITIONS``, which are further keywords of the schema.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.events import client, server
from conductor.events.envelope import PROTOCOL_VERSION

Json: TypeAlias = dict[str, Any]
Direction: TypeAlias = Literal["client", "server"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UNIONS: Mapping[Direction, Any] = {"client": client.ClientEvent, "server": server.ServerEvent}

ENVELOPE: Mapping[str, tuple[Json, str]] = {
    "id": (
        {"type": "string", "minLength": 1, "maxLength": 128},
        "Unique. Both sides ignore an event whose id they have handled.",
    ),
    "type": (
        {"type": "string", "minLength": 1},
        "The event. A receiver ignores an unknown type.",
    ),
    "timestamp": (
        {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
        "The time of sending: ISO 8601, UTC, three decimals. The server accepts any string.",
    ),
    "sessionId": (
        {"type": "string", "pattern": r"^[A-Za-z0-9._:\-]{1,128}$"},
        "The session; the client chooses the id. `unknown` in an error about a frame without an id.",
    ),
    "protocolVersion": (
        {"type": "integer", "const": PROTOCOL_VERSION},
        "The version of the protocol. A client may omit it.",
    ),
    "payload": (
        {"type": "object"},
        "The event's fields. A receiver ignores unknown fields.",
    ),
}
"""The fields around every event, each with its schema and its meaning."""

_OF_CLIENTS: Mapping[str, Json] = {"timestamp": {"type": "string"}}
"""Schemas that are less strict for frames of clients."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``direction`` is its sender, ``example`` a whole frame."""

    struct: type[msgspec.Struct]
    type: str
    direction: Direction
    description: str
    example: Json


@dataclass(frozen=True, slots=True)
class UICall:
    """A UI call; ``properties`` are the schemas of its arguments, ``in_segments`` with ``segments`` only."""

    name: str
    description: str
    properties: Json
    in_segments: Json = field(default_factory=dict)

    @property
    def arguments(self) -> Json:
        """The JSON Schema of the arguments."""
        properties = {**self.properties, **self.in_segments}
        return {"type": "object", "properties": properties, "required": list(self.properties)}


UI_CALLS = (
    UICall(
        "convo.setState",
        "Shows the conversation's state.",
        {"state": msgspec.json.schema(server.ConversationState)},
    ),
    UICall(
        "convo.appendMessage",
        "Adds a whole message to the app's transcript.",
        {"role": {"enum": ["assistant", "user"]}, "text": {"type": "string"}, "isPartial": {"const": False}},
        {"messageId": {"type": "string"}},
    ),
    UICall(
        "tts.speak",
        "Speaks a text.",
        {"text": {"type": "string"}},
        {"speechId": {"type": "string"}, "segment": {"type": "integer"}, "last": {"type": "boolean"}},
    ),
)


def json_schema() -> Json:
    """Make the document. It accepts every frame whose type this version knows, sent by either side."""
    definitions = _definitions("#/$defs/")
    for direction in _UNIONS:
        definitions[f"{direction.title()}Event"] = {
            "description": f"Any event that the {direction} may send.",
            "oneOf": [{"$ref": f"#/$defs/{event.type}"} for event in sent_by(direction)],
        }
    return {
        "$schema": DIALECT,
        "title": f"Conductor's events, protocol version {PROTOCOL_VERSION}",
        "description": "One frame of the WebSocket. Events of types that are not here are ignored.",
        "anyOf": [{"$ref": "#/$defs/ClientEvent"}, {"$ref": "#/$defs/ServerEvent"}],
        "$defs": definitions,
    }


def sent_by(direction: Direction) -> tuple[Event, ...]:
    """Give the events that one side sends."""
    return tuple(event for event in EVENTS if event.direction == direction)


# -- JSON Schema


def _definitions(prefix: str) -> Json:
    # The schemas of all frames by the event's type, and of all payloads by the struct's name.
    # ``prefix`` is the beginning of a reference to them.
    return {**{event.type: _frame_schema(event, prefix) for event in EVENTS}, **_payloads(prefix)}


def _frame_schema(event: Event, prefix: str) -> Json:
    of_client = event.direction == "client"
    properties = {name: schema for name, (schema, _) in ENVELOPE.items()}
    properties |= _OF_CLIENTS if of_client else {}
    properties["type"] = {"const": event.type}
    properties["payload"] = {"$ref": f"{prefix}{event.struct.__name__}"}
    return {
        "title": event.type,
        "description": event.description,
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if not (of_client and name == "protocolVersion")],
        "additionalProperties": False,
        "examples": [event.example],
    }


def _payloads(prefix: str) -> dict[str, Json]:
    structs = [struct for union in _UNIONS.values() for struct in typing.get_args(union)]
    _, components = msgspec.json.schema_components(structs, ref_template=f"{prefix}{{name}}")
    schemas: dict[str, Json] = _plain(components)
    for name, schema in schemas.items():
        struct = getattr(client, name, None) or getattr(server, name)
        schema.update(getattr(struct, "CONDITIONS", {}))
        if getattr(struct, "CAPABILITY", ""):
            schema["description"] += f" Needs the capability `{struct.CAPABILITY}`."
        for item in msgspec.structs.fields(struct):
            for meta in getattr(item.type, "__metadata__", ()):
                if meta.extra is not None:
                    described = schema["properties"][item.encode_name]
                    described["description"] += f" Needs the capability `{meta.extra['needs']}`."
    return schemas


def _plain(schema: Any) -> Any:
    # Makes Markdown of the docstrings in a schema: a line for each paragraph, single backticks.
    if isinstance(schema, list):
        return [_plain(paragraph) for paragraph in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: value if key in ("examples", "default", "const", "enum") else _plain(value)
        for key, value in schema.items()
    }
    if isinstance(plain.get("description"), str):
        paragraphs = inspect.cleandoc(plain["description"]).split("\n\n")
        plain["description"] = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace(
            "``", "`"
        )
    # The default null of an optional field has no meaning.
    if plain.get("default", ...) is None:
        del plain["default"]
    return plain


def _example(schema: Json) -> Any:
    # A field's own example, else the simplest value that fits its schema.
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        inner = PAYLOADS[schema["$ref"].rpartition("/")[2]]
        return {name: _example(inner["properties"][name]) for name in inner["required"]}
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0])
    simplest: Json = {"string": "text", "integer": 1, "number": 1, "boolean": True, "array": [], "null": None}
    return simplest.get(schema.get("type", "object"), {})


def _events() -> Iterator[Event]:
    for direction, union in _UNIONS.items():
        for struct in typing.get_args(union):
            schema = PAYLOADS[struct.__name__]
            payload = {
                name: _example(field)
                for name, field in schema["properties"].items()
                if name in schema["required"] or "examples" in field
            }
            example = {
                "id": {"client": "ios-42", "server": "evt_9f86d081884c7d65_2a"}[direction],
                "type": struct.TYPE,
                "timestamp": "2026-03-01T12:00:00.000Z",
                "sessionId": "s-1",
                "protocolVersion": PROTOCOL_VERSION,
                "payload": payload,
            }
            yield Event(struct, struct.TYPE, direction, schema["description"], example)


PAYLOADS = _payloads("#/$defs/")
EVENTS = tuple(_events())
