"""``conductor protocol``: what it prints, and that the file in docs/ is what it would print now."""

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


def printed(*arguments: str) -> str:
    out = io.StringIO()
    assert protocol.run(options(*arguments), out) == 0
    return out.getvalue()


def test_the_reference_in_docs_is_up_to_date() -> None:
    assert DOCS.read_bytes().decode() == protocol.render("markdown"), f"stale; make it anew: {HOW}"


def test_the_reference_says_how_it_is_made() -> None:
    assert HOW in protocol.render("markdown")


def test_an_asyncapi_document_is_printed_by_default() -> None:
    document: dict[str, Any] = json.loads(printed())
    assert document["asyncapi"] == "3.0.0"
    assert document == json.loads(printed("--format", "asyncapi"))


def test_schemas_are_printed_on_request() -> None:
    schema = json.loads(printed("--format", "schema"))
    meta.validate(schema)
    assert "session.start" in schema["$defs"]


def test_the_output_can_go_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "protocol.md"
    assert printed("--format", "markdown", "--output", str(file)) == ""
    assert file.read_bytes().decode() == protocol.render("markdown")


def test_a_file_that_cannot_be_written_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / "protocol.md"
    assert main(["protocol", "--output", str(file)]) == 2
    assert capsys.readouterr().err == f"conductor: {file} cannot be written: No such file or directory.\n"


def test_an_unknown_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["protocol", "--format", "xml"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_the_command_works_as_a_process_and_whatever_the_settings_are(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=eighty\n")
    command = [sys.executable, "-m", "conductor", "protocol", "--format", "schema"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=30, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == protocol.render("schema")
