"""The schemas of the wire: that they are complete, that they are true, and that tools can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator, meta
from protocol_schema import (
    EVENTS,
    PAYLOADS,
    UI_CALLS,
    Event,
    json_schema,
    sent_by,
)

from conductor.errors import CODE_MEANINGS, ErrorCode
from conductor.events import client, server
from conductor.events.codec import decode_event
from conductor.events.envelope import encode_event
from conductor.events.server import (
    STATE_MEANINGS,
    ConversationState,
    append_message,
    is_ui_call,
    set_state,
    speak,
)
from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from tests.models import ScriptedProvider
from tests.serving import serving
from tests.unit.events.events import CLIENT, SERVER, events_of

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

events = pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)


# -- descriptions


def test_every_event_of_the_code_is_described_and_no_other() -> None:
    assert {event.type for event in sent_by("client")} == set(CLIENT)
    assert {event.type for event in sent_by("server")} == set(SERVER)
    assert set(get_args(client.ClientEvent)) == set(CLIENT.values())
    assert set(get_args(server.ServerEvent)) == set(SERVER.values())


@events
def test_an_event_is_described_in_words(event: Event) -> None:
    assert event.description.endswith(".")


def test_every_field_is_described_in_words() -> None:
    for name, schema in PAYLOADS.items():
        for field, described in schema["properties"].items():
            assert described.get("description", "").endswith("."), f"{name}.{field}"


@pytest.mark.parametrize("call", [set_state("c", "idle"), append_message("c", "user", "x"), speak("c", "x")])
def test_the_arguments_of_a_ui_call_fit_their_schema(call: server.ToolCallEvent) -> None:
    (schema,) = [described.arguments for described in UI_CALLS if described.name == call.name]
    assert is_ui_call(call.name) and len(UI_CALLS) == 3
    meta.validate(schema)
    Draft202012Validator(schema).validate(json.loads(call.arguments))


def test_a_ui_calls_schema_refuses_another_state() -> None:
    by_name = {call.name: Draft202012Validator(call.arguments) for call in UI_CALLS}
    assert not by_name["convo.setState"].is_valid({"state": "error"})
    assert not by_name["convo.appendMessage"].is_valid({"role": "user", "text": "x", "isPartial": True})


def test_every_state_and_code_has_a_meaning() -> None:
    assert set(STATE_MEANINGS) == set(get_args(ConversationState))
    assert set(CODE_MEANINGS) == set(get_args(ErrorCode))
    assert all(re.fullmatch(r"[A-Z].*\.", meaning) for meaning in CODE_MEANINGS.values())


# -- JSON Schema


def test_the_schemas_are_schemas() -> None:
    meta.validate(SCHEMA)
    assert set(references(SCHEMA)) <= {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


@events
def test_a_golden_example_fits_its_schema_and_only_its_own(event: Event) -> None:
    VALIDATOR.validate(event.example)
    fits = [
        other_event.type
        for other_event in EVENTS
        if Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{other_event.type}"}]}).is_valid(
            event.example
        )
    ]
    assert fits == [event.type]


@events
def test_additional_fields_are_allowed_in_the_payload_only(event: Event) -> None:
    assert not VALIDATOR.is_valid({**event.example, "more": 1})
    assert VALIDATOR.is_valid({**event.example, "payload": {**event.example["payload"], "more": 1}})


@pytest.mark.parametrize("event", sent_by("client"), ids=lambda event: event.type)
def test_the_server_takes_the_golden_examples_of_clients(event: Event) -> None:
    inbound = decode_event(json.dumps(event.example).encode())
    assert isinstance(inbound.event, CLIENT[event.type])


@pytest.mark.parametrize("event", sent_by("server"), ids=lambda event: event.type)
def test_the_server_would_send_the_golden_examples_of_servers(event: Event) -> None:
    payload: Any = msgspec.convert(event.example["payload"], SERVER[event.type])
    encoded = json.loads(encode_event(event.example["id"], event.example["sessionId"], payload))
    assert {**encoded, "timestamp": ""} == {**event.example, "timestamp": ""}


@given(st.one_of([events_of(struct) for struct in SERVER.values()]))
def test_every_event_of_the_server_fits_the_schemas_and_comes_back_as_it_was_written(payload: Any) -> None:
    frame = encode_event("evt_1", "s-1", payload)
    read = json.loads(frame)
    VALIDATOR.validate(read)
    assert msgspec.convert(read["payload"], SERVER[read["type"]]) == payload
    assert decode_event(frame, len(frame)).event is None  # the server ignores its own events


def references(value: Any) -> Iterator[str]:
    """Find all ``$ref`` in a document."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)


async def test_a_turn_with_a_tool_sends_nothing_that_the_schemas_refuse() -> None:
    provider = ScriptedProvider([[ToolCall("x", "agent.status", '{"id":"a-77"}')], [TextDelta("Done.")]])
    async with serving(provider) as served:
        async with served.phone(tools={"agent.status": lambda _: "FINISHED"}) as phone:
            await phone.ask("how is it?")
            phone.send("user.audio.transcript.final", {"text": " "})
            await phone.until("error")
        assert len(phone.log) > 10
        for event in phone.log:
            VALIDATOR.validate(event)
