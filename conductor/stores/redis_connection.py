"""Connections to a Redis server: where it is, one connection that many commands share, and a few of those.

All commands of a moment leave in one write, and are answered in order. A connection that does not answer in
time is given up with everything that waits on it: its callers say it again on another one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit

from conductor.errors import SettingsError
from conductor.stores.redis_protocol import ProtocolError, Reply, ReplyError, ReplyReader, write_command

_SCHEMES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}


class ConnectionLost(Exception):
    """The connection was not made, broke, or did not answer in time; what was sent may have been done."""


class Refused(Exception):
    """The server does not let us in: a wrong password, a database that is not there."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how to sign in; prints itself without the password."""

    host: str
    port: int
    database: int
    tls: bool
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Name the server for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read ``redis[s]://[[user]:password@]host[:port][/database]``. Raises `SettingsError`."""
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
            database = int(parts.path.strip("/") or 0)
            (parts.hostname or "").encode("idna")  # as the look-up will, where it would be no network error
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
        except ValueError:
            raise SettingsError(_WRONG_URL) from None
        known = parts.scheme in _SCHEMES and parts.hostname and database >= 0
        if not known or parts.query or parts.fragment or (user and not password):
            raise SettingsError(_WRONG_URL)
        return cls(parts.hostname or "", port, database, _SCHEMES[parts.scheme], user, password)

    def handshake(self) -> list[bytes]:
        """Give what has to be said on a new connection."""
        sign_in = [each for each in (self.user, self.password) if each]
        commands = [write_command("AUTH", *sign_in)] if sign_in else []
        if self.database:
            commands.append(write_command("SELECT", str(self.database)))
        return [*commands, write_command("PING")]


# The URL is not quoted: it may hold a password.
_WRONG_URL = (
    "SESSION_STORE_URL is no Redis address: write redis://HOST:PORT/DATABASE, or rediss:// for TLS, "
    "with USER:PASSWORD@ before the host if the server wants it, and % codes for odd characters in them."
)


class Connection(asyncio.Protocol):
    """One connection; ``reply_timeout`` is in seconds. Nothing is said again here."""

    def __init__(self, reply_timeout: float) -> None:
        self.usable = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._reply_timeout = reply_timeout
        self._transport: asyncio.WriteTransport | None = None
        self._reader = ReplyReader()
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None
        self._why = "the connection was closed"

    def __len__(self) -> int:
        """Count the commands that wait for their replies."""
        return len(self._waiting)

    def call(self, command: bytes) -> asyncio.Future[Reply]:
        """Send a command; its future gives the reply, be it a `ReplyError`, or raises `ConnectionLost`."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if not self.usable:
            future.set_exception(ConnectionLost(self._why))
            return future
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(command)
        self._waiting.append((future, self._loop.time() + self._reply_timeout))
        if self._watch is None:
            self._watch = self._loop.call_later(self._reply_timeout, self._check)
        return future

    def abort(self, why: str) -> None:
        """Give the connection up at once."""
        self.usable = False
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        if self._transport is not None and self.usable:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _check(self) -> None:
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check)
        else:
            self.abort("the server did not answer in time")

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """Hand replies to those who wait for them, in order."""
        try:
            replies = self._reader.feed(data)
        except ProtocolError as error:
            self.abort(str(error))
            return
        for reply in replies:
            if not self._waiting:
                self.abort("the server answered what nobody asked")
                return
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell all who wait."""
        self.usable = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(self._why))
        if not self.closed.done():
            self.closed.set_result(None)


class Connections:
    """Up to ``size`` connections to one server, made when they are needed and made again when they break.

    ``timeout`` bounds, in seconds, how long one may take to be made, or a reply to come.
    """

    def __init__(self, endpoint: Endpoint, size: int, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._slots: list[Connection | None] = [None] * size
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._tls = ssl.create_default_context() if endpoint.tls else None

    def least_busy(self) -> Connection | None:
        """Give the least busy of all connections, or None if one should be made first."""
        best: Connection | None = None
        for each in self._slots:
            if each is None or not each.usable:
                return None
            if best is None or len(each) < len(best):
                best = each
        return best

    async def get(self) -> Connection:
        """Give a connection, making one if fewer than all are there. Raises `ConnectionLost` or `Refused`."""
        for slot, each in enumerate(self._slots):
            if each is None or not each.usable:
                opening = self._opening.get(slot)
                if opening is None:
                    opening = asyncio.create_task(self._open(slot))
                    opening.add_done_callback(_heard)
                    self._opening[slot] = opening
                # Many wait for one connection, and any of them may give up.
                return await asyncio.shield(opening)
        best = self.least_busy()
        assert best is not None
        return best

    async def _open(self, slot: int) -> Connection:
        connection = Connection(self._timeout)
        where = self._endpoint
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, where.host, where.port, ssl=self._tls
                )
                for reply in await asyncio.gather(*(connection.call(each) for each in where.handshake())):
                    _admitted(reply)
        except (OSError, TimeoutError) as error:
            connection.abort("it could not be made in time")
            raise ConnectionLost(_reason(error)) from error
        except BaseException:
            connection.abort("it was given up")
            raise
        finally:
            del self._opening[slot]
        self._slots[slot] = connection
        return connection

    async def aclose(self) -> None:
        """Close all; what waits for a reply is told that the connection was lost."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        there = [each for each in self._slots if each is not None]
        for each in there:
            each.abort("the store was closed")
        if there:
            await asyncio.wait([each.closed for each in there], timeout=self._timeout)


def _heard(opening: asyncio.Task[Connection]) -> None:
    """Look at how it went, in the place of callers who gave up waiting for it."""
    if not opening.cancelled():
        opening.exception()


def _admitted(reply: Reply) -> None:
    if not isinstance(reply, ReplyError):
        return
    if reply.code in ("LOADING", "BUSY", "MASTERDOWN"):
        raise ConnectionLost(f"the server says {reply.code}")
    # The rest of an answer may name the user.
    raise Refused(f"it answered {reply.code}")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "TLS failed: " + (getattr(error, "verify_message", "") or error.reason or "no reason given")
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return error.strerror or "it cannot be reached" if isinstance(error, OSError) else "it cannot be reached"
