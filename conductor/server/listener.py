"""The listening socket: HTTP endpoints, the WebSocket upgrade, and shutdown."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from conductor.events.envelope import PATH, SUBPROTOCOL
from conductor.origins import Network
from conductor.server.access import Access, Client, Refusal
from conductor.server.address import RESERVED_DESCRIPTORS, descriptor_limit, not_bound
from conductor.server.auth import Authenticator
from conductor.server.connection import REVOKED, Connection
from conductor.server.expiry import TokenExpiry
from conductor.server.sessions import SessionRegistry
from conductor.server.websocket import Handshakes, Socket
from conductor.session.services import Services
from conductor.settings import Settings

log = structlog.get_logger(__name__)

# Seconds: a client that answers no WebSocket ping for this long is gone.
PONG_TIMEOUT_S = 20.0
# Seconds for turns that run at SIGTERM; orchestrators kill after 30.
DRAIN_S = 25.0
# Seconds for the close of a connection whose token was removed; then it is cut.
REVOKE_S = 0.5

Route: TypeAlias = Callable[[Request, str], Awaitable[Response]]
"""Answers a request; the text is the socket's remote address."""
MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]
ServeSocket: TypeAlias = Callable[[Socket, str], Awaitable[None]]
"""Serves a program's WebSocket until it closes; the text is the path with its query."""
Prepare: TypeAlias = Callable[[Settings], Callable[[], None]]


