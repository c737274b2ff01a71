"""What the commands write, on a terminal and into a pipe."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence

import pytest

from conductor.commands.output import as_json, write_table

HOSTILE = "\x1b[2J\x9b\u202e\n\r[red]"


class Terminal(io.StringIO):
    """Is one; how wide it is, and what it can do, the environment says."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def written(out: io.StringIO, rows: Sequence[Sequence[str]]) -> list[str]:
    write_table(out, ("name", "calls", "notes"), rows, numbers=("calls",))
    return out.getvalue().splitlines()


def test_columns_of_text_are_aligned_left_and_those_of_numbers_right() -> None:
    rows = [("a", "1000", "x"), ("longer", "2", "")]
    assert written(io.StringIO(), rows) == ["name    calls  notes", "a        1000  x", "longer      2"]


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_plain_lines_that_are_not_cut(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv(name, "1")
    _, line = written(io.StringIO(), [("a" * 500, "1", "b " * 500)])
    assert line == f"{'a' * 500}      1  {'b ' * 500}".rstrip()


def test_a_terminal_gets_bold_headings_and_the_last_column_wraps(terminal: Terminal) -> None:
    lines = written(terminal, [("a" * 40, "1", "word " * 20)])
    assert lines[0].startswith("\x1b[1m")
    assert lines[1].split() == ["a" * 40, "1", "word", "word"] and "".join(lines).count("word") == 20
    assert max(map(len, lines[1:])) <= 60


def test_a_name_that_is_wider_than_the_terminal_stays_whole(terminal: Terminal) -> None:
    assert written(terminal, [("a" * 500, "1", "b" * 500)])[1].split() == ["a" * 500, "1", "b" * 500]


@pytest.mark.parametrize("piped", [True, False])
def test_a_name_that_a_client_made_up_is_shown_as_text(terminal: Terminal, piped: bool) -> None:
    text = "\n".join(written(io.StringIO() if piped else terminal, [(HOSTILE, "1", "[bold]:smile:")]))
    assert "\\x1b[2J\\x9b\\u202e\\n\\r[red]" in text and "[bold]:smile:" in text
    assert re.sub("\x1b\\[[0-9;]*m", "", text).replace("\n", "").isprintable()


def test_json_holds_nothing_that_a_terminal_obeys() -> None:
    text = as_json({"said": f"{HOSTILE}\ud800日本"})
    assert json.loads(text) == {"said": f"{HOSTILE}\ud800日本"}
    assert text.endswith("\n") and text[:-1].isprintable() and "日本" in text
