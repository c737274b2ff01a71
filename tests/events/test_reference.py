"""The description of the wire: that it is complete, that it is true, and that tools can read it."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conductor.conversation.profile import CAPABILITIES
from conductor.errors import CODE_MEANINGS, ErrorCode
from conductor.events import codec, server
from conductor.events.codec import InvalidFrame, decode_event
from conductor.events.envelope import encode_event
from conductor.events.reference import Event, Reference, prose, read_reference
from conductor.events.reference_asyncapi import asyncapi
from conductor.events.reference_capabilities import CAPABILITIES as CAPABILITY_PROSE
from conductor.events.reference_markdown import PLAIN_TURN, markdown
from conductor.events.reference_refusals import REFUSALS
from conductor.events.reference_schema import json_schema
from conductor.events.server import ConversationState, append_message, is_ui_call, set_state, speak
from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from conductor.models.scripted import ScriptedProvider
from tests.end_to_end.conftest import serving
from tests.events.events import CLIENT, SERVER, events_of
from tests.events.facts import FACTS

REFERENCE = read_reference(FACTS)
SCHEMA = json_schema(REFERENCE)
VALIDATOR = Draft202012Validator(SCHEMA)
ASYNCAPI = asyncapi(REFERENCE)
MARKDOWN = markdown(REFERENCE)

events = pytest.mark.parametrize("event", REFERENCE.events, ids=lambda event: event.type)


def frame(**fields: Any) -> dict[str, Any]:
    """Make a client's frame with some fields changed; None leaves one out."""
    event = {**REFERENCE.event("user.audio.transcript.final").example, **fields}
    return {name: value for name, value in event.items() if value is not None}


def accepted(event: Any) -> bool:
    """Tell whether the server takes a frame."""
    try:
        decode_event(json.dumps(event).encode())
    except InvalidFrame:
        return False
    return True


# -- what is described


def test_every_event_of_the_code_is_described_and_no_other() -> None:
    assert {event.type for event in REFERENCE.sent_by("client")} == set(CLIENT)
    assert {event.type for event in REFERENCE.sent_by("server")} == set(SERVER)


@events
def test_an_event_and_each_of_its_fields_is_described_in_words(event: Event) -> None:
    assert event.description.endswith(".")
    assert [field.name for field in event.fields if not field.description.endswith(".")] == []


def test_every_struct_inside_a_payload_is_described_in_words() -> None:
    for name, schema in REFERENCE.payloads.items():
        for field, described in schema["properties"].items():
            assert described.get("description"), f"{name}.{field}"


def test_prose_names_fields_as_they_stand_on_the_wire() -> None:
    assert prose("Of ``played_ms``,\n    in ms.\n\n    More.", {"played_ms": "playedMs"}) == (
        "Of `playedMs`, in ms.\n\nMore."
    )
    described = json.dumps([SCHEMA, ASYNCAPI]) + MARKDOWN
    snake = {name for struct in {**CLIENT, **SERVER}.values() for name in struct.__struct_fields__}
    assert [name for name in snake if "_" in name and re.search(rf"(?<!_)\b{name}\b", described)] == []
    assert "``" not in described.replace("```", "")


def test_every_ui_call_of_the_code_is_described() -> None:
    made = [set_state("c", "idle"), append_message("c", "user", "x"), speak("c", "x")]
    assert [call.name for call in REFERENCE.ui_calls] == [call.name for call in made]
    for call in REFERENCE.ui_calls:
        assert is_ui_call(call.name)
        assert call.description and not call.description.startswith("Make")


@pytest.mark.parametrize("call", REFERENCE.ui_calls, ids=lambda call: call.name)
def test_the_arguments_of_a_ui_call_fit_their_schema(call: Any) -> None:
    Draft202012Validator.check_schema(call.arguments)
    Draft202012Validator(call.arguments).validate(json.loads(call.example["payload"]["arguments"]))


