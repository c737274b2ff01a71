"""Lines of standard input without blocking the loop, and without a thread that keeps the process alive."""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TextIO

MAX_LINE = 65_536


class Lines:
    """Reads one line ahead, in a daemon thread that starts when the first line is wanted."""

    def __init__(self, stream: TextIO) -> None:
        self.tty = stream.isatty()
        self._stream = stream
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._asked: asyncio.Future[str | None] | None = None
        self._thread: threading.Thread | None = None

    async def next(self) -> str | None:
        """Wait for a line, given without its end; None at the end of the input."""
        self._start()
        line = await self._queue.get()
        if line is None:
            self._queue.put_nowait(None)  # the end stays the end
        return line

    async def ask(self, timeout: float) -> str | None:
        """Wait for the line that answers a question; `next` does not see it.

        None after ``timeout`` seconds and at the end of the input. What was typed before does not answer.
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
        """Give a line to the loop and wait until it is taken; False once the loop has ended."""
        delivery = self._deliver(line)
        try:
            asyncio.run_coroutine_threadsafe(delivery, loop).result()
        except (RuntimeError, CancelledError):
            delivery.close()
            return False
        return True

    def _read(self) -> Iterator[str]:
        try:
            descriptor = self._stream.fileno()
        except (OSError, io.UnsupportedOperation):
            for line in self._stream:
                yield line.rstrip("\r\n")
            return
        # Not by the stream: a thread that waits in its buffer makes the interpreter's end a fatal error.
        decoder = codecs.getincrementaldecoder(self._stream.encoding or "utf-8")("replace")
        rest = ""
        while data := os.read(descriptor, 4096):
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            rest = rest[-MAX_LINE:]
            yield from (line.rstrip("\r") for line in lines)
        if rest:
            yield rest
