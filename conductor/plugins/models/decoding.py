"""The common part of the decoders of streamed replies, and server-sent events; pure."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

import msgspec

from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, TextDelta, whole_characters
from conductor.models.failures import failure
from conductor.plugins.models.calls import MAX_CALLS, distinct, one_object
from conductor.plugins.models.service_errors import cut_off
from conductor.plugins.models.thought_filter import ThoughtFilter

T = TypeVar("T")
Item: TypeAlias = str | Finished
"""A part of a reply: more of the text, or the end."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def json_decoder(shape: type[T]) -> Callable[[bytes], T]:
    """Make a decoder of JSON to ``shape``. Some services cut a character into halves, which it keeps."""
    decode = msgspec.json.Decoder(shape, float_hook=float).decode

    def decode_with_halves(data: bytes) -> T:
        try:
            return decode(data)
        except msgspec.DecodeError:
            if not _HALF.search(data):
                raise
        try:
            return msgspec.convert(json.loads(data), shape)
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None

    return decode_with_halves


def joined(parts: Iterable[str]) -> str:
    """Join pieces of text, and the halves of characters at their ends."""
    return whole_characters("".join(parts))


class EventDecoder:
    """Turns the bytes of one streamed reply into model events; a subclass reads the `Item` values.

    Text that arrives together becomes one `TextDelta`, without the thoughts that ``thoughts`` removes. The
    calls (`_add_call`) are given at the reply's end: before that a service may repeat them.
    """

    undecodable: tuple[type[Exception], ...] = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

    def __init__(self, thoughts: ThoughtFilter | None = None) -> None:
        self._thoughts = thoughts
        self._half = ""  # of a character
        self._ended_calls: list[ToolCall] = []
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
        text = "".join(item for item in items if isinstance(item, str))
        finished = next((item for item in items if isinstance(item, Finished)), None)
        words = self._words_of(text, finished) if text or finished else ""
        events: list[ModelEvent] = [TextDelta(words)] if words else []
        return events if finished is None else [*events, *self._calls_of_reply(), finished]

    def _words_of(self, text: str, finished: Finished | None) -> str:
        text, self._half = self._half + text, ""
        if finished is None and "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = whole_characters(text)
        if self._thoughts is None:
            return text
        words = self._thoughts.feed(text)
        return words + self._thoughts.finish(is_cut=finished.stop == "max_tokens") if finished else words

    def _add_call(self, call_id: str, name: str, arguments: str) -> None:
        if len(self._ended_calls) >= MAX_CALLS:
            raise failure("undecodable")
        self._ended_calls.append(ToolCall(call_id, name, one_object(whole_characters(arguments))))

    def _calls_of_reply(self) -> list[ToolCall]:
        return distinct(self._ended_calls)


# Bytes of one event: a broken stream must not fill the memory.
MAX_EVENT_BYTES = 1024 * 1024


class SSEParser:
    """An incremental parser of server-sent events, for the ``data`` alone. Lines end by LF, CRLF or CR."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._pieces: list[bytes] = []  # bytes after the last blank line
        self._size = 0
        self._is_first = True
        self._ends_in_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the next events, without empty ones. Raises `ModelError` for one too large."""
        if b"\r" in chunk or (self._ends_in_cr and chunk):  # in JSON it is escaped
            chunk = self._with_line_feeds(chunk)
        self._pieces.append(chunk)
        self._size += len(chunk)
        blocks: list[bytes] = []
        if b"\n" in chunk:
            # Most chunks hold complete events, so cut at blank lines, not at each line.
            *blocks, tail = b"".join(self._pieces).split(b"\n\n")
            self._pieces, self._size = [tail], len(tail)
        if self._is_first and blocks:
            self._is_first = False
            blocks[0] = blocks[0].removeprefix(codecs.BOM_UTF8)
        if self._size > self._max:
            raise failure("undecodable")
        return [data for data in map(_data, blocks) if data]

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        if self._ends_in_cr:
            chunk = chunk.removeprefix(b"\n")  # the other half of CRLF
        self._ends_in_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(block: bytes) -> bytes:
    if b"\n" not in block:
        return block[5:].strip() if block.startswith(b"data:") else b""
    return b"\n".join([line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")])
