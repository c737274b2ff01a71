"""Server-sent events."""

from __future__ import annotations

from typing import NamedTuple

# Bytes of one event: a broken stream must not fill the memory.
MAX_EVENT_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SSEError(ValueError):
    """An event exceeds the parser's limit."""


class ServerSentEvent(NamedTuple):
    """One event: its name (may be empty) and its data as UTF-8 bytes."""

    event: bytes
    data: bytes


class SSEParser:
    """An incremental parser of server-sent events.

    Follows https://html.spec.whatwg.org/multipage/server-sent-events.html. ``id`` and ``retry`` are ignored.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail = b""  # bytes after the last blank line
        self._pieces: list[bytes] = []  # later bytes without a line end
        self._size = 0
        self._after_cr = False
        self._has_begun = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes. Raises `SSEError` if an event grows too large."""
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_plain_ends(chunk)
        if b"\n" not in chunk:
            if chunk:
                self._keep(chunk)
            return []
        data = b"".join((self._tail, *self._pieces, chunk))
        self._pieces.clear()
        if not self._has_begun:
            data = data.removeprefix(_BOM)
            self._has_begun = True
        # Most chunks hold complete events, so cut at blank lines, not at each line.
        blocks, blank, self._tail = data.rpartition(b"\n\n")
        self._size = len(self._tail)
        if self._size > self._max:
            raise SSEError(f"an event is larger than {self._max} bytes")
        if not blank:
            return []
        events = [_parse(block) for block in blocks.split(b"\n\n")]
        return [event for event in events if event is not None]

    def _keep(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > self._max:
            raise SSEError(f"an event is larger than {self._max} bytes")

    def _with_plain_ends(self, chunk: bytes) -> bytes:
        # A CR and the LF of the next chunk are one line end.
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse(block: bytes) -> ServerSentEvent | None:
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    if not data:
        return None
    return ServerSentEvent(name, data[0] if len(data) == 1 else b"\n".join(data))