def test_a_ui_calls_schema_refuses_another_state() -> None:
    by_name = {call.name: Draft202012Validator(call.arguments) for call in REFERENCE.ui_calls}
    assert not by_name["convo.setState"].is_valid({"state": "error"})
    assert not by_name["convo.appendMessage"].is_valid({"role": "user", "text": "x", "isPartial": True})


def test_every_state_has_a_meaning() -> None:
    assert set(REFERENCE.states) == set(get_args(ConversationState))


def test_every_code_has_a_meaning_of_one_line() -> None:
    assert set(CODE_MEANINGS) == set(get_args(ErrorCode))
    assert all(re.fullmatch(r"[A-Z].*\.", meaning) for meaning in CODE_MEANINGS.values())


def test_every_refusal_of_the_codec_has_a_meaning() -> None:
    assert set(refusals_in_the_code()) == set(REFUSALS)


def refusals_in_the_code() -> Iterator[str]:
    """Find the messages that the codec refuses with; what varies becomes words in angle brackets."""
    for node in ast.walk(ast.parse(inspect.getsource(codec))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_refuse"):
            continue
        match node.args[0]:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=[ast.Constant(value="missing_"), _]):
                yield from (f"missing_{name}" for _, name in codec._REQUIRED)
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), _]):
                yield text + ("<bytes>" if text.endswith(":") else "<reason>")


def test_every_accepted_capability_is_named_where_it_matters() -> None:
    assert [name for name in CAPABILITIES if not REFERENCE.coming_with(name)] == []
    assert {"session.update", "session.start: tools"} <= set(REFERENCE.coming_with("tools"))
    assert REFERENCE.coming_with("tool") == ()


def test_every_accepted_capability_is_described_in_whole_sentences() -> None:
    for name in {*CAPABILITIES, *FACTS.capabilities}:
        assert re.fullmatch(r"[A-Z].*\.", CAPABILITY_PROSE[name]), name
        assert re.search(r"[Tt]he (client|app) (sends|ends|shows|declares|answers)", CAPABILITY_PROSE[name])
        assert re.search(r"[Tt]he server (sends|says|confirms|tells)", CAPABILITY_PROSE[name]), name


def test_a_capability_names_each_sides_events_and_fields() -> None:
    found = {
        name: (REFERENCE.coming_with(name, "client"), REFERENCE.coming_with(name, "server"))
        for name in FACTS.capabilities
    }
    assert found == {
        "resume": (
            ("session.start: resume",),
            ("event.ack", "session.started: resend", "session.started: drop"),
        ),
        "approval": (("approval.response",), ("approval.request", "approval.resolved")),
        "tools": (
            ("session.update", "session.start: tools"),
            ("tools.changed", "session.started: acceptedTools", "session.started: rejectedTools"),
        ),
        "cancel": (("response.cancel", "tool.cancelled"), ("tool.cancel",)),
        "lease": (("tool.started", "tool.progress"), ("tool.call: timeoutMs",)),
        "late": ((), ("tool.late",)),
        "async": (("tool.accepted",), ()),
        "activity": ((), ("tool.activity",)),
    }
    for name, (sent, received) in found.items():
        assert set(REFERENCE.coming_with(name)) == {*sent, *received}


@pytest.mark.parametrize(
    "accepted", [(), ("tools",), ("activity", "late"), ("approval",), ("tools", "teleport"), CAPABILITIES]
)
def test_any_capabilities_can_be_described(accepted: tuple[str, ...]) -> None:
    reference = read_reference(replace(FACTS, capabilities=accepted))
    text = markdown(reference).partition("\n## Capabilities\n")[2]
    assert [name for name in FACTS.capabilities if f"\n| `{name}` | " in text] == [
        name for name in FACTS.capabilities if name in accepted
    ]
    assert ("### The digest of an approval" in text) is ("approval" in accepted)
    described = asyncapi(reference)["components"]["messages"]["session.start"]["x-capabilities"]
    assert tuple(described) == accepted
    assert list(faults(asyncapi(reference))) == []