class Listener:
    """Serves ``/ws``, ``/healthz``, ``/readyz``, and the routes of endpoints.

    ``routes`` answer a request by its path; None is no route. ``http`` are HTTP servers by the first segment
    of the path, ``/v1`` and ``/mcp``, which ``wrap`` chooses from. ``sockets`` serve the WebSockets of
    programs by their path. A client chooses one of the ``subprotocols``. ``worker`` is the number of this
    process if there are several. ``ready`` is set while it is warm and not about to stop.
    """

    def __init__(
        self,
        services: Services,
        authenticator: Authenticator,
        origins: Collection[str] = (),
        proxies: Sequence[Network] = (),
        *,
        worker: int | None = None,
        store_available: Callable[[], bool] = lambda: True,
    ) -> None:
        self.registry = SessionRegistry(services)
        self.services = services
        self.access = Access(authenticator, origins, proxies, services.limits)
        self.worker = worker
        self.routes: dict[str, Route | None] = {}
        self._preparations: list[Prepare] = []
        self._store_available = store_available
        self._server: Server | None = None
        descriptors = descriptor_limit() - RESERVED_DESCRIPTORS // 2
        self.handshakes = Handshakes(services.limits.max_handshakes, descriptors, self.access.refusals)
        self._connections: set[Connection] = set()
        self.sockets: dict[str, ServeSocket] = {}
        self.subprotocols = [Subprotocol(SUBPROTOCOL)]
        self._program_sockets: dict[Socket, str] = {}
        self._programs: dict[Callable[[], None], Client] = {}
        self.http: dict[bytes, MakeProtocol] = {}
        self.wrap: Callable[[MakeProtocol, ServerProtocol], asyncio.Protocol] | None = None
        self.ready = asyncio.Event()

    @property
    def port(self) -> int:
        """The bound port; 0 until `start`."""
        sockets = () if self._server is None else self._server.sockets
        return next((int(listening.getsockname()[1]) for listening in sockets), 0)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def connections_at(self, path: str) -> int:
        """Return the number of programs' WebSockets at a path."""
        return sum(of == path for of in self._program_sockets.values())

    def lack(self) -> str | None:
        """Return why the server is not ready, in a clause; None if it is."""
        if not self.ready.is_set():
            return "it is starting or stopping"
        return None if self._store_available() else "the session store cannot be used"

    async def start(self, host: str, port: int, *, ready: bool = True) -> None:
        """Listen; a name may have several addresses. Raises `SettingsError` if it cannot be bound.

        ``/readyz`` answers 200 once ``ready`` is set.
        """
        try:
            self._server = await self._serve(host, port)
        except (OSError, UnicodeError) as error:
            raise not_bound(host, port, error) from None
        if ready:
            self.ready.set()

    async def _serve(self, host: str, port: int) -> Server:
        return await serve(
            self._handle,
            host,
            port,
            # For workers only: a second server of this user would join silently.
            reuse_port=self.worker is not None,
            process_request=self._admit,
            create_connection=self._make_connection,  # type: ignore[arg-type] # any factory will do
            compression=None,  # it costs each connection memory and time, and frames are small
            open_timeout=self.services.limits.handshake_timeout,
            ping_interval=self.services.limits.ping_interval,
            ping_timeout=PONG_TIMEOUT_S,
            close_timeout=self.services.limits.close_timeout,
            max_size=self.services.limits.hard_event_bytes,
            backlog=max(100, self.services.limits.max_handshakes),
            max_queue=1,  # one complete and one incomplete message: 2 MiB at most
            server_header="conductor",
        )

    def _make_connection(self, protocol: ServerProtocol, *args: Any, **options: Any) -> asyncio.Protocol:
        limits, handshakes = self.services.limits, self.handshakes
        # Not by the library's argument, which holds the connection in a cycle.
        protocol.select_subprotocol = self._select_subprotocol  # type: ignore[method-assign,assignment]
        make_socket = partial(Socket, protocol, *args, limits=limits, handshakes=handshakes, **options)
        return make_socket() if self.wrap is None else self.wrap(make_socket, protocol)

    def _select_subprotocol(self, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return next(filter(self.subprotocols.__contains__, offered), None)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop listening, let running turns end, then close connections and sessions."""
        self.ready.clear()
        if self._server is None:
            return
        # Only the listening sockets: running turns end first.
        self._server.close(close_connections=False)
        await self._drain(drain_s)
        await self.registry.close()
        for connection in list(self._connections):
            connection.close(CloseCode.SERVICE_RESTART, "service restart")
        for socket in list(self._program_sockets):
            socket.transport.abort()
        try:
            async with asyncio.timeout(2 * self.services.limits.close_timeout):
                await self._server.wait_closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort("did not close")
            await self._server.wait_closed()
        self.access.refusals.close()
        await self.registry.close()  # again: a connection may have opened a session while it was closing

    async def _drain(self, seconds: float) -> None:
        retiring = [
            asyncio.create_task(connection.drain(CloseCode.SERVICE_RESTART, "service restart", seconds))
            for connection in self._connections
        ]
        # Sessions without a connection may have running turns, too.
        retiring += [asyncio.create_task(session.settled()) for session in self.registry.sessions]
        if not retiring:
            return
        _, late = await asyncio.wait(retiring, timeout=seconds)
        if late:
            log.warning(
                "drain timed out; turns cut off",
                turns=sum(session.busy for session in self.registry.sessions),
            )
        for task in late:
            task.cancel()

    def configure(self, prepare: Prepare, settings: Settings) -> None:
        """Apply an endpoint's settings now, and edited ones at a reload; ``prepare`` returns the change."""
        self._preparations.append(prepare)
        prepare(settings)()

    def redact(self, secrets: Sequence[str], settings: Settings) -> None:
        """Redact the secrets of an endpoint in what tools return, also after a reload."""

        def redact() -> None:
            redactor = self.services.redactor.knowing(secrets)
            self.reload(replace(self.services, redactor=redactor))

        self.configure(lambda _: redact, settings)

    def prepare(self, settings: Settings) -> list[Callable[[], None]]:
        """Validate edited settings for the endpoints; returns the changes. Raises `SettingsError`."""
        return [prepare(settings) for prepare in self._preparations]

    def reload(self, services: Services) -> None:
        """Use other services from now on, in existing sessions as well."""
        self.services = services
        self.registry.reload(services)

    def authenticate(self, authenticator: Authenticator) -> int:
        """Use another authenticator; close connections that it does not admit, and return their number."""
        self.access.authenticator = authenticator
        admits = authenticator.admits
        revoked = [open_ for open_ in self._connections if not admits(open_.principal)]
        for connection in revoked:
            connection.revoke(REVOKE_S)
        cuts = [cut for cut, client in self._programs.items() if not admits(client)]
        for cut in cuts:
            cut()
        return len(revoked) + len(cuts)

    async def _handle(self, socket: ServerConnection) -> None:
        assert isinstance(socket, Socket)
        self.handshakes.discard(socket.transport)
        if not self.access.authenticator.admits(socket.client):  # removed during the handshake
            await socket.close(CloseCode.POLICY_VIOLATION, REVOKED)
            return
        assert socket.request is not None
        path = socket.request.path
        if (serve_socket := self.sockets.get(path.partition("?")[0])) is not None:
            await self._handle_program(serve_socket, socket, path)
            return
        # They would take 3 KB of each connection.
        socket.request.headers.clear()
        socket.response = None
        connection = Connection(socket, self.registry, self.services, self.access)
        self._connections.add(connection)
        self.access.enter(socket.client)
        address = socket.client.address or (socket.remote_address or [""])[0]
        log.info("connected", subject=socket.client.subject, address=address, connections=self.connections)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self.access.leave(socket.client)

    async def _handle_program(self, serve_socket: ServeSocket, socket: Socket, path: str) -> None:
        self._program_sockets[socket] = path.partition("?")[0]
        try:
            with self.counting(socket.client, socket.transport.abort):
                await serve_socket(socket, path)
        finally:
            del self._program_sockets[socket]

    @contextmanager
    def counting(self, client: Client, cut: Callable[[], None]) -> Iterator[None]:
        """Count a program's connection in the block; ``cut`` ends it once its token is no longer valid."""
        self.access.enter(client)
        self._programs[cut] = client
        end = None if client.expires is None else TokenExpiry(client.expires, lambda _: None, cut)
        try:
            yield
        finally:
            if end is not None:
                end.cancel()
            del self._programs[cut]
            self.access.leave(client)

    async def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith(PATH):
            await self.services.admission.enter()
        path = request.path.partition("?")[0]
        peer = socket.remote_address[0] if socket.remote_address else ""
        if (route := self.routes.get(path)) is not None:
            answer: Response | None = await route(request, peer)
        else:
            answer = await self._answer(socket, path, request, peer)
        if answer is not None and request.method == "HEAD":
            answer.body = b""
        return answer

    async def _answer(
        self, socket: ServerConnection, path: str, request: Request, peer: str
    ) -> Response | None:
        # Before authentication: orchestrators probe without a token.
        if path == "/healthz":
            return text_response(http.HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            if (lack := self.lack()) is None:
                invalid = self.services.policy_file is not None and self.services.policy_file.problem
                note = ", but the rules file is not valid: the earlier rules hold" if invalid else ""
                return text_response(http.HTTPStatus.OK, f"ready{note}\n")
            return text_response(http.HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {lack}\n")
        if path != PATH and path not in self.sockets:
            return text_response(http.HTTPStatus.NOT_FOUND, f"Connect a WebSocket to {PATH}.\n")
        decision = await self.access.decide(request, peer)
        if isinstance(decision, Refusal):
            # A page of another origin may read why, since browsers hide the answer to its WebSocket.
            readable = {"Access-Control-Allow-Origin": "*"}
            return text_response(decision.status, f"{decision.text}\n", readable)
        assert isinstance(socket, Socket)
        socket.client = decision
        return None


def text_response(status: http.HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> Response:
    """Make a response of plain text, with ``more`` headers."""
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    if status is http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return response(status, text.encode(), {**headers, **(more or {})})


def response(status: http.HTTPStatus, body: bytes, more: Mapping[str, str]) -> Response:
    """Make a response with ``more`` headers, which ends its connection."""
    headers = {"Content-Length": str(len(body)), "Cache-Control": "no-store", "Connection": "close", **more}
    return Response(status.value, status.phrase, Headers(headers), body)
