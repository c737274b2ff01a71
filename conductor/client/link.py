"""One WebSocket: opened, written, read and given up, with every failure as one of the client's errors."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from conductor.client.errors import CannotConnect, ConnectionLost
from conductor.client.options import ClientOptions

_TOKEN = re.compile(r"[\x21-\x7e]+")


class Link:
    """One socket, from its opening to its end; a reconnect makes another."""

    def __init__(self, connection: ClientConnection, send_s: float) -> None:
        self._connection = connection
        self._send_s = send_s
        self._down = False

    @classmethod
    async def open(cls, options: ClientOptions) -> Link:
        """Open a socket. Raises `CannotConnect`."""
        limits = options.limits
        if options.token is not None and not _TOKEN.fullmatch(options.token):
            raise CannotConnect("The token holds characters that no header can carry.")
        headers = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
        try:
            connection = await open_websocket(
                options.url,
                additional_headers=headers,
                proxy=options.proxy,  # the library would look for one in the environment
                open_timeout=limits.connect_s,
                ping_interval=limits.ping_s,
                ping_timeout=limits.ping_s,
                close_timeout=limits.close_s,
                max_size=limits.max_frame_bytes,
            )
        except (OSError, ValueError, WebSocketException) as error:
            raise _cannot_connect(options, error) from error
        return cls(connection, limits.send_s)

    async def send(self, frame: bytes) -> None:
        """Send one text frame. Raises `ConnectionLost`; the frame may or may not have left then."""
        if self._down:
            raise ConnectionLost("The connection is down.")
        try:
            async with asyncio.timeout(self._send_s):
                await self._connection.send(frame, text=True)
        except TimeoutError:
            # A cancelled send may have left half a frame: nothing may follow it.
            self.abort()
            raise ConnectionLost(f"The server took nothing for {self._send_s:g} s.") from None
        except ConnectionClosed as closed:
            self._down = True
            raise _lost(closed) from None

    async def receive(self) -> bytes:
        """Wait for the next frame; pings are answered meanwhile. Raises `ConnectionLost`."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            self._down = True
            raise _lost(closed) from None

    def abort(self) -> None:
        """Cut the connection without a close frame; nothing is sent or received any more."""
        self._down = True
        self._connection.transport.abort()

    async def close(self) -> None:
        """Close with a close frame, bounded by ``close_s``."""
        self._down = True
        await self._connection.close()


def _lost(closed: ConnectionClosed) -> ConnectionLost:
    if closed.rcvd is None:
        return ConnectionLost("The connection broke.")
    why = f": {closed.rcvd.reason}" if closed.rcvd.reason else ""
    return ConnectionLost(
        f"The server closed the connection ({closed.rcvd.code}{why}).", close_code=closed.rcvd.code
    )


def _cannot_connect(options: ClientOptions, error: Exception) -> CannotConnect:
    status = None
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        why = f"the server answered HTTP {status}"
        if status in (401, 403):
            why += ", so the token is missing or not accepted"
    elif isinstance(error, TimeoutError):
        why = f"no answer within {options.limits.connect_s:g} s"
    elif isinstance(error, OSError):
        why = _why(error)
    elif isinstance(error, InvalidURI | ValueError):
        why = "it is not a WebSocket URL such as ws://127.0.0.1:8080/ws"
    else:
        why = "what answers there does not speak WebSocket"
    return CannotConnect(f"Cannot connect to {show_url(options.url)}: {why}.", status=status)


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection ({error.reason or 'TLS failed'})"
    if error.errno is not None:
        return os.strerror(error.errno).lower()
    # asyncio joins the failures of several addresses into one message without a number.
    return "connection refused" if "Connect call failed" in str(error) else "the network failed"


def show_url(url: str) -> str:
    """Write a URL without what may be secret in it: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "that address"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]
