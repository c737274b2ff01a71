"""The terminal as a screen: whole lines, and one line that is rewritten while the answer grows."""

from __future__ import annotations

import os
import unicodedata
from typing import TextIO

DEFAULT_COLUMNS = 80
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Screen:
    """Writes to ``out``, errors to ``err``. Only a terminal is shown text that is rewritten."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._live = False
        self.tty = out.isatty()
        self.gone = False
        """Whether the reader of the output has left."""

    def line(self, text: str) -> None:
        """Write a text of one or more lines."""
        self._clear()
        self._write(self._out, f"{clean(text)}\n")

    def error(self, text: str) -> None:
        """Write one line about what went wrong."""
        self._clear()
        self._write(self._err, f"{' '.join(clean(text).split())}\n")

    def dim(self, text: str) -> None:
        """Write one line about what goes on beside the conversation."""
        text = " ".join(clean(text).split())
        self._clear()
        self._write(self._out, f"\x1b[2m{text}\x1b[0m\n" if self.tty else f"{text}\n")

    def live(self, text: str) -> None:
        """Show the end of a text in one line that the next output replaces; not shown on a non-terminal."""
        if self.tty:
            self._live = True
            self._write(self._out, f"\r\x1b[K{_tail(' '.join(clean(text).split()), self._columns() - 1)}")

    def prompt(self, text: str) -> None:
        """Ask for input at the beginning of a line; on a terminal only."""
        if self.tty:
            self._clear()
            self._write(self._out, text)

    @property
    def speech_mark(self) -> str:
        """The sign for what is spoken, as far as the output can write it."""
        return "🔊" if (self._out.encoding or "utf-8").lower().replace("-", "") == "utf8" else "[speaks]"

    def _clear(self) -> None:
        if self._live:
            self._live = False
            self._write(self._out, "\r\x1b[K")

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
        except BrokenPipeError:
            self.gone = True

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):
            return DEFAULT_COLUMNS


def clean(text: str) -> str:
    """Take out what could drive the terminal: a model's words must not move the cursor or hide text."""
    return "".join(
        char
        for char in text
        if char in "\n\t" or (unicodedata.category(char) != "Cc" and char not in _REORDERING)
    )


def _tail(text: str, columns: int) -> str:
    """Cut a text to its end, as wide as the terminal."""
    width = 0
    for place in range(len(text) - 1, -1, -1):
        width += 2 if unicodedata.east_asian_width(text[place]) in "WF" else 1
        if width > columns:
            return text[place + 1 :]
    return text
