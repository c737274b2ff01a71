"""Keeping a client connected: a few bounded tries whenever its connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from conductor.client.client import Client
from conductor.client.errors import CannotConnect, ClientError, StartRefused

SUPERSEDED = 4409
"""The close code of a socket whose session another client took (protocol, "Base"): never fought over."""


class Keeper:
    """Reconnects a client.

    ``delays_s`` are the waits before the tries, in seconds; ``report`` is told of each step.
    """

    def __init__(self, client: Client, delays_s: Sequence[float], report: Callable[[str], None]) -> None:
        self._client = client
        self._delays_s = delays_s
        self._report = report
        self._connected = asyncio.Event()

    async def run(self) -> None:
        """Watch the connection, and return when it is lost for good."""
        self._connected.set()
        while True:
            lost = await self._client.wait_lost()
            self._connected.clear()
            self._report(str(lost))
            if lost.close_code == SUPERSEDED:
                return
            if not await self._reconnect():
                return
            self._report("Connected again.")
            self._connected.set()

    async def connected(self) -> None:
        """Wait until there is a connection; whoever waits must stop when `run` returns."""
        if not self._client.connected:
            self._connected.clear()
        await self._connected.wait()

    async def _reconnect(self) -> bool:
        for number, delay in enumerate(self._delays_s, 1):
            await asyncio.sleep(delay)
            try:
                await self._client.reconnect()
                return True
            except ClientError as error:
                self._report(f"Try {number} of {len(self._delays_s)}: {error}")
                if is_final(error):
                    return False
        return False


def is_final(error: ClientError) -> bool:
    """Tell whether another try is pointless: the token is not accepted."""
    if isinstance(error, CannotConnect):
        return error.status in (401, 403)
    return isinstance(error, StartRefused) and error.code == "unauthorized"
