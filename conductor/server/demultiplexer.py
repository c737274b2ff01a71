"""The target of a first request decides the protocol: HTTP for the API, WebSockets for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

from websockets.server import ServerProtocol

from conductor.server.websocket import Handshakes

API_PATH = "/v1"
_PATH = API_PATH.encode()
# Bytes in which the target of a request must end; one that is longer is not the API's.
MAX_TARGET_BYTES = 8_192

MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]


class Demultiplexer(asyncio.Protocol):
    """Reads the target of the first request, and gives the connection to ``http`` or ``websocket``.

    The WebSocket library answers one GET a connection, and reads no bodies. An HTTP server in front of both
    would parse each upgrade a second time, and own the transport whose writes `Socket` batches. This costs a
    WebSocket 3 us of a handshake of 700 us, and nothing afterwards.
    A connection without a target, or without an accepted key, is cut after ``seconds``. The library compares
    ``protocol`` with its own.
    """

    protocol: ServerProtocol

    def __init__(
        self, http: MakeProtocol, websocket: MakeProtocol, handshakes: Handshakes, seconds: float
    ) -> None:
        self._http = http
        self._websocket = websocket
        self._handshakes = handshakes
        self._seconds = seconds
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the handshake, and limit its time."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        self._handshakes.add(self._transport)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over once the target is known."""
        self._data += data
        parts = self._data.split(b" ", 2)
        if len(parts) < 3 and b"\n" not in self._data and len(self._data) < MAX_TARGET_BYTES:
            return
        is_api = len(parts) == 3 and (parts[1] == _PATH or parts[1].startswith((_PATH + b"/", _PATH + b"?")))
        if is_api:  # the API ends the handshake, when it accepts a key
            protocol = self._http()
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
