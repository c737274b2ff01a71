"""What reaches the terminal: no control characters, and one line that is rewritten."""

from __future__ import annotations

import io

from conductor.talk.screen import DEFAULT_COLUMNS, Screen


class Terminal(io.StringIO):
    """An output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_text_cannot_move_the_cursor_or_turn_its_direction() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.line("one\x1b[2J\u202e two\nthree")
    screen.error("no\rt\nhere")
    assert (out.getvalue(), err.getvalue()) == ("one[2J two\nthree\n", "not here\n")


def test_a_live_line_shows_the_end_of_a_text_and_gives_way() -> None:
    out = Terminal()
    screen = Screen(out, io.StringIO())
    screen.live("x" * 200)
    screen.live("\u4e16" * 200)  # each takes two columns
    screen.line("done")
    narrow, wide = "x" * (DEFAULT_COLUMNS - 1), "\u4e16" * ((DEFAULT_COLUMNS - 1) // 2)
    assert out.getvalue() == f"\r\x1b[K{narrow}\r\x1b[K{wide}\r\x1b[Kdone\n"


def test_nothing_is_rewritten_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    screen = Screen(out, io.StringIO())
    screen.live("half")
    screen.prompt("> ")
    screen.dim("side")
    assert out.getvalue() == "side\n"
