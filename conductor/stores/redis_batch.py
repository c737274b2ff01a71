"""Sends commands to one Redis server, those of one pass of the event loop in one write."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from conductor.stores.redis_scripts import Reply

Answer: TypeAlias = "Reply | exceptions.ResponseError"

_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "OOM", "NOREPLICAS")
)
"""Temporary errors: the server starts, fails over or is full."""
# Errors of a former primary.
_DEMOTED = (exceptions.ReadOnlyError, exceptions.MasterDownError)


class ConnectionLost(Exception):
    """No answer, or a temporary error. The command may have run; a later try may succeed."""


class Refused(Exception):
    """The server refuses: a wrong password, a missing database."""


class Copies(NamedTuple):
    """The replicas that must have a write, and the time that one try waits for them."""

    replicas: int
    wait_ms: int


class Batcher:
    """Sends commands on one connection; a batch leaves when the previous one is answered.

    A batch fails as a whole after ``timeout`` seconds, which include a new connection.
    """

    def __init__(self, connection: AbstractConnection, timeout: float, copies: Copies) -> None:
        self._connection = connection
        self._timeout = timeout
        self._copies = copies
        self._wait = pack("WAIT", str(copies.replicas), str(copies.wait_ms))
        self._next: list[_Request] = []
        self._sending: asyncio.Task[None] | None = None

    def ask(self, command: bytes, *, writes: bool = False) -> asyncio.Future[Answer]:
        """Send a packed command with the next batch.

        The future gives the answer or the server's error, or raises `ConnectionLost` or `Refused`.
        """
        request = _Request(command, writes, asyncio.get_running_loop().create_future())
        self._next.append(request)
        # The task runs in the next pass of the loop and sends the commands of all sessions.
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return request.answer

    async def aclose(self) -> None:
        """Close the connection; outstanding commands fail."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self._connection.disconnect()

    async def _send(self) -> None:
        batch: list[_Request] = []
        try:
            while self._next:
                # Cancelled commands are not sent.
                batch, self._next = [request for request in self._next if not request.answer.done()], []
                try:
                    await self._exchange(batch)
                # OSError includes TimeoutError; uvloop raises RuntimeError for a closed connection. The
                # library disconnects on any error, so a late answer cannot reach another command.
                except (ConnectionLost, Refused, exceptions.RedisError, OSError, RuntimeError) as error:
                    _fail(batch, failure(error))
        finally:
            self._sending = None
            batch, self._next = [*batch, *self._next], []
            _fail(batch, ConnectionLost("the connection was closed"))

    async def _exchange(self, batch: Sequence[_Request]) -> None:
        commands = [request.command for request in batch]
        waits = self._copies.replicas > 0 and any(request.writes for request in batch)
        # WAIT covers all earlier writes of its connection.
        if waits:
            commands.append(self._wait)
        connection = self._connection
        async with asyncio.timeout(self._timeout):
            if not connection.is_connected:
                await connection.connect()
            await connection.send_packed_command(commands)
            answers = [await _answer(connection) for _ in commands]
            copies = answers.pop() if waits else self._copies.replicas
            few = not (isinstance(copies, int) and copies >= self._copies.replicas)
            # The name may resolve to another server by now.
            if few or any(isinstance(answer, _DEMOTED) for answer in answers):
                await connection.disconnect()
        for request, answer in zip(batch, answers, strict=True):
            if few and request.writes and not isinstance(answer, exceptions.ResponseError):
                _fail([request], ConnectionLost(f"fewer than {self._copies.replicas} replicas have it"))
            elif not request.answer.done():
                request.answer.set_result(answer)


class _Request(NamedTuple):
    command: bytes
    writes: bool
    answer: asyncio.Future[Answer]


def pack(*arguments: str | bytes) -> bytes:
    """Encode a command. Lone surrogates become ``?``."""
    coded = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in arguments]
    packed: bytes = hiredis.pack_command(tuple(coded))  # the library's own packing takes six times as long
    return packed


def checked(answer: Answer) -> Reply:
    """Give an answer that is no error. Raises `ConnectionLost` for a temporary error, else `Refused`."""
    if isinstance(answer, exceptions.ResponseError):
        raise failure(answer)
    return answer


def failure(error: Exception) -> ConnectionLost | Refused:
    """Describe an error in a clause. The server's message is not quoted: it may name the user."""
    match error:
        case ConnectionLost() | Refused():
            return error
        case exceptions.InvalidResponse():
            return ConnectionLost("the server there is no Redis server")
        case TimeoutError() | exceptions.TimeoutError():
            return ConnectionLost("it did not answer in time")
        case exceptions.MovedError():
            return Refused("it is a node of a cluster: write redis+cluster:// before its address")
        case exceptions.AuthenticationError() | exceptions.ResponseError():
            code = error.status_code or str(error).partition(" ")[0]
            if code in _PASSING:
                return ConnectionLost(f"the server says {code}")
            return Refused(f"it answered {code}")
        case exceptions.BusyLoadingError():
            return ConnectionLost("the server says LOADING")
        # The library hides a refused login behind a ConnectionError.
        case exceptions.ConnectionError() if isinstance(error.__context__, exceptions.RedisError):
            return failure(error.__context__)
        case exceptions.ConnectionError():
            return ConnectionLost(_reason(error.__context__))
    return ConnectionLost(_reason(error))


def _reason(error: BaseException | None) -> str:
    match error:
        case ssl.SSLError():
            return f"TLS failed: {getattr(error, 'verify_message', '') or error.reason or 'no reason given'}"
        case ConnectionRefusedError():
            return "nothing listens there"
        case ConnectionResetError() | BrokenPipeError():
            return "the connection was closed"
        case OSError():
            return error.strerror or "it cannot be reached"
    return "the connection was closed"


async def _answer(connection: AbstractConnection) -> Answer:
    try:
        reply: Reply = await connection.read_response()
    except exceptions.ResponseError as error:
        return error
    return reply


def _fail(batch: Iterable[_Request], error: ConnectionLost | Refused) -> None:
    for request in batch:
        if not request.answer.done():
            # One exception for each task, or their tracebacks would mix.
            request.answer.set_exception(type(error)(*error.args))
