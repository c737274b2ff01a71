"""Output of the commands on a terminal and into a pipe."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

import pytest

from conductor.commands.output import as_json, write_table
from tests.server.commands.conftest import Terminal

HOSTILE = "\x1b[2J\x9b\u202e\n\r[red]"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def lines_of(out: io.StringIO, rows: Sequence[Sequence[str]]) -> list[str]:
    with redirect_stdout(out):
        write_table(("name", "calls", "notes"), rows, numbers=("calls",))
    return out.getvalue().splitlines()


def test_numbers_are_aligned_right() -> None:
    rows = [("a", "1000", "x"), ("longer", "2", "")]
    assert lines_of(io.StringIO(), rows) == ["name    calls  notes", "a        1000  x", "longer      2"]


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_receives_complete_plain_lines(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv(name, "1")
    _, line = lines_of(io.StringIO(), [("a" * 500, "1", "b " * 500)])
    assert line == f"{'a' * 500}      1  {'b ' * 500}".rstrip()


def test_on_a_terminal_headings_are_bold_and_the_last_column_wraps(terminal: Terminal) -> None:
    lines = lines_of(terminal, [("a" * 40, "1", "word " * 20)])
    assert lines[0].startswith("\x1b[1m")
    assert lines[1].split() == ["a" * 40, "1", "word", "word"] and "".join(lines).count("word") == 20
    assert max(map(len, lines[1:])) <= 60


def test_a_name_wider_than_the_terminal_stays_whole(terminal: Terminal) -> None:
    assert lines_of(terminal, [("a" * 500, "1", "b" * 500)])[1].split() == ["a" * 500, "1", "b" * 500]


@pytest.mark.parametrize("piped", [True, False])
def test_control_characters_in_cells_are_escaped(terminal: Terminal, piped: bool) -> None:
    text = "\n".join(lines_of(io.StringIO() if piped else terminal, [(HOSTILE, "1", "[bold]:smile:")]))
    assert "\\u001b[2J\\u009b\\u202e\\n\\r[red]" in text and "[bold]:smile:" in text
    assert re.sub("\x1b\\[[0-9;]*m", "", text).replace("\n", "").isprintable()


def test_without_rich_a_terminal_gets_the_plain_lines_of_a_pipe(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    rows = [("a" * 40, "1", "word " * 20)]
    assert lines_of(terminal, rows) == lines_of(io.StringIO(), rows)


def test_control_characters_in_json_are_escaped() -> None:
    text = as_json({"said": f"{HOSTILE}\ud800日本"})
    assert json.loads(text) == {"said": f"{HOSTILE}\ud800日本"}
    assert text.isprintable() and "日本" in text
