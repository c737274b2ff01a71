"""All events of the wire, found by looking, and generators of their values."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType, UnionType
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from conductor.events import client, server
from conductor.events.codec import InvalidFrame, decode_event


def structs_of(module: ModuleType) -> dict[str, type[msgspec.Struct]]:
    """Find a module's events: the structs that know their ``type`` on the wire."""
    return {
        struct.TYPE: struct
        for _, struct in inspect.getmembers(module, inspect.isclass)
        if issubclass(struct, msgspec.Struct)
        and hasattr(struct, "TYPE")
        and "TYPE" in vars(struct)  # a subclass stands for a frame that could not be read
        and struct.__module__ == module.__name__
    }


CLIENT = structs_of(client)
SERVER = structs_of(server)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
"""Whatever UTF-8 can hold."""

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Generate values of a field's type, within its constraints."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _constrained(arguments[0], arguments[1:])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (UnionType, typing.Union):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin in (list, Sequence):
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return events_of(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: texts,
        bool: st.booleans(),
        int: st.integers(-(2**53) + 1, 2**53 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
        msgspec.UnsetType: st.just(msgspec.UNSET),
        Any: json_values,
    }
    return simple[kind]


def _constrained(kind: Any, constraints: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    values = values_of(kind)
    for constraint in constraints:
        if constraint.max_length is not None or constraint.min_length is not None:
            values = values.filter(partial(_fits, constraint.min_length or 0, constraint.max_length))
        if constraint.ge is not None or constraint.le is not None:
            assert kind in (int, float), f"no generator for bounds of {kind}"
            values = (
                st.integers(constraint.ge, constraint.le)
                if kind is int
                else st.floats(constraint.ge, constraint.le, allow_nan=False, allow_infinity=False)
            )
    return values


def _fits(low: int, high: int | None, value: Any) -> bool:
    return low <= len(value) and (high is None or len(value) <= high)


def events_of(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Generate valid values of a struct."""
    if struct is client.ApprovalResponse:
        return _responses()
    if struct is client.Decision:
        return _decisions()
    if struct is client.ContextAdd:
        fields = _fields_of(struct)
        removal = st.builds(struct, **{**fields, "text": st.just(""), "key": values_of(client.Id)})
        return removal | st.builds(struct, **{**fields, "text": texts.filter(str.strip)})
    return st.builds(struct, **_fields_of(struct))


def _fields_of(struct: type[msgspec.Struct]) -> dict[str, st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    return {field: values_of(hints[field]) for field in struct.__struct_fields__}


def _decisions() -> st.SearchStrategy[client.Decision]:
    fields = _fields_of(client.Decision)
    arguments = values_of(dict[str, Any])
    choices: dict[str, st.SearchStrategy[Any]] = {
        "allow": st.none(),
        "deny": st.none() | arguments,
        "edit": arguments,
    }
    return st.one_of(
        [
            st.builds(client.Decision, **{**fields, "decision": st.just(name), "edited_arguments": edited})
            for name, edited in choices.items()
        ]
    )


def _responses() -> st.SearchStrategy[client.ApprovalResponse]:
    single = _decisions().map(lambda decision: client.ApprovalResponse(**msgspec.structs.asdict(decision)))
    several = st.lists(_decisions(), min_size=1, max_size=3)
    return single | several.map(lambda decisions: client.ApprovalResponse(decisions=decisions))


MISSING = object()


def event(**changes: Any) -> dict[str, Any]:
    """Make a valid event with some of its fields changed."""
    base: dict[str, Any] = {
        "id": "e-1",
        "type": "user.audio.transcript.final",
        "timestamp": "2026-03-01T12:00:00.000Z",
        "sessionId": "s-1",
        "protocolVersion": 1,
        "payload": {"text": "hi"},
    }
    base.update(changes)
    return {key: value for key, value in base.items() if value is not MISSING}


def frame(**changes: Any) -> bytes:
    return json.dumps(event(**changes)).encode()


def refusal(data: bytes, max_bytes: int = 65_536) -> InvalidFrame:
    with pytest.raises(InvalidFrame) as caught:
        decode_event(data, max_bytes)
    return caught.value


CALL: dict[str, Any] = {"callId": "call_1"}
BOUND: dict[str, Any] = {"approvalId": "appr_1", "argumentsDigest": "0" * 64}
ALLOW: dict[str, Any] = {**BOUND, "decision": "allow"}
EDIT: dict[str, Any] = {**BOUND, "decision": "edit", "editedArguments": {"path": "a"}}
VALID: list[tuple[str, dict[str, Any]]] = [
    ("user.audio.transcript.final", {"text": ""}),
    ("tool.result", CALL),
    ("tool.result", {**CALL, "result": {"a": [None]}}),
    ("audio.output.interrupted", {"playedMs": 0.5}),
    ("session.start", {"capabilities": ["x"] * 64}),
    ("session.start", {"resume": None}),
    ("session.start", {"resume": {"lastEventId": None, "done": [], "pending": [], "more": 1}}),
    ("session.start", {"resume": {"done": [{**CALL, "result": None, "error": None}]}}),
    ("session.start", {"resume": {"done": [CALL] * 500, "pending": ["x" * 96] * 300}}),
    ("session.start", {"resume": {"done": [{**CALL, "result": {"on": True}}]}}),
    ("tool.cancelled", {**CALL, "effect": "complete", "result": {"ok": True}}),
    ("response.cancel", {}),
    ("tools.list", {}),
    ("tool.started", {"callId": "x" * 128}),
    ("tool.progress", {**CALL, "message": None, "percent": None}),
    ("tool.progress", {**CALL, "percent": 0}),
    ("tool.progress", {**CALL, "percent": 100}),
    ("tool.accepted", {**CALL, "jobId": "x" * 256}),
    ("approval.shown", {"approvalId": "x" * 128}),
    ("approval.response", ALLOW),
    ("approval.response", {**ALLOW, "scope": "always", "message": "x" * 2_000, "decisions": None}),
    ("approval.response", {**ALLOW, "editedArguments": None}),
    ("approval.response", {**ALLOW, "decision": "deny", "editedArguments": {"a": 1}}),
    ("approval.response", EDIT),
    ("approval.response", {**EDIT, "editedArguments": {}}),
    ("approval.response", {"decisions": [ALLOW] * 100}),
    ("approval.response", {"decisions": [EDIT, ALLOW], "approvalId": None, "decision": None}),
]
"""Valid payloads of clients, by the type of their events."""
