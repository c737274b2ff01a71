"""Server-sent events."""

from __future__ import annotations

# Bytes of one event: a broken stream must not fill the memory.
MAX_EVENT_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SSEError(ValueError):
    """An event exceeds the parser's limit."""


class SSEParser:
    """An incremental parser of server-sent events.

    Follows https://html.spec.whatwg.org/multipage/server-sent-events.html, for the ``data`` alone.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail = b""  # bytes after the last blank line
        self._pieces: list[bytes] = []  # later bytes without a line end
        self._size = 0
        self._after_cr = False
        self._has_begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Give the data of the next events. Raises `SSEError` if an event grows too large."""
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
        parsed = map(_parse, blocks.split(b"\n\n"))
        return [data for data in parsed if data is not None]

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


def _parse(block: bytes) -> bytes | None:
    fields = (line.partition(b":") for line in block.split(b"\n"))
    data = [value.removeprefix(b" ") for field, _, value in fields if field == b"data"]
    return b"\n".join(data) if data else None
