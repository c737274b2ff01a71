"""MCP over streamable HTTP, with the limits of ``/ws`` on connections, requests and MCP sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import structlog
from aiohttp import web
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.identity import ANONYMOUS
from conductor.plugins.http_server import serving_http
from conductor.plugins.mcp.streams import is_dense
from conductor.rate_limit import TokenBucket
from conductor.server.access import MCP_PATH, Client, Refusal
from conductor.server.listener import Listener
from conductor.server.websocket import EventRate
from conductor.settings import Limits

log = structlog.get_logger(__name__)

# Seconds until an MCP session without a request ends.
SESSION_IDLE_S = 1_800.0


@dataclass(slots=True)
class Caller:
    """The subject whose tools a program may use, and the session if it names one.

    Programs of one ``person`` share limits: the subject, or the address of an anonymous client.
    ``has_opened``: its request opened an MCP session.
    """

    subject: str
    person: str
    session_id: str | None = None
    has_opened: bool = False


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


class HttpServer:
    """Passes requests to an MCP server under the rules and limits of ``/ws``; each connection serves one.

    ``person`` finds a person by name. An MCP session ends after ``idle_s`` seconds without a request. The
    ASGI scope of a request gets its ``caller``.
    """

    def __init__(
        self, listener: Listener, person: Callable[[str], Person], server: Server[Any], idle_s: float
    ) -> None:
        self._listener = listener
        self._access = listener.access
        self._limits = listener.services.limits
        self._person = person
        self._sessions = StreamableHTTPSessionManager(
            server, session_idle_timeout=idle_s, max_sessions=self._limits.max_sessions
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve ``/mcp`` on the listener's port during the block."""
        application = web.Application(client_max_size=self._limits.hard_event_bytes)
        application.router.add_route("*", MCP_PATH, self._serve)
        root = MCP_PATH.encode()
        door = serving_http(self._listener, root, application, _refuse, handler_cancellation=True)
        # The package's sessions end first, so that their streams are not cut off.
        async with door, self._sessions.run():
            yield

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        peer = request.remote or ""
        headers = Headers(request.headers.items())
        client = await self._access.decide(Request(request.path_qs, headers), peer)
        if isinstance(client, Refusal):
            return _refuse(client.status, client.text)
        if request.transport is not None:
            self._listener.handshakes.discard(request.transport)

        def cut() -> None:
            if request.transport is not None:
                request.transport.abort()

        with self._listener.counting(client, cut):
            return await self._answer(request, caller_of(client, peer, request.query_string))

    async def _answer(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        most, person = self._limits.hard_event_bytes, self._person(caller.person)
        size = request.content_length if request.content_length is not None else most * request.can_read_body
        if not await person.rate.admit(size):
            return _refuse(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests; try again later.")
        # Only requests of the revisions until 2025 open sessions.
        versions = request.headers.getall("MCP-Protocol-Version", [])
        is_opening = "Mcp-Session-Id" not in request.headers
        is_opening = is_opening and {*versions[:1]} <= {*HANDSHAKE_PROTOCOL_VERSIONS}
        # Without tokens, many people may share an address, so only the server's limit applies.
        is_full = caller.subject != ANONYMOUS and person.sessions >= self._limits.max_sessions_per_subject
        if is_opening and is_full:
            self._access.refusals.count("too many MCP sessions", caller.person)
            return _refuse(HTTPStatus.TOO_MANY_REQUESTS, "Too many MCP sessions.")
        person.sessions += is_opening  # before others are checked
        try:
            return await self._read(request, caller)
        finally:
            person.sessions -= is_opening and not caller.has_opened

    async def _read(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._limits.message_timeout):
                body = await request.read()
        except TimeoutError:
            return _refuse(HTTPStatus.REQUEST_TIMEOUT, "The body took too long.")
        await self._listener.services.admission.enter()
        # The package would parse the body in one step.
        if is_dense(body):
            return _refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body has too many values.")
        return await self._forward(request, caller, body)

    async def _forward(self, request: web.Request, caller: Caller, body: bytes) -> web.StreamResponse:
        # The package is an ASGI application.
        response = web.StreamResponse(headers={"Server": "conductor"})
        response.force_close()
        unread, disconnected = [body], asyncio.Event()
        scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query_string.encode(),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "caller": caller,
            # The package compares this with the user who opened the MCP session.
            "user": AuthenticatedUser(AccessToken(token="", client_id=caller.subject, scopes=[])),
        }

        async def receive() -> MutableMapping[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                response.set_status(message["status"])
                for name, value in message["headers"]:
                    if name.lower() != b"connection":
                        response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
                await response.prepare(request)
            elif not disconnected.is_set():
                await response.write(message.get("body", b""))

        serving = asyncio.create_task(self._sessions.handle_request(scope, receive, send))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # A program may close the connection once it has its result: the package must still finish.
            disconnected.set()
            await asyncio.wait([serving])
            raise
        return response


def _refuse(status: HTTPStatus, text: str) -> web.Response:
    response = web.Response(status=status.value, text=f"{text}\n")
    if status is HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
