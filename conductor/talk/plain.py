"""The input and the output of ``talk``: lines of a terminal, a pipe or a file, and text or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import chain
from typing import Any, TextIO

import msgspec

# Bytes of a line; a longer one is read as several.
MAX_LINE = 65_536
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class StdinReader:
    """Reads one line ahead, in a daemon thread that the first read starts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._thread: threading.Thread | None = None

    async def next(self) -> str | None:
        """Wait for a line, without its line break; None at the end of the input."""
        if self._thread is None:
            # A daemon thread, because a read from a terminal cannot be interrupted at the exit.
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._pump, args=(loop, self._own()), daemon=True)
            self._thread.start()
        line = await self._queue.get()
        if line is None:
            self._queue.put_nowait(None)  # for later reads
        return line

    def _own(self) -> int | None:
        """Return a descriptor of the thread's: a closed one's number goes to another file."""
        try:
            return os.dup(self._stream.fileno())
        except OSError:  # a stream without a file
            return None

    def _pump(self, loop: asyncio.AbstractEventLoop, own: int | None) -> None:
        for line in chain(self._read(own), (None,)):
            put = self._queue.put(line)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, CancelledError):  # the loop has ended
                put.close()
                return

    def _read(self, own: int | None) -> Iterator[str]:
        if own is None:
            yield from (line.rstrip("\r\n") for line in self._stream)
            return
        # Unbuffered: a daemon thread that holds a buffer's lock crashes the interpreter at exit.
        # A terminal that is gone is the end of its input.
        with io.FileIO(own) as stream, contextlib.suppress(OSError):
            while line := stream.readline(MAX_LINE):
                yield line.decode(self._stream.encoding or "utf-8", "replace").rstrip("\r\n")


class Plain:
    """Answers as lines on ``out``, errors on ``err``; with ``json`` only events, one JSON object a line.

    ``interactive``: a person types, also while an answer is written.
    """

    def __init__(
        self,
        lines: StdinReader,
        out: TextIO,
        err: TextIO,
        *,
        json: bool = False,
        interactive: bool = False,
    ) -> None:
        self.interactive = interactive
        self.next = lines.next
        self._out = out
        self._err = err
        self._json = json
        self._last = ""
        # Set when the reader of the output has closed it.
        self.is_closed = False

    def event(self, kind: str, payload: Any) -> None:
        """Write an event of the server or of the connection, with ``json``."""
        if self._json:
            self._write(self._out, msgspec.json.encode({"type": kind, "payload": payload}).decode())

    def answer(self, text: str) -> None:
        self._last = text
        self.line(text)

    def partial(self, text: str) -> None:
        """Keep the beginning of an answer, whose sentences may be spoken before the answer is written."""
        self._last = text

    def speech(self, text: str) -> None:
        """Write a speech that is not part of the answer."""
        if _words(text) in _words(self._last):
            return
        utf8 = (self._out.encoding or "utf-8").lower().replace("-", "") == "utf8"
        self.line(f"{'🔊' if utf8 else '[speaks]'} {text}")

    def line(self, text: str) -> None:
        if not self._json:
            self._write(self._out, clean(text))

    def note(self, text: str) -> None:
        self.line(" ".join(text.split()))

    def error(self, text: str) -> None:
        self._write(self._err, " ".join(clean(text).split()))

    def cut(self) -> None:
        self.line("[interrupted]")

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        try:
            # Characters that the encoding lacks must not raise in the middle of an answer.
            stream.write(f"{text}\n".encode(encoding, "replace").decode(encoding))
            stream.flush()
        except BrokenPipeError:
            self.is_closed = True


def _words(text: str) -> str:
    return " ".join(["", *re.findall(r"\w+", text), ""])  # without markdown, which is not spoken


def clean(text: str) -> str:
    """Remove control characters: a model's text must not move the cursor or hide text."""
    return "".join(
        char
        for char in text
        if char in "\n\t" or (unicodedata.category(char) != "Cc" and char not in _REORDERING)
    )
