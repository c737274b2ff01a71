"""The session store in Redis or Valkey, shared by all nodes.

A claim and a commit are one script each (`redis_scripts`). A script without a reply is repeated under the
same id. The server must keep acknowledged commits: ``appendonly yes``, ``maxmemory-policy noeviction``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores import redis_scripts as scripts
from conductor.stores.addresses import RedisAddress
from conductor.stores.base import MAX_SESSIONS, Claim, SessionKey, Stored, new_token, settle, too_many

try:
    from redis import exceptions

    from conductor.stores.redis_servers import (
        Cluster,
        ConnectionLost,
        Lane,
        Limits,
        Primary,
        Refused,
        failure,
    )
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"SESSION_STORE_URL needs the package {missing.name}: pip install 'conductor-voice[redis]'."
    ) from missing

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Sessions of a subject that are deleted after one scan, and keys in one step of a scan: less than a
# millisecond of the server.
_PAGE = 10_000
_SCANNED = "1000"
# The first and the longest pause between two tries.
_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25


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
        kind = Cluster if self._address.kind == "cluster" else Primary
        self._servers: Cluster | Primary = kind(self._address, Limits(timeout, replicas, wait_ms))
        self.prefix = prefix
        self._retry_for = retry_for
        self._max_sessions = max_sessions
        self._ttl_ms = str(max(1, round(session_ttl * 1000)))

    async def open(self) -> None:
        """Connect, and warn of settings that may lose sessions. Raises `SettingsError`."""
        for warning in await self.warnings():
            log.warning("sessions may be lost", store=str(self._address), reason=warning)

    async def warnings(self) -> list[str]:
        try:
            warnings = [text for lane in await self._servers.lanes() for text in await _warnings(lane)]
        except (ConnectionLost, Refused) as error:
            raise SettingsError(
                f"SESSION_STORE_URL names {self._address}, which cannot be used: {error}."
            ) from None
        return list(dict.fromkeys(warnings))

    async def claim(self, key: SessionKey) -> Claim:
        if key.counted:
            await self._count(key)
        stored = scripts.read_session(await self._write(scripts.CLAIM, key, new_token(), self._ttl(key)))
        if stored is None:
            raise StoreUnavailable(scripts.STRANGE)
        return stored.claim(key)

    async def append(self, claim: Claim, commit_id: str, data: bytes, *, snapshot: bool = False) -> None:
        values = (claim.token, self._ttl(claim.key), str(claim.revision), commit_id, data)
        reply = await self._write(scripts.COMMIT, claim.key, *values, "1" if snapshot else "")
        if reply == 1:
            claim.revision += 1
        else:
            settle(claim, commit_id, scripts.read_meta(reply))

    async def release(self, claim: Claim) -> None:
        """Release the claim; the session stays. Raises nothing."""
        try:
            await self._run(scripts.RELEASE, self._name(claim.key), (claim.token,), writes=False)
        except (ConnectionLost, Refused) as error:
            log.debug("session not released", reason=str(error))

    async def aclose(self) -> None:
        await self._servers.aclose()

    async def _count(self, key: SessionKey) -> None:
        # A stored session may always be claimed.
        index = scripts.index_name(self.prefix, key.subject)
        arguments = (key.session_id, self._ttl_ms, str(self._max_sessions))
        # No transaction: the subject's index is in another slot of a cluster than the session.
        if await self._query(index, "EVAL", scripts.COUNT, "1", index, *arguments) == 0:
            name = self._name(key)
            if await self._query(name, "HEXISTS", name, "epoch") == 0:
                raise too_many(self._max_sessions)

    def _name(self, key: SessionKey) -> str:
        return scripts.session_name(self.prefix, key)

    def _ttl(self, key: SessionKey) -> str:
        return "0" if key.never_expires else self._ttl_ms

    # -- the operator's operations; SCAN does not block other clients

    async def keys(
        self, subject: str | None, session_id: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionKey]:
        """List sessions by subject and id; scans all keys. Raises `StoreUnavailable`."""
        first = ("", "") if after is None else (after.subject, after.session_id)
        matches: set[tuple[str, str]] = set()
        async for names in self._scan(scripts.session_pattern(self.prefix, subject, session_id)):
            keys = filter(None, (scripts.session_of(scripts.text(name)) for name in names))
            pairs = {(key.subject, key.session_id) for key in keys}
            matches |= pairs if after is None else {pair for pair in pairs if pair > first}
            # SCAN has no order; memory stays bounded.
            if len(matches) > 10 * limit:
                matches = set(heapq.nsmallest(limit, matches))
        return [SessionKey(*pair) for pair in heapq.nsmallest(limit, matches)]

    async def read(self, key: SessionKey) -> Stored | None:
        name = self._name(key)
        return scripts.read_session(await self._query(name, "HGETALL", name))

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        if session_id is not None:
            return await self._delete(SessionKey(subject, session_id))
        deleted = 0
        after: SessionKey | None = None
        while page := await self.keys(subject, None, after, _PAGE):
            for after in page:
                deleted += await self._delete(after)
        return deleted

    async def _delete(self, key: SessionKey) -> int:
        reply = await self._write(scripts.DELETE, key, self._ttl_ms)
        index = scripts.index_name(self.prefix, key.subject)
        # Second: after a failure in between the count is too high until it expires, and never too low.
        await self._query(index, "ZREM", index, key.session_id)
        return int(reply == 1)

    # -- commands; each may run more than once

    async def _write(self, script: scripts.Script, key: SessionKey, *arguments: str | bytes) -> Any:
        return await self._retrying(partial(self._run, script, self._name(key), arguments))

    async def _query(self, key: str, *command: str) -> Any:
        return await self._retrying(partial(self._ask, key, *command))

    async def _scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        # The names of all matching keys, with repetitions.
        for lane in await self._retrying(self._servers.lanes):
            cursor = b""
            while cursor != b"0":
                page = partial(lane.ask, "SCAN", cursor or b"0", "MATCH", pattern, "COUNT", _SCANNED)
                cursor, names = await self._retrying(partial(_checked, page))
                yield names

    async def _run(
        self, script: scripts.Script, key: str, arguments: tuple[str | bytes, ...], *, writes: bool = True
    ) -> Any:
        try:
            return await self._ask(key, "EVALSHA", script.digest, "1", key, *arguments, writes=writes)
        except exceptions.NoScriptError:  # the server restarted
            return await self._ask(key, "EVAL", script.text, "1", key, *arguments, writes=writes)

    async def _ask(self, key: str, *command: str | bytes, writes: bool = False) -> Any:
        return await _checked(partial(self._servers.ask, key, *command, writes=writes))

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


async def _checked(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Give an answer that is no error. Raises `ConnectionLost`, `Refused` and `NoScriptError`."""
    reply = await ask()
    if isinstance(reply, exceptions.ResponseError):
        raise reply if isinstance(reply, exceptions.NoScriptError) else failure(reply)
    return reply


async def _warnings(lane: Lane) -> list[str]:
    info: dict[str, str] = {}
    for section in ("memory", "persistence"):
        answer = await lane.ask("INFO", section)
        if isinstance(answer, exceptions.ResponseError):
            return []
        lines = (line.partition(":") for line in scripts.text(answer).splitlines())
        info |= {name: value for name, _, value in lines}
    warnings = []
    if info.get("aof_enabled") == "0":
        warnings.append("appendonly is off: a restart loses unsaved commits")
    if info.get("maxmemory", "0") != "0" and info.get("maxmemory_policy") != "noeviction":
        warnings.append(f"maxmemory-policy is {info.get('maxmemory_policy')}: sessions may be evicted")
    return warnings


def from_settings(settings: Settings) -> RedisStore:
    """Make the store at SESSION_STORE_URL."""
    return RedisStore(
        settings.store_url,
        session_ttl=settings.session_ttl_s,
        replicas=settings.session_store_replicas,
        max_sessions=settings.max_kept_sessions_per_subject,
    )
