"""Authenticators, which name the person behind a connection, and the list of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias
from urllib.parse import parse_qs

from websockets.datastructures import Headers

from conductor.identity import PERSON
from conductor.server.refusals import Refusals

# The authenticator that is made with the store of the sessions.
ONE_TIME = "one_time"


def person_id(issuer: str, name: str) -> str:
    """Return the id of the person whom an issuer names: it is in logs, and a name may be a mail address."""
    # As a list: no name may contain another issuer.
    digest = hashlib.sha256(json.dumps([issuer, name]).encode()).hexdigest()
    return f"{PERSON}{digest[:24]}"


Role: TypeAlias = Literal["app", "program", "any"]
"""What a proof opens: ``/ws`` and the page to an app, ``/mcp`` to a program.

A program that also were an app could declare a tool of the phone and answer its own questions.
"""


@dataclass(frozen=True, slots=True)
class Principal:
    """A person, and the ``role`` of their client.

    Sessions, limits, grants and reminders belong to ``id``, which appears in logs.
    The proof ends at ``expires``, in epoch seconds, and may be good for one ``session`` only. A proof that is
    good for one connection has ``redeem``, which uses it up, and tells whether this client was the first.
    The list of authenticators sets ``authenticator``.
    """

    id: str
    expires: float | None = None
    session: str | None = None
    redeem: Callable[[], Awaitable[bool]] | None = field(default=None, compare=False)
    authenticator: str = ""
    role: Role = "app"


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
    """Names the person behind a handshake; the setting AUTH lists them by their entry points' names."""

    @property
    def required(self) -> bool:
        """Whether a client must prove who it is. If not, the server trusts its own machine only."""
        return True

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person; None leaves the decision to the next authenticator. Must not log the token."""
        ...

    def admits(self, principal: Principal) -> bool:
        """Return whether a connected person may stay, as they may until the proof's end.

        After a reload of the settings, a new authenticator is asked about everybody whom the former one of
        its name admitted.
        """
        return True


class Authenticators:
    """Asks authenticators in order: the first that names a person decides, and is noted in the principal."""

    def __init__(self, by_name: Mapping[str, Authenticator]) -> None:
        self._by_name = by_name
        self._failures = Refusals()

    @property
    def required(self) -> bool:
        """Whether a client must prove who it is."""
        return all(authenticator.required for authenticator in self._by_name.values())

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        """Name the person; None if no authenticator does. One that raises an error is passed over."""
        for name, authenticator in self._by_name.items():
            try:
                principal = await authenticator.authenticate(handshake)
            except Exception as error:  # of a plugin; its text may contain the token
                self._failures.count(f"AUTH={name} failed", handshake.peer, error=type(error).__name__)
                continue
            if principal is not None:
                return replace(principal, authenticator=name)
        return None

    def admits(self, principal: Principal) -> bool:
        """Ask the authenticator that admitted the person; without it they must go."""
        authenticator = self._by_name.get(principal.authenticator)
        return authenticator is not None and authenticator.admits(principal)


def token_digest(token: str) -> bytes:
    """Hash a token: a lookup by the hash tells nothing of the token by its time."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
