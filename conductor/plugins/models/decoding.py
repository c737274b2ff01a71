"""The common part of the decoders of streamed replies, and server-sent events; pure."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, TextDelta
from conductor.models.failures import failure
from conductor.plugins.models.service_errors import cut_off
from conductor.plugins.models.thought_filter import ThoughtFilter

Item: TypeAlias = str | ToolCall | Finished
"""A part of a reply: an event, or more of the text."""


class EventDecoder:
    """Turns the bytes of one streamed reply into model events; a subclass reads the `Item` values.

    Text that arrives together becomes one `TextDelta`, without the thoughts that ``thoughts`` removes.
    """

    undecodable: tuple[type[Exception], ...] = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

    def __init__(self, thoughts: ThoughtFilter | None = None) -> None:
        self._thoughts = thoughts
        self.finished = False

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        """Decode the next bytes. Raises `ModelError`."""
        items: list[Item] = []
        try:
            self._read(chunk, items)
        except self.undecodable:
            raise failure("undecodable") from None
        return self._events(items)

    def end(self) -> list[ModelEvent]:
        """Raise `ModelError`: the bytes ended before the reply."""
        raise cut_off()

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        raise NotImplementedError

    def _events(self, items: list[Item]) -> list[ModelEvent]:
        events: list[ModelEvent] = []
        text = ""
        for item in items:
            if isinstance(item, str):
                text += item
                continue
            self._add_words(text, item, events)
            events.append(item)
            text = ""
        if text:
            self._add_words(text, None, events)
        return events

    def _add_words(self, text: str, event: ModelEvent | None, events: list[ModelEvent]) -> None:
        if self._thoughts is not None:
            text = self._thoughts.feed(text)
            if isinstance(event, Finished):
                text += self._thoughts.finish(is_cut=event.stop == "max_tokens")
        if text:
            events.append(TextDelta(text))


# Bytes of one event: a broken stream must not fill the memory.
MAX_EVENT_BYTES = 1024 * 1024


class SSEParser:
    """An incremental parser of server-sent events, for the ``data`` alone. Lines end by LF or CRLF."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._pieces: list[bytes] = []  # bytes after the last blank line
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Give the data of the next events, without empty ones. Raises `ModelError` for one too large."""
        if b"\r" in chunk:  # in JSON it is escaped
            chunk = chunk.replace(b"\r", b"")
        self._pieces.append(chunk)
        self._size += len(chunk)
        blocks: list[bytes] = []
        if b"\n" in chunk:
            # Most chunks hold complete events, so cut at blank lines, not at each line.
            *blocks, tail = b"".join(self._pieces).split(b"\n\n")
            self._pieces, self._size = [tail], len(tail)
        if self._size > self._max:
            raise failure("undecodable")
        return [data for data in map(_data, blocks) if data]


def _data(block: bytes) -> bytes:
    if b"\n" not in block:
        return block[5:].strip() if block.startswith(b"data:") else b""
    return b"\n".join([line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")])
