"""The HTTP server of MCP_PORT, with the limits of ``/ws`` on connections, requests and MCP sessions."""

from __future__ import annotations

import asyncio
import http
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import h11
import uvicorn
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.errors import SettingsError
from conductor.rate_limit import ANONYMOUS, Admission
from conductor.server.access import Access, Client, Refusal, why_not_bound
from conductor.server.connection import EventRate
from conductor.server.websocket import Handshakes
from conductor.settings import Limits

# Bytes of a request's line and headers.
MAX_HEADER_BYTES = 16_384
# Seconds until an MCP session without a request ends.
SESSION_IDLE_S = 1_800.0
_SESSION_ID = b"mcp-session-id"
_STOPPING = Refusal(http.HTTPStatus.SERVICE_UNAVAILABLE, "The server is shutting down.", "stop")
_TOO_FAST = Refusal(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many requests; try again later.", "rate")
_TOO_LONG = Refusal(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too long.", "size")

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


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


class HttpConnection(H11Protocol):
    """One connection: a handshake until its request is complete, with a deadline for header and body."""

    def __init__(self, *, limits: Limits, handshakes: Handshakes, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._handshakes = handshakes
        self._state: object = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base
        """Start, and count the handshake."""
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """Handle received events, and start the deadline of the next part of the request."""
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the handshake, and the deadline."""
        self._set_deadline(None)
        super().connection_lost(exc)

    def _watch(self) -> None:
        # Single bytes do not extend a deadline: only a change of state starts one.
        if self.conn.their_state is not self._state:
            self._state = self.conn.their_state
            deadlines = {
                h11.IDLE: self._limits.handshake_timeout,
                h11.SEND_BODY: self._limits.message_timeout,
            }
            self._set_deadline(deadlines.get(self.conn.their_state))

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is None:
            self._handshakes.discard(self.transport)
        else:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)
            self._handshakes.add(self.transport)


@dataclass(slots=True)
class _Session:
    person: str
    requests: int = 0
    expiry: asyncio.TimerHandle | None = None


class HttpSessions:
    """The MCP sessions over HTTP, in the order of last use; ``on_end`` gets the id of an ended one."""

    def __init__(self, idle_s: float, on_end: Callable[[str], object]) -> None:
        self._idle_s = idle_s
        self._on_end = on_end
        self._sessions: dict[str, _Session] = {}
        self._persons: Counter[str] = Counter()

    @contextmanager
    def using(self, session_id: str | None) -> Iterator[None]:
        """Count a request of a session during the block; its idle time begins afterwards."""
        session = self._sessions.pop(session_id, None) if session_id is not None else None
        if session is None or session_id is None:
            yield
            return
        self._sessions[session_id] = session
        session.requests += 1
        if session.expiry is not None:
            session.expiry.cancel()
        try:
            yield
        finally:
            session.requests -= 1
            if not session.requests and self._sessions.get(session_id) is session:
                self._expire_later(session_id, session)

    def add(self, session_id: str, person: str) -> None:
        """Record a new session."""
        session = self._sessions[session_id] = _Session(person)
        self._persons[person] += 1
        self._expire_later(session_id, session)

    def surplus(self, person: str, most: int) -> str | None:
        """Return the session that is unused for longest if a person has more than ``most``."""
        if self._persons[person] <= most:
            return None
        own = [(key, session) for key, session in self._sessions.items() if session.person == person]
        # The last one is new and has had no request yet.
        return min(own[:-1], key=lambda item: item[1].requests > 0)[0]

    def forget(self, session_id: str) -> None:
        """Remove an ended session."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.expiry is not None:
                session.expiry.cancel()
            self._persons[session.person] -= 1
            if not self._persons[session.person]:
                del self._persons[session.person]
            self._on_end(session_id)

    def close(self) -> None:
        """Remove all sessions."""
        for session_id in list(self._sessions):
            self.forget(session_id)

    def _expire_later(self, session_id: str, session: _Session) -> None:
        session.expiry = asyncio.get_running_loop().call_later(self._idle_s, self.forget, session_id)


class HttpGuard:
    """Passes requests to ``app`` under the rules and limits of ``/ws``.

    ``rate`` returns the rate that a person's programs share. A request's scope gets its ``caller``, and the
    event ``ended``, which is set once the client can no longer read an answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        admission: Admission,
        rate: Callable[[Caller], EventRate],
        sessions: HttpSessions,
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._admission = admission
        self._rate = rate
        self._sessions = sessions
        self.closing = False

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Serve one ASGI request."""
        query = scope["query_string"].decode("ascii", "replace")
        headers = Headers(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        peer = scope["client"][0] if scope["client"] else ""
        client = self._access.decide(Request(f"{scope['path']}?{query}", headers), peer)
        if isinstance(client, Refusal):
            await _refuse(client, send)
            return
        if self.closing:
            await _refuse(_STOPPING, send)
            return
        scope["caller"] = caller_of(client, peer, query)
        self._access.enter(client)
        try:
            await self._serve(scope, receive, send)
        finally:
            self._access.leave(client)

    async def _serve(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        caller: Caller = scope["caller"]
        headers = dict(scope["headers"])
        # A chunked body counts as the longest.
        is_chunked = b"transfer-encoding" in headers
        size = self._limits.hard_event_bytes if is_chunked else int(headers.get(b"content-length", 0))
        if not await self._rate(caller).admit(size):
            await _refuse(_TOO_FAST, send)
            return
        # The package compares this with the user who opened the MCP session.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.subject, scopes=[]))
        scope["ended"] = ended = asyncio.Event()
        session_id = headers[_SESSION_ID].decode("latin-1") if _SESSION_ID in headers else None

        body = await self._read(receive)
        if body is None or self.closing:
            await _refuse(_STOPPING if self.closing else _TOO_LONG, send)
            return
        await self._admission.enter()  # parsing takes time
        unread = [body]

        async def replay() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": unread.pop()} if unread else await receive()

        async def watch(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] < http.HTTPStatus.BAD_REQUEST:
                await self._note(scope, session_id, dict(message["headers"]).get(_SESSION_ID))
            await send(message)

        try:
            with self._sessions.using(session_id):
                await self._app(scope, replay, watch)
        finally:
            ended.set()

    async def _read(self, receive: _Receive) -> bytes | None:
        # None for a body that is too long or incomplete; the package would log a traceback for the latter.
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] != "http.request" or len(body) > self._limits.hard_event_bytes:
                return None
            more = message.get("more_body", False)
        return bytes(body)

    async def _note(self, scope: _Scope, session_id: str | None, opened_id: bytes | None) -> None:
        if session_id is not None:
            if scope["method"] == "DELETE":
                self._sessions.forget(session_id)
        elif opened_id is not None:
            caller: Caller = scope["caller"]
            self._sessions.add(opened_id.decode("latin-1"), caller.person)
            # Without tokens, many people may share an address, so only the server's limit applies.
            limits, is_anonymous = self._limits, caller.subject == ANONYMOUS
            most = limits.max_sessions if is_anonymous else limits.max_sessions_per_subject
            surplus = self._sessions.surplus(caller.person, most)
            if surplus is not None:
                self._access.refusals.count("too many MCP sessions; one ended early", caller.person)
                await self._end(surplus, scope)

    async def _end(self, session_id: str, scope: _Scope) -> None:
        # The package ends a session only by a request to delete it.
        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: MutableMapping[str, Any]) -> None:
            pass

        self._sessions.forget(session_id)
        own = (b"host", b"accept", b"origin")
        headers = [header for header in scope["headers"] if header[0] in own]
        headers.append((_SESSION_ID, session_id.encode("latin-1")))
        await self._app({**scope, "method": "DELETE", "headers": headers}, receive, send)


@asynccontextmanager
async def serving(
    server: Server[Any],
    host: str,
    port: int,
    handshakes: Handshakes,
    limits: Limits,
    guard: Callable[[ASGIApp], HttpGuard],
    idle_s: float,
) -> AsyncIterator[int]:
    """Serve ``server`` at ``/mcp`` behind ``guard`` during the block, which gets the port.

    Raises `SettingsError` if it cannot be bound.
    """
    app = server.streamable_http_app(
        host=host,
        session_idle_timeout=idle_s,
        max_sessions=limits.max_sessions,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(": ".join(("MCP_PORT", why_not_bound(host, port, error)[1]))) from None
    door = guard(app)
    config = uvicorn.Config(
        door,
        http=partial(HttpConnection, limits=limits, handshakes=handshakes),  # type: ignore[arg-type] # any factory
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
                door.closing = web.should_exit = True
    finally:
        _, late = await asyncio.wait([serve], timeout=limits.close_timeout)
        if late:
            for connection in list(web.server_state.connections):
                connection.transport.abort()  # the program does not read
            await asyncio.wait([serve])
        listening.close()


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
