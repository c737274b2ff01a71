"""Sends commands to one Redis server: all that one pass of the event loop asks for leaves in one write."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from conductor.stores.redis_scripts import Reply

Answer: TypeAlias = "Reply | exceptions.ResponseError"

_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "OOM", "NOREPLICAS")
)
"""Errors of a server that starts, fails over or is full: they pass."""
# What a primary answers that a failover made a replica.
_DEMOTED = (exceptions.ReadOnlyError, exceptions.MasterDownError)


class ConnectionLost(Exception):
    """There is no connection or no answer, or a later try may succeed; the command may have run."""


class Refused(Exception):
    """The server does not let us in, or will not do this: a wrong password, a database that is not there."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How many replicas must have what is written before it counts, and how long one try waits for them."""

    replicas: int
    wait_ms: int


class Batcher:
    """Commands on one connection: a batch leaves when the one before it is answered.

    A batch that is not answered within ``timeout`` seconds, a new connection included, fails as a whole.
    Nothing is sent twice here.
    """

    def __init__(self, connection: AbstractConnection, timeout: float, copies: Copies) -> None:
        self._connection = connection
        self._timeout = timeout
        self._copies = copies
        self._wait = pack("WAIT", str(copies.replicas), str(copies.wait_ms))
        self._next: list[_Asked] = []
        self._sending: asyncio.Task[None] | None = None

    def ask(self, command: bytes, *, writes: bool = False) -> asyncio.Future[Answer]:
        """Send a packed command with the next batch.

        The future gives the answer, be it an error; it raises `ConnectionLost` or `Refused` without one.
        """
        asked = _Asked(command, writes, asyncio.get_running_loop().create_future())
        self._next.append(asked)
        # The task runs in the next pass of the loop: what all sessions ask for until then leaves in one
        # write.
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return asked.answer

    async def aclose(self) -> None:
        """Close the connection; what waits for an answer fails."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self._connection.disconnect()

    async def _send(self) -> None:
        batch: list[_Asked] = []
        try:
            while self._next:
                # Those who gave up waiting are left out: what was not sent is not done.
                batch, self._next = [each for each in self._next if not each.answer.done()], []
                try:
                    await self._exchange(batch)
                # TimeoutError is an OSError, so a silent server ends here as well; uvloop raises RuntimeError
                # for a closed connection. The library disconnects on any error, so no late answer is taken
                # for another command's.
                except (ConnectionLost, Refused, exceptions.RedisError, OSError, RuntimeError) as error:
                    _fail(batch, failure(error))
        finally:
            self._sending = None
            batch, self._next = [*batch, *self._next], []
            _fail(batch, ConnectionLost("the connection was closed"))

    async def _exchange(self, batch: Sequence[_Asked]) -> None:
        commands = [each.command for each in batch]
        waits = self._copies.replicas > 0 and any(each.writes for each in batch)
        # WAIT counts what its own connection wrote, so one at the end stands for the whole batch.
        if waits:
            commands.append(self._wait)
        connection = self._connection
        async with asyncio.timeout(self._timeout):
            if not connection.is_connected:
                await connection.connect()
            await connection.send_packed_command(commands)
            # One error must not shift the others: each command has an answer of its own.
            answers = [await _answer(connection) for _ in commands]
            copies = answers.pop() if waits else self._copies.replicas
            few = not (isinstance(copies, int) and copies >= self._copies.replicas)
            # Its name may lead to another server by now, which has its replicas.
            if few or any(isinstance(each, _DEMOTED) for each in answers):
                await connection.disconnect()
        for each, answer in zip(batch, answers, strict=True):
            if few and each.writes and not isinstance(answer, exceptions.ResponseError):
                _fail([each], ConnectionLost(f"fewer than {self._copies.replicas} replicas have it"))
            elif not each.answer.done():
                each.answer.set_result(answer)


@dataclass(frozen=True, slots=True)
class _Asked:
    command: bytes
    writes: bool
    answer: asyncio.Future[Answer]


def pack(*arguments: str | bytes) -> bytes:
    """Write a command as the server reads it. Characters that no UTF-8 text holds are replaced by ``?``."""
    coded = tuple(each.encode("utf-8", "replace") if isinstance(each, str) else each for each in arguments)
    # By hiredis, since the library's own packing takes six times as long.
    packed: bytes = hiredis.pack_command(coded)
    return packed


def checked(answer: Answer) -> Reply:
    """Give an answer that is no error. Raises `ConnectionLost` for one that passes, else `Refused`."""
    if isinstance(answer, exceptions.ResponseError):
        raise failure(answer)
    return answer


def failure(error: Exception) -> ConnectionLost | Refused:
    """Say in a clause why there is no answer. What the server wrote is not quoted: it may name the user."""
    match error:
        case ConnectionLost() | Refused():
            return error
        case exceptions.InvalidResponse():
            return ConnectionLost("what answers there is no Redis server")
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
        # The library hides why signing in failed behind a ConnectionError.
        case exceptions.ConnectionError() if isinstance(error.__context__, exceptions.RedisError):
            return failure(error.__context__)
        case exceptions.ConnectionError():
            return ConnectionLost(_reason(error.__context__))
    return ConnectionLost(_reason(error))


def _reason(error: BaseException | None) -> str:
    match error:
        case ssl.SSLError():
            why = getattr(error, "verify_message", "") or error.reason or "no reason given"
            return f"TLS failed: {why}"
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


def _fail(batch: Iterable[_Asked], error: ConnectionLost | Refused) -> None:
    for each in batch:
        if not each.answer.done():
            # An exception for each: raising one object in several tasks would mix their tracebacks.
            each.answer.set_exception(type(error)(*error.args))
