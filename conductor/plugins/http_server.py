"""HTTP servers on the listener's port: the head of a request decides between them and WebSockets."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from websockets.server import ServerProtocol

from conductor.server.listener import Listener, MakeProtocol

# Bytes in which a head must end to be an HTTP server's.
MAX_HEAD_BYTES = 8_192
# Seconds for requests to end at the stop.
STOP_S = 2.0
_ROOT = re.compile(rb"\S+ (/\w+)[/? ]")
_UPGRADE = re.compile(rb"\nupgrade:\s*websocket", re.I)

MakeRefusal: TypeAlias = Callable[[HTTPStatus, str], web.Response]
"""Makes the answer to a request that is not valid HTTP."""


@asynccontextmanager
async def serving_http(
    listener: Listener, root: bytes, application: web.Application, refuse: MakeRefusal, **options: Any
) -> AsyncIterator[None]:
    """Serve an application below ``root``, such as ``/v1``, during the block."""
    runner = web.AppRunner(application, shutdown_timeout=STOP_S, **options)
    await runner.setup()
    assert runner.server is not None
    listener.http[root] = partial(OneRequest, runner.server, refuse)
    listener.wrap = partial(Demultiplexer, listener)
    try:
        yield
    finally:
        del listener.http[root]
        await runner.cleanup()


class OneRequest(RequestHandler):
    """Answers the first request of a connection and ends it: the next request may be another server's.

    A proxy sends the requests of many clients, upgrades among them, over the connections that it keeps.
    """

    __slots__ = ("_refuse",)

    def __init__(self, server: web.Server, refuse: MakeRefusal) -> None:
        # A stranger's bytes that are no HTTP are no error of the server.
        silent = logging.Logger("http", logging.CRITICAL)
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=silent, logger=silent)
        self._refuse = refuse

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer; the body of a request that took too long is not awaited."""
        if not resp.prepared:
            resp.headers["Server"] = "conductor"
            resp.force_close()
        written = await super().finish_response(request, resp, start_time)
        if resp.status == HTTPStatus.REQUEST_TIMEOUT:
            self.force_close()
        return written

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse without the library's own page, which names versions and repeats the request."""
        return self._refuse(HTTPStatus(status), "The request is not valid HTTP.")


class Demultiplexer(asyncio.Protocol):
    """Reads the head of a request, and gives its connection to one of the HTTP servers or to ``websocket``.

    Both answer one request a connection, so no later one can reach the wrong server. An HTTP server in front
    of both would parse each upgrade a second time, and own the transport whose writes `Socket` batches. This
    costs a WebSocket 3 us of a handshake of 700 us, and nothing afterwards. A connection without a head, or
    not admitted by its HTTP server, is cut in time. The library compares ``protocol`` with its own.
    """

    def __init__(self, listener: Listener, websocket: MakeProtocol, protocol: ServerProtocol) -> None:
        self.protocol = protocol
        self._http = listener.http
        self._websocket = websocket
        self._handshakes = listener.handshakes
        self._seconds = listener.services.limits.handshake_timeout
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the handshake, and limit its time."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        self._handshakes.add(self._transport)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over once its protocol is known."""
        self._data += data
        root = _ROOT.match(self._data)
        http = self._http.get(root[1]) if root is not None else None
        head, end, _ = self._data.partition(b"\r\n\r\n")
        is_known = end if http is not None else root is not None or b"\n" in head
        if not is_known and len(self._data) < MAX_HEAD_BYTES:
            return
        if http is not None and not _UPGRADE.search(head):  # it ends the handshake, when it admits the client
            protocol = http()
        else:
            self.connection_lost(None)
            protocol = self._websocket()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._timer.cancel()
        self._handshakes.discard(self._transport)

    def _expire(self) -> None:
        if self._handshakes.discard(self._transport):
            self._transport.abort()
