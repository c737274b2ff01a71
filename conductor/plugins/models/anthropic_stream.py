"""Decode the Messages API's stream: bytes in, model events out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, StopReason, Usage
from conductor.models.failures import failure
from conductor.plugins.models.decoding import EventDecoder, Item, SSEParser
from conductor.plugins.models.reasoning import CallSlot, Reasoning, ReplyBlock, Words, opaque_of
from conductor.plugins.models.service_errors import from_event, problem_of
from conductor.plugins.models.tool_names import ToolNameMap

if TYPE_CHECKING:
    from anthropic.types import StopReason as ServiceStop

# Typed by the SDK, so that mypy fails when the API changes.
_SERVICE_STOPS: dict[ServiceStop, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "context_window",
}
_STOPS: dict[str, StopReason] = {str(name): stop for name, stop in _SERVICE_STOPS.items()}


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


class _Event(msgspec.Struct):
    # One shape for all events; unknown types are ignored.
    type: str = ""
    index: int = -1
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class ReplyDecoder(EventDecoder):
    """Decodes a streamed reply.

    ``prefix`` gives the request's digest, which is kept with the reply's thinking
    (`conductor.plugins.models.reasoning`).
    """

    def __init__(self, names: ToolNameMap, prefix: Callable[[], str]) -> None:
        super().__init__()
        self._names = names
        self._prefix = prefix
        self._sse = SSEParser()
        self._blocks: dict[int, tuple[dict[str, Any], list[str]]] = {}
        self._received: list[ReplyBlock] = []
        self._usage = _Usage()
        self._stop: str | None = None

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        for data in self._sse.feed(chunk):
            event = _decode(data)
            # Nearly all events are text, so they skip the dispatch.
            delta = event.delta
            if delta is not None and delta.type == "text_delta":
                self._part(event.index).append(delta.text)
                items.append(delta.text)
            elif (result := self._take(event)) is not None:
                items.append(result)

    def _take(self, event: _Event) -> Item | None:
        match event.type:
            case "content_block_delta":
                self._extend(event)
            case "content_block_start" if event.content_block is not None:
                self._blocks[event.index] = (event.content_block, [])
            case "content_block_stop":
                # Only here are the arguments of a call complete.
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
                raise from_event(problem_of(event.error))
        return None

    def _part(self, index: int) -> list[str]:
        return self._blocks.get(index, ({}, []))[1]

    def _extend(self, event: _Event) -> None:
        delta = event.delta
        if delta is None:
            return
        if delta.type == "input_json_delta":
            self._part(event.index).append(delta.partial_json)
        elif delta.type == "thinking_delta":
            self._part(event.index).append(delta.thinking)
        elif delta.type == "signature_delta" and event.index in self._blocks:
            block = self._blocks[event.index][0]
            block["signature"] = (block.get("signature") or "") + delta.signature

    def _end_block(self, index: int) -> ToolCall | None:
        block, parts = self._blocks.pop(index, ({}, []))
        match block.get("type"):
            case "text":
                self._received.append(Words("".join(parts)))
            case "tool_use":
                call_id = str(block.get("id", ""))
                self._received.append(CallSlot(call_id))
                name = self._names.to_tool(str(block.get("name", "")))
                # Gateways that have a whole reply send the arguments with the block's start, without deltas.
                arguments = "".join(parts) or msgspec.json.encode(block.get("input", {})).decode()
                return ToolCall(call_id, name, arguments)
            # Goes back unchanged: the service checks the signature.
            case "thinking":
                self._received.append(Reasoning({**block, "thinking": "".join(parts)}))
            case "redacted_thinking":
                self._received.append(Reasoning(block))
        return None

    def _count(self, usage: _Usage | None) -> None:
        # Figures are totals, not increments.
        if usage is not None:
            figures = msgspec.structs.asdict(usage).items()
            values = {name: value for name, value in figures if value is not None}
            self._usage = msgspec.structs.replace(self._usage, **values)

    def _finish(self) -> Finished:
        # The last message_delta was lost, so the reply may be cut.
        if self._stop is None:
            raise failure("connection")
        # A call whose block has not ended must not run: its arguments are incomplete.
        open_blocks = (block for block, _ in self._blocks.values())
        if self._stop == "tool_use" and any(block.get("type") == "tool_use" for block in open_blocks):
            raise failure("protocol")
        self.finished = True
        # With an unknown stop reason no call runs.
        stop = _STOPS.get(self._stop, "end_turn")
        return Finished(stop, _usage_of(self._usage), opaque_of(self._received, self._prefix))


class WarmingDecoder:
    """Reads the answer to a request that only fills the prompt cache: one message without content."""

    def __init__(self) -> None:
        self._data = b""
        self.finished = False

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        """Take the next bytes."""
        self._data += chunk
        return []

    def end(self) -> list[ModelEvent]:
        """Give the usage. Raises `ModelError`."""
        try:
            usage = msgspec.json.decode(self._data, type=_Message).usage
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise failure("protocol") from None
        self.finished = True
        return [Finished("max_tokens", _usage_of(usage or _Usage()))]


def _usage_of(usage: _Usage) -> Usage:
    return Usage(
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
    )
