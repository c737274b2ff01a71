"""Who may connect: the checks before an upgrade, and counts of connections."""

from __future__ import annotations

import http
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.identity import ANONYMOUS
from conductor.origins import Network, client_address, origin_allowed
from conductor.server.auth import Authenticator, Handshake, Principal
from conductor.server.refusals import Refusals
from conductor.settings import Limits

# The path of programs that speak MCP.
MCP_PATH = "/mcp"
MCP_SUBPROTOCOL = "mcp"
_ROLES = {
    "app": f"This token is a program's: it opens {MCP_PATH} only.",
    "program": "This token is an app's. `conductor mcp token` prints the token of its programs.",
}
# Names of headers that proxies add to a request: each X-Forwarded-…, and the client's address.
_FORWARDED = re.compile(
    r"via|.*forwarded.*|.*-(client|connecting|real)-ip|.*-external-address", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Client(Principal):
    """The person of an admitted client. ``address`` is empty if it is not known.

    ``is_forwarded``: its request came through a proxy.
    """

    address: str = ""
    is_forwarded: bool = False

    @property
    def subject(self) -> str:
        """The person's id."""
        return self.id


# The client of a connection until its handshake is admitted.
UNKNOWN_CLIENT = Client("")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a refused upgrade; ``reason`` and ``facts`` are for the log."""

    status: http.HTTPStatus
    text: str
    reason: str
    facts: Mapping[str, str] = field(default_factory=dict)


class Access:
    """Admits upgrades, and counts the connections in total, by person and address.

    ``origins`` are web pages that may connect; the X-Forwarded-For of ``proxies`` is trusted.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        origins: Collection[str],
        proxies: Sequence[Network],
        limits: Limits,
    ) -> None:
        self.authenticator = authenticator
        self._origins = frozenset(origins)
        self._proxies = tuple(proxies)
        self._limits = limits
        self.connections = 0
        self._people: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self.refusals = Refusals()

    async def decide(self, request: Request, peer: str) -> Client | Refusal:
        """Admit a client, or refuse its upgrade; ``peer`` is the socket's remote address."""
        address = self.address(request, peer)
        decision = await self._decide(request, peer, address)
        if isinstance(decision, Refusal):
            self.refusals.count(decision.reason, address or peer, **decision.facts)
        return decision

    async def decide_read(self, request: Request, peer: str) -> Client | Refusal:
        """Admit the page's own GET.

        A browser sends no Origin with it, so the Host stands for it, which DNS rebinding cannot forge.
        """
        headers = request.headers.copy()
        for host in () if headers.get_all("Origin") else headers.get_all("Host")[:1]:
            secure = f"https://{host}"
            headers["Origin"] = secure if secure in self._origins else f"http://{host}"
        return await self.decide(Request(request.path, headers), peer)

    def address(self, request: Request, peer: str) -> str:
        """Return the client's address; empty without trusted proxies."""
        return client_address(peer, request.headers.get_all("X-Forwarded-For"), self._proxies) or ""

    async def renew(self, client: Client, token: str) -> Client | None:
        """Return the client with a later token of the same person; None, after a refusal, for any other."""
        principal = None
        if token.isascii() and token.isprintable():  # else no header can have it
            handshake = Handshake("", Headers(Authorization=f"Bearer {token}"), address=client.address)
            principal = await self.authenticator.authenticate(handshake)
        # A token that connects once would end what the first token limits.
        is_same = principal is not None and (principal.id, principal.role) == (client.subject, client.role)
        if principal is None or not is_same or principal.redeem is not None:
            self.refusals.count("wrong token", client.address)
            return None
        return replace(client, expires=principal.expires, authenticator=principal.authenticator)

    def enter(self, client: Client) -> None:
        """Count a connection."""
        self.connections += 1
        self._people[client.subject] += 1
        self._addresses[client.address] += 1

    def leave(self, client: Client) -> None:
        """Stop counting a connection."""
        self.connections -= 1
        for counter, name in ((self._people, client.subject), (self._addresses, client.address)):
            counter[name] -= 1
            # A counter keeps names at zero: strangers' addresses would fill memory.
            if not counter[name]:
                del counter[name]

    async def _decide(self, request: Request, peer: str, address: str) -> Client | Refusal:
        headers = request.headers
        is_forwarded = any(map(_FORWARDED.fullmatch, headers))
        if is_forwarded and not (self.authenticator.required or self._proxies):
            # Loopback needs no token, but every client of a local proxy comes from loopback.
            text = (
                "This request came through a proxy, and the server has no tokens; set AUTH_TOKENS, "
                "or TRUSTED_PROXIES if the proxy authenticates clients."
            )
            return Refusal(http.HTTPStatus.FORBIDDEN, text, "proxy without tokens")
        if (refusal := self._origin_refusal(headers)) is not None:
            return refusal
        handshake = Handshake(request.path, headers, peer, address)
        principal = await self.authenticator.authenticate(handshake)
        if principal is None:
            return _unauthorized("no token" if handshake.token is None else "wrong token")
        wanted = "program" if request.path.partition("?")[0] == MCP_PATH else "app"
        if principal.role not in (wanted, "any"):
            return Refusal(http.HTTPStatus.FORBIDDEN, _ROLES[wanted], "role")
        end, session, by = principal.expires, principal.session, principal.authenticator
        client = Client(
            principal.id,
            end,
            session,
            authenticator=by,
            role=principal.role,
            address=address,
            is_forwarded=is_forwarded,
        )
        full = self._full(client)
        if full is None and principal.redeem is not None:
            # Counted before, because others are decided meanwhile: a token that is used up must connect.
            self.enter(client)
            try:
                if not await principal.redeem():
                    return _unauthorized("used token")
            finally:
                self.leave(client)
        return full or client

    def _origin_refusal(self, headers: Headers) -> Refusal | None:
        # Before the token: the library of a refused page asks why, without one.
        origins, hosts = headers.get_all("Origin"), headers.get_all("Host")
        # A proxy and this server might each use a different one.
        if len(origins) > 1 or len(hosts) > 1:
            text = "The header Origin or Host is repeated."
            return Refusal(http.HTTPStatus.BAD_REQUEST, text, "repeated header")
        origin, host = next(iter(origins), None), next(iter(hosts), None)
        if origin_allowed(origin, host, self._origins, tokens=self.authenticator.required):
            return None
        text = "This origin is not allowed: the server's ALLOWED_ORIGINS does not have it."
        return Refusal(http.HTTPStatus.FORBIDDEN, text, "origin", {"origin": (origin or "")[:200]})

    def _full(self, client: Client) -> Refusal | None:
        limits = self._limits
        if self.connections >= limits.max_connections:
            return Refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.", "MAX_CONNECTIONS")
        bounds = [
            # Anonymous clients are many people.
            ("of this person", "SUBJECT", self._people[client.subject], client.subject != ANONYMOUS),
            ("from this address", "ADDRESS", self._addresses[client.address], bool(client.address)),
        ]
        for source, name, count, applies in bounds:
            most = getattr(limits, f"max_connections_per_{name.lower()}")
            if applies and count >= most:
                text = f"Too many connections {source}."
                return Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, text, f"MAX_CONNECTIONS_PER_{name}")
        return None


def _unauthorized(reason: str) -> Refusal:
    return Refusal(http.HTTPStatus.UNAUTHORIZED, "A valid bearer token is required.", reason)
