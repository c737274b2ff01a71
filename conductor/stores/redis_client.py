"""Runs scripts in Redis, and retries them until it answers or the time is up.

The library connects, signs in and finds the primary. Its own retries are off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from redis import exceptions

from conductor.errors import SettingsError, StoreUnavailable
from conductor.stores.addresses import RedisAddress
from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, checked, pack
from conductor.stores.redis_cluster import Cluster
from conductor.stores.redis_nodes import Primary
from conductor.stores.redis_scripts import STRANGE, Reply, Script, text

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25
"""The first and the longest pause between two tries."""
_SCANNED = "1000"
"""Keys in one step of a scan: less than a millisecond of the server."""


class Client:
    """Runs scripts at ``address``. A script may run more than once.

    ``retry_for`` is in seconds. With ``replicas`` a write succeeds when that many replicas have it; one try
    waits ``wait_ms``.
    """

    def __init__(self, address: RedisAddress, *, retry_for: float, replicas: int, wait_ms: int) -> None:
        self._address = address
        # Half of the time, so that a dead connection leaves time for another one.
        timeout = max(retry_for / 2, wait_ms / 1000 * 1.5 if replicas else 0.0)
        servers = Cluster if address.kind == "cluster" else Primary
        self._servers: Cluster | Primary = servers(address, timeout, Copies(replicas, wait_ms))
        self._retry_for = retry_for

    async def warnings(self) -> list[str]:
        """Connect, and list the settings that may lose sessions. Raises `SettingsError`."""
        found: list[str] = []
        try:
            for batcher in await self._servers.batchers():
                found += [warning for warning in await _warnings(batcher) if warning not in found]
        except (ConnectionLost, Refused) as error:
            raise SettingsError(
                f"SESSION_STORE_URL names {self._address}, which cannot be used: {error}."
            ) from None
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._servers.aclose()

    async def write(self, script: Script, key: str, arguments: Sequence[str | bytes] = ()) -> Reply:
        """Run a script. Raises `StoreUnavailable`."""
        return await self._retrying(partial(self._run, script, key, arguments, writes=True))

    async def best_effort_write(self, script: Script, key: str, arguments: Sequence[str | bytes]) -> None:
        """Run a script once; a failure is ignored."""
        try:
            await self._run(script, key, arguments, writes=False)
        except (ConnectionLost, Refused) as error:
            log.debug("script failed", reason=str(error))

    async def query(self, key: str, *command: str) -> Reply:
        """Send a command about ``key``; it may run twice. Raises `StoreUnavailable`."""
        packed = pack(*command)
        return await self._retrying(partial(_checked, self._servers.ask, packed, key))

    async def scan(self, pattern: str) -> AsyncIterator[list[Reply]]:
        """Give the names of all matching keys, with repetitions. Raises `StoreUnavailable`."""
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
        # A server that restarted does not know the digest.
        for form in (("EVALSHA", script.digest), ("EVAL", script.text)):
            command = pack(*form, "1", key, *arguments)
            answer = await self._servers.ask(command, key, writes=writes)
            if not isinstance(answer, exceptions.NoScriptError):
                break
        return checked(answer)

    async def _retrying(self, send: Callable[[], Awaitable[_T]]) -> _T:
        deadline = asyncio.get_running_loop().time() + self._retry_for
        lost: ConnectionLost
        try:
            try:
                return await send()  # without a timer, which costs half as much as the command
            except ConnectionLost as error:
                lost = error
            pause = _PAUSE_S
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await send()
                    except ConnectionLost as error:
                        lost = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE_S)
        except TimeoutError:
            raise StoreUnavailable(f"The session store cannot be reached: {lost}.") from None
        except Refused as error:
            raise StoreUnavailable(f"The session store refuses: {error}.") from None


async def _checked(ask: Callable[..., Awaitable[Answer]], *arguments: Any) -> Reply:
    return checked(await ask(*arguments))


async def _warnings(batcher: Batcher) -> list[str]:
    info: dict[str, str] = {}
    for section in ("memory", "persistence"):
        answer = await batcher.ask(pack("INFO", section))
        if isinstance(answer, exceptions.ResponseError):
            return []
        lines = (line.partition(":") for line in text(answer).splitlines())
        info |= {name: value for name, _, value in lines}
    warnings = []
    if info.get("aof_enabled") == "0":
        warnings.append("appendonly is off: a restart loses unsaved commits")
    if info.get("maxmemory", "0") != "0" and info.get("maxmemory_policy") != "noeviction":
        warnings.append(f"maxmemory-policy is {info.get('maxmemory_policy')}: sessions may be evicted")
    return warnings
