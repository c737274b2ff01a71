"""Who may connect: the checks before an upgrade, and the counts of connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import http
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import structlog
from websockets.http11 import Request

from conductor.errors import SettingsError
from conductor.rate_limit import ANONYMOUS, Network, client_address, origin_allowed
from conductor.settings import Limits

log = structlog.get_logger(__name__)


# Ports below this one need privileges.
_PRIVILEGED = 1024


def reserve(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of ``host`` for a server of several processes; port 0 is any free one.

    With SO_REUSEPORT alone, two servers of one user would share a port silently. So these sockets are bound
    without it, and get it afterwards: only this server's workers can listen while they exist. Raises
    `SettingsError`.
    """
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                reserved = on_error.enter_context(socket.socket(family, kind, protocol))
                if family == socket.AF_INET6:
                    reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for ports in TIME_WAIT
                try:
                    reserved.bind((address[0], port, *address[2:]))
                except OSError as error:
                    if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL and sockets:
                        continue  # localhost on a machine without IPv6
                    raise
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                port = int(reserved.getsockname()[1])
                sockets.append(reserved)
        except (OSError, UnicodeError) as error:
            raise not_bound(host, port, error) from None
        on_error.pop_all()
    return sockets


def not_bound(host: str, port: int, error: OSError | UnicodeError) -> SettingsError:
    """Make the error that tells the user why an address cannot be bound."""
    return SettingsError(": ".join(why_not_bound(host, port, error)))


def why_not_bound(host: str, port: int, error: OSError | UnicodeError) -> tuple[str, str]:
    """Explain why an address cannot be bound: the setting to change, and a sentence."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return "PORT", f"{host}:{port} is taken, perhaps by a running Conductor: stop it, or set another."
    if number in (errno.EACCES, errno.EPERM):
        needs = f"a port below {_PRIVILEGED} needs privileges: set another"
        return "PORT", f"{host}:{port} may not be listened on; {needs if port < _PRIVILEGED else 'see why'}."
    if isinstance(error, socket.gaierror | UnicodeError):  # UnicodeError: too long a name for the resolver
        return "HOST", f"{host} is no known name or address; 127.0.0.1 is this machine alone."
    if number == errno.EADDRNOTAVAIL:
        return "HOST", f"{host} is no address of this machine; 0.0.0.0 is all that it has."
    return "HOST", f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}."


@dataclass(frozen=True, slots=True)
class _Token:
    digest: bytes
    subject: str


class Authenticator:
    """Static tokens, kept hashed and compared in constant time. Without tokens every client is anonymous."""

    def __init__(self, tokens: Sequence[str]) -> None:
        # The subject names the token without revealing it, and is the same after a restart: sessions are
        # stored under it.
        self._tokens = tuple(_Token(digest, f"token-{digest.hex()[:16]}") for digest in map(_digest, tokens))

    @property
    def required(self) -> bool:
        return bool(self._tokens)

    def subject(self, request: Request) -> str | None:
        """Return the subject of the request's token; None without a valid one."""
        if not self._tokens:
            return ANONYMOUS
        given = bearer_token(request)
        if given is None:
            return None
        digest = _digest(given)
        subject = None
        for token in self._tokens:  # compare all, so that the time does not tell which one matched
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


# Pairs of reason and source that are counted apart; more share the source "many", so that memory is bounded.
MAX_KINDS = 100


class Refusals:
    """Logs refusals at a bounded rate: the first of a reason and a source, then a count every ``period``.

    ``period`` is in seconds.
    """

    def __init__(self, period: float = 60.0) -> None:
        self._period = period
        self._counts: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, reason: str, source: str, **facts: object) -> int:
        """Count a refusal; returns how many there were in this period from the same source."""
        key = (reason, source)
        if key not in self._counts:
            if len(self._counts) >= MAX_KINDS:
                key = (reason, "many")
            if key not in self._counts:
                log.warning("refused", reason=reason, source=key[1], **facts)
        self._counts[key] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period, self._report)
        return self._counts[key]

    def close(self) -> None:
        """Log the counts, and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()
            self._counts.clear()

    def _report(self) -> None:
        self._timer = None
        for (reason, source), count in self._counts.items():
            if count > 1:
                log.warning("refused again", reason=reason, source=source, count=count)
        self._counts = Counter({key: 0 for key, count in self._counts.items() if count > 1})


# Headers that show that a request came through a proxy.
FORWARDED = (
    *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"),
    *("CF-Connecting-IP", "True-Client-IP"),
)


@dataclass(frozen=True, slots=True)
class Client:
    """An admitted client. ``address`` is empty if it is not known."""

    subject: str
    address: str


# The client of a connection until its handshake is admitted.
UNKNOWN_CLIENT = Client("", "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a refused upgrade; ``reason`` and ``facts`` are for the log."""

    status: http.HTTPStatus
    text: str
    reason: str
    facts: Mapping[str, str] = field(default_factory=dict)


