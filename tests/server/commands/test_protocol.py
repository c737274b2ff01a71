"""``conductor protocol``: its output, and the file in docs/ generated from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema_rs import meta

from conductor.commands import protocol_reference as protocol
from tests.server.commands.conftest import mistake, run

DOCS = Path(__file__).resolve().parents[3] / "docs" / "protocol-reference.md"
HOW = "python -m conductor protocol --format markdown --output docs/protocol-reference.md"


def test_the_reference_in_docs_is_up_to_date() -> None:
    assert DOCS.read_bytes().decode() == protocol.render("markdown"), f"outdated; run: {HOW}"


def test_an_asyncapi_document_is_printed_by_default() -> None:
    document: dict[str, Any] = json.loads(run("protocol"))
    assert document["asyncapi"] == "3.0.0"
    assert document == json.loads(run("protocol", "--format", "asyncapi"))


def test_json_schemas_are_a_format() -> None:
    schema = json.loads(run("protocol", "--format", "schema"))
    meta.validate(schema)
    assert "session.start" in schema["$defs"]


def test_the_output_can_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "protocol.md"
    assert run("protocol", "--format", "markdown", "--output", str(file)) == ""
    assert file.read_bytes().decode() == protocol.render("markdown")


def test_an_unwritable_file_is_an_error() -> None:
    sentence = mistake("protocol", "--output", "none/protocol.md")
    assert sentence == "none/protocol.md cannot be written: No such file or directory."


def test_the_command_works_with_invalid_settings() -> None:
    Path(".env").write_text("PORT=eighty\n")
    assert run("protocol", "--format", "schema") == protocol.render("schema")
