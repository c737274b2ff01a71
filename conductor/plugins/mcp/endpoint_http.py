"""The HTTP server of MCP_PORT, with the limits of ``/ws`` on connections, requests and MCP sessions."""

from __future__ import annotations

import asyncio
import http
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import h11
import structlog
import uvicorn
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.errors import SettingsError
from conductor.plugins.mcp.streams import is_dense
from conductor.rate_limit import ANONYMOUS, TokenBucket
from conductor.server.access import Client, Refusal
from conductor.server.address import why_not_bound
from conductor.server.event_rate import EventRate
from conductor.server.listener import Listener
from conductor.server.websocket import Handshakes
from conductor.settings import Limits

log = structlog.get_logger(__name__)

# Bytes of a request's line and headers.
MAX_HEADER_BYTES = 16_384
# Seconds until an MCP session without a request ends.
SESSION_IDLE_S = 1_800.0
_STOPPING = Refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, "The server is shutting down.", "stop")
_TOO_FAST = Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many requests; try again later.", "rate")
_TOO_MANY = Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many MCP sessions.", "too many MCP sessions")
_TOO_LONG = Refusal(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too long.", "size")
_TOO_SLOW = Refusal(http.HTTPStatus.REQUEST_TIMEOUT, "The body took too long.", "time")

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The subject whose tools a program may use, and the session if it names one.

    Programs of one ``person`` share limits: the subject, or the address of an anonymous client.
    """

    subject: str
    person: str
    session_id: str | None = None


def caller_of(client: Client, peer: str, query: str) -> Caller:
    """Make the caller of a request; ``peer`` is the socket's remote address."""
    person = client.subject if client.subject != ANONYMOUS else client.address or peer
    return Caller(client.subject, person, next(iter(parse_qs(query).get("session", ())), None))


class Person:
    """What the programs of one person share: rates, MCP sessions over HTTP, and subscriptions."""

    def __init__(self, limits: Limits, name: str) -> None:
        self._name = name
        self.rate = EventRate(limits, self._warn_of_flood)
        self.tool_rates: dict[str, TokenBucket] = {}
        self.sessions = 0
        self.subscriptions = 0

    def end_session(self) -> None:
        """Stop counting an MCP session."""
        self.sessions -= 1

    def _warn_of_flood(self, wait: float) -> None:
        log.warning("MCP client exceeds the message rate", person=self._name, wait_s=round(wait, 3))


class HttpConnection(H11Protocol):
    """One connection, which counts as a handshake until a request's header is complete within a deadline."""

    def __init__(self, *, limits: Limits, handshakes: Handshakes, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._handshakes = handshakes
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base
        """Start, and count the handshake."""
        super().connection_made(transport)
        self._watch(self.conn.their_state is h11.IDLE)

    def handle_events(self) -> None:
        """Handle received events; single bytes do not extend the deadline."""
        super().handle_events()
        self._watch(self.conn.their_state is h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the handshake."""
        self._watch(False)
        super().connection_lost(exc)

    def _watch(self, is_incomplete: bool) -> None:
        if is_incomplete and self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.handshake_timeout, self.transport.abort)
            self._handshakes.add(self.transport)
        elif self._deadline is not None and not is_incomplete:
            self._deadline.cancel()
            self._deadline = None
            self._handshakes.discard(self.transport)


class HttpServer:
    """Passes requests to an MCP server under the rules and limits of ``/ws``; is an ASGI application.

    ``person`` finds a person by name. An MCP session ends after ``idle_s`` seconds without a request. A
    request's scope gets its ``caller``.
    """

    def __init__(self, listener: Listener, person: Callable[[str], Person], idle_s: float) -> None:
        self._listener = listener
        self._access = listener.access
        self._limits = listener.services.limits
        self._person = person
        self._idle_s = idle_s
        self._app: Callable[[_Scope, _Receive, _Send], Awaitable[None]] | None = None

    @asynccontextmanager
    async def serving(self, server: Server[Any], host: str, port: int) -> AsyncIterator[int]:
        """Serve ``/mcp`` during the block, which gets the port.

        Raises `SettingsError` if it cannot be bound.
        """
        limits = self._limits
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise SettingsError(": ".join(("MCP_PORT", why_not_bound(host, port, error)[1]))) from None
        self._app = server.streamable_http_app(
            host=host, session_idle_timeout=self._idle_s, max_sessions=limits.max_sessions
        )
        connection = partial(HttpConnection, limits=limits, handshakes=self._listener.handshakes)
        config = uvicorn.Config(
            self,
            http=connection,  # type: ignore[arg-type] # any factory will do
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `Access` knows which proxies to trust
            backlog=max(100, limits.max_handshakes),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        web = _Uvicorn(config)
        serve = asyncio.create_task(web.serve(sockets=[listening]))
        try:
            # The package's sessions end first, so that their streams are not cut off.
            async with server.session_manager.run():
                try:
                    yield int(listening.getsockname()[1])
                finally:
                    self._app, web.should_exit = None, True
        finally:
            _, late = await asyncio.wait([serve], timeout=limits.close_timeout)
            if late:
                for open_connection in list(web.server_state.connections):
                    open_connection.transport.abort()  # the program does not read
                await asyncio.wait([serve])
            listening.close()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Serve one ASGI request."""
        query = scope["query_string"].decode("ascii", "replace")
        headers = Headers(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        peer = scope["client"][0] if scope["client"] else ""
        client = await self._access.decide(Request(f"{scope['path']}?{query}", headers), peer)
        if isinstance(client, Refusal):
            await _refuse(client, send)
            return
        scope["caller"] = caller = caller_of(client, peer, query)
        # The package compares this with the user who opened the MCP session.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.subject, scopes=[]))
        self._access.enter(client)
        try:
            body = await self._read(caller, headers, receive)
            app = self._app
            if isinstance(body, Refusal) or app is None:
                await _refuse(body if isinstance(body, Refusal) else _STOPPING, send)
                return
            unread = [body]

            async def replay() -> MutableMapping[str, Any]:
                return {"type": "http.request", "body": unread.pop()} if unread else await receive()

            await app(scope, replay, send)
        finally:
            self._access.leave(client)

    async def _read(self, caller: Caller, headers: Headers, receive: _Receive) -> bytes | Refusal:
        """Return the body of a request within its limits, which the package would parse in one step."""
        most, person = self._limits.hard_event_bytes, self._person(caller.person)
        # A chunked body counts as the longest.
        size = most if "Transfer-Encoding" in headers else int(headers.get("Content-Length", 0))
        if not await person.rate.admit(size):
            return _TOO_FAST
        # Only requests of the revisions until 2025 open sessions.
        versions = headers.get_all("MCP-Protocol-Version")
        is_opening = "Mcp-Session-Id" not in headers and {*versions[:1]} <= {*HANDSHAKE_PROTOCOL_VERSIONS}
        # Without tokens, many people may share an address, so only the server's limit applies.
        is_full = caller.subject != ANONYMOUS and person.sessions >= self._limits.max_sessions_per_subject
        if is_opening and is_full:
            self._access.refusals.count(_TOO_MANY.reason, caller.person)
            return _TOO_MANY
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._limits.message_timeout):
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    # The package would log a traceback for an incomplete body.
                    if message["type"] != "http.request" or len(body) > most:
                        return _TOO_LONG
                    more = message.get("more_body", False)
        except TimeoutError:
            return _TOO_SLOW
        await self._listener.services.admission.enter()
        return _TOO_LONG if is_dense(body) else bytes(body)


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # this server handles signals itself


async def _refuse(refusal: Refusal, send: _Send) -> None:
    # The connection closes, because the rest of the body is not read.
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if refusal.status is http.HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": f"{refusal.text}\n".encode()})
