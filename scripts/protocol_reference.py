"""The reference of the protocol, made from a template and the events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from protocol_schema import ENVELOPE, EVENTS, PAYLOADS, UI_CALLS, Event, Json, UICall, sent_by

from conductor.errors import CODE_MEANINGS
from conductor.events.codec import MAX_DEPTH, MAX_INTEGER, MAX_NODES
from conductor.events.server import CAPABILITIES, STATE_MEANINGS, DiagnosticCode
from conductor.settings import Limits

_NEEDS = "Needs the capability "


def markdown() -> str:
    """Fill the template: ``{{name}}`` stands for a value of `_values`."""
    template = Path(__file__).with_name("protocol-reference.md.in").read_text(encoding="utf-8")
    values = _values()
    return re.sub(r"\{\{([\w.]+)\}\}", lambda match: values[match[1]], template)


def _values() -> dict[str, str]:
    numbers = {f"limits.{name}": f"{value:.10g}" for name, value in asdict(Limits()).items()}
    numbers |= {"max_depth": str(MAX_DEPTH), "max_nodes": str(MAX_NODES), "max_integer": str(MAX_INTEGER)}
    fields = ((f"`{name}`", _kind(schema), meaning) for name, (schema, meaning) in ENVELOPE.items())
    structs = {event.struct.__name__ for event in EVENTS}
    return {
        **numbers,
        "envelope": _table(("Field", "Type", "Meaning"), fields),
        "client_events": "\n\n".join(_event(event, structs) for event in sent_by("client")),
        "server_events": "\n\n".join(_event(event, structs) for event in sent_by("server")),
        "ui_calls": _table(("Name", "Meaning", "Arguments"), map(_ui_call, UI_CALLS)),
        "states": _meanings("State", STATE_MEANINGS),
        "capabilities": _meanings("Capability", CAPABILITIES),
        "codes": _meanings("Code", CODE_MEANINGS),
    }


def _event(event: Event, structs: set[str]) -> str:
    # ``structs`` are the objects that have a table already.
    description = event.description.replace("\n\n", " ")
    parts = [f"### `{event.type}`", description.replace(_NEEDS, "Needs ")]
    if not PAYLOADS[event.struct.__name__]["properties"]:
        return "\n\n".join([*parts, "No fields."])
    tables = _tables(event.struct.__name__, structs, nullable=event.direction == "client")
    return "\n\n".join([*parts, *tables])


def _ui_call(call: UICall) -> tuple[str, str, str]:
    arguments = [f"`{name}`: {_kind(schema)}" for name, schema in call.properties.items()]
    arguments += [f"`{name}`: {_kind(schema)}, with `segments`" for name, schema in call.in_segments.items()]
    return f"`{call.name}`", call.description, "; ".join(arguments)


# -- tables


def _tables(struct: str, structs: set[str], *, nullable: bool) -> Iterator[str]:
    # The table of a struct, and one for each new object in its fields.
    schema = PAYLOADS[struct]
    fields = schema["properties"]
    yield _table(
        ("Field", "Type", "Meaning"),
        (
            (
                f"`{name}`" if name in schema["required"] else f"`{name}`?",
                _kind(field, nullable=nullable),
                field["description"].replace(_NEEDS, "Needs "),
            )
            for name, field in fields.items()
        ),
    )
    for name, field in fields.items():
        for choice in field.get("anyOf", [field]):
            reference = choice.get("items", choice).get("$ref", "").rpartition("/")[2]
            # An object whose fields are the struct's own is described by the field.
            if not reference or reference in structs or set(PAYLOADS[reference]["properties"]) <= set(fields):
                continue
            structs.add(reference)
            yield f"Each object of `{name}`:" if "items" in choice else f"The object `{name}`:"
            yield from _tables(reference, structs, nullable=nullable)


def _meanings(head: str, meanings: Any) -> str:
    return _table((head, "Meaning"), ((f"`{name}`", meaning) for name, meaning in meanings.items()))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


# -- types in words


def _kind(schema: Json, *, nullable: bool = True) -> str:
    kinds = schema.get("anyOf", [schema])
    choices = [kind for kind in kinds if nullable or kind.get("type") != "null"]
    limits = [limit for choice in choices for limit in _limits(choice)]
    return ", ".join([" or ".join(map(_bare_kind, choices)), *limits])


def _bare_kind(schema: Json) -> str:
    if "enum" in schema:
        if set(schema["enum"]) == set(CODE_MEANINGS):
            return "an [error code](#errors)"
        if set(schema["enum"]) == set(get_args(DiagnosticCode)):
            return "a [diagnostic code](#diagnostics)"
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
