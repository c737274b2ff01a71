"""One-time tokens: the app's backend makes one for a person, and a client connects with it once."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from functools import partial
from typing import Literal

import msgspec
import structlog

from conductor.conversation.records import Commit, FieldSet, encode
from conductor.conversation.replay import replay
from conductor.errors import StoreError
from conductor.events.envelope import PATH
from conductor.server.auth import Authenticator, Handshake, Principal
from conductor.stores.base import NEVER_EXPIRES, SessionKey, SessionLog

log = structlog.get_logger(__name__)

PREFIX = "once-"
_FIELD = "token"


class Grant(msgspec.Struct, frozen=True):
    """What a token is for; ``expires`` is epoch seconds."""

    person: str
    session: str | None
    expires: float
    role: Literal["app", "program"] = "app"


class OneTimeTokens(Authenticator):
    """Admits a client with a one-time token.

    A token is a record in the store under its hash. The connection that deletes the record has used it, so
    that it works once among all processes, and after a restart.
    """

    def __init__(self, store: SessionLog) -> None:
        self._store = store

    async def make(
        self, person: str, session: str | None, seconds: float, role: Literal["app", "program"] = "app"
    ) -> tuple[str, float]:
        """Make a token; returns it with its end in epoch seconds. Raises `StoreError`."""
        token, expires = PREFIX + secrets.token_urlsafe(32), time.time() + seconds
        grant = msgspec.json.encode(Grant(person, session, expires, role)).decode()
        key = _key(token)
        claim = await self._store.claim(key)
        commit = Commit(claim=claim.token, at=time.time_ns() // 1_000_000, records=(FieldSet(_FIELD, grant),))
        await self._store.append(claim, claim.token, encode(commit))
        # One that is left by a process that dies is deleted as an unused session is.
        asyncio.get_running_loop().call_later(seconds, lambda: asyncio.ensure_future(self._use(key)))
        return token, expires

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person of a token, which is used up by ``redeem``. Raises `StoreUnavailable`."""
        token = handshake.token
        if token is None or not token.startswith(PREFIX):
            return None
        key = _key(token)
        stored = await self._store.read(key)
        fields = {} if stored is None else replay(stored.commits(), stored.meta.revision).fields
        grant = msgspec.json.decode(fields[_FIELD], type=Grant) if _FIELD in fields else None
        if grant is None or grant.expires <= time.time():
            return None
        # A program or the page would see the person's other sessions.
        if grant.session is not None and handshake.path.partition("?")[0] != PATH:
            return None
        use = partial(self._use, key)
        return Principal(grant.person, session=grant.session, redeem=use, role=grant.role)

    async def _use(self, key: SessionKey) -> bool:
        try:
            return bool(await self._store.delete(key.subject, key.session_id))
        except StoreError as error:
            log.warning("one-time token not used", error=type(error).__name__)
            return False


def _key(token: str) -> SessionKey:
    digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
    return SessionKey(f"{NEVER_EXPIRES}token-{digest}", "token")