def test_a_new_event_is_described_by_writing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = msgspec.defstruct(
        "SessionGoaway",
        [("time_left_ms", int)],
        namespace={"TYPE": "session.goaway", "__doc__": "Come back later."},
        module=server.__name__,
        rename="camel",
    )
    monkeypatch.setattr(server, "SessionGoaway", new, raising=False)
    described = read_reference(FACTS)
    assert described.event("session.goaway").example["payload"] == {"timeLeftMs": 1}
    assert "### `session.goaway`\n\nCome back later." in markdown(described)
    assert "session.goaway" in asyncapi(described)["components"]["messages"]


def test_an_event_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        REFERENCE.event("session.gone")


# -- JSON Schema


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(references(SCHEMA)) <= {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


@events
def test_a_golden_example_fits_its_schema_and_only_its_own(event: Event) -> None:
    VALIDATOR.validate(event.example)
    fits = [
        one.type
        for one in REFERENCE.events
        if Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{one.type}"}]}).is_valid(
            event.example
        )
    ]
    assert fits == [event.type]


@events
def test_nothing_else_may_stand_at_the_top_level_but_in_the_payload_it_may(event: Event) -> None:
    assert not VALIDATOR.is_valid({**event.example, "more": 1})
    assert VALIDATOR.is_valid({**event.example, "payload": {**event.example["payload"], "more": 1}})


@pytest.mark.parametrize("event", REFERENCE.sent_by("client"), ids=lambda event: event.type)
def test_the_server_takes_the_golden_examples_of_clients(event: Event) -> None:
    inbound = decode_event(json.dumps(event.example).encode())
    assert isinstance(inbound.event, CLIENT[event.type])


@pytest.mark.parametrize("event", REFERENCE.sent_by("server"), ids=lambda event: event.type)
def test_the_server_would_send_the_golden_examples_of_servers(event: Event) -> None:
    payload: Any = msgspec.convert(event.example["payload"], SERVER[event.type])
    sent = json.loads(encode_event(event.example["id"], event.example["sessionId"], payload))
    assert {**sent, "timestamp": ""} == {**event.example, "timestamp": ""}


@given(st.one_of([events_of(struct) for struct in SERVER.values()]))
def test_whatever_the_server_sends_fits_the_schemas(payload: Any) -> None:
    VALIDATOR.validate(json.loads(encode_event("evt_1", "s-1", payload)))


CHANGES: list[dict[str, Any]] = [
    {},
    {"protocolVersion": None},
    {"timestamp": "yesterday"},
    {"id": "x" * 128},
    {"id": "x" * 129},
    {"id": ""},
    {"id": None},
    {"id": 1},
    {"type": None},
    {"timestamp": None},
    {"timestamp": 5},
    {"sessionId": "A-z.0_9:"},
    {"sessionId": "x" * 128},
    {"sessionId": "x" * 129},
    {"sessionId": "a b"},
    {"sessionId": ""},
    {"sessionId": None},
    {"payload": None},
    {"payload": []},
    {"payload": {}},
    {"payload": {"text": None}},
    {"payload": {"text": 1}},
    {"payload": {"text": ""}},
    {"protocolVersion": 2},
    {"protocolVersion": "1"},
    {"type": "tool.result", "payload": {"callId": "x"}},
    {"type": "tool.result", "payload": {"callId": ""}},
    {"type": "tool.result", "payload": {"callId": "x" * 129}},
    {"type": "tool.result", "payload": {"callId": "x", "result": 1}},
    {"type": "audio.output.interrupted", "payload": {"playedMs": -1}},
    {"type": "audio.output.interrupted", "payload": {"playedMs": 0.5}},
    {"type": "session.start", "payload": {"locale": "x" * 257}},
    {"type": "session.start", "payload": {"capabilities": ["x"] * 65}},
    {"type": "session.start", "payload": {"capabilities": ["x"] * 64}},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: json.dumps(change)[:60])
def test_the_schema_and_the_server_agree_on_what_a_client_may_send(change: dict[str, Any]) -> None:
    event = frame(**change)
    assert VALIDATOR.is_valid(event) is accepted(event)


def references(value: Any) -> Iterator[str]:
    """Find all ``$ref`` in a document."""
    if isinstance(value, list):
        for one in value:
            yield from references(one)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)


