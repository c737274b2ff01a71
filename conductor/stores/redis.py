"""The session store on Redis or Valkey: sessions outlive the process, and any node may take one over.

A claim and a commit are one script each (`redis_scripts`), so that nothing comes between their steps, on this
node or another. A lost reply is asked for again under the same id. The server should keep what it has
acknowledged (``appendonly yes``) and throw nothing away (``maxmemory-policy noeviction``).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.base import MAX_SESSIONS, Claim, Operation, SessionKey, too_many
from conductor.stores.records import Draft, Stored, new_token
from conductor.stores.redis_scripts import (
    CLAIM,
    COMMIT,
    COUNT,
    DELETE,
    RELEASE,
    STRANGE,
    index_name,
    read_meta,
    read_session,
    session_name,
    session_of,
    session_pattern,
    text,
)
from conductor.stores.redis_url import RedisAddress

if TYPE_CHECKING:
    from conductor.stores.redis_client import Client

# Names read at once where all of a subject's sessions are wanted.
_PAGE = 10_000


class RedisStore:
    """Keeps sessions in Redis, for ``session_ttl`` seconds after their last claim or commit.

    The server's own records do not expire.

    A commit is tried for ``retry_for`` seconds and then is `StoreUnavailable`; it may have been recorded all
    the same, and then the next commit is a `Conflict`: claim the session again. With ``replicas``, each claim
    and commit waits up to ``wait_ms`` until so many replicas have it, and counts as not done before.
    ``prefix`` begins the names of all keys. ``max_sessions`` is a subject's limit. Raises
    `SettingsError` for a URL that is none.
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
        self.client = _client()(
            RedisAddress.parse(url), retry_for=retry_for, replicas=replicas, wait_ms=wait_ms
        )
        self.prefix = prefix
        self._max_sessions = max_sessions
        self._ttl_ms = str(max(1, round(session_ttl * 1000)))

    async def open(self) -> None:
        """Connect now, so that a mistake is said at the start; without this, the first claim connects.

        Raises `SettingsError`.
        """
        await self.client.open()

    async def warnings(self) -> list[str]:
        """Say what about the server may lose sessions, a clause each. Raises `SettingsError`."""
        return await self.client.warnings()

    async def claim(self, key: SessionKey) -> Claim:
        """Take a session over, making it if there is none. Raises `StoreUnavailable`, `TooManySessions`."""
        if key.counted:
            await self._count(key)
        token = new_token()
        stored = read_session(
            await self.client.write(CLAIM, session_name(self.prefix, key), (token, self._ttl(key)))
        )
        if stored is None:
            raise StoreUnavailable(STRANGE)
        return stored.claim(key)

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all of them, or none; see `SessionStore`."""
        draft = Draft(claim, commit_id, operations)
        arguments = (
            claim.token,
            self._ttl(claim.key),
            str(claim.revision),
            commit_id,
            draft.data,
            "1" if draft.snapshot else "",
        )
        reply = await self.client.write(COMMIT, session_name(self.prefix, claim.key), arguments)
        # The script answers 1 on the usual way, so that a commit's reply is four bytes.
        if reply == 1:
            draft.accept()
        else:
            draft.settle(read_meta(reply))

    async def release(self, claim: Claim) -> None:
        """Let go of a session, which stays until it expires; without a server too. Raises nothing."""
        await self.client.best_effort_write(RELEASE, session_name(self.prefix, claim.key), (claim.token,))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def _count(self, key: SessionKey) -> None:
        # A session that is there already may always be claimed.
        index = index_name(self.prefix, key.subject)
        arguments = (key.session_id, self._ttl_ms, str(self._max_sessions))
        # Two commands and no transaction: the subject's index is in another slot of a cluster than the
        # session.
        if await self.client.query(index, "EVAL", COUNT, "1", index, *arguments) == 0:
            name = session_name(self.prefix, key)
            if await self.client.query(name, "HEXISTS", name, "epoch") == 0:
                raise too_many(self._max_sessions)

    def _ttl(self, key: SessionKey) -> str:
        return "0" if key.never_expires else self._ttl_ms

    # -- for an operator: sessions are found by SCAN, which holds up no other client

    async def keys(
        self, subject: str | None, session_id: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionKey]:
        """List sessions by subject and id. Raises `StoreUnavailable`.

        Costs a look at the names of all keys, at some 100,000 a second; what is in memory is bounded.
        """
        first = ("", "") if after is None else (after.subject, after.session_id)
        found: set[tuple[str, str]] = set()
        async for names in self.client.scan(session_pattern(self.prefix, subject, session_id)):
            keys = [key for key in (session_of(text(name)) for name in names) if key is not None]
            pairs = {(key.subject, key.session_id) for key in keys}
            found |= pairs if after is None else {pair for pair in pairs if pair > first}
            # Names come in no order, and SCAN may name one twice: the smallest are kept, and memory stays
            # bounded.
            if len(found) > 10 * limit:
                found = set(heapq.nsmallest(limit, found))
        return [SessionKey(*pair) for pair in heapq.nsmallest(limit, found)]

    async def read(self, key: SessionKey) -> Stored | None:
        """Read a session without claiming it; None if there is none. Raises `StoreUnavailable`."""
        name = session_name(self.prefix, key)
        return read_session(await self.client.query(name, "HGETALL", name))

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session, or all of a subject's, and fence the owners; return their number."""
        if session_id is not None:
            return await self._delete(SessionKey(subject, session_id))
        deleted = 0
        after: SessionKey | None = None
        while page := await self.keys(subject, None, after, _PAGE):
            for after in page:
                deleted += await self._delete(after)
        return deleted

    async def _delete(self, key: SessionKey) -> int:
        reply = await self.client.write(DELETE, session_name(self.prefix, key), (self._ttl_ms,))
        index = index_name(self.prefix, key.subject)
        # After the session: a failure between the two leaves the count too high, which expires, and not too
        # low.
        await self.client.query(index, "ZREM", index, key.session_id)
        return int(reply == 1)


def _client() -> type[Client]:
    try:
        from conductor.stores.redis_client import Client
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        raise SettingsError(
            f"SESSION_STORE_URL needs the package {error.name}: pip install 'conductor-voice[redis]'."
        ) from None
    return Client


def from_settings(settings: Settings) -> RedisStore:
    """Make the store on the server that SESSION_STORE_URL names."""
    return RedisStore(
        settings.store_url,
        session_ttl=settings.session_ttl_s,
        replicas=settings.session_store_replicas,
        max_sessions=settings.max_kept_sessions_per_subject,
    )
