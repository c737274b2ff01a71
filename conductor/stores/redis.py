"""The session store on Redis or Valkey: sessions outlive the process, and any node may take one over.

A claim and a commit are one script each (`redis_scripts`), so that nothing comes between their steps, on this
node or another. A lost reply is asked for again under the same id. The server should keep what it has
acknowledged (``appendonly yes``) and throw nothing away (``maxmemory-policy noeviction``).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

import structlog

from conductor.errors import Conflict, Duplicate, Fenced, Rollback, SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.base import KEPT, MAX_SEEN, Claim, Operation, SessionKey, too_many
from conductor.stores.redis_records import (
    CLAIM,
    COMMIT,
    COUNT,
    RELEASE,
    STRANGE,
    Reply,
    index_name,
    key_names,
    read,
    text,
    written,
)
from conductor.stores.redis_url import RedisAddress

if TYPE_CHECKING:
    from conductor.stores.redis_client import Client

log = structlog.get_logger(__name__)


class RedisStore:
    """Keeps sessions in Redis, for ``session_ttl`` seconds after their last claim or commit.

    Lasting ones do not expire.

    A commit is tried for ``retry_for`` seconds and then is `StoreUnavailable`; it may have been recorded all
    the same, and then the next commit is a `Conflict`: claim the session anew. With ``replicas``, each claim
    and commit waits up to ``wait_ms`` until so many replicas have it, and counts as not done before.
    ``prefix`` begins the names of all keys. A subject may keep ``kept`` sessions. Raises `SettingsError` for
    a URL that is none.
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
        kept: int = KEPT,
    ) -> None:
        self.client = _client()(
            RedisAddress.parse(url), retry_for=retry_for, replicas=replicas, wait_ms=wait_ms
        )
        self.prefix = prefix
        self._kept = kept
        self.ttl_ms = str(max(1, round(session_ttl * 1000)))
        self._node = f"{platform.node() or 'node'}-{os.getpid()}"
        self._held: dict[str, list[str]] = {}  # token -> its session's keys

    async def open(self) -> None:
        """Connect now, so that a mistake is said at the start; without this, the first claim connects.

        Raises `SettingsError`.
        """
        await self.client.open()

    async def claim(self, key: SessionKey) -> Claim:
        """Take a session over, making it if there is none. Raises `StoreUnavailable`, `TooManySessions`."""
        if key.counted:
            await self._count(key)
        token = f"{self._node}:{uuid4().hex}"
        keys = key_names(self.prefix, key)
        kept = read(await self.client.write(CLAIM, keys, (token, self._ttl(key))))
        if not kept.whole:
            log.warning("session incomplete", session=key.session_id)
        if not key.lasting:  # those are claimed at every turn, and never let go
            self._held[token] = keys
        return Claim(key, token, kept.epoch, kept.revision, kept.state)

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all of them, or none; see `SessionStore`."""
        keys = self._held.get(claim.token)
        if keys is None and claim.key.lasting:
            keys = key_names(self.prefix, claim.key)
        if keys is None:  # released, fenced before, or made up
            raise Fenced("Another claim owns this session.")
        arguments = [
            claim.token,
            commit_id,
            str(claim.revision),
            self._ttl(claim.key),
            str(MAX_SEEN),
            *written(operations),
        ]
        reply = await self.client.write(COMMIT, keys, arguments)
        if not isinstance(reply, int):
            self._refuse(claim, reply)
        claim.revision = reply

    async def release(self, claim: Claim) -> None:
        """Let go of a session, which stays until it expires; without a server too. Raises nothing."""
        keys = self._held.pop(claim.token, None)
        if keys is not None:
            await self.client.best_effort_write(RELEASE, keys, (claim.token,))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def _count(self, key: SessionKey) -> None:
        """Count a session that is about to be claimed. One that is there already always may be."""
        index = index_name(self.prefix, key.subject)
        arguments = (key.session_id, self.ttl_ms, str(self._kept))
        if await self.client.query(index, "EVAL", COUNT, "1", index, *arguments) == 0:
            meta = key_names(self.prefix, key)[0]
            if await self.client.query(meta, "EXISTS", meta) == 0:
                raise too_many(self._kept)

    def _ttl(self, key: SessionKey) -> str:
        """Say for how many milliseconds a session is kept; ``0`` is for ever."""
        return "0" if key.lasting else self.ttl_ms

    def _refuse(self, claim: Claim, reply: Reply) -> NoReturn:
        code, detail = reply if isinstance(reply, list) and len(reply) == 2 else (None, None)
        match code, detail:
            case b"FENCED", _:
                self._held.pop(claim.token, None)
                if detail == b"gone":
                    raise Fenced("This session was deleted.", gone=True)
                raise Fenced("Another claim owns this session.")
            case b"DUPLICATE", bytes():
                raise Duplicate(f"{text(detail)} was recorded before.")
            case b"REVISION", int() if detail < claim.revision:
                raise Rollback(f"The session is back at revision {detail}; it was at {claim.revision}.")
            case b"REVISION", int():
                raise Conflict(f"The session is at revision {detail}, not {claim.revision}.")
            case b"LOST", _:
                raise Rollback("The store has lost this session, or a part of it.")
        raise StoreUnavailable(STRANGE)


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
        kept=settings.max_kept_sessions_per_subject,
    )
