"""What can be known of the wire from its code: the events, their fields and examples, the calls of the app.

`read_reference` looks at the structs of `conductor.events.client` and `conductor.events.server`: a new event
is described by writing it. The renderings stand beside this module: `reference_schema` (JSON Schema),
`reference_asyncapi` and `reference_markdown`.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.errors import CODE_MEANINGS
from conductor.events import client, server
from conductor.events.envelope import PROTOCOL_VERSION
from conductor.events.reference_conditions import CONDITIONS

Json: TypeAlias = dict[str, Any]
Direction: TypeAlias = Literal["client", "server"]

EXAMPLE_TIMESTAMP = "2026-03-01T12:00:00.000Z"
EXAMPLE_SESSION = "s-1"
_EXAMPLE_IDS: Mapping[Direction, str] = {"client": "ios-42", "server": "evt_9f86d081884c7d65_2a"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What an app's author needs to know and the events do not say.

    Sizes are in bytes, times in seconds. ``capabilities`` are those that this version accepts.
    """

    version: str
    path: str
    host: str
    port: int
    subprotocol: str
    max_event_bytes: int
    hard_event_bytes: int
    ping_interval: float
    tool_timeout: float
    session_grace: float
    capabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a payload, named as on the wire; ``schema`` is its JSON Schema."""

    name: str
    required: bool
    description: str
    schema: Json


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``direction`` says who sends it, and ``example`` is a whole frame."""

    type: str
    direction: Direction
    struct: str
    description: str
    fields: tuple[Field, ...]
    example: Json

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        return re.split(r"(?<=\.)\s", self.description, maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class UICall:
    """A ``tool.call`` that the server itself makes; ``arguments`` is the JSON Schema of what it carries."""

    name: str
    description: str
    arguments: Json
    example: Json


@dataclass(frozen=True, slots=True)
class Reference:
    """All of it. ``payloads`` are the JSON Schemas of the structs, by their names."""

    facts: Facts
    protocol_version: int
    events: tuple[Event, ...]
    payloads: Mapping[str, Json]
    ui_calls: tuple[UICall, ...]
    states: Mapping[str, str]
    codes: Mapping[str, str]

    def sent_by(self, direction: Direction) -> tuple[Event, ...]:
        """Give the events that one side sends."""
        return tuple(event for event in self.events if event.direction == direction)

    def event(self, event_type: str) -> Event:
        """Give the event of a type. Raises KeyError."""
        for event in self.events:
            if event.type == event_type:
                return event
        raise KeyError(event_type)

    def coming_with(self, capability: str, direction: Direction | None = None) -> tuple[str, ...]:
        """Name the events, fields and UI calls whose descriptions say that they need a capability.

        ``direction`` leaves those that one side sends.
        """
        words = f"capability `{capability}`"
        events = [event for event in self.events if direction in (None, event.direction)]
        found = [(event.type, event.description) for event in events]
        found += [
            (f"{event.type}: {field.name}", field.description) for event in events for field in event.fields
        ]
        if direction != "client":
            found += [(call.name, call.description) for call in self.ui_calls]
        return tuple(name for name, description in found if words in description)


def read_reference(facts: Facts) -> Reference:
    """Read the code of the wire."""
    structs: dict[Direction, list[type[msgspec.Struct]]] = {
        "client": list(structs_of(client)),
        "server": list(structs_of(server)),
    }
    payloads = _payloads([struct for found in structs.values() for struct in found])
    return Reference(
        facts=facts,
        protocol_version=PROTOCOL_VERSION,
        events=tuple(
            _event(struct, direction, payloads) for direction, found in structs.items() for struct in found
        ),
        payloads=payloads,
        ui_calls=tuple(_ui_call(make) for make in _ui_call_makers()),
        states=dict(server.STATE_MEANINGS.items()),
        codes=dict(CODE_MEANINGS.items()),
    )


def structs_of(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    """Find a module's events, in the order in which they are written: structs with a ``TYPE``."""
    for found in vars(module).values():
        if inspect.isclass(found) and issubclass(found, msgspec.Struct) and hasattr(found, "TYPE"):
            if found.__module__ == module.__name__:
                yield found


def envelope(direction: Direction, event_type: str, payload: Any) -> Json:
    """Write a frame of an example."""
    return {
        "id": _EXAMPLE_IDS[direction],
        "type": event_type,
        "timestamp": EXAMPLE_TIMESTAMP,
        "sessionId": EXAMPLE_SESSION,
        "protocolVersion": PROTOCOL_VERSION,
        "payload": payload,
    }


# -- events


def _payloads(structs: list[type[msgspec.Struct]]) -> dict[str, Json]:
    """Make the JSON Schemas of structs, and of those that they hold, by name."""
    _, schemas = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    names = {
        name: wire_name for struct in structs for name, wire_name in _wire_names(struct) if name != wire_name
    }
    return {name: {**_plain(schema, names), **CONDITIONS.get(name, {})} for name, schema in schemas.items()}


def _wire_names(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    return zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)


def _plain(schema: Any, names: Mapping[str, str]) -> Any:
    """Turn the docstrings in a schema into Markdown, and Python's names of fields into those of the wire."""
    if isinstance(schema, list):
        return [_plain(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: value if key in ("examples", "default", "const", "enum") else _plain(value, names)
        for key, value in schema.items()
    }
    if isinstance(plain.get("description"), str):
        plain["description"] = prose(plain["description"], names)
    # An optional field may be left out, so saying that its default is null tells nothing.
    if plain.get("default", ...) is None:
        del plain["default"]
    return plain


def prose(docstring: str | None, names: Mapping[str, str] | None = None) -> str:
    """Turn a docstring into Markdown: paragraphs on one line each, and literals in single backticks."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    known = names or {}
    return re.sub(r"``(.+?)``", lambda found: f"`{known.get(found[1], found[1])}`", text)


def _event(struct: type[msgspec.Struct], direction: Direction, payloads: Mapping[str, Json]) -> Event:
    event_type: str = vars(struct)["TYPE"]
    schema = payloads[struct.__name__]
    fields = tuple(
        Field(name, name in schema["required"], field.get("description", ""), field)
        for name, field in schema["properties"].items()
    )
    payload = {field.name: _example(field.schema, payloads) for field in fields if _shown(field)}
    example = envelope(direction, event_type, payload)
    return Event(event_type, direction, struct.__name__, schema["description"], fields, example)


def _shown(field: Field) -> bool:
    return field.required or "examples" in field.schema


def _example(schema: Json, payloads: Mapping[str, Json]) -> Any:
    """Give a field's own example, else the plainest value that fits its schema."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        inner = payloads[schema["$ref"].rpartition("/")[2]]
        return {name: _example(inner["properties"][name], payloads) for name in inner["required"]}
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], payloads)
    plainest: Json = {"string": "text", "integer": 1, "number": 1, "boolean": True, "array": [], "null": None}
    return plainest.get(schema.get("type", "object"), {})


# -- UI calls


_OPENING = "Make the UI call that "
"""How the docstrings of the makers begin; the rest is about the app."""


def _ui_call_makers() -> Iterator[Callable[..., server.ToolCallEvent]]:
    for found in vars(server).values():
        if inspect.isfunction(found) and found.__module__ == server.__name__:
            if typing.get_type_hints(found).get("return") is server.ToolCallEvent:
                yield found


def _ui_call(make: Callable[..., server.ToolCallEvent]) -> UICall:
    """Describe a UI call by its maker: types from its parameters, the rest from what it makes of examples."""
    hints = typing.get_type_hints(make, include_extras=True)
    parameters = [name for name in inspect.signature(make).parameters if name != "call_id"]
    kinds = {_camel(name): msgspec.json.schema(hints[name]) for name in parameters}
    made = make("call_5d_1", **{name: _argument(hints[name]) for name in parameters})
    values: Json = msgspec.json.decode(made.arguments)
    properties = {name: kinds.get(name, {"const": value}) for name, value in values.items()}
    arguments = {"type": "object", "properties": properties, "required": list(values)}
    description = prose(make.__doc__).removeprefix(_OPENING)
    return UICall(
        name=made.name,
        description=description[:1].upper() + description[1:],
        arguments=arguments,
        example=envelope("server", made.TYPE, msgspec.to_builtins(made)),
    )


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _argument(hint: Any) -> Any:
    """Give an example: the first of the values that are named, or some words."""
    values = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return values[0] if values else "Hello."
