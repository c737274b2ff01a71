"""The session store in Redis or Valkey, shared by all nodes.

A claim and a commit are one script each (`redis_scripts`). A script without a reply is repeated under the
same id. The server must keep acknowledged commits: ``appendonly yes``, ``maxmemory-policy noeviction``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from conductor.errors import SettingsError, StoreUnavailable
from conductor.plugins.stores import redis_scripts as scripts
from conductor.plugins.stores.redis_address import Login, RedisAddress
from conductor.stores.base import (
    MAX_SESSIONS,
    NEVER_EXPIRES,
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    SessionKey,
    Stored,
    StoreOptions,
    new_token,
    retry,
    settle,
    too_many,
)

try:
    from redis import exceptions
    from redis.asyncio import Redis, Sentinel
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import MasterNotFoundError
    from redis.backoff import NoBackoff
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"SESSION_STORE_URL needs the package {missing.name}: pip install 'conductor-voice[redis]'."
    ) from missing

_T = TypeVar("_T")
# Milliseconds for which a deleted record of the server fences its writer: no process holds one for longer.
OWN_FENCE_MS = 60_000

# Commands at the same time; each takes a connection.
_COMMANDS = 64
# Keys of one step of a list.
_PAGE = 1_000
# Seconds between two looks at the map of slots, which take milliseconds of the event loop.
_LOOK_S = 0.1
# uvloop raises RuntimeError for a closed connection.
_FAILURES = (exceptions.RedisError, exceptions.RedisClusterException, OSError, RuntimeError)


class _Primary:
    """The server of all sessions, by its address or its Sentinels; ``timeout`` bounds a command."""

    def __init__(self, address: RedisAddress, timeout: float) -> None:
        options = _options(address.login, timeout) | {"db": address.database}
        self._sentinel: Sentinel | None = None
        if address.kind == "sentinel":
            # A share of the time for each, so that one that hangs leaves time for the next.
            share = _options(address.sentinel_login, timeout / (len(address.hosts) + 1))
            self._sentinel = Sentinel(address.hosts, sentinel_kwargs={**share, "ssl": address.tls})
            self._client = self._sentinel.master_for(address.service, ssl=address.tls, **options)
        else:
            host, port = address.hosts[0]
            self._client = Redis(host=host, port=port, ssl=address.tls, **options)

    async def client(self, _key: str) -> Redis:
        """Return the client of the server that has a key."""
        return self._client

    async def clients(self) -> list[Redis]:
        """Return the clients of all servers that have keys."""
        return [self._client]

    async def look(self, _key: str) -> None:
        """Find the server again after a failure: another one may have its name by now."""
        pool = self._client.connection_pool
        await pool.update_active_connections_for_reconnect()
        await pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()


class _Cluster:
    """The primaries of a cluster; a session in a moving slot waits until the slot has moved.

    The library reads the map of slots. It does not send the commands: its WAIT may go another way than the
    write before it.
    """

    def __init__(self, address: RedisAddress, timeout: float) -> None:
        self._options = _options(address.login, timeout) | {"ssl": address.tls}
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        self._map = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **self._options)
        self._clients: dict[str, Redis] = {}
        self._looked_at = 0.0

    async def client(self, key: str) -> Redis:
        """Return the client of the primary that has a key."""
        return self._client(self._map.get_node_from_key(key))

    async def clients(self) -> list[Redis]:
        """Return the clients of all primaries."""
        await self._map.nodes_manager.initialize()
        return [self._client(node) for node in self._map.get_primaries()]

    async def look(self, key: str) -> None:
        """Read the map of slots again, at most ten times a second."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        failed = None
        with suppress(exceptions.SlotNotCoveredError):
            failed = self._map.get_node_from_key(key).name  # asked last: it may hang
        await self._map.nodes_manager.initialize(last_failed_node_name=failed)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
        await self._map.nodes_manager.aclose()
        await self._map.nodes_manager.aclose("startup_nodes")

    def _client(self, node: ClusterNode) -> Redis:
        if node.name not in self._clients:
            self._clients[node.name] = Redis(host=node.host, port=node.port, **self._options)
        return self._clients[node.name]


def _options(login: Login, timeout: float) -> dict[str, Any]:
    return {
        **login._asdict(),
        "protocol": 2,
        "driver_info": None,  # no CLIENT SETINFO, which a user may not be allowed
        "encoding_errors": "replace",  # a lone surrogate becomes ``?``
        "retry": Retry(NoBackoff(), 0),  # the store tries again
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
    }


