"""The operator's question at ``GET /admin/stats``: who may ask it, and the answer.

Whoever asks needs the one ADMIN_TOKEN, which is no client's token, in the ``Authorization`` header and
nowhere else. Pages in a browser may not ask at all.
"""

from __future__ import annotations

import hashlib
import hmac
import http
import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from websockets.datastructures import Headers

from conductor.bounds import TokenBucket
from conductor.errors import SettingsError
from conductor.settings import Settings

log = structlog.get_logger(__name__)

STATS_PATH = "/admin/stats"
WRONG_PER_MINUTE = 10
"""How many wrong tokens may be tried, by everybody together: an address is no person behind a proxy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back; ``headers`` come on top of those that every answer has."""

    status: http.HTTPStatus
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """Knows the operator's token, hashed, and answers who has it; ``now`` is any clock in seconds."""

    def __init__(self, token: str, now: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(token)
        self._now = now
        self._started = now()
        self._wrong = TokenBucket(WRONG_PER_MINUTE / 60, WRONG_PER_MINUTE, self._started)

    def stats(self, headers: Headers, facts: Callable[[], Mapping[str, Any]]) -> Answer:
        """Answer with ``facts`` and ``uptime_s`` as a JSON object; ``facts`` are only made for the operator.

        While too many wrong tokens come, none is looked at, the right one neither: an answer would tell
        whoever guesses which one it is.
        """
        if "Origin" in headers:
            return Answer(http.HTTPStatus.FORBIDDEN, "Not for pages in a browser.\n")
        token = _bearer(headers)
        if token is None:
            return _unauthorized()
        now = self._now()
        wait = self._wrong.wait(now)
        if wait:
            retry_after = {"Retry-After": str(math.ceil(wait))}
            return Answer(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many wrong tokens.\n", retry_after)
        if not hmac.compare_digest(self._digest, _digest(token)):
            self._wrong.spend(now)
            log.warning("wrong admin token")
            return _unauthorized()
        text = json.dumps({"uptime_s": round(now - self._started, 1), **facts()})
        return Answer(http.HTTPStatus.OK, f"{text}\n", {"Content-Type": "application/json"})


def make_admin(settings: Settings) -> Admin | None:
    """Make what answers the operator, or None without ADMIN_TOKEN.

    Raises `SettingsError` if the token is a client's as well, or could not be sent.
    """
    if settings.admin_token is None:
        return None
    token = settings.admin_token.get_secret_value()
    check_admin_token(token, settings.auth_tokens)
    return Admin(token)


def check_admin_token(token: str, client_tokens: Collection[str]) -> None:
    """Raise `SettingsError` if ADMIN_TOKEN is a client's token as well, or could not be sent."""
    if token in client_tokens:
        raise SettingsError("ADMIN_TOKEN is one of AUTH_TOKENS: clients must not have the operator's token.")
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("ADMIN_TOKEN holds characters that no header can carry: take a random token.")


def _bearer(headers: Headers) -> str | None:
    """Find the token. Two of these headers are none: a proxy might have looked at the other one."""
    values = headers.get_all("Authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _unauthorized() -> Answer:
    return Answer(http.HTTPStatus.UNAUTHORIZED, "The operator's bearer token is needed.\n")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
