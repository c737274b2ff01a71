"""Where all sessions are on one server: by its address, or wherever Sentinels say."""

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

from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, failure
from conductor.stores.redis_url import RedisAddress


class Primary:
    """The one server that holds all sessions."""

    def __init__(self, address: RedisAddress, timeout: float, copies: Copies) -> None:
        self._sentinels: _Sentinels | None = None
        options = connection_options(address, timeout)
        if address.kind == "sentinel":
            self._sentinels = _Sentinels(address, timeout)
            # Its connection looks the primary up, and holds the pool weakly.
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
        """Give one for each server that holds keys."""
        return [self._batcher]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._batcher.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()


class _Sentinels(Sentinel):  # type: ignore[misc]  # of a library that has no types
    # Sentinels that say why they name no primary, of which the library makes one error.
    def __init__(self, address: RedisAddress, timeout: float) -> None:
        # Each has its share of the time, so that one which hangs leaves some for the next.
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
            failures = [failure(each) for each in answers if isinstance(each, Exception)]
            if len(failures) == len(answers):
                raise next((each for each in failures if isinstance(each, Refused)), failures[0]) from None
            # In the seconds of a failover: they will name one.
            raise ConnectionLost(f"its Sentinels name no primary {service_name} that is up") from None


def connection_to(host: str, port: int, address: RedisAddress, timeout: float) -> AbstractConnection:
    """Make a connection as the address says, which is not open yet."""
    kind = SSLConnection if address.tls else Connection
    return kind(host=host, port=port, **connection_options(address, timeout))


def connection_options(address: RedisAddress, timeout: float) -> dict[str, Any]:
    """Say how to sign in; ``timeout`` bounds the making of a connection."""
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
