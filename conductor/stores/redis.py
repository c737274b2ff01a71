"""The session store in Redis or Valkey, shared by all nodes.

A claim and a commit are one script each (`redis_scripts`). A script without a reply is repeated under the
same id. The server must keep acknowledged commits: ``appendonly yes``, ``maxmemory-policy noeviction``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import structlog

from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores import redis_scripts as scripts
from conductor.stores.addresses import RedisAddress
from conductor.stores.base import MAX_SESSIONS, Claim, Operation, SessionKey, too_many
from conductor.stores.records import Draft, Stored, new_token

log = structlog.get_logger(__name__)

# Sessions of a subject that are deleted after one scan.
_PAGE = 10_000


class RedisStore:
    """Keeps sessions for ``session_ttl`` seconds after their last claim or commit.

    A commit that fails for ``retry_for`` seconds is `StoreUnavailable`. It may have been recorded; then the
    next commit is a `Conflict`, and the session must be claimed again. With ``replicas`` a claim or commit
    succeeds when that many replicas have it; one try waits ``wait_ms``. Raises `SettingsError`.
    """

    is_async = True

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
        try:
            from conductor.stores.redis_client import Client
        except ModuleNotFoundError as missing:
            raise SettingsError(
                f"SESSION_STORE_URL needs the package {missing.name}: pip install 'conductor-voice[redis]'."
            ) from missing
        self._address = RedisAddress.parse(url)
        self.client = Client(self._address, retry_for=retry_for, replicas=replicas, wait_ms=wait_ms)
        self.prefix = prefix
        self._max_sessions = max_sessions
        self._ttl_ms = str(max(1, round(session_ttl * 1000)))

    async def open(self) -> None:
        """Connect, and warn of settings that may lose sessions. Raises `SettingsError`."""
        for warning in await self.warnings():
            log.warning("sessions may be lost", store=str(self._address), reason=warning)

    async def warnings(self) -> list[str]:
        return await self.client.warnings()

    async def claim(self, key: SessionKey) -> Claim:
        if key.counted:
            await self._count(key)
        token = new_token()
        reply = await self.client.write(scripts.CLAIM, self._name(key), (token, self._ttl(key)))
        stored = scripts.read_session(reply)
        if stored is None:
            raise StoreUnavailable(scripts.STRANGE)
        return stored.claim(key)

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        draft = Draft(claim, commit_id, operations)
        snapshot = "1" if draft.snapshot else ""
        ttl, revision = self._ttl(claim.key), str(claim.revision)
        arguments = (claim.token, ttl, revision, commit_id, draft.data, snapshot)
        reply = await self.client.write(scripts.COMMIT, self._name(claim.key), arguments)
        if reply == 1:
            draft.accept()
        else:
            draft.settle(scripts.read_meta(reply))

    async def release(self, claim: Claim) -> None:
        """Release the claim; the session stays. Raises nothing."""
        await self.client.best_effort_write(scripts.RELEASE, self._name(claim.key), (claim.token,))

    async def aclose(self) -> None:
        await self.client.aclose()

    async def _count(self, key: SessionKey) -> None:
        # A stored session may always be claimed.
        index = scripts.index_name(self.prefix, key.subject)
        arguments = (key.session_id, self._ttl_ms, str(self._max_sessions))
        # No transaction: the subject's index is in another slot of a cluster than the session.
        if await self.client.query(index, "EVAL", scripts.COUNT, "1", index, *arguments) == 0:
            name = self._name(key)
            if await self.client.query(name, "HEXISTS", name, "epoch") == 0:
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
        async for names in self.client.scan(scripts.session_pattern(self.prefix, subject, session_id)):
            keys = filter(None, (scripts.session_of(scripts.text(name)) for name in names))
            pairs = {(key.subject, key.session_id) for key in keys}
            matches |= pairs if after is None else {pair for pair in pairs if pair > first}
            # SCAN has no order; memory stays bounded.
            if len(matches) > 10 * limit:
                matches = set(heapq.nsmallest(limit, matches))
        return [SessionKey(*pair) for pair in heapq.nsmallest(limit, matches)]

    async def read(self, key: SessionKey) -> Stored | None:
        name = self._name(key)
        return scripts.read_session(await self.client.query(name, "HGETALL", name))

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
        reply = await self.client.write(scripts.DELETE, self._name(key), (self._ttl_ms,))
        index = scripts.index_name(self.prefix, key.subject)
        # Second: after a failure in between the count is too high until it expires, and never too low.
        await self.client.query(index, "ZREM", index, key.session_id)
        return int(reply == 1)


def from_settings(settings: Settings) -> RedisStore:
    """Make the store at SESSION_STORE_URL."""
    return RedisStore(
        settings.store_url,
        session_ttl=settings.session_ttl_s,
        replicas=settings.session_store_replicas,
        max_sessions=settings.max_kept_sessions_per_subject,
    )
