"""The reference for people: that it is complete, and that what it says is true."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

from jsonschema_rs import Draft202012Validator

from conductor.errors import CODE_MEANINGS
from conductor.events import codec, server
from conductor.events.docs import markdown
from conductor.events.envelope import SUBPROTOCOL
from conductor.events.schema import EVENTS, UI_CALLS, asyncapi, json_schema
from conductor.events.server import CAPABILITIES, STATE_MEANINGS
from conductor.models.base import TextDelta
from conductor.settings import load_settings
from tests.end_to_end.conftest import serving
from tests.events.events import CLIENT, SERVER
from tests.models import ScriptedProvider

MARKDOWN = markdown()
VALIDATOR = Draft202012Validator(json_schema())


def test_every_refusal_of_the_codec_has_a_meaning() -> None:
    table = MARKDOWN.partition("The messages of `invalid_event`:")[2].partition("\n\n#")[0]
    rows = re.findall(r"^\| `(.+?)` \| [A-Z`].*\. \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted(set(refusals_in_the_code()))


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


def test_the_reference_says_in_sentences_what_a_capability_is_for() -> None:
    for name, meaning in CAPABILITIES.items():
        assert re.search(rf"^- `{name}`: [A-Z].*\.$", MARKDOWN, re.MULTILINE | re.DOTALL), name
        assert re.fullmatch(r"[A-Z].*\.", meaning)


def test_prose_names_fields_as_they_stand_on_the_wire() -> None:
    described = json.dumps([json_schema(), asyncapi()]) + MARKDOWN
    snake = {name for struct in {**CLIENT, **SERVER}.values() for name in struct.__struct_fields__}
    assert [name for name in snake if "_" in name and re.search(rf"(?<!_)\b{name}\b", described)] == []
    assert "``" not in described.replace("```", "")


def test_the_markdown_has_all_events_codes_and_states() -> None:
    codes = [*CODE_MEANINGS, *get_args(server.DiagnosticCode)]
    wanted = [
        *(f"\n### `{event.type}`\n" for event in EVENTS),
        *(f"\n### `{call.name}`\n" for call in UI_CALLS),
        *(f"\n| `{name}` | " for name in [*codes, *STATE_MEANINGS, *CAPABILITIES]),
    ]
    assert [text for text in wanted if text not in MARKDOWN] == []


def test_each_example_in_the_markdown_is_json() -> None:
    blocks = re.findall(r"```json\n(.*?)\n```", MARKDOWN, re.DOTALL)
    assert len(blocks) == len(EVENTS) + len(UI_CALLS) + 1
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
    assert done.startswith("\n\n| Field |") and "\n| `result` | any value | no |" in done


def test_the_markdown_tells_the_defaults_of_the_settings() -> None:
    limits = load_settings(None).limits
    for fact in (
        f"{limits.max_event_bytes} bytes",
        f"{limits.hard_event_bytes} bytes",
        f"every {limits.ping_interval:g}\nseconds",
        f"{limits.tool_timeout:g} seconds",
        f"{limits.session_grace:g} seconds",
        f"`{SUBPROTOCOL}`",
        "ws://127.0.0.1:8080/ws",
    ):
        assert " ".join(fact.split()) in " ".join(MARKDOWN.split()), fact
    assert "{{" not in MARKDOWN


async def test_the_plain_turn_of_the_document_is_that_of_the_server() -> None:
    table = MARKDOWN.partition("\n## A plain turn\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d \| `(.*?)` \| `(.*?)` \| .*? \|$", table, re.MULTILINE)
    documented = [without_ids(event_type, json.loads(payload)) for event_type, payload in rows]
    said = json.loads(documented[1][1]["arguments"])["text"]
    reply = next(payload["text"] for kind, payload in documented if kind == "assistant.speech.final")
    provider = ScriptedProvider([[TextDelta(reply)]])
    async with serving(provider) as served, served.phone() as phone:
        sent = [without_ids(event["type"], event["payload"]) for event in await phone.ask(said)]
    partial = "assistant.speech.partial"
    assert [one for one in sent if one[0] != partial] == [one for one in documented if one[0] != partial]
    assert [one[0] for one in documented].index(partial) == [one[0] for one in sent].index(partial)


def without_ids(event_type: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return event_type, {name: value for name, value in payload.items() if name != "callId"}
