"""The wire as Markdown, for somebody who writes an app."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from conductor.events.envelope import Payload
from conductor.events.reference import Event, Json, Reference, envelope
from conductor.events.reference_capabilities import CAPABILITIES, digesting
from conductor.events.reference_prose import (
    EXTENDING,
    INTERRUPTING,
    TOOLS,
    answering,
    introduction,
    reconnecting,
    transport,
)
from conductor.events.reference_refusals import REFUSALS
from conductor.events.reference_schema import ENVELOPE
from conductor.events.server import SpeechFinal, SpeechPartial, append_message, set_state, speak

_SAID = "What is seventeen percent of 2340?"
_REPLY = "It is **397.8**."

PLAIN_TURN: tuple[tuple[Payload, str], ...] = (
    (set_state("call_1", "thinking"), "the transcript was taken"),
    (append_message("call_2", "user", _SAID), "what the person said, for the app's transcript"),
    (SpeechPartial("It is **39"), "the reply grows; as many of these as it takes"),
    (SpeechFinal(_REPLY), "the reply is whole"),
    (append_message("call_3", "assistant", _REPLY), "the reply, for the app's transcript"),
    (set_state("call_4", "speaking"), "it is about to be spoken"),
    (speak("call_5", "It is 397.8."), "the same, made for the ear"),
    (set_state("call_6", "idle"), "the turn is over: open the microphone"),
)
"""What the server sends in a turn without tools, in this order, each with a word on it."""


def markdown(reference: Reference) -> str:
    """Write the document."""
    parts = [
        introduction(reference),
        transport(reference.facts),
        _envelope(reference),
        _plain_turn(),
        answering(reference.facts),
        INTERRUPTING,
        TOOLS,
        reconnecting(reference.facts),
        "## Events that the client sends",
        *(_event(event, reference) for event in reference.sent_by("client")),
        "## Events that the server sends",
        *(_event(event, reference) for event in reference.sent_by("server")),
        *_ui_calls(reference),
        *_capabilities(reference),
        *_errors(reference),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


# -- sections


def _envelope(reference: Reference) -> str:
    rows = ((f"`{name}`", _kind(schema, reference), meaning) for name, (schema, meaning) in ENVELOPE.items())
    return "\n\n".join(
        [
            "## Envelope",
            "Every frame, in both directions, is an object with these fields and no others.",
            _table(("Field", "Type", "Meaning"), rows),
            "What is new in later versions goes into `payload`.",
        ]
    )


def _plain_turn() -> str:
    lines = ["## A plain turn", "The person says something, and the app sends it:"]
    said = envelope("client", "user.audio.transcript.final", {"text": _SAID})
    lines.append(_code(_compact(said)))
    lines.append(
        "The server answers with these events, in this order and with nothing between (only `type` and "
        "`payload` are shown):"
    )
    rows = (
        (str(number), f"`{payload.TYPE}`", f"`{_compact(msgspec.to_builtins(payload))}`", says)
        for number, (payload, says) in enumerate(PLAIN_TURN, 1)
    )
    lines.append(_table(("", "Event", "Payload", "Meaning"), rows))
    lines.append(
        "Calls of tools come between 2 and the final reply. Every turn, however it ends, ends with the state "
        "`idle`; where another turn follows at once, the `idle` between them is left out. A transcript that "
        "starts no turn is answered by an `error` and by `idle`."
    )
    return "\n\n".join(lines)


def _event(event: Event, reference: Reference) -> str:
    parts = [f"### `{event.type}`", event.description]
    if event.fields:
        parts.append(_fields_table(reference.payloads[event.struct], reference))
        for field in event.fields:
            parts += _inner_tables(field.name, field.schema, reference)
    else:
        parts.append("The payload is empty.")
    parts.append(_code(_readable(event.example)))
    return "\n\n".join(parts)


def _ui_calls(reference: Reference) -> Iterator[str]:
    yield (
        "## UI calls\n\nThe server draws the conversation, and has it spoken, by `tool.call`s of its own. "
        "No model can make them."
    )
    for call in reference.ui_calls:
        yield f"### `{call.name}`\n\n{call.description}"
        properties: Json = call.arguments["properties"]
        rows = ((f"`{name}`", _kind(schema, reference)) for name, schema in properties.items())
        yield _table(("Argument", "Type"), rows)
        if call.name == "convo.setState":
            states = ((f"`{name}`", meaning) for name, meaning in reference.states.items())
            yield _table(("State", "Meaning"), states)
        yield _code(_readable(call.example))


def _capabilities(reference: Reference) -> Iterator[str]:
    accepted = reference.facts.capabilities
    yield EXTENDING
    rows = (
        (
            f"`{name}`",
            _names(reference.coming_with(name, "client")),
            _names(reference.coming_with(name, "server")),
        )
        for name in accepted
    )
    yield _table(("Capability", "The client sends", "The server sends"), rows)
    yield from (f"- `{name}`: {CAPABILITIES[name]}" for name in accepted if name in CAPABILITIES)
    if "approval" in accepted:
        yield digesting(reference.event("approval.request").example["payload"])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing of its own"


def _errors(reference: Reference) -> Iterator[str]:
    yield (
        "## Errors\n\nAn `error` event never means that the connection is over. A code is stable; a message "
        "is for people, and may change."
    )
    yield _table(("Code", "Meaning"), ((f"`{code}`", meaning) for code, meaning in reference.codes.items()))
    yield "The messages of `invalid_event`:"
    yield _table(("Message", "Meaning"), ((f"`{name}`", meaning) for name, meaning in REFUSALS.items()))


# -- tables and blocks


def _fields_table(schema: Json, reference: Reference) -> str:
    rows = (
        (
            f"`{name}`",
            _kind(field, reference),
            "yes" if name in schema["required"] else "no",
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    )
    return _table(("Field", "Type", "Required", "Meaning"), rows)


def _inner_tables(place: str, schema: Json, reference: Reference) -> Iterator[str]:
    """Describe the objects in a field, and those in them; ``place`` is the field, and how it is reached."""
    several = any("items" in one for one in schema.get("anyOf", [schema]))
    for name in _structs_in(schema):
        inner = reference.payloads[name]
        yield f"Each object of `{place}`:" if several else f"The object `{place}`:"
        yield _fields_table(inner, reference)
        for field, below in inner["properties"].items():
            yield from _inner_tables(f"{place}.{field}", below, reference)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    return f"```json\n{text}\n```"


def _readable(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _structs_in(schema: Any) -> Iterator[str]:
    """Name the structs that a field's schema refers to."""
    if isinstance(schema, list):
        for one in schema:
            yield from _structs_in(one)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _structs_in(value)


# -- types in words


def _kind(schema: Json, reference: Reference) -> str:
    """Say in words what a JSON Schema asks for."""
    choices = schema.get("anyOf", [schema])
    limits = [limit for one in choices for limit in _limits(one)]
    return ", ".join([" or ".join(_bare_kind(one, reference) for one in choices), *limits])


def _bare_kind(schema: Json, reference: Reference) -> str:
    if "enum" in schema:
        if set(schema["enum"]) == set(reference.codes):
            return "an [error code](#errors)"
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array" and schema.get("items"):
        return f"array of {_kind(schema['items'], reference)}"
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
