"""The listening socket: HTTP answers, the upgrade, and the end of it all."""

from __future__ import annotations

import asyncio
import http
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from conductor import __version__
from conductor.bounds import Network, client_address, origin_allowed
from conductor.conversation.services import Services
from conductor.errors import SettingsError
from conductor.server.admin import STATS_PATH, Admin
from conductor.server.auth import ANONYMOUS, SUBPROTOCOL, Authenticator
from conductor.server.connection import Connection
from conductor.server.hub import Hub
from conductor.server.slices import Slices
from conductor.server.socket import Socket, sharing

log = structlog.get_logger(__name__)

WS_PING_S = 20.0
"""Protocol, "Transport": every 15-20 s."""
OPEN_TIMEOUT_S = 5.0
SERVICE_RESTART = 1012
DRAIN_S = 25.0
"""How long running turns may take to end after SIGTERM; orchestrators kill after 30 s."""


class Listener:
    """Serves ``/ws``, ``/healthz``, ``/readyz`` and, with ``admin``, ``/admin/stats`` on one address.

    ``worker`` is its number where several processes are one server; each answers for itself.
    """

    def __init__(
        self,
        services: Services,
        authenticator: Authenticator,
        origins: Collection[str] = (),
        admin: Admin | None = None,
        proxies: Sequence[Network] = (),
        worker: int | None = None,
        store_available: Callable[[], bool] = lambda: True,
    ) -> None:
        self.hub = Hub(services)
        self._services = services
        self._authenticator = authenticator
        self._origins = frozenset(origins)
        self._admin = admin
        self._proxies = tuple(proxies)
        self._worker = worker
        self._store_available = store_available
        self._subjects: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._servers: list[Server] = []
        self._slices = Slices()
        self._connections: set[Connection] = set()
        self._ready = False

    @property
    def port(self) -> int:
        """The port that is bound; 0 until `start`."""
        sockets = [one for server in self._servers for one in server.sockets]
        return next((int(one.getsockname()[1]) for one in sockets), 0)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on bound ``sockets`` if there are any; a name may have several addresses.

        Raises `SettingsError` if the address cannot be had.
        """
        places: list[dict[str, Any]] = [{"sock": one} for one in sockets] or [{"host": host, "port": port}]
        try:
            self._servers = [await self._serve(**place) for place in places]
        except (OSError, UnicodeError) as error:  # a name that is too long for the resolver is a UnicodeError
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(f"Cannot listen on {host}:{port}: {reason.lower()}.") from None
        self._ready = True

    async def _serve(self, **place: Any) -> Server:
        return await serve(
            self._handle,
            **place,
            process_request=self._admit,
            create_connection=sharing(self._slices),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            select_subprotocol=_select_subprotocol,
            compression=None,
            open_timeout=OPEN_TIMEOUT_S,
            ping_interval=WS_PING_S,
            ping_timeout=WS_PING_S,
            close_timeout=self._services.limits.close_timeout,
            max_size=self._services.limits.hard_event_bytes,
            server_header="conductor",
        )

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more connections, let running turns end, close what is open."""
        self._ready = False
        if not self._servers:
            return
        for server in self._servers:
            server.close(close_connections=False)
        await self._drain(drain_s)
        await self.hub.close()
        for connection in list(self._connections):
            connection.close(SERVICE_RESTART, "service restart")
        try:
            async with asyncio.timeout(2 * self._services.limits.close_timeout):
                await self._closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort("did not close")
            await self._closed()
        await self.hub.close()  # again: a first event may have come while its connection was closing

    async def _closed(self) -> None:
        for server in self._servers:
            await server.wait_closed()

    async def _drain(self, seconds: float) -> None:
        """Close each connection with 1012 as soon as its session rests, all of them within ``seconds``."""
        retiring = [
            asyncio.create_task(connection.retire(SERVICE_RESTART, "service restart"))
            for connection in self._connections
        ]
        # Sessions whose client is away have turns to end, too.
        retiring += [asyncio.create_task(session.settled()) for session in self.hub.sessions]
        if not retiring:
            return
        _, late = await asyncio.wait(retiring, timeout=seconds)
        if late:
            log.warning("sessions cut short", sessions=sum(session.busy for session in self.hub.sessions))
        for task in late:
            task.cancel()

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on, in sessions that are there as well."""
        self._services = services
        self.hub.reload(services)

    async def _handle(self, socket: ServerConnection) -> None:
        assert isinstance(socket, Socket)
        connection = Connection(socket, self.hub, self._services.limits)
        self._connections.add(connection)
        counts = [(self._subjects, socket.subject), (self._addresses, socket.client_address)]
        for counter, name in counts:
            counter[name] += 1
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            for counter, name in counts:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]

    async def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/ws"):
            await self.hub.turnstile.enter()  # a crowd of handshakes is let in one by one
        return self._answer(socket, request)

    def _answer(self, socket: ServerConnection, request: Request) -> Response | None:
        """Answer what is no upgrade, and refuse an upgrade that is not allowed."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return _text(http.HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            if self._ready and self._store_available():
                return _text(http.HTTPStatus.OK, "ready\n")
            return _text(http.HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n")
        if path == STATS_PATH and self._admin is not None:
            answer = self._admin.stats(request.headers, self._facts)
            return _text(answer.status, answer.text, answer.headers)
        if path != "/ws":
            return _text(http.HTTPStatus.NOT_FOUND, "Connect a WebSocket to /ws.\n")
        subject = self._authenticator.subject(request)
        if subject is None:
            return _text(http.HTTPStatus.UNAUTHORIZED, "A valid bearer token is needed.\n")
        origins, hosts = request.headers.get_all("Origin"), request.headers.get_all("Host")
        if len(origins) > 1 or len(hosts) > 1:
            return _text(http.HTTPStatus.BAD_REQUEST, "A header that may come once came twice.\n")
        origin, host = next(iter(origins), None), next(iter(hosts), None)
        if not origin_allowed(origin, host, self._origins, tokens=self._authenticator.required):
            return _text(http.HTTPStatus.FORBIDDEN, "This origin is not allowed.\n")
        limits = self._services.limits
        if len(self._connections) >= limits.max_connections:
            return _text(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.\n")
        # Anonymous clients are many people, not one; an address is no person either behind a proxy.
        if subject != ANONYMOUS and self._subjects[subject] >= limits.max_connections_per_subject:
            return _text(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many connections for this token.\n")
        assert isinstance(socket, Socket)
        peer = socket.remote_address
        forwarded = request.headers.get_all("X-Forwarded-For")
        address = client_address(peer[0], forwarded, self._proxies) if peer else None
        if address is not None and self._addresses[address] >= limits.max_connections_per_address:
            return _text(http.HTTPStatus.TOO_MANY_REQUESTS, "Too many connections from this address.\n")
        socket.subject, socket.client_address = subject, address or ""
        return None

    def _facts(self) -> Mapping[str, Any]:
        """Say what the operator may know: how much there is, and the tools' figures."""
        return {
            "version": __version__,
            **({} if self._worker is None else {"worker": self._worker}),
            "sessions": len(self.hub),
            "connections": self.connections,
            **self._services.figures.snapshot(),
        }


def _text(status: http.HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> Response:
    body = text.encode()
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    if status is http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(status.value, status.phrase, Headers({**headers, **(more or {})}), body)


def _select_subprotocol(socket: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Echo our subprotocol if it was offered; never the one that carries a token."""
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None