# -- AsyncAPI


def resolve(document: Any, reference: str) -> Any:
    """Follow a reference inside a document. Raises KeyError."""
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        document = document[step.replace("~1", "/").replace("~0", "~")]
    return document


def faults(document: dict[str, Any]) -> Iterator[str]:
    """Find what AsyncAPI 3.0 forbids, as far as this document could have it."""
    allowed = {
        "asyncapi",
        "id",
        "info",
        "servers",
        "defaultContentType",
        "channels",
        "operations",
        "components",
    }
    yield from (f"{name} at the top" for name in document.keys() - allowed)
    if document.get("asyncapi") != "3.0.0":
        yield "asyncapi must be 3.0.0"
    yield from (f"info.{name} is missing" for name in {"title", "version"} - document.get("info", {}).keys())
    for name, one in document.get("servers", {}).items():
        yield from (f"server {name} has no {field}" for field in {"host", "protocol"} - one.keys())
    for reference in references(document):
        try:
            resolve(document, reference)
        except KeyError:
            yield f"{reference} leads nowhere"
    channel_messages = {
        f"#/channels/{name}/messages/{message}"
        for name, channel in document.get("channels", {}).items()
        for message in channel["messages"]
    }
    for name, operation in document.get("operations", {}).items():
        if operation.get("action") not in ("send", "receive"):
            yield f"operation {name} has no action"
        if operation.get("channel", {}).get("$ref") is None:
            yield f"operation {name} has no channel"
        for message in operation.get("messages", ()):
            if message["$ref"] not in channel_messages:
                yield f"operation {name} has a message that is not its channel's"
    for kind, components in document.get("components", {}).items():
        yield from (f"{kind}: {name}" for name in components if not re.fullmatch(r"[\w.-]+", name))


def test_the_asyncapi_document_is_one() -> None:
    assert list(faults(ASYNCAPI)) == []
    assert {"channels", "operations", "components"} <= ASYNCAPI.keys()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.update(asyncapi="2.6.0"),
        lambda document: document.update(more=1),
        lambda document: document["info"].pop("version"),
        lambda document: document["servers"]["local"].pop("host"),
        lambda document: document["components"]["messages"].pop("error"),
        lambda document: document["components"]["schemas"].pop("RejectedTool"),
        lambda document: document["operations"]["sendServerEvents"].update(action="emit"),
        lambda document: document["operations"]["sendServerEvents"].pop("channel"),
        lambda document: document["operations"]["sendServerEvents"]["messages"].append(
            {"$ref": "#/components/messages/error"}
        ),
        lambda document: document["components"]["schemas"].update({"a b": {}}),
    ],
)
def test_a_document_that_is_none_would_be_noticed(spoil: Any) -> None:
    document = json.loads(json.dumps(ASYNCAPI))
    spoil(document)
    assert list(faults(document))


def test_the_application_receives_what_clients_send_and_sends_the_rest() -> None:
    operations = {one["action"]: one for one in ASYNCAPI["operations"].values()}
    for action, structs in (("receive", CLIENT), ("send", SERVER)):
        names = {
            resolve(ASYNCAPI, ref["$ref"])["$ref"].split("/")[-1] for ref in operations[action]["messages"]
        }
        assert names == set(structs)


@events
def test_a_messages_example_fits_its_payload(event: Event) -> None:
    message = ASYNCAPI["components"]["messages"][event.type]
    schema = {**message["payload"], "components": ASYNCAPI["components"]}
    for example in message["examples"]:
        Draft202012Validator(schema).validate(example["payload"])


def test_the_asyncapi_document_says_what_no_schema_can() -> None:
    messages = ASYNCAPI["components"]["messages"]
    assert messages["error"]["x-error-codes"] == CODE_MEANINGS
    assert set(messages["tool.call"]["x-ui-calls"]) == {"convo.setState", "convo.appendMessage", "tts.speak"}
    capabilities = messages["session.start"]["x-capabilities"]
    assert tuple(capabilities) == FACTS.capabilities and all(capabilities.values())


