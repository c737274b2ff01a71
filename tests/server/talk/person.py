"""A person at a pseudo-terminal, who types lines and reads what is written."""

from __future__ import annotations

import asyncio
import codecs
import os
import pty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from conductor.client import Reconnect
from conductor.talk.terminal import talk
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer

CTRL_D = "\x04"


class Person:
    """``text`` is what was typed and written."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self._stdin, self._stdout = open(slave, closefd=False), open(slave, "w")
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._changed = asyncio.Event()
        self.text = ""
        self.status: int | None = None
        self.talking: asyncio.Task[None]
        asyncio.get_running_loop().add_reader(self._master, self._read)

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, f"{text}\n".encode())

    def end(self) -> None:
        """End the input."""
        os.write(self._master, CTRL_D.encode())

    async def sees(self, *texts: str) -> None:
        """Wait until all texts are in `text`."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not all(text in self.text for text in texts):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{texts} is not on the terminal:\n{self.text}") from None

    async def has_left(self) -> None:
        """Wait until `talk` has ended."""
        async with asyncio.timeout(LIMIT_S):
            await self.talking

    async def talk(self, url: str, options: Json) -> None:
        self.status = await talk(
            url,
            stdin=self._stdin,
            stdout=self._stdout,
            stderr=self._stdout,
            reconnect=Reconnect(first_s=0, most_s=0, tries=2),
            **options,
        )

    def _read(self) -> None:
        self.text += self._decoder.decode(os.read(self._master, 65_536)).replace("\r\n", "\n")
        self._changed.set()

    def close(self) -> None:
        """Close the terminal."""
        asyncio.get_running_loop().remove_reader(self._master)
        self._stdin.close()
        self._stdout.close()
        os.close(self._master)


@asynccontextmanager
async def person(url: str, **options: Any) -> AsyncIterator[Person]:
    """Run `talk` for a person, who ends the input at the end."""
    user = Person()
    user.talking = asyncio.create_task(user.talk(url, options))
    try:
        await user.sees("Connected")
        yield user
        user.end()
        await user.has_left()
    finally:
        user.talking.cancel()
        await asyncio.wait({user.talking})
        user.close()


async def partial(peer: Peer, text: str) -> None:
    """Send a partial, and wait until the client has read it."""
    await peer.send("assistant.speech.partial", {"text": text})
    await peer.arrived()
