"""``conductor protocol``: its output, and the file in docs/ generated from it."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import meta

from conductor.cli import main
from conductor.commands import protocol

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol-reference.md"
HOW = "python -m conductor protocol --format markdown --output docs/protocol-reference.md"


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    protocol.add_arguments(parser)
    return parser.parse_args(arguments)


def output_of(*arguments: str) -> str:
    out = io.StringIO()
    assert protocol.run(options(*arguments), out) == 0
    return out.getvalue()


def test_the_reference_in_docs_is_up_to_date() -> None:
    assert DOCS.read_bytes().decode() == protocol.render("markdown"), f"outdated; run: {HOW}"


def test_an_asyncapi_document_is_printed_by_default() -> None:
    document: dict[str, Any] = json.loads(output_of())
    assert document["asyncapi"] == "3.0.0"
    assert document == json.loads(output_of("--format", "asyncapi"))


def test_json_schemas_are_a_format() -> None:
    schema = json.loads(output_of("--format", "schema"))
    meta.validate(schema)
    assert "session.start" in schema["$defs"]


def test_the_output_can_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "protocol.md"
    assert output_of("--format", "markdown", "--output", str(file)) == ""
    assert file.read_bytes().decode() == protocol.render("markdown")


def test_an_unwritable_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none" / "protocol.md"
    assert main(["protocol", "--output", str(file)]) == 2
    assert capsys.readouterr().err == f"conductor: {file} cannot be written: No such file or directory.\n"


def test_the_command_works_with_invalid_settings(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=eighty\n")
    command = [sys.executable, "-m", "conductor", "protocol", "--format", "schema"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == protocol.render("schema")
