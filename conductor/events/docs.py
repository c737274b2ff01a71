"""The reference for people who write an app: the template ``protocol.md.in``, with its tables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import resources
from typing import Any

from conductor.errors import CODE_MEANINGS
from conductor.events.codec import MAX_DEPTH, MAX_INTEGER, MAX_NODES
from conductor.events.envelope import PATH, PROTOCOL_VERSION, SUBPROTOCOL
from conductor.events.schema import ENVELOPE, PAYLOADS, UI_CALLS, Event, Json, UICall, coming_with, sent_by
from conductor.events.server import CAPABILITIES, STATE_MEANINGS
from conductor.settings import Limits, Settings


def markdown() -> str:
    """Fill the template: ``{{name}}`` stands for a value of `_values`."""
    template = resources.files("conductor.events").joinpath("protocol.md.in").read_text(encoding="utf-8")
    values = _values()
    filled = re.sub(r"\{\{([\w.]+)\}\}", lambda found: values[found[1]], template)
    return _SEQUENCE.sub(lambda found: f"{_diagram(found[1])}\n\n{found[0]}", filled)


_SEQUENCE = re.compile(r"```text\n(> .*?)\n```", re.DOTALL)
_LABEL_CHARS = 60


def _diagram(sequence: str) -> str:
    """Draw the frames of a sequence in Mermaid, each as far as it fits into a line."""
    lines = ["```mermaid", "sequenceDiagram", "    participant App", "    participant Server"]
    for line in sequence.splitlines():
        direction, _, frame = line.partition(" ")
        label = frame.replace(";", ",")  # which would end the line
        if len(label) > _LABEL_CHARS:
            label = f"{label[:_LABEL_CHARS]}…"
        arrow = {">": "App->>Server", "<": "Server->>App", "#": "Note over App,Server"}[direction]
        lines.append(f"    {arrow}: {label}")
    return "\n".join([*lines, "```"])


def _values() -> dict[str, str]:
    limits = {f"limits.{name}": f"{value:.10g}" for name, value in asdict(Limits()).items()}
    plain = {
        "version": PROTOCOL_VERSION,
        "path": PATH,
        "subprotocol": SUBPROTOCOL,
        "host": Settings.model_fields["host"].get_default(),
        "port": Settings.model_fields["port"].get_default(),
        "max_depth": MAX_DEPTH,
        "max_nodes": MAX_NODES,
        "max_integer": MAX_INTEGER,
    }
    return {
        **limits,
        **{name: str(value) for name, value in plain.items()},
        "envelope": _table(
            ("Field", "Type", "Meaning"),
            ((f"`{name}`", _kind(schema), meaning) for name, (schema, meaning) in ENVELOPE.items()),
        ),
        "client_events": "\n\n".join(_event(event) for event in sent_by("client")),
        "server_events": "\n\n".join(_event(event) for event in sent_by("server")),
        "ui_calls": "\n\n".join(_ui_call(call) for call in UI_CALLS),
        "capabilities": _table(
            ("Capability", "The client sends", "The server sends"),
            (
                (f"`{name}`", _names(coming_with(name, "client")), _names(coming_with(name, "server")))
                for name in CAPABILITIES
            ),
        ),
        "codes": _table(
            ("Code", "Meaning"), ((f"`{code}`", meaning) for code, meaning in CODE_MEANINGS.items())
        ),
    }


def _event(event: Event) -> str:
    parts = [f"### `{event.type}`", event.description]
    fields = PAYLOADS[event.struct.__name__]["properties"]
    if fields:
        parts.append(_fields_table(event.struct.__name__))
        for name, schema in fields.items():
            parts += _inner_tables(name, schema)
    else:
        parts.append("The payload is empty.")
    return "\n\n".join([*parts, _example(event.example)])


def _ui_call(call: UICall) -> str:
    arguments = [(f"`{name}`", _kind(schema)) for name, schema in call.properties.items()]
    arguments += [
        (f"`{name}`", f"{_kind(schema)}; with `segments`") for name, schema in call.in_segments.items()
    ]
    parts = [f"### `{call.name}`", call.description, _table(("Argument", "Type"), arguments)]
    if "state" in call.properties:
        states = ((f"`{name}`", meaning) for name, meaning in STATE_MEANINGS.items())
        parts.append(_table(("State", "Meaning"), states))
    return "\n\n".join([*parts, _example(call.example)])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing of its own"


# -- tables and blocks


def _fields_table(struct: str) -> str:
    schema = PAYLOADS[struct]
    rows = (
        (f"`{name}`", _kind(field), "yes" if name in schema["required"] else "no", field["description"])
        for name, field in schema["properties"].items()
    )
    return _table(("Field", "Type", "Required", "Meaning"), rows)


def _inner_tables(place: str, schema: Json) -> Iterator[str]:
    # Describe the objects in a field, and those in them; ``place`` is the field, and how it is reached.
    for one in schema.get("anyOf", [schema]):
        items = one.get("items", one)
        if "$ref" in items:
            name = items["$ref"].rpartition("/")[2]
            yield f"Each object of `{place}`:" if "items" in one else f"The object `{place}`:"
            yield _fields_table(name)
            for field, below in PAYLOADS[name]["properties"].items():
                yield from _inner_tables(f"{place}.{field}", below)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _example(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


# -- types in words


def _kind(schema: Json) -> str:
    choices = schema.get("anyOf", [schema])
    limits = [limit for one in choices for limit in _limits(one)]
    return ", ".join([" or ".join(_bare_kind(one) for one in choices), *limits])


def _bare_kind(schema: Json) -> str:
    if "enum" in schema:
        if set(schema["enum"]) == set(CODE_MEANINGS):
            return "an [error code](#errors)"
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array" and schema.get("items"):
        return f"array of {_kind(schema['items'])}"
    return str(schema.get("type", "any value"))


def _limits(schema: Json) -> Iterator[str]:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if low is not None and high is not None:
        yield f"{low} to {high} characters"
    elif high is not None:
        yield f"at most {high} characters"
    elif low is not None:
        yield f"at least {low} character{'s' if low > 1 else ''}"
    if "pattern" in schema:
        yield f"`{schema['pattern']}`"
    if "minimum" in schema:
        yield f"{schema['minimum']} or more"
    if "maximum" in schema:
        yield f"at most {schema['maximum']}"
    fewest, most = schema.get("minItems"), schema.get("maxItems")
    if most is not None:
        yield f"at most {most} of them" if fewest is None else f"{fewest} to {most} of them"