class RedisStore:
    """Keeps sessions for ``session_ttl`` seconds after their last claim or commit.

    A commit that fails for ``retry_for`` seconds is `StoreUnavailable`. It may have been recorded; then the
    next commit is a `Conflict`, and the session must be claimed again. With ``replicas`` a claim or commit
    succeeds when that many replicas have it; one try waits ``wait_ms``. Raises `SettingsError`.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        session_ttl: float = 86_400.0,
        retry_for: float = 2.0,
        replicas: int = 0,
        wait_ms: int = 500,
        prefix: str = "conductor",
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._address = RedisAddress.parse(url)
        # Half of the time, so that a dead connection leaves time for another one.
        timeout = max(retry_for / 2, wait_ms / 1000 * 1.5 if replicas else 0.0)
        kind = _Cluster if self._address.kind == "cluster" else _Primary
        self._servers: _Cluster | _Primary = kind(self._address, timeout)
        self.prefix = prefix
        self._retry_for = retry_for
        self._replicas = replicas
        self._wait_ms = wait_ms
        self._max_sessions = max_sessions
        self._ttl_ms = max(1, round(session_ttl * 1000))
        self._turns = asyncio.Semaphore(_COMMANDS)

    async def open(self) -> None:
        """Connect. Raises `SettingsError`."""
        await self.warnings()

    async def warnings(self) -> list[str]:
        try:
            warnings = [text for redis in await self._servers.clients() for text in await _warnings(redis)]
        except _FAILURES as error:
            raise SettingsError(
                f"SESSION_STORE_URL names {self._address.text}, which cannot be used: {_reason(error)}."
            ) from None
        return list(dict.fromkeys(warnings))

    async def claim(self, key: SessionKey) -> Claim:
        if key.counted:
            await self._count(key)
        fields = iter(await self._write(scripts.CLAIM, key, new_token(), self._ttl(key)))
        stored = scripts.read_session(dict(zip(fields, fields, strict=True)))
        assert stored is not None
        return stored.claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        values = (claim.token, self._ttl(claim.key), claim.revision, commit_id, data)
        put = (part for pair in attachments.put.items() for part in pair)
        beside = (len(attachments.drop), *attachments.drop, *put)
        reply = await self._write(scripts.COMMIT, claim.key, *values, "1" if snapshot else "", *beside)
        if reply == 1:
            claim.revision += 1
        else:
            settle(claim, commit_id, scripts.read_meta(reply))

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        name = scripts.attachments_name(self.prefix, key)
        found = await self._send(name, lambda redis: redis.hmget(name, names)) if names else []
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    async def release(self, claim: Claim) -> None:
        await self._write(scripts.RELEASE, claim.key, claim.token)

    async def aclose(self) -> None:
        await self._servers.aclose()

    async def _count(self, key: SessionKey) -> None:
        # A stored session may always be claimed.
        index, name = scripts.index_name(self.prefix, key.subject), scripts.session_name(self.prefix, key)
        arguments = (key.session_id, self._ttl_ms, self._max_sessions)
        # No transaction: the subject's index is in another slot of a cluster than the session.
        counted = await self._send(index, lambda redis: _run(redis, scripts.COUNT, (index,), arguments))
        if not counted and not await self._send(name, lambda redis: redis.hexists(name, "epoch")):
            raise too_many(self._max_sessions)

    def _ttl(self, key: SessionKey) -> int:
        return 0 if key.never_expires else self._ttl_ms

    # -- the operator's operations; SCAN does not block other clients

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        """List sessions by subject and id; scans all keys, once. Raises `StoreUnavailable`."""
        pattern = scripts.session_pattern(self.prefix, subject, session_id)
        names: set[bytes] = set()
        try:
            for redis in await self._servers.clients():
                matches = [name async for name in redis.scan_iter(pattern, count=_PAGE)]
                names.update(await _recent(redis, matches, since) if since > 0 else matches)
        except _FAILURES as error:
            raise StoreUnavailable(f"The session store cannot be used: {_reason(error)}.") from None
        first = ("", "") if after is None else (after.subject, after.session_id)
        pairs = filter(None, map(scripts.session_of, names))
        return [SessionKey(*pair) for pair in sorted(pairs) if after is None or pair > first][:limit]

    async def read(self, key: SessionKey) -> Stored | None:
        name = scripts.session_name(self.prefix, key)
        return scripts.read_session(await self._send(name, lambda redis: redis.hgetall(name)))

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        if session_id is not None:
            return await self._delete(SessionKey(subject, session_id))
        keys = await self.keys(subject, None, None, sys.maxsize)
        return sum([await self._delete(key) for key in keys])

    async def _delete(self, key: SessionKey) -> int:
        is_own = key.never_expires or key.subject.startswith(NEVER_EXPIRES)
        was = await self._write(scripts.DELETE, key, OWN_FENCE_MS if is_own else self._ttl_ms)
        index = scripts.index_name(self.prefix, key.subject)
        # Second: after a failure in between the count is too high until it expires, and never too low.
        await self._send(index, lambda redis: redis.zrem(index, key.session_id))
        return int(was)

    # -- commands; each may run more than once

    async def _write(self, script: str, key: SessionKey, *arguments: str | bytes | int) -> Any:
        name, beside = scripts.session_name(self.prefix, key), scripts.attachments_name(self.prefix, key)

        async def write(redis: Redis) -> Any:
            if not self._replicas:
                return await _run(redis, script, (name, beside), arguments)
            # WAIT covers the earlier writes of its connection.
            async with redis.pipeline(transaction=False) as pipeline:
                await _run(redis, script, (name, beside), arguments, pipeline)
                reply, copies = await pipeline.execute_command(
                    "WAIT", self._replicas, self._wait_ms
                ).execute()
            if copies < self._replicas:
                raise exceptions.ConnectionError(f"fewer than {self._replicas} replicas have it")
            return reply

        return await self._send(name, write)

    async def _send(self, key: str, send: Callable[[Redis], Awaitable[_T]]) -> _T:
        async def attempt() -> _T:
            try:
                async with self._turns:
                    return await send(await self._servers.client(key))
            except _FAILURES:
                await self._servers.look(key)
                raise

        return await retry(attempt, self._retry_for, _FAILURES, _reason)


async def _run(
    redis: Redis,
    script: str,
    names: Sequence[str],
    arguments: Sequence[str | bytes | int],
    at: Redis | None = None,
) -> Any:
    return await redis.register_script(script)(names, arguments, at)


async def _recent(redis: Redis, names: Sequence[bytes], since: float) -> Iterator[bytes]:
    times: list[bytes | None] = []
    for start in range(0, len(names), _PAGE):
        pipeline = redis.pipeline(transaction=False)
        for name in names[start : start + _PAGE]:
            pipeline.hget(name, "updated")
        times += await pipeline.execute()
    # Redis counts whole seconds.
    return (name for name, time in zip(names, times, strict=True) if int(time or 0) >= int(since))


async def _warnings(redis: Redis) -> list[str]:
    try:
        info = {**await redis.info("memory"), **await redis.info("persistence")}
    except exceptions.NoPermissionError:
        return []
    warnings = []
    if info.get("aof_enabled") == 0:
        warnings.append("appendonly is off: a restart of Redis loses commits; set it to yes")
    if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
        policy = info.get("maxmemory_policy")
        warnings.append(f"maxmemory-policy is {policy}: sessions may be evicted; set it to noeviction")
    return warnings


_WRONG_PASSWORD = "the address has no password, or a wrong one"
# By the error codes of Redis.
_MEANINGS = {
    "NOAUTH": _WRONG_PASSWORD,
    "WRONGPASS": _WRONG_PASSWORD,
    "NOPERM": "its user lacks a permission",
    "OOM": "its memory is full",
    "READONLY": "it is a replica, which takes no writes",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
    "MISCONF": "it cannot save to its disk",
    "LOADING": "it is still loading its data",
}


def _reason(error: BaseException) -> str:
    """Describe an error in a clause. The server's message is not quoted: it may name the user."""
    match error:
        case exceptions.TimeoutError() | TimeoutError():
            return "it did not answer in time"
        case exceptions.MovedError():
            return "it is a node of a cluster: write redis+cluster:// before its address"
        case MasterNotFoundError():
            return "its Sentinels name no primary that is up"
        case exceptions.AuthenticationError() | exceptions.ResponseError():
            code = error.status_code or str(error).partition(" ")[0]
            if "unauthenticated" in str(error):  # of a long command, where a short one gets NOAUTH
                code = "NOAUTH"
            return f"{_MEANINGS[code]} ({code})" if code in _MEANINGS else f"it answered {code}"
        case exceptions.ConnectionError() if isinstance(error.__cause__, ConnectionResetError):
            return "the connection was closed"
    return str(error).rstrip(".") or "the connection was closed"


def from_url(url: str, options: StoreOptions) -> RedisStore:
    """Make the store of an address. Raises `SettingsError`."""
    return RedisStore(
        url,
        session_ttl=options.session_ttl_s,
        replicas=options.replicas,
        max_sessions=options.max_sessions,
    )