class Access:
    """Decides about upgrades, and counts the connections: all of them, and those of a subject and an address.

    ``origins`` are web pages that may connect, ``proxies`` are those whose X-Forwarded-For is trusted.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        origins: Collection[str],
        proxies: Sequence[Network],
        limits: Limits,
    ) -> None:
        self._authenticator = authenticator
        self._origins = frozenset(origins)
        self._proxies = tuple(proxies)
        self._limits = limits
        self.connections = 0
        self._subjects: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self.refusals = Refusals()

    def decide(self, request: Request, peer: str) -> Client | Refusal:
        """Admit a client, or refuse its upgrade; ``peer`` is the socket's remote address."""
        address = self.address(request, peer)
        decision = self._decide(request, address)
        if isinstance(decision, Refusal):
            self.refusals.count(decision.reason, address or peer, **decision.facts)
        return decision

    def address(self, request: Request, peer: str) -> str:
        """Return the client's address; empty without trusted proxies."""
        return client_address(peer, request.headers.get_all("X-Forwarded-For"), self._proxies) or ""

    def enter(self, client: Client) -> None:
        """Count a connection."""
        self.connections += 1
        self._subjects[client.subject] += 1
        self._addresses[client.address] += 1

    def leave(self, client: Client) -> None:
        """Stop counting a connection."""
        self.connections -= 1
        for counter, name in ((self._subjects, client.subject), (self._addresses, client.address)):
            counter[name] -= 1
            # A counter keeps names at zero: strangers' addresses would fill memory.
            if not counter[name]:
                del counter[name]

    def _decide(self, request: Request, address: str) -> Client | Refusal:
        headers, limits = request.headers, self._limits
        if not (self._authenticator.required or self._proxies) and any(name in headers for name in FORWARDED):
            # Loopback is trusted without a token, but through a local proxy every client comes from loopback.
            text = (
                "This request came through a proxy, and the server has no tokens: set AUTH_TOKENS, "
                "or TRUSTED_PROXIES if the proxy keeps strangers out."
            )
            return Refusal(http.HTTPStatus.FORBIDDEN, text, "proxy without tokens")
        subject = self._authenticator.subject(request)
        if subject is None:
            reason = "no token" if bearer_token(request) is None else "wrong token"
            return Refusal(http.HTTPStatus.UNAUTHORIZED, "A valid bearer token is needed.", reason)
        origins, hosts = headers.get_all("Origin"), headers.get_all("Host")
        # A proxy and this server might each believe another one of them.
        if len(origins) > 1 or len(hosts) > 1:
            text = "A header that may come once came twice."
            return Refusal(http.HTTPStatus.BAD_REQUEST, text, "repeated header")
        origin, host = next(iter(origins), None), next(iter(hosts), None)
        if not origin_allowed(origin, host, self._origins, tokens=self._authenticator.required):
            facts = {"origin": (origin or "")[:200]}
            return Refusal(http.HTTPStatus.FORBIDDEN, "This origin is not allowed.", "origin", facts)
        if self.connections >= limits.max_connections:
            return Refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.", "MAX_CONNECTIONS")
        # Anonymous clients are many people; without trusted proxies the address may be a proxy's.
        if subject != ANONYMOUS and self._subjects[subject] >= limits.max_connections_per_subject:
            text = "Too many connections for this token."
            return Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, text, "MAX_CONNECTIONS_PER_SUBJECT")
        if address and self._addresses[address] >= limits.max_connections_per_address:
            text = "Too many connections from this address."
            return Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, text, "MAX_CONNECTIONS_PER_ADDRESS")
        return Client(subject, address)
