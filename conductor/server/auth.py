"""The interface of an authenticator, which names the person behind a connection."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

from websockets.datastructures import Headers

# The begin of the ids of people whom an identity provider or the app's backend names.
PERSON = "person-"


def person_id(tenant: str, name: str) -> str:
    """Name a person of a tenant, such as an issuer: the id is in logs, and a name may be a mail address."""
    return PERSON + hashlib.sha256(f"{tenant}\n{name}".encode(errors="replace")).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Principal:
    """A person. Sessions, limits, grants and reminders belong to ``id``, which appears in logs.

    The proof ends at ``expires``, in epoch seconds, and may be good for one ``session`` only.
    """

    id: str
    expires: float | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Handshake:
    """The request of a connection: ``path`` with its query, headers, and addresses.

    ``peer`` is the socket's remote address, ``address`` the client's; it is empty without TRUSTED_PROXIES.
    """

    path: str
    headers: Headers
    peer: str = ""
    address: str = ""

    @property
    def token(self) -> str | None:
        """The token: ``Authorization: Bearer``, subprotocol ``bearer.<token>``, or query ``token``."""
        for value in self.headers.get_all("Authorization"):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
        for value in self.headers.get_all("Sec-WebSocket-Protocol"):
            for name in value.split(","):
                if name.strip().startswith("bearer."):
                    return name.strip().removeprefix("bearer.")
        tokens = parse_qs(self.path.partition("?")[2]).get("token")
        return tokens[0] if tokens else None


class Authenticator(Protocol):
    """Names the person behind a handshake; the setting AUTH chooses it by its entry point's name."""

    @property
    def required(self) -> bool:
        """Whether a client must prove who it is. If not, the server trusts its own machine only."""
        ...

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person; None refuses the connection. Must not log the token."""
        ...

    def admits(self, person: str) -> bool:
        """Tell whether a connected person may stay.

        After a reload of the settings, a new authenticator is asked about everybody who is connected.
        """
        ...


def token_digest(token: str) -> bytes:
    """Hash a token, so that tokens of any length are compared in constant time."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
