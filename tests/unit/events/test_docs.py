"""The pages of the protocol are complete, and agree with the code and the server."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from typing import get_args

from jsonschema_rs import Draft202012Validator
from protocol_reference import markdown
from protocol_schema import EVENTS, UI_CALLS, json_schema

from conductor.errors import CODE_MEANINGS
from conductor.events import client, codec, server
from conductor.events.envelope import SUBPROTOCOL
from conductor.events.server import CAPABILITIES, STATE_MEANINGS
from conductor.settings import load_settings
from tests.conftest import ROOT
from tests.unit.events.events import CLIENT, SERVER

MARKDOWN = markdown()
GUIDE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
VALIDATOR = Draft202012Validator(json_schema())


def test_the_pages_made_from_the_code_are_up_to_date() -> None:
    reference = (ROOT / "docs" / "protocol-reference.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "docs" / "protocol-schema.json").read_text(encoding="utf-8"))
    assert (reference, schema) == (MARKDOWN, json_schema()), "outdated; run scripts/docs"


def test_the_table_of_events_to_send_again_names_each_that_is_recorded() -> None:
    table = MARKDOWN.partition("What to send again, with the capability `resume`:")[2].partition("\n\n#")[0]
    rows = [row.split(" | ") for row in table.splitlines() if "| `event.ack`" in row]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])}
    assert named == {event.TYPE for event in get_args(client.ClientEvent) if event.RECORDED}


def test_every_refusal_of_the_codec_has_a_meaning() -> None:
    table = MARKDOWN.partition("The messages of `invalid_event`:")[2].partition("\n\n#")[0]
    rows = re.findall(r"^\| `(.+?)` \| [A-Z`].*\. \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted(set(refusals_in_the_code()))


def refusals_in_the_code() -> Iterator[str]:
    """Find the codec's refusals; variable parts become words in angle brackets."""
    for node in ast.walk(ast.parse(inspect.getsource(codec))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_refuse"):
            continue
        match node.args[0]:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=[ast.Constant(value="missing_"), _]):
                yield from (f"missing_{name}" for name in "id type timestamp session_id payload".split())
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), _]):
                yield text + ("<bytes>" if text.endswith(":") else "<reason>")


def test_prose_names_fields_as_they_stand_on_the_wire() -> None:
    described = json.dumps(json_schema()) + MARKDOWN + GUIDE
    snake = {name for struct in {**CLIENT, **SERVER}.values() for name in struct.__struct_fields__}
    assert [name for name in snake if "_" in name and re.search(rf"(?<!_)\b{name}\b", described)] == []
    assert "``" not in described.replace("```", "")


def test_the_markdown_has_all_events_codes_and_states() -> None:
    codes = [*CODE_MEANINGS, *get_args(server.DiagnosticCode)]
    rows = [
        *(f"\n### `{event.type}`\n" for event in EVENTS),
        *(f"\n| `{name}` | " for name in [*codes, *STATE_MEANINGS, *CAPABILITIES]),
        *(f"\n| `{call.name}` | " for call in UI_CALLS),
    ]
    assert [text for text in rows if text not in MARKDOWN] == []


def test_the_guide_is_short_enough_to_read() -> None:
    assert len(GUIDE.encode()) <= 16_000


def test_each_whole_frame_of_the_guide_is_valid() -> None:
    frames = [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", GUIDE, re.DOTALL)]
    types = ["session.start", "session.started", "tool.call", "tool.result", "error"]
    assert [frame["type"] for frame in frames] == types
    for frame in frames:
        VALIDATOR.validate(frame)


def test_each_table_in_the_markdown_has_rows_of_one_width() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", MARKDOWN + GUIDE, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_types_and_limits_are_in_words() -> None:
    assert "| `callId` | string, 1 to 128 characters |" in MARKDOWN
    assert "| `locale`? | string or null, at most 256 characters |" in MARKDOWN
    assert "| `percent`? | number or null, 0 or more, at most 100 |" in MARKDOWN
    assert "| `decisions`? | array of object or null, 1 to 100 of them |" in MARKDOWN
    assert "| `capabilities`? | array of string, at most 64 of them |" in MARKDOWN
    assert "| `code` | an [error code](#errors) |" in MARKDOWN
    assert MARKDOWN.count("Each object of `rejectedTools`:") == MARKDOWN.count("The object `resume`:") == 1
    assert MARKDOWN.count("\n| `result`? | any value | The tool's output, a string.") == 1


def test_the_pages_have_the_defaults_of_the_settings() -> None:
    limits = load_settings(None).limits
    text = " ".join((GUIDE + MARKDOWN).split())
    for fact in (
        f"at most {limits.max_event_bytes} bytes",
        f"larger than {limits.hard_event_bytes} bytes",
        f"every {limits.ping_interval:g} seconds",
        f"without a result within {limits.tool_timeout:g} seconds",
        f"outlives its connection by {limits.session_grace:g} seconds",
        f"`{SUBPROTOCOL}`",
        "ws://127.0.0.1:8080/ws",
    ):
        assert fact in text, fact
    assert "{{" not in MARKDOWN
