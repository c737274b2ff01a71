"""The messages of a transport: their limits, their call, and the streams of clients and servers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from conductor.events.unreadable import repaired
from conductor.tools.base import PersonQuestion

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.types import JSONRPCError

# The package parses a message in one step, which blocks the event loop.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# 50,000 values are parsed in about 50 ms; 4 MiB can contain 40 times as many.
MAX_VALUES = 50_000
_PIECE = 65_536

# The error of a response whose result cannot be read; no code of JSON-RPC or MCP.
UNREADABLE = -31_000

Ask: TypeAlias = Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]]


def is_dense(message: bytes | bytearray) -> bool:
    """Return whether JSON, which may be cut, has more than `MAX_VALUES` values; takes 40 ms for 4 MiB."""
    if len(message) <= MAX_VALUES:
        return False
    plain = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    values, is_string = 0, 0
    for start in range(0, len(plain), _PIECE):
        parts = plain[start : start + _PIECE].split(b'"')
        code = b"".join(parts[is_string::2])
        is_string ^= (len(parts) - 1) % 2
        values += code.count(b",") + code.count(b"[") + code.count(b"{")
    return values > MAX_VALUES


@dataclass(slots=True)
class McpCall:
    """A call in progress, of one attempt to send it; ``ask`` asks the person.

    ``refusal`` is the reason that the call did not run; empty if it may have run. ``session_lost``: the
    server no longer has the session. ``is_accepted``: the server accepted the call, so a failure of a later
    message, such as the person's answer, does not mean that the call did not run. ``is_sent``: whether a byte
    of it was sent; None where the transport does not tell.
    """

    ask: Ask | None = None
    refusal: str = ""
    session_lost: bool = False
    is_accepted: bool = False
    is_sent: bool | None = None

    def note_sent(self) -> None:
        """Record that the first byte is sent."""
        self.is_sent = True


CURRENT_CALL: ContextVar[McpCall | None] = ContextVar("call", default=None)
"""The call of the current task."""


def _unreadable(text: bytes) -> JSONRPCError | None:
    """Make the error of a response whose result is invalid, so that its call ends; None for another text."""
    from mcp.types import ErrorData, JSONRPCError

    try:
        message = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    request_id = message.get("id") if isinstance(message, dict) else None
    if "result" not in (message or ()) or not isinstance(request_id, int | str):
        return None
    return JSONRPCError(
        jsonrpc="2.0", id=request_id, error=ErrorData(code=UNREADABLE, message="it is no result of MCP")
    )


@asynccontextmanager
async def message_streams(
    messages: AsyncIterable[bytes],
    send: Callable[[str], Awaitable[None]],
    on_end: Callable[[], None] = lambda: None,
) -> AsyncGenerator[TransportStreams, None]:
    """Make the streams of a transport, of which a message is one text.

    They end, and ``on_end`` is called, with ``messages``, with a message of too many values, or when ``send``
    raises OSError. A response with an invalid result becomes the error `UNREADABLE`; another text that is no
    message reaches the client or server as a ValueError.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    received, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, to_send = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with received:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for text in messages:
                    if is_dense(text):
                        break
                    try:
                        message = jsonrpc_message_adapter.validate_json(repaired(text), by_name=False)
                    except ValueError as error:
                        unreadable = _unreadable(text)
                        await received.send(SessionMessage(unreadable) if unreadable else error)
                    else:
                        await received.send(SessionMessage(message))
        on_end()

    async def write() -> None:
        async with to_send:
            with suppress(OSError):
                async for item in to_send:
                    await send(item.message.model_dump_json(by_alias=True, exclude_unset=True))
        received.close()
        on_end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(write)
        yield inbound, outbound
        tasks.cancel_scope.cancel()
