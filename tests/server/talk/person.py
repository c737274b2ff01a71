"""A person at a pseudo-terminal, who types keys and reads the screen."""

from __future__ import annotations

import asyncio
import os
import pty
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyte

from conductor.client import Reconnect
from conductor.talk.terminal import talk
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer

ESC, CTRL_C, CTRL_D = "\x1b", "\x03", "\x04"
# What an editor of lines writes to the terminal once it reads the keys.
_BRACKETED_PASTE = b"\x1b[?2004h"


class Person:
    """``text`` is the scrollback and the screen, ``raw`` the bytes written to the terminal."""

    def __init__(self, columns: int, rows: int) -> None:
        self._master, self._slave = pty.openpty()
        termios.tcsetwinsize(self._slave, (rows, columns))
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        # The terminal answers requests for its cursor.
        setattr(self.screen, "write_process_input", lambda data: self.type(data, enter=False))  # noqa: B010 -- pyte's way
        self._stdin, self._stdout = open(self._slave, closefd=False), open(self._slave, "w", closefd=False)
        self._stream = pyte.ByteStream(self.screen)
        self._changed = asyncio.Event()
        self.raw = b""
        self.status: int | None = None
        self.talking: asyncio.Task[None]
        asyncio.get_running_loop().add_reader(self._master, self._read)

    def type(self, text: str, *, enter: bool = True) -> None:
        """Press keys, then Enter."""
        os.write(self._master, (text + "\r" * enter).encode())

    @property
    def display(self) -> str:
        """The screen without trailing spaces."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    @property
    def text(self) -> str:
        """The scrollback and the screen."""
        columns = range(self.screen.columns)
        above = ["".join(line[x].data for x in columns).rstrip() for line in self.screen.history.top]
        return "\n".join([*above, self.display])

    async def sees(self, *texts: str, without: str = "\0") -> None:
        """Wait until all texts are in `text`, and ``without`` is not on the screen."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not all(text in self.text for text in texts) or without in self.display:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{texts} is not on the screen:\n{self.text}") from None

    async def can_type(self) -> None:
        """Wait until the editor reads keys: before, the terminal itself takes and shows them."""
        async with asyncio.timeout(LIMIT_S):
            while _BRACKETED_PASTE not in self.raw:
                self._changed.clear()
                await self._changed.wait()

    async def has_left(self) -> None:
        """Wait until `talk` has ended."""
        async with asyncio.timeout(LIMIT_S):
            await self.talking

    async def talk(self, url: str, text: str | None, options: Json) -> None:
        with self._stdin, self._stdout:
            self.status = await talk(
                url,
                text,
                stdin=self._stdin,
                stdout=self._stdout,
                stderr=self._stdout,
                reconnect=Reconnect(first_s=0, most_s=0, tries=2),
                **options,
            )

    def _read(self) -> None:
        data = os.read(self._master, 65_536)
        self.raw += data
        self._stream.feed(data)
        self._changed.set()

    def close(self) -> None:
        """Close the terminal."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self._slave)


@asynccontextmanager
async def person(
    url: str, text: str | None = None, *, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Person]:
    """Run `talk` for a person; without a text they exit at the end."""
    user = Person(*size)
    user.talking = asyncio.create_task(user.talk(url, text, options))
    try:
        if text is None:
            await user.sees("Connected")
            await user.can_type()
        yield user
        if text is None and not user.talking.done():
            user.type(CTRL_D, enter=False)
        await user.has_left()
    finally:
        user.talking.cancel()
        await asyncio.wait({user.talking})
        user.close()


async def partial(peer: Peer, text: str) -> None:
    """Send a partial, and wait until the client has read it."""
    await peer.send("assistant.speech.partial", {"text": text})
    await peer.arrived()
