"""A single Redis server, by its address or by its Sentinels."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import (
    Connection,
    Redis,
    Sentinel,
    SentinelConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff

from conductor.stores.addresses import RedisAddress
from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, failure


class Primary:
    """The server that holds all sessions."""

    def __init__(self, address: RedisAddress, timeout: float, copies: Copies) -> None:
        self._sentinels: _Sentinels | None = None
        options = connection_options(address, timeout)
        if address.kind == "sentinel":
            self._sentinels = _Sentinels(address, timeout)
            # The connection finds the primary, and refers to the pool weakly.
            self._pool = SentinelConnectionPool(address.service, self._sentinels, ssl=address.tls, **options)
            connection = self._pool.make_connection()
        elif address.path:
            connection = UnixDomainSocketConnection(path=address.path, **options)
        else:
            connection = connection_to(*address.hosts[0], address, timeout)
        self._batcher = Batcher(connection, timeout, copies)

    async def ask(self, command: bytes, key: str, *, writes: bool = False) -> Answer:
        """Send a packed command about ``key``. Raises `ConnectionLost` or `Refused`."""
        return await self._batcher.ask(command, writes=writes)

    async def batchers(self) -> list[Batcher]:
        """Give the batcher of the server."""
        return [self._batcher]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._batcher.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()


class _Sentinels(Sentinel):  # type: ignore[misc]  # of a library that has no types
    # Distinguishes unreachable Sentinels from Sentinels without a primary, unlike the library.
    def __init__(self, address: RedisAddress, timeout: float) -> None:
        # A share of the time for each, so that one that hangs leaves time for the next.
        share = timeout / (len(address.hosts) + 1)
        options = connection_options(address, share) | {"db": 0, "socket_timeout": share, "ssl": address.tls}
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


def connection_to(host: str, port: int, address: RedisAddress, timeout: float) -> AbstractConnection:
    """Make a connection; it is not open yet."""
    kind = SSLConnection if address.tls else Connection
    return kind(host=host, port=port, **connection_options(address, timeout))


def connection_options(address: RedisAddress, timeout: float) -> dict[str, Any]:
    """Give the options of a connection; ``timeout`` bounds the connect."""
    return {
        "username": address.user or None,
        "password": address.password or None,
        "db": address.database,
        "protocol": 2,
        "driver_info": None,  # no CLIENT SETINFO, which a user may not be allowed
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # a batch has its own
        "socket_connect_timeout": timeout,
    }
