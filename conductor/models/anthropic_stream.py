"""Decode the Messages API's stream: bytes in, model events out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

from conductor.errors import ModelError, ModelFailure
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, StopReason, TextDelta, Usage
from conductor.models.tool_names import ToolNameMap

# Bytes of one event: far above any reply, so that a broken stream cannot fill the memory.
MAX_EVENT_BYTES = 4 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SSEError(ValueError):
    """An event exceeds the parser's limit."""


class ServerSentEvent(NamedTuple):
    """One event: its name (may be empty) and its data as UTF-8 bytes."""

    event: bytes
    data: bytes


class SSEParser:
    """An incremental parser of server-sent events.

    Follows https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end with LF, CRLF or CR, a
    blank line ends an event, several ``data`` lines are joined by LF, lines that begin with a colon are
    comments, an event without data is dropped, and so is an event that the end of the stream cuts off. ``id``
    and ``retry`` are ignored.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._rest = b""  # bytes after the last blank line
        self._pieces: list[bytes] = []  # newer bytes, joined when a line ends: an event may come byte by byte
        self._size = 0
        self._after_cr = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes. Raises `SSEError` if an event grows too large."""
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_plain_ends(chunk)
        if b"\n" not in chunk:
            if chunk:
                self._keep(chunk)
            return []
        data = b"".join((self._rest, *self._pieces, chunk))
        self._pieces.clear()
        if not self._begun:
            data = data.removeprefix(_BOM)
            self._begun = True
        # Most chunks hold whole events: cut at blank lines at once, and not line by line.
        whole, blank, self._rest = data.rpartition(b"\n\n")
        self._size = len(self._rest)
        if self._size > self._max:
            raise SSEError(f"an event is larger than {self._max} bytes")
        if not blank:
            return []
        events = [_parse(block) for block in whole.split(b"\n\n")]
        return [event for event in events if event is not None]

    def _keep(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > self._max:
            raise SSEError(f"an event is larger than {self._max} bytes")

    def _with_plain_ends(self, chunk: bytes) -> bytes:
        # A CR at the end of one chunk and the LF of the next are one line end.
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


_TEXTS: Mapping[ModelFailure, str] = {
    "authentication": "The model service did not accept the API key, or the account may not use this model.",
    "rate_limited": "The model service says that there were too many requests.",
    "overloaded": "The model service is overloaded or failing.",
    "timeout": "The model service did not answer in time.",
    "context_too_long": "The conversation is too long for the model.",
    "refused": "The model service refused the request.",
    "connection": "The connection to the model service failed.",
    "protocol": "The model service and this server did not understand each other.",
}

# https://platform.claude.com/docs/en/api/errors
_BY_TYPE: Mapping[str, ModelFailure] = {
    "authentication_error": "authentication",
    "permission_error": "authentication",
    "billing_error": "authentication",
    "rate_limit_error": "rate_limited",
    "overloaded_error": "overloaded",
    "api_error": "overloaded",
    "timeout_error": "overloaded",
    "request_too_large": "context_too_long",
}
_BY_STATUS: Mapping[int, ModelFailure] = {
    401: "authentication",
    402: "authentication",
    403: "authentication",
    408: "timeout",
    413: "context_too_long",
    429: "rate_limited",
}
_TOO_LONG = ("prompt is too long", "exceed context limit", "context window")


def failure(reason: ModelFailure, *, retry_after: float | None = None) -> ModelError:
    """Make the error with words for people; they hold nothing of the service's text."""
    return ModelError(reason, _TEXTS[reason], retry_after=retry_after)


def from_status(status: int, message: str, headers: Mapping[str, str]) -> ModelError:
    """Map an error status; ``message`` is the service's text, which is read but not passed on."""
    # Not retried: a wrong model name or base URL stays wrong.
    if status == 404:
        return ModelError("protocol", "The model service does not know this model or address.")
    reason = _BY_STATUS.get(status)
    if reason is None:
        reason = "overloaded" if status >= 500 else _of_bad_request(message)
    return failure(reason, retry_after=retry_after_s(headers))


def from_event(error_type: str, message: str) -> ModelError:
    """Map an ``error`` event, which may come after status 200."""
    reason = _BY_TYPE.get(error_type)
    return failure(reason or _of_bad_request(message))


def _of_bad_request(message: str) -> ModelFailure:
    text = message.lower()
    # The service has no error type for it, so its text is searched; only this decision depends on the words.
    return "context_too_long" if any(words in text for words in _TOO_LONG) else "protocol"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read ``retry-after-ms`` (milliseconds) or ``retry-after`` (seconds or a date), else None."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except ValueError:
        return None


_STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "context_window",
}


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    # One shape for all events: a type that is not known matches nothing and is ignored.
    type: str = ""
    index: int = -1
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class ReplyDecoder:
    """Turns the bytes of one streamed reply into model events; pure.

    ``finished`` is true after `Finished`. Text that arrives together becomes one `TextDelta`.
    """

    def __init__(self, names: ToolNameMap) -> None:
        self._names = names
        self._sse = SSEParser()
        self._blocks: dict[int, tuple[dict[str, Any], list[str]]] = {}
        self._thinking: list[dict[str, Any]] = []
        self._usage = _Usage()
        self._stop: str | None = None
        self.finished = False

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        """Decode the next bytes.

        Raises `ModelError`: ``protocol`` for invalid events, and the kind that an ``error`` event names.
        """
        events: list[ModelEvent] = []
        text: list[str] = []
        try:
            for item in self._sse.feed(chunk):
                event = _decode(item.data)
                # Nearly all events are these, so they skip the dispatch below.
                delta = event.delta
                if delta is not None and delta.type == "text_delta":
                    text.append(delta.text)
                    continue
                found = self._take(event)
                if found is not None:
                    _say(text, events)
                    events.append(found)
        except (msgspec.DecodeError, UnicodeDecodeError, SSEError):
            raise failure("protocol") from None
        _say(text, events)
        return events

    def _take(self, event: _Event) -> ModelEvent | None:
        match event.type:
            case "content_block_delta":
                self._extend(event)
            case "content_block_start" if event.content_block is not None:
                # Blocks are numbered, since their deltas may alternate.
                self._blocks[event.index] = (event.content_block, [])
            case "content_block_stop":
                # A call leaves only here, where its arguments are complete (rule 7 of models, "Anthropic").
                return self._end_block(event.index)
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._stop = event.delta.stop_reason
            case "message_stop":
                return self._finish()
            case "error":
                error = event.error or _Error()
                raise from_event(error.type, error.message)
        return None

    def _extend(self, event: _Event) -> None:
        delta, (block, parts) = event.delta, self._blocks.get(event.index, ({}, []))
        if delta is None:
            return
        if delta.type == "input_json_delta":
            parts.append(delta.partial_json)
        elif delta.type == "thinking_delta":
            parts.append(delta.thinking)
        elif delta.type == "signature_delta":
            block["signature"] = block.get("signature", "") + delta.signature

    def _end_block(self, index: int) -> ModelEvent | None:
        block, parts = self._blocks.pop(index, ({}, []))
        match block.get("type"):
            case "tool_use":
                # Without deltas the whole input is in the start event, usually `{}`.
                raw = "".join(parts) or msgspec.json.encode(block.get("input", {})).decode()
                return ToolCall(
                    str(block.get("id", "")), self._names.to_tool(str(block.get("name", ""))), raw
                )
            # Sent back unchanged with the results of its calls: the service checks the signature.
            case "thinking":
                self._thinking.append({**block, "thinking": block.get("thinking", "") + "".join(parts)})
            case "redacted_thinking":
                self._thinking.append(block)
        return None

    def _count(self, usage: _Usage | None) -> None:
        # Later figures are totals so far, not increments.
        if usage is not None:
            given = {
                name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None
            }
            self._usage = msgspec.structs.replace(self._usage, **given)

    def _finish(self) -> Finished:
        # The stream ended in order, but its last message_delta was lost: the reply may be cut.
        if self._stop is None:
            raise failure("connection")
        # A call whose block has not ended has only part of its arguments: it must not run.
        if self._stop == "tool_use" and any(
            block.get("type") == "tool_use" for block, _ in self._blocks.values()
        ):
            raise failure("protocol")
        self.finished = True
        used = self._usage
        usage = Usage(
            input_tokens=used.input_tokens or 0,
            output_tokens=used.output_tokens or 0,
            cache_read_tokens=used.cache_read_input_tokens or 0,
            cache_write_tokens=used.cache_creation_input_tokens or 0,
        )
        opaque = msgspec.json.encode(self._thinking).decode() if self._thinking else None
        # With an unknown stop reason no calls are run.
        return Finished(_STOPS.get(self._stop, "end_turn"), usage, opaque)


def _say(text: list[str], events: list[ModelEvent]) -> None:
    words = "".join(text)
    text.clear()
    if words:
        events.append(TextDelta(words))
