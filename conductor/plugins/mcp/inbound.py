"""The messages that an MCP server sends: their limits, and a stream that reports results and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The package parses a message in one step, which blocks the event loop.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# 50,000 values are parsed in about 50 ms; 4 MiB can contain 40 times as many.
MAX_VALUES = 50_000
_PIECE = 65_536


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


class InboundStream:
    """A transport's stream of messages; ``on_result`` gets each result, ``on_end`` is called at its end."""

    def __init__(
        self, stream: Any, on_result: Callable[[dict[str, Any]], None], on_end: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._on_result = on_result
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> InboundStream:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except Exception:  # the end, or a closed stream
            self._on_end()
            raise
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            self._on_result(result)
        return item

    async def __aenter__(self) -> InboundStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        suppress: bool | None = await self._stream.__aexit__(*error)
        return suppress
