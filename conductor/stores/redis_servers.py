"""The Redis servers of an address, and the commands of one pass of the event loop to each in one write.

The library connects, signs in, and finds the primary and the slots. Its own retries are off.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hiredis
from redis import exceptions
from redis.asyncio import (
    Connection,
    Redis,
    Sentinel,
    SentinelConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff

from conductor.stores.addresses import RedisAddress

# Temporary errors: the server starts, fails over or is full.
_PASSING = frozenset(
    ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "OOM", "NOREPLICAS")
)
# Seconds between two looks at the map of slots of a cluster whose node failed.
_LOOK_S = 0.1
# Errors of a former primary.
_DEMOTED = (exceptions.ReadOnlyError, exceptions.MasterDownError)


class ConnectionLost(Exception):
    """No answer, or a temporary error. The command may have run; a later try may succeed."""


class Refused(Exception):
    """The server refuses: a wrong password, a missing database."""


class Limits(NamedTuple):
    """The seconds of one try, and the replicas that must have a write, for which a try waits ``wait_ms``."""

    timeout: float
    replicas: int = 0
    wait_ms: int = 0


class Lane:
    """Sends commands to one server; a batch leaves when the previous one is answered, or fails as a whole."""

    def __init__(self, connection: AbstractConnection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._next: list[_Request] = []
        self._sending: asyncio.Task[None] | None = None

    def ask(self, *command: str | bytes, writes: bool = False) -> asyncio.Future[Any]:
        """Send a command with the next batch.

        The future gives the answer or the server's error, or raises `ConnectionLost` or `Refused`.
        """
        request = _Request(_pack(*command), writes, asyncio.get_running_loop().create_future())
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
                except (exceptions.RedisError, Refused, OSError, RuntimeError, ConnectionLost) as error:
                    _fail(batch, failure(error))
        finally:
            self._sending = None
            _fail([*batch, *self._next], ConnectionLost("the connection was closed"))
            self._next = []

    async def _exchange(self, batch: Sequence[_Request]) -> None:
        replicas = self._limits.replicas
        commands = [request.command for request in batch]
        waits = replicas > 0 and any(request.writes for request in batch)
        # WAIT covers all earlier writes of its connection.
        if waits:
            commands.append(_pack("WAIT", str(replicas), str(self._limits.wait_ms)))
        connection = self._connection
        async with asyncio.timeout(self._limits.timeout):
            if not connection.is_connected:
                await connection.connect()
            await connection.send_packed_command(commands)
            answers = [await _answer(connection) for _ in commands]
            copies = answers.pop() if waits else replicas
            few = not (isinstance(copies, int) and copies >= replicas)
            # The name may resolve to another server by now.
            if few or any(isinstance(answer, _DEMOTED) for answer in answers):
                await connection.disconnect()
        for request, answer in zip(batch, answers, strict=True):
            if few and request.writes and not isinstance(answer, exceptions.ResponseError):
                _fail([request], ConnectionLost(f"fewer than {replicas} replicas have it"))
            elif not request.answer.done():
                request.answer.set_result(answer)


class _Request(NamedTuple):
    command: bytes
    writes: bool
    answer: asyncio.Future[Any]


def _pack(*arguments: str | bytes) -> bytes:
    """Encode a command. Lone surrogates become ``?``."""
    coded = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in arguments]
    packed: bytes = hiredis.pack_command(tuple(coded))  # the library's own packing takes six times as long
    return packed


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _fail(batch: Sequence[_Request], error: ConnectionLost | Refused) -> None:
    for request in batch:
        if not request.answer.done():
            # One exception for each task, or their tracebacks would mix.
            request.answer.set_exception(type(error)(*error.args))


class Primary:
    """The server that holds all sessions, by its address or by its Sentinels."""

    def __init__(self, address: RedisAddress, limits: Limits) -> None:
        self._sentinels: _Sentinels | None = None
        options = _options(address, limits.timeout) | {"db": address.database}
        if address.kind == "sentinel":
            self._sentinels = _Sentinels(address, limits.timeout)
            # The connection finds the primary, and refers to the pool weakly.
            self._pool = SentinelConnectionPool(address.service, self._sentinels, ssl=address.tls, **options)
            connection = self._pool.make_connection()
        elif address.path:
            connection = UnixDomainSocketConnection(path=address.path, **options)
        else:
            connection = _connection(*address.hosts[0], address, options)
        self._lane = Lane(connection, limits)

    async def ask(self, _key: str, *command: str | bytes, writes: bool = False) -> Any:
        """Send a command. Raises `ConnectionLost` or `Refused`."""
        return await self._lane.ask(*command, writes=writes)

    async def lanes(self) -> list[Lane]:
        """Give the lane of the server."""
        return [self._lane]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._lane.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()


class _Sentinels(Sentinel):  # type: ignore[misc]  # of a library that has no types
    # Distinguishes unreachable Sentinels from Sentinels without a primary, unlike the library.
    def __init__(self, address: RedisAddress, timeout: float) -> None:
        # A share of the time for each, so that one that hangs leaves time for the next.
        share = timeout / (len(address.hosts) + 1)
        options = _options(address, share) | {"socket_timeout": share, "ssl": address.tls}
        options |= {"username": address.sentinel_user or None, "password": address.sentinel_password or None}
        super().__init__(address.hosts, sentinel_kwargs=options)

    async def discover_master(self, service_name: str) -> Any:
        """Find the primary. Raises `ConnectionLost` or `Refused`."""
        try:
            return await super().discover_master(service_name)
        except MasterNotFoundError:
            answers = await asyncio.gather(*map(Redis.ping, self.sentinels), return_exceptions=True)
            failures = [failure(answer) for answer in answers if isinstance(answer, Exception)]
            if len(failures) == len(answers):
                raise next((each for each in failures if isinstance(each, Refused)), failures[0]) from None
            raise ConnectionLost(f"its Sentinels name no primary {service_name} that is up") from None


class Cluster:
    """The primaries of a cluster.

    The library keeps the map of slots. It does not send the commands: it may send ASKING on another
    connection than the command, and a batch would wait for all of its nodes.
    """

    def __init__(self, address: RedisAddress, limits: Limits) -> None:
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        self._options = _options(address, limits.timeout)
        self._map = RedisCluster(
            startup_nodes=nodes, require_full_coverage=False, ssl=address.tls, **self._options
        )
        self._address = address
        self._limits = limits
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._looked_at = 0.0

    async def ask(self, key: str, *command: str | bytes, writes: bool = False) -> Any:
        """Send a command to the node that has ``key``. Raises `ConnectionLost` or `Refused`."""
        name = None
        try:
            node = self._map.get_node_from_key(key)
            name = node.name
            answer = await self._lane(node.host, node.port).ask(*command, writes=writes)
        except exceptions.SlotNotCoveredError:
            await self._look(pause=_LOOK_S)
            raise ConnectionLost("no node of the cluster has the slot") from None
        except ConnectionLost:
            await self._look(name, pause=_LOOK_S)
            raise
        if isinstance(answer, exceptions.AskError):
            lane = self._lane(answer.host or node.host, answer.port)
            # Both leave on one connection in this order.
            _, answer = await asyncio.gather(lane.ask("ASKING"), lane.ask(*command, writes=writes))
        elif isinstance(answer, exceptions.MovedError):
            answer.host = answer.host or node.host
            await self._map.nodes_manager.move_slot(answer)
            # The retry follows the new map within the time limit.
            raise ConnectionLost("the slot has moved")
        elif isinstance(answer, exceptions.ClusterDownError):
            await self._look(pause=_LOOK_S)
        return answer

    async def lanes(self) -> list[Lane]:
        """Give the lanes of the primaries. Raises `ConnectionLost` or `Refused`."""
        await self._look()
        return [self._lane(node.host, node.port) for node in self._map.get_primaries()]

    async def aclose(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            await lane.aclose()
        await self._map.nodes_manager.aclose()
        await self._map.nodes_manager.aclose("startup_nodes")

    def _lane(self, host: str, port: int) -> Lane:
        lane = self._lanes.get((host, port))
        if lane is None:
            connection = _connection(host, port, self._address, self._options)
            lane = self._lanes[host, port] = Lane(connection, self._limits)
        return lane

    async def _look(self, last: str | None = None, *, pause: float = 0.0) -> None:
        # Callers at the same time share one answer; with a ``pause`` also those soon after, since the library
        # takes milliseconds of the loop to read it. The node ``last`` is asked last: it may hang.
        time = asyncio.get_running_loop().time
        if time() - self._looked_at < pause:
            return
        try:
            async with asyncio.timeout(self._limits.timeout):
                await self._map.nodes_manager.initialize(last_failed_node_name=last)
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
            raise failure(error) from None
        finally:
            self._looked_at = time()


def _connection(
    host: str, port: int, address: RedisAddress, options: Mapping[str, Any]
) -> AbstractConnection:
    kind = SSLConnection if address.tls else Connection
    return kind(host=host, port=port, **options)


def _options(address: RedisAddress, timeout: float) -> dict[str, Any]:
    """Give the options of a connection; ``timeout`` bounds the connect."""
    return {
        "username": address.user or None,
        "password": address.password or None,
        "protocol": 2,
        "driver_info": None,  # no CLIENT SETINFO, which a user may not be allowed
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # a batch has its own
        "socket_connect_timeout": timeout,
    }


def failure(error: BaseException) -> ConnectionLost | Refused:
    """Describe an error in a clause. The server's message is not quoted: it may name the user."""
    match error:
        case ConnectionLost() | Refused():
            return error
        case exceptions.InvalidResponse():
            return ConnectionLost("the server there is no Redis server")
        case TimeoutError() | exceptions.TimeoutError():
            return ConnectionLost("it did not answer in time")
        case exceptions.RedisClusterException():
            reason = error.__cause__ or error.__context__
            if reason is None or (isinstance(reason, exceptions.ResponseError) and _code(reason) == "ERR"):
                return Refused("it is not part of a cluster")
            return failure(reason)
        case exceptions.MovedError():
            return Refused("it is a node of a cluster: write redis+cluster:// before its address")
        case exceptions.AuthenticationError() | exceptions.ResponseError():
            code = _code(error)
            return (
                ConnectionLost(f"the server says {code}")
                if code in _PASSING
                else Refused(f"it answered {code}")
            )
        case exceptions.BusyLoadingError():
            return ConnectionLost("the server says LOADING")
        # The library hides a refused login behind a ConnectionError.
        case exceptions.ConnectionError() if isinstance(error.__context__, exceptions.RedisError):
            return failure(error.__context__)
        case exceptions.ConnectionError():
            return ConnectionLost(_reason(error.__context__))
    return ConnectionLost(_reason(error))


def _code(error: Any) -> str:
    return error.status_code or str(error).partition(" ")[0]


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
