"""Terminal input and output: whole lines, and one line that is rewritten as the answer grows."""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import threading
import unicodedata
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TextIO

# Characters kept of a line that has no end yet, so that endless input takes no memory.
MAX_LINE = 65_536


class StdinReader:
    """Reads one line ahead, in a daemon thread that starts with the first read."""

    def __init__(self, stream: TextIO) -> None:
        self.tty = stream.isatty()
        self._stream = stream
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._asked: asyncio.Future[str | None] | None = None
        self._thread: threading.Thread | None = None

    async def next(self) -> str | None:
        """Wait for a line, without its end; None at the end of the input."""
        self._start()
        line = await self._queue.get()
        if line is None:
            self._queue.put_nowait(None)  # later reads see the end as well
        return line

    async def ask(self, timeout: float) -> str | None:
        """Wait for the line that answers a question; `next` does not see it.

        None after ``timeout`` seconds and at the end of the input. Lines typed before the question do not
        count.
        """
        self._start()
        self._asked = asyncio.get_running_loop().create_future()
        if not self._queue.empty():
            stale = self._queue.get_nowait()
            if stale is None:
                self._queue.put_nowait(None)
                return None
        try:
            async with asyncio.timeout(timeout):
                return await self._asked
        except TimeoutError:
            return None
        finally:
            self._asked = None

    def _start(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            # A daemon thread, since a read from a terminal cannot be interrupted at the exit.
            self._thread = threading.Thread(target=self._pump, args=(loop,), daemon=True)
            self._thread.start()

    async def _deliver(self, line: str | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(line)
            if line is not None:
                return
        await self._queue.put(line)

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in self._read():
            if not self._hand_over(loop, line):
                return
        self._hand_over(loop, None)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, line: str | None) -> bool:
        # Returns False once the loop has ended.
        encoder = self._deliver(line)
        try:
            asyncio.run_coroutine_threadsafe(encoder, loop).result()
        except (RuntimeError, CancelledError):
            encoder.close()
            return False
        return True

    def _read(self) -> Iterator[str]:
        try:
            descriptor = self._stream.fileno()
        except (OSError, io.UnsupportedOperation):
            for line in self._stream:
                yield line.rstrip("\r\n")
            return
        # Not `stream.readline`: a daemon thread that holds its lock at exit crashes the interpreter.
        decoder = codecs.getincrementaldecoder(self._stream.encoding or "utf-8")("replace")
        rest = ""
        while data := os.read(descriptor, 4096):
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            rest = rest[-MAX_LINE:]
            yield from (line.rstrip("\r") for line in lines)
        if rest:
            yield rest


# Width of an output whose size is not known.
DEFAULT_COLUMNS = 80
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Screen:
    """Writes to ``out``, errors to ``err``. Lines are rewritten on a terminal only."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._live = False
        self.tty = out.isatty()
        # Set when the reader of the output has closed it.
        self.gone = False

    def line(self, text: str) -> None:
        """Write a text of one or more lines."""
        self._clear()
        self._write(self._out, f"{clean(text)}\n")

    def error(self, text: str) -> None:
        """Write one line about an error."""
        self._clear()
        self._write(self._err, f"{' '.join(clean(text).split())}\n")

    def dim(self, text: str) -> None:
        """Write one line of side information."""
        text = " ".join(clean(text).split())
        self._clear()
        self._write(self._out, f"\x1b[2m{text}\x1b[0m\n" if self.tty else f"{text}\n")

    def live(self, text: str) -> None:
        """Show the end of a text on a line that the next output replaces; on a terminal only."""
        if self.tty:
            self._live = True
            self._write(self._out, f"\r\x1b[K{_tail(' '.join(clean(text).split()), self._columns() - 1)}")

    def prompt(self, text: str) -> None:
        """Write a prompt at the beginning of a line; on a terminal only."""
        if self.tty:
            self._clear()
            self._write(self._out, text)

    @property
    def speech_mark(self) -> str:
        """The sign for speech, in characters that the output can encode."""
        return "🔊" if (self._out.encoding or "utf-8").lower().replace("-", "") == "utf8" else "[speaks]"

    def _clear(self) -> None:
        if self._live:
            self._live = False
            self._write(self._out, "\r\x1b[K")

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        try:
            # A terminal in another encoding would raise in the middle of an answer.
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
    """Remove terminal control characters: a model's text must not move the cursor or hide text."""
    return "".join(
        char
        for char in text
        if char in "\n\t" or (unicodedata.category(char) != "Cc" and char not in _REORDERING)
    )


def _tail(text: str, columns: int) -> str:
    width = 0
    for place in range(len(text) - 1, -1, -1):
        width += 2 if unicodedata.east_asian_width(text[place]) in "WF" else 1
        if width > columns:
            return text[place + 1 :]
    return text
