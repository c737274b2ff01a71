"""One-time tokens: the app's backend makes one for a person, and a client connects with it once."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

import msgspec
import structlog

from conductor.conversation.ledger import replay
from conductor.conversation.records import Commit, FieldSet, encode
from conductor.errors import StoreError
from conductor.events.envelope import PATH
from conductor.server.auth import PERSON, Authenticator, Handshake, Principal
from conductor.stores.base import NEVER_EXPIRES, SessionKey, SessionLog

log = structlog.get_logger(__name__)

PREFIX = "once-"
_FIELD = "token"


class Grant(msgspec.Struct, frozen=True):
    """What a token is for; ``expires`` is epoch seconds."""

    person: str
    session: str | None
    expires: float


class OneTimeTokens:
    """Admits one-time tokens, and asks another authenticator about all others.

    A token is a record in the store under its hash. The connection that deletes the record has used it, so
    that it works once among all processes, and after a restart.
    """

    def __init__(self, fallback: Authenticator, store: SessionLog) -> None:
        self._fallback = fallback
        self._store = store

    @property
    def required(self) -> bool:
        """Whether clients need a token."""
        return self._fallback.required

    def admits(self, person: str) -> bool:
        """Admit those whom the backend named; the others are the other authenticator's."""
        return person.startswith(PERSON) or self._fallback.admits(person)

    async def make(self, person: str, session: str | None, seconds: float) -> tuple[str, float]:
        """Make a token; returns it with its end in epoch seconds. Raises `StoreError`."""
        token, expires = PREFIX + secrets.token_urlsafe(32), time.time() + seconds
        grant = msgspec.json.encode(Grant(person, session, expires)).decode()
        key = _key(token)
        claim = await self._store.claim(key)
        commit = Commit(claim.token, time.time_ns() // 1_000_000, (FieldSet(_FIELD, grant),))
        await self._store.append(claim, claim.token, encode(commit))
        # One that is left by a process that dies is deleted as an unused session is.
        asyncio.get_running_loop().call_later(seconds, lambda: asyncio.ensure_future(self._use(key)))
        return token, expires

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person of a token, and use the token up."""
        token = handshake.token
        if token is None or not token.startswith(PREFIX):
            return await self._fallback.authenticate(handshake)
        if not handshake.path:  # a renewal: the connection would lose the end of its first token
            return None
        grant = await self._use(_key(token))
        if grant is None or grant.expires <= time.time():
            return None
        # A program or the page would see the person's other sessions.
        if grant.session is not None and handshake.path.partition("?")[0] != PATH:
            return None
        return Principal(grant.person, session=grant.session)

    async def _use(self, key: SessionKey) -> Grant | None:
        try:
            stored = await self._store.read(key)
            if stored is None or not await self._store.delete(key.subject, key.session_id):
                return None
            fields = replay(stored.commits(), stored.meta.revision).fields
            return msgspec.json.decode(fields[_FIELD], type=Grant)
        except (StoreError, KeyError) as error:
            log.warning("one-time token not read", error=type(error).__name__)
            return None


def _key(token: str) -> SessionKey:
    digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
    return SessionKey(f"{NEVER_EXPIRES}token-{digest}", "token")
