"""Who connects: bearer tokens, found in a header, a subprotocol or the query, before the upgrade."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from websockets.http11 import Request

SUBPROTOCOL = "conductor.v1"
"""What a browser names beside ``bearer.<token>``; the token itself is never echoed."""

ANONYMOUS = "anonymous"
"""The subject of everybody where no tokens are set."""


@dataclass(frozen=True, slots=True)
class _Token:
    digest: bytes
    subject: str


class Authenticator:
    """Static tokens, kept hashed and compared in constant time. Without any, everybody is anonymous."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tuple(_Token(digest, f"token-{digest.hex()[:16]}") for digest in map(_digest, tokens))

    @property
    def required(self) -> bool:
        """Whether a token is needed."""
        return bool(self._tokens)

    def subject(self, request: Request) -> str | None:
        """Say who asks for the upgrade, or None if nobody who may."""
        if not self._tokens:
            return ANONYMOUS
        given = bearer_token(request)
        if given is None:
            return None
        digest = _digest(given)
        subject = None
        for token in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(token.digest, digest):
                subject = token.subject
        return subject


def bearer_token(request: Request) -> str | None:
    """Find the token: ``Authorization: Bearer``, subprotocol ``bearer.<token>``, or query ``token``."""
    for value in request.headers.get_all("Authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    for value in request.headers.get_all("Sec-WebSocket-Protocol"):
        for name in value.split(","):
            if name.strip().startswith("bearer."):
                return name.strip().removeprefix("bearer.")
    tokens = parse_qs(request.path.partition("?")[2]).get("token")
    return tokens[0] if tokens else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
