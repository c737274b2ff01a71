"""Asks a Redis server to run scripts, again and again until it answers or the time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from conductor.errors import SettingsError, StoreUnavailable
from conductor.stores.base import SessionKey
from conductor.stores.redis_connection import Connection, ConnectionLost, Connections, Endpoint, Refused
from conductor.stores.redis_protocol import Reply, ReplyError, write_arguments, write_command
from conductor.stores.redis_records import key_names, text
from conductor.stores.redis_scripts import KEYS, Script

log = structlog.get_logger(__name__)

_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25
"""Between tries: soon at first, since a server that restarts is back within a blink."""

_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "OOM", "NOREPLICAS")
)
"""Errors of a server that starts, fails over or is full: they pass."""

_WITH_REPLICAS = 8
"""Connections, where each write waits for replicas: WAIT holds up all that follows on its connection."""


class Client:
    """Runs scripts at ``url``; each may come there more than once, and has to bear that.

    ``retry_for`` is in seconds. With ``replicas``, a write counts when so many replicas have it, for which
    one try waits ``wait_ms``. Raises `SettingsError` for a URL that is none.
    """

    def __init__(self, url: str, *, retry_for: float, replicas: int, wait_ms: int) -> None:
        self._endpoint = Endpoint.parse(url)
        # One try may take half of the time, so that a dead connection leaves time for another one.
        timeout = max(retry_for / 2, wait_ms / 1000 * 1.5 if replicas else 0.0)
        self._connections = Connections(self._endpoint, _WITH_REPLICAS if replicas else 1, timeout)
        self._retry_for = retry_for
        self._replicas = replicas
        self._wait = write_command("WAIT", str(replicas), str(wait_ms))

    async def open(self) -> None:
        """Connect now, so that a mistake is said at the start. Raises `SettingsError`."""
        for complaint in await self.complaints():
            log.warning("sessions may be lost", store=str(self._endpoint), why=complaint)

    async def complaints(self) -> list[str]:
        """Connect, and say what about the server may lose sessions, a clause each. Raises `SettingsError`."""
        try:
            connection = await self._connections.get()
        except (ConnectionLost, Refused) as error:
            raise SettingsError(
                f"SESSION_STORE_URL names {self._endpoint}, which cannot be used: {error}."
            ) from None
        return await _complaints(connection)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connections.aclose()

    async def write(self, script: Script, keys: bytes, arguments: Sequence[str] = ()) -> Reply:
        """Run a script that changes something, with keys from `write_keys`. Raises `StoreUnavailable`."""
        send = self._replicated if self._replicas else Connection.call
        return await self._retrying(lambda connection: _run(send, connection, script, keys, arguments))

    async def read(self, script: Script, keys: bytes) -> Reply:
        """Run a script that changes nothing. Raises `StoreUnavailable`."""
        return await self._retrying(lambda connection: _run(Connection.call, connection, script, keys, ()))

    async def ask(self, *command: str) -> Reply:
        """Run a plain command that changes nothing. Raises `StoreUnavailable`."""

        async def send(connection: Connection) -> Reply:
            return _checked(connection, await connection.call(write_command(*command)))

        return await self._retrying(send)

    async def write_once(self, script: Script, keys: bytes, arguments: Sequence[str]) -> None:
        """Run a script if the server is there; it does not matter much."""
        connection = self._connections.least_busy()
        if connection is not None:
            try:
                await _run(Connection.call, connection, script, keys, arguments)
            except (ConnectionLost, Refused) as error:
                log.debug("not written", why=str(error))

    async def _retrying(self, send: Callable[[Connection], Awaitable[Reply]]) -> Reply:
        deadline = asyncio.get_running_loop().time() + self._retry_for
        connection = self._connections.least_busy()
        why = ConnectionLost("there is no connection")
        try:
            if connection is not None:
                try:
                    return await send(connection)
                except ConnectionLost as error:
                    why = error
            pause = _PAUSE_S
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await send(await self._connections.get())
                    except ConnectionLost as error:
                        why = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE_S)
        except TimeoutError:
            raise StoreUnavailable(f"The session store cannot be reached: {why}.") from None
        except Refused as error:
            raise StoreUnavailable(f"The session store refuses: {error}.") from None

    async def _replicated(self, connection: Connection, command: bytes) -> Reply:
        # WAIT counts what its own connection wrote, so it has to follow on the same one.
        reply, copies = await asyncio.gather(connection.call(command), connection.call(self._wait))
        if not isinstance(reply, ReplyError) and not (isinstance(copies, int) and copies >= self._replicas):
            raise ConnectionLost(f"fewer than {self._replicas} replicas have it")
        return reply


def write_keys(prefix: str, key: SessionKey) -> bytes:
    """Write a session's keys as the arguments that a script takes, their number first."""
    return write_arguments((str(len(KEYS)), *key_names(prefix, key)))


async def _run(
    send: Callable[[Connection, bytes], Awaitable[Reply]],
    connection: Connection,
    script: Script,
    keys: bytes,
    arguments: Sequence[str],
) -> Reply:
    """Run a script by its digest, or by its text on a server that has not seen it."""
    count = 3 + len(KEYS) + len(arguments)
    body = keys + write_arguments(arguments)
    reply: Reply = None
    for way in (("EVALSHA", script.digest), ("EVAL", script.text)):
        reply = await send(connection, b"*%d\r\n%b%b" % (count, write_arguments(way), body))
        if not isinstance(reply, ReplyError) or reply.code != "NOSCRIPT":
            break
    return _checked(connection, reply)


def _checked(connection: Connection, reply: Reply) -> Reply:
    if not isinstance(reply, ReplyError):
        return reply
    if reply.code not in _PASSING:
        raise Refused(f"it answered {reply.code}")
    if reply.code in ("READONLY", "MASTERDOWN"):
        connection.abort("the server is a replica now")  # its name may lead to another one by now
    raise ConnectionLost(f"the server says {reply.code}")


async def _complaints(connection: Connection) -> list[str]:
    """Say what about the server's configuration may lose sessions; nothing if it will not tell."""
    told: dict[str, str] = {}
    for section in ("memory", "persistence"):
        try:
            reply = await connection.call(write_command("INFO", section))
        except ConnectionLost:
            return []
        lines = (line.partition(":") for line in text(reply).splitlines())
        told |= {name: value for name, _, value in lines}
    found = []
    if told.get("aof_enabled") == "0":
        found.append("appendonly is off: a restart loses what was not saved")
    if told.get("maxmemory", "0") != "0" and told.get("maxmemory_policy") != "noeviction":
        found.append(f"maxmemory-policy is {told.get('maxmemory_policy')}: sessions may be evicted")
    return found