# -- Markdown


def test_the_markdown_has_all_events_codes_states_and_refusals() -> None:
    wanted = [
        *(f"\n### `{event.type}`\n" for event in REFERENCE.events),
        *(f"\n### `{call.name}`\n" for call in REFERENCE.ui_calls),
        *(f"\n| `{name}` | " for name in [*REFERENCE.codes, *REFERENCE.states, *REFUSALS]),
        *(f"\n| `{name}` | " for name in FACTS.capabilities),
        *(f"\n- `{name}`: {CAPABILITY_PROSE[name]}\n" for name in FACTS.capabilities),
    ]
    assert [text for text in wanted if text not in MARKDOWN] == []


def test_each_example_in_the_markdown_is_json() -> None:
    blocks = re.findall(r"```json\n(.*?)\n```", MARKDOWN, re.DOTALL)
    assert len(blocks) == len(REFERENCE.events) + len(REFERENCE.ui_calls) + 1
    for block in blocks:
        VALIDATOR.validate(json.loads(block))


def test_each_table_in_the_markdown_has_rows_of_one_width() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", MARKDOWN, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_limits_types_and_structs_are_said_in_words() -> None:
    assert "| `callId` | string, 1 to 128 characters | yes |" in MARKDOWN
    assert "| `locale` | string or null, at most 256 characters | no |" in MARKDOWN
    assert "| `playedMs` | number or null, 0 or more | no |" in MARKDOWN
    assert "| `capabilities` | array of string, at most 64 of them | no |" in MARKDOWN
    assert "| `code` | an [error code](#errors) | yes |" in MARKDOWN
    assert "Each object of `rejectedTools`:" in MARKDOWN
    assert "The object `resume`:" in MARKDOWN
    done = MARKDOWN.partition("Each object of `resume.done`:")[2]
    assert done.startswith("\n\n| Field |") and "\n| `result` | string or null | no |" in done


def test_the_markdown_tells_the_facts_that_it_is_given() -> None:
    facts = replace(FACTS, path="/voice", max_event_bytes=4711, session_grace=33.0)
    text = markdown(read_reference(facts))
    assert "/voice" in text and "4711 bytes" in text and "33 seconds" in text
    assert "/ws`" not in text


async def test_the_plain_turn_of_the_document_is_that_of_the_server() -> None:
    said = json.loads(PLAIN_TURN[1][0].arguments)["text"]  # type: ignore[attr-defined]  # a tool.call
    reply = next(payload for payload, _ in PLAIN_TURN if isinstance(payload, server.SpeechFinal)).text
    provider = ScriptedProvider([[TextDelta(reply)]])
    async with serving(provider) as served, served.phone() as phone:
        sent = [without_ids(event["type"], event["payload"]) for event in await phone.ask(said)]
    documented = [without_ids(payload.TYPE, msgspec.to_builtins(payload)) for payload, _ in PLAIN_TURN]
    partial = "assistant.speech.partial"
    assert [one for one in sent if one[0] != partial] == [one for one in documented if one[0] != partial]
    assert [one[0] for one in documented].index(partial) == [one[0] for one in sent].index(partial)


def without_ids(event_type: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return event_type, {name: value for name, value in payload.items() if name != "callId"}


async def test_a_turn_with_a_tool_sends_nothing_that_the_schemas_refuse() -> None:
    provider = ScriptedProvider([[ToolCall("x", "agent.status", '{"id":"a-77"}')], [TextDelta("Done.")]])
    async with serving(provider) as served:
        async with served.phone(tools={"agent.status": lambda _: "FINISHED"}) as phone:
            await phone.ask("how is it?")
            await phone.send("user.audio.transcript.final", {"text": " "})
            await phone.until(lambda event: event["type"] == "error")
        assert len(phone.log) > 10
        for event in phone.log:
            VALIDATOR.validate(event)


def test_a_reference_is_a_value() -> None:
    assert isinstance(REFERENCE, Reference) and read_reference(FACTS) == REFERENCE
