"""The events of the extensions: their refusals, and the digest of an approval."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from protocol_reference import markdown
from protocol_schema import EVENTS, json_schema

from conductor.events import client
from conductor.events.codec import MAX_DEPTH, InvalidFrame, decode_event
from conductor.events.envelope import encode_event
from conductor.events.server import ApprovalRequest
from conductor.tools.rules import arguments_digest
from tests.unit.events.events import (
    ALLOW,
    BOUND,
    CALL,
    EDIT,
    VALID,
    event,
    events_of,
    frame,
    json_values,
    refusal,
    texts,
)

EXAMPLES = {event.type: event.example["payload"] for event in EVENTS}
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

WHOLE = "send approvalId, argumentsDigest and decision, or decisions"
BESIDE = "decisions excludes approvalId, argumentsDigest and decision"
NO_EDIT = "an edit needs editedArguments"
UNMEANT = "an allow takes no editedArguments; an edit does"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("user.audio.transcript.final", {"text": 1}, "text"),
    ("user.audio.transcript.final", {}, "text"),
    ("tool.result", {"callId": "x" * 129}, "callId"),
    ("tool.result", {**CALL, "error": 1}, "error"),
    ("audio.output.interrupted", {"playedMs": -1}, "playedMs"),
    ("session.start", {"locale": "x" * 257}, "locale"),
    ("session.start", {"tools": {}}, "tools"),
    ("session.start", {"resume": {"done": ["call_1"]}}, "$.resume.done[0]"),
    ("session.start", {"resume": {"done": [CALL, {"result": "on"}]}}, "callId"),
    ("session.start", {"resume": {"pending": ["x" * 129]}}, "pending"),
    ("tool.cancelled", {"effect": "none"}, "callId"),
    ("tool.cancelled", CALL, "effect"),
    ("tool.cancelled", {**CALL, "effect": "some"}, "Invalid enum value - at `$.effect`"),
    ("tool.progress", {**CALL, "percent": 101}, "percent"),
    ("approval.response", {}, WHOLE),
    ("approval.response", BOUND, WHOLE),
    ("approval.response", {**ALLOW, "approvalId": None}, WHOLE),
    ("approval.response", {"decisions": None}, WHOLE),
    ("approval.response", {**ALLOW, "editedArguments": {}}, UNMEANT),
    ("approval.response", {**BOUND, "decision": "edit"}, NO_EDIT),
    ("approval.response", {**EDIT, "editedArguments": None}, NO_EDIT),
    ("approval.response", {**EDIT, "editedArguments": '{"path":"a"}'}, "editedArguments"),
    ("approval.response", {"decisions": []}, "decisions"),
    ("approval.response", {"decisions": ALLOW}, "decisions"),
    ("approval.response", {"decisions": [ALLOW] * 101}, "decisions"),
    ("approval.response", {"decisions": [ALLOW, "allow"]}, "$.decisions[1]"),
    ("approval.response", {"decisions": [ALLOW, BOUND]}, "decision"),
    (
        "approval.response",
        {"decisions": [{**ALLOW, "decision": "ok"}]},
        "Invalid enum value - at `$.decisions[0].decision`",
    ),
    ("approval.response", {"decisions": [ALLOW, {**BOUND, "decision": "edit"}]}, NO_EDIT),
    ("approval.response", {"decisions": [{**ALLOW, "editedArguments": {"a": 1}}]}, UNMEANT),
    ("approval.response", {"decisions": [ALLOW], **ALLOW}, BESIDE),
    ("approval.response", {"decisions": [ALLOW], "approvalId": "appr_2"}, BESIDE),
]

# -- events of clients


@pytest.mark.parametrize(("event_type", "payload", "says"), REFUSED)
def test_a_wrong_payload_is_refused_by_name_and_by_the_schema_too(
    event_type: str, payload: dict[str, Any], says: str
) -> None:
    message = event(type=event_type, payload=payload)
    error = refusal(json.dumps(message).encode())
    assert (error.code, error.event_id, error.event_type) == ("invalid_event", "e-1", event_type)
    assert str(error).startswith("invalid_payload: ") and says in str(error)
    assert len(str(error)) < 200
    assert not VALIDATOR.is_valid(message)


@pytest.mark.parametrize(("event_type", "payload"), VALID)
def test_a_valid_payload_is_accepted_and_fits_the_schema(event_type: str, payload: dict[str, Any]) -> None:
    message = event(type=event_type, payload=payload)
    assert decode_event(json.dumps(message).encode()).event is not None
    VALIDATOR.validate(message)


@pytest.mark.parametrize("word", ["hunter2", "x" * 60_000, " - at `hunter2", "'", "\n"])
def test_a_refusal_does_not_quote_a_wrong_choice(word: str) -> None:
    error = refusal(frame(type="tool.cancelled", payload={**CALL, "effect": word}))
    assert str(error) == "invalid_payload: Invalid enum value - at `$.effect`"


@pytest.mark.parametrize("form", ["one", "several"])
def test_edited_arguments_may_be_as_deep_as_any_event_and_no_deeper(form: str) -> None:
    above = {"one": 4, "several": 6}[
        form
    ]  # the event, its payload, (the list, a decision,) the object, the value
    for depth, is_accepted in ((MAX_DEPTH - above + 1, True), (MAX_DEPTH - above + 2, False)):
        value: Any = 1
        for _ in range(depth - 1):
            value = [value]
        decision = {**EDIT, "editedArguments": {"a": value}}
        message = event(
            type="approval.response", payload=decision if form == "one" else {"decisions": [decision]}
        )
        if is_accepted:
            assert decode_event(json.dumps(message).encode()).event is not None
        else:
            error = refusal(json.dumps(message).encode())
            assert (error.code, str(error), error.event_id) == ("invalid_event", "too_deep", "e-1")


@given(events_of(client.ApprovalResponse))
def test_one_decision_and_several_are_listed_alike(response: client.ApprovalResponse) -> None:
    listed = response.all()
    assert listed and all(isinstance(decision, client.Decision) for decision in listed)
    event = decode_event(encode_event("e-1", "s-1", client.ApprovalResponse(decisions=listed))).event
    assert isinstance(event, client.ApprovalResponse) and event.all() == listed


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "approvalId": st.sampled_from(["appr_1", None]),
            "argumentsDigest": st.sampled_from(["0" * 64, None]),
            "decision": st.sampled_from(["allow", "deny", "edit", None]),
            "scope": st.sampled_from(["once", "session", "ever"]),
            "editedArguments": st.sampled_from([None, {}, {"a": 1}, []]),
            "decisions": st.sampled_from(
                [None, [], [ALLOW], [EDIT], [BOUND], [{**EDIT, "decision": "allow"}]]
            ),
        },
    )
)
def test_the_schema_and_the_server_agree_on_every_response(payload: dict[str, Any]) -> None:
    message = event(type="approval.response", payload=payload)
    try:
        decode_event(json.dumps(message).encode())
    except InvalidFrame:
        assert not VALIDATOR.is_valid(message)
    else:
        VALIDATOR.validate(message)


# -- the digest of an approval


def digest_of(request: Mapping[str, Any]) -> str:
    """Make a digest as the reference describes it."""
    text = request["name"].encode() + b"\n" + rfc8785.dumps(request["arguments"])
    return hashlib.sha256(text).hexdigest()


def test_the_digest_of_the_example_is_that_of_its_name_and_arguments() -> None:
    request = EXAMPLES["approval.request"]
    assert request["argumentsDigest"] == digest_of(request)
    assert request["argumentsDigest"] == arguments_digest(request["name"], request["arguments"])
    response = EXAMPLES["approval.response"]
    assert response["argumentsDigest"] == request["argumentsDigest"]


def test_the_reference_has_the_digest_of_the_example() -> None:
    digest = EXAMPLES["approval.request"]["argumentsDigest"]
    assert f'The digest of `delete_file` with `{{"path":"notes.txt"}}` is `{digest}`.' in markdown()


@given(texts, st.dictionaries(texts, json_values, max_size=4))
def test_an_app_that_follows_the_reference_gets_the_servers_digest(
    name: str, arguments: dict[str, Any]
) -> None:
    digest = arguments_digest(name, arguments)
    request = ApprovalRequest(
        approval_id="appr_1",
        batch_id="batch_1",
        call_id="call_1",
        name=name,
        arguments=arguments,
        arguments_digest=digest,
        risk="high",
        reasons=(),
        prompt="?",
        scopes=("once",),
        expires_at="",
    )
    read = json.loads(encode_event("e-1", "s-1", request))
    try:
        assert digest_of(read["payload"]) == digest
    except rfc8785.IntegerDomainError:
        pass  # as the reference says
