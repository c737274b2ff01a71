"""Asks Redis to run scripts, again and again until it answers or the time is up.

The library connects, signs in and finds the primary. Its own retries are off: what may have been carried out
is asked for again here, under the same commit id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from redis import exceptions

from conductor.errors import SettingsError, StoreUnavailable
from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, checked, pack
from conductor.stores.redis_cluster import Cluster
from conductor.stores.redis_nodes import Primary
from conductor.stores.redis_scripts import STRANGE, Reply, Script, text
from conductor.stores.redis_url import RedisAddress

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25
"""Between tries: soon at first, since a server that restarts is back within a blink."""
_SCANNED = "1000"
"""Keys that the server looks at in one go: less than a millisecond."""


class Client:
    """Runs scripts at ``address``; each may come there more than once, and has to bear that.

    ``retry_for`` is in seconds. With ``replicas``, a write counts when so many replicas have it, for which
    one try waits ``wait_ms``.
    """

    def __init__(self, address: RedisAddress, *, retry_for: float, replicas: int, wait_ms: int) -> None:
        self._address = address
        # One try may take half of the time, so that a dead connection leaves time for another one.
        timeout = max(retry_for / 2, wait_ms / 1000 * 1.5 if replicas else 0.0)
        servers = Cluster if address.kind == "cluster" else Primary
        self._servers: Cluster | Primary = servers(address, timeout, Copies(replicas, wait_ms))
        self._retry_for = retry_for

    async def open(self) -> None:
        """Connect now, so that a mistake is said at the start. Raises `SettingsError`."""
        for warning in await self.warnings():
            log.warning("sessions may be lost", store=str(self._address), why=warning)

    async def warnings(self) -> list[str]:
        """Connect, and say what about the server may lose sessions, a clause each. Raises `SettingsError`."""
        found: list[str] = []
        try:
            for batcher in await self._servers.batchers():
                found += [each for each in await _warnings(batcher) if each not in found]
        except (ConnectionLost, Refused) as error:
            raise SettingsError(
                f"SESSION_STORE_URL names {self._address}, which cannot be used: {error}."
            ) from None
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._servers.aclose()

    async def write(self, script: Script, key: str, arguments: Sequence[str | bytes] = ()) -> Reply:
        """Run a script that changes something. Raises `StoreUnavailable`."""
        return await self._retrying(partial(self._run, script, key, arguments, writes=True))

    async def best_effort_write(self, script: Script, key: str, arguments: Sequence[str | bytes]) -> None:
        """Run a script if the server is there."""
        try:
            await self._run(script, key, arguments, writes=False)
        except (ConnectionLost, Refused) as error:
            log.debug("not written", why=str(error))

    async def query(self, key: str, *command: str) -> Reply:
        """Send a plain command about ``key``; it may be carried out twice. Raises `StoreUnavailable`."""
        packed = pack(*command)
        return await self._retrying(partial(_checked, self._servers.ask, packed, key))

    async def scan(self, pattern: str) -> AsyncIterator[list[Reply]]:
        """Give the names of all keys that match, some of them more than once. Raises `StoreUnavailable`."""
        for batcher in await self._retrying(self._servers.batchers):
            cursor: Reply = b"0"
            while isinstance(cursor, bytes):
                page = pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
                match await self._retrying(partial(_checked, batcher.ask, page)):
                    case [following, list() as names]:
                        yield names
                        cursor = None if following == b"0" else following
                    case _:
                        raise StoreUnavailable(STRANGE)

    async def _run(
        self, script: Script, key: str, arguments: Sequence[str | bytes], *, writes: bool
    ) -> Reply:
        answer: Answer = None
        # EVALSHA first: 40 bytes in place of the script. A server that restarted has forgotten it.
        for way in (("EVALSHA", script.digest), ("EVAL", script.text)):
            command = pack(*way, "1", key, *arguments)
            answer = await self._servers.ask(command, key, writes=writes)
            if not isinstance(answer, exceptions.NoScriptError):
                break
        return checked(answer)

    async def _retrying(self, send: Callable[[], Awaitable[_T]]) -> _T:
        deadline = asyncio.get_running_loop().time() + self._retry_for
        why: ConnectionLost
        try:
            try:
                return await send()  # without a timer, which would cost half as much again
            except ConnectionLost as error:
                why = error
            pause = _PAUSE_S
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await send()
                    except ConnectionLost as error:
                        why = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE_S)
        except TimeoutError:
            raise StoreUnavailable(f"The session store cannot be reached: {why}.") from None
        except Refused as error:
            raise StoreUnavailable(f"The session store refuses: {error}.") from None


async def _checked(ask: Callable[..., Awaitable[Answer]], *arguments: Any) -> Reply:
    return checked(await ask(*arguments))


async def _warnings(batcher: Batcher) -> list[str]:
    told: dict[str, str] = {}
    for section in ("memory", "persistence"):
        answer = await batcher.ask(pack("INFO", section))
        if isinstance(answer, exceptions.ResponseError):
            return []
        lines = (line.partition(":") for line in text(answer).splitlines())
        told |= {name: value for name, _, value in lines}
    found = []
    if told.get("aof_enabled") == "0":
        found.append("appendonly is off: a restart loses what was not saved")
    if told.get("maxmemory", "0") != "0" and told.get("maxmemory_policy") != "noeviction":
        found.append(f"maxmemory-policy is {told.get('maxmemory_policy')}: sessions may be evicted")
    return found
