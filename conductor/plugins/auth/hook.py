"""AUTH=hook: the service at the address AUTH_HOOK names the person of each handshake.

It gets ``{"token": …, "address": …, "headers": {…}}`` by POST, and answers ``{"id": …}``, if it wants with
``tenant``, ``expires`` (epoch seconds) and ``role`` (``app`` or ``program``); any other status than 2xx
refuses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Annotated, Literal

import msgspec

from conductor.plugins.auth.requests import check_url, fetch, read_value
from conductor.server.auth import Authenticator, Handshake, Principal, person_id
from conductor.server.refusals import Refusals
from conductor.settings import Settings

# Answers with an end are kept until it, these seconds at most.
CACHE_S = 300.0
MAX_CACHED = 1_000


class _Answer(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    tenant: str = ""
    expires: float | None = None
    role: Literal["app", "program"] = "app"


class HookAuthenticator(Authenticator):
    """Posts handshakes by ``ask``, and keeps answers by a hash of the question."""

    def __init__(
        self, ask: Callable[[bytes], Awaitable[bytes]], now: Callable[[], float] = time.time
    ) -> None:
        self._ask = ask
        self._now = now
        self._refusals = Refusals()
        self._cache: dict[bytes, tuple[float, Principal]] = {}

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person whom the service names; None also if it cannot be asked."""
        headers = {name.lower(): ", ".join(handshake.headers.get_all(name)) for name in handshake.headers}
        headers.pop("sec-websocket-key", None)  # it differs in each handshake
        question = {"token": handshake.token, "address": handshake.address, "headers": headers}
        try:
            body = msgspec.json.encode(question)
            key, now = hashlib.sha256(body).digest(), self._now()
            until, principal = self._cache.pop(key, (0.0, None))
            if principal is None or until <= now:
                answer = msgspec.json.decode(await self._ask(body), type=_Answer)
                person = person_id(answer.tenant, answer.id)
                principal = Principal(person, answer.expires, role=answer.role)
                until = now if answer.expires is None else min(answer.expires, now + CACHE_S)
        except Exception as error:  # of the connection, the status or the answer
            self._refusals.count("AUTH_HOOK", handshake.peer, error=type(error).__name__)
            return None
        if principal.expires is not None and principal.expires <= now:
            return None
        if until > now:
            self._cache[key] = until, principal
            if len(self._cache) > MAX_CACHED:
                del self._cache[next(iter(self._cache))]
        return principal


@lru_cache(maxsize=1)  # a reload of the settings keeps the answers
def _authenticator(url: str, local_only: bool) -> HookAuthenticator:
    return HookAuthenticator(partial(fetch, url, local_only=local_only))


def from_settings(settings: Settings) -> HookAuthenticator:
    """Make the authenticator. Raises `SettingsError` without an address, or for one that is not safe."""
    url = read_value("hook", "AUTH_HOOK")
    check_url("AUTH_HOOK", url)
    return _authenticator(url, settings.local_only)
