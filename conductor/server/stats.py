"""``GET /admin/stats``: its authentication and its answer.

It needs the one ADMIN_TOKEN, which is no client's token, in the ``Authorization`` header and nowhere else.
Requests of web pages are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import http
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.datastructures import Headers

from conductor.errors import SettingsError
from conductor.settings import Settings

STATS_PATH = "/admin/stats"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; ``headers`` are added to those that every answer has."""

    status: http.HTTPStatus
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """Answers the operator; keeps the token hashed. ``now`` is any clock in seconds."""

    def __init__(self, token: str, now: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(token)
        self._now = now
        self._started = now()

    def stats(self, headers: Headers, facts: Callable[[], Mapping[str, Any]]) -> Answer:
        """Answer with ``facts`` and ``uptime_s`` as JSON; ``facts`` is called only for a valid token.

        A valid token always works: wrong guesses from other clients must not lock the operator out.
        """
        if "Origin" in headers:
            return Answer(http.HTTPStatus.FORBIDDEN, "Not for pages in a browser.\n")
        token = _bearer(headers)
        if token is None or not hmac.compare_digest(self._digest, _digest(token)):
            return Answer(http.HTTPStatus.UNAUTHORIZED, "The operator's bearer token is needed.\n")
        text = json.dumps({"uptime_s": round(self._now() - self._started, 1), **facts()})
        return Answer(http.HTTPStatus.OK, f"{text}\n", {"Content-Type": "application/json"})


def make_admin(settings: Settings) -> Admin | None:
    """Make the operator's endpoint, or None without ADMIN_TOKEN.

    Raises `SettingsError` if the token is also a client's, or does not fit into a header.
    """
    if settings.admin_token is None:
        return None
    token = settings.admin_token.get_secret_value()
    check_admin_token(token, settings.auth_tokens)
    return Admin(token)


def check_admin_token(token: str, client_tokens: Collection[str]) -> None:
    """Raise `SettingsError` if ADMIN_TOKEN is also a client's token, or does not fit into a header."""
    if token in client_tokens:
        raise SettingsError("ADMIN_TOKEN is one of AUTH_TOKENS: clients must not have the operator's token.")
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("ADMIN_TOKEN holds characters that no header can carry: take a random token.")


def _bearer(headers: Headers) -> str | None:
    values = headers.get_all("Authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
