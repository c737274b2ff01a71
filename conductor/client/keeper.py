"""Keeping a client connected: the loop that reconnects whenever its connection is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from conductor.client.errors import ClientError, ConnectionLost, WaitTimeout
from conductor.client.reconnect import (
    ConnectionNews,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    TryFailed,
    is_final,
)
from conductor.client.tasks import where
from conductor.events.server import SessionStarted

log = logging.getLogger(__name__)


class Reconnectable(Protocol):
    """What is kept connected."""

    async def wait_lost(self) -> ConnectionLost:
        """Wait until there is no connection, and say why."""

    async def restore(self) -> SessionStarted:
        """Connect unless somebody else has done so already. Raises `ClientError`."""


class Keeper:
    """Reconnects by the terms of a `Reconnect`, from `start` until it gives up or is stopped.

    ``tell`` is given each piece of news, and the next step waits for it.
    """

    def __init__(
        self, terms: Reconnect, client: Reconnectable, tell: Callable[[ConnectionNews], Awaitable[None]]
    ) -> None:
        self._terms = terms
        self._client = client
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._over.set()
        self._error: ClientError | None = None

    @property
    def running(self) -> bool:
        """Whether a lost connection will be opened anew."""
        return not self._over.is_set()

    def start(self) -> None:
        """Begin to watch the connection that there is now; nothing if that is being done."""
        if not self.running:
            self._over.clear()
            self._task = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Reconnect no more; wait for the end of a try that is under way for so long at most."""
        self._over.set()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)

    async def wait_over(self, timeout: float | None) -> ClientError:
        """Wait until no more is tried, and say why. Raises `WaitTimeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self._over.wait()
        except TimeoutError:
            raise WaitTimeout(f"The connection was kept for {timeout:g} s.") from None
        return self._error or ConnectionLost("The client does not reconnect.")

    async def _run(self) -> None:
        """Keep the connection; the top of its task."""
        try:
            self._error = await self._keep()
        except Exception as error:
            log.error("reconnecting failed: %s", where(error))
            self._error = ClientError("The client failed to reconnect.")
        self._over.set()
        await self._tell(GaveUp(self._error))

    async def _keep(self) -> ClientError:
        """Reconnect as often as it takes; return what made it stop."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            since = loop.time()
            lost = await self._client.wait_lost()
            if loop.time() - since >= self._terms.steady_s:
                failures = 0
            await self._tell(Lost(lost))
            error: ClientError = lost
            started = None
            while started is None:
                if is_final(error) or failures == self._terms.tries:
                    return error
                failures += 1
                await self._terms.sleep(self._terms.delay_s(failures, error))
                try:
                    started = await self._client.restore()
                except ClientError as failure:
                    error = failure
                    await self._tell(TryFailed(failures, error))
            await self._tell(Reconnected(started))
