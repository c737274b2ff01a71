"""Decode the Messages API's stream: bytes in, model events out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from conductor.models.base import Finished, ModelEvent, StopReason, Usage, is_json, token_count
from conductor.models.failures import failure
from conductor.plugins.models.calls import arguments_text
from conductor.plugins.models.decoding import EventDecoder, Item, SSEParser, joined, json_decoder
from conductor.plugins.models.reasoning import Reasoning, ReplyBlock, Words, add_slot, opaque_of
from conductor.plugins.models.service_errors import cut_off, from_event, problem_of
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
_USAGE = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_STOPS: dict[str, StopReason] = {str(name): stop for name, stop in _SERVICE_STOPS.items()}


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = ""
    partial_json: str | None = ""
    thinking: str | None = ""
    signature: str | None = ""
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    # One shape for all events; unknown types are ignored.
    type: str = ""
    index: int = -1
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_decode = json_decoder(_Event)


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
        self._usage: dict[str, int] = {}
        self._stop: str | None = None

    def end(self) -> list[ModelEvent]:
        """Return the last events if only the end mark is missing. Raises `ModelError` for a cut reply."""
        if self._stop is None:
            raise cut_off()
        return self._events([self._finish(self._stop)])

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        for data in self._sse.feed(chunk):
            # Some services send OpenAI's end mark or words that keep the connection alive.
            if not data.startswith(b"{"):
                continue
            event = _decode(data)
            # Nearly all events are text, so they skip the dispatch.
            delta = event.delta
            if delta is not None and delta.type == "text_delta":
                text = delta.text or ""
                self._part(event.index).append(text)
                items.append(text)
            elif (result := self._take(event)) is not None:
                items.append(result)

    def _take(self, event: _Event) -> Item | None:
        match event.type:
            case "content_block_delta":
                self._extend(event)
            case "content_block_start" if event.content_block is not None:
                return self._begin_block(event.index, event.content_block)
            case "content_block_stop":
                # Only here are the arguments of a call complete.
                self._end_block(event.index)
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._stop = event.delta.stop_reason
            case "message_stop":
                # Without a reason the last message_delta was lost, so the reply may be cut.
                if self._stop is None:
                    raise failure("connection")
                return self._finish(self._stop)
            case "error":
                raise from_event(problem_of(event.error))
        return None

    def _begin_block(self, index: int, block: dict[str, Any]) -> str | None:
        """Begin a block; services that have a whole reply send its text with the start."""
        begun = str(block.get(str(block.get("type"))) or "")
        self._blocks[index] = (block, [begun])
        return begun if block.get("type") == "text" else None

    def _part(self, index: int) -> list[str]:
        return self._blocks.get(index, ({}, []))[1]

    def _extend(self, event: _Event) -> None:
        delta = event.delta
        if delta is None:
            return
        if delta.type == "input_json_delta":
            self._part(event.index).append(delta.partial_json or "")
        elif delta.type == "thinking_delta":
            self._part(event.index).append(delta.thinking or "")
        elif delta.type == "signature_delta" and event.index in self._blocks:
            block = self._blocks[event.index][0]
            block["signature"] = (block.get("signature") or "") + (delta.signature or "")

    def _end_block(self, index: int) -> None:
        block, parts = self._blocks.pop(index, ({}, []))
        match block.get("type"):
            case "text":
                self._received.append(Words(joined(parts)))
            case "tool_use":
                call_id = str(block.get("id") or "")
                add_slot(self._received, call_id)
                name = self._names.to_tool(str(block.get("name", "")))
                # Gateways that have a whole reply send the arguments with the block's start, without deltas.
                arguments = "".join(parts) or arguments_text(block.get("input") or {})
                self._add_call(call_id, name, arguments)
            # Goes back unchanged: the service checks the signature.
            case "thinking":
                self._received.append(Reasoning({**block, "thinking": "".join(parts)}))
            case "redacted_thinking":
                self._received.append(Reasoning(block))

    def _count(self, usage: Any) -> None:
        # Figures are totals, not increments.
        if isinstance(usage, dict):
            self._usage |= {name: token_count(value) for name, value in usage.items() if value is not None}

    def _finish(self, reason: str) -> Finished:
        calls = self._calls_of_reply()
        if not reason and calls and all(is_json(call.arguments) for call in calls):
            reason = "tool_use"
        # A call whose block has not ended must not run: its arguments are incomplete.
        open_blocks = (block for block, _ in self._blocks.values())
        if reason == "tool_use" and any(block.get("type") == "tool_use" for block in open_blocks):
            raise failure("protocol")
        self.finished = True
        # With an unknown stop reason no call runs.
        stop = _STOPS.get(reason, "end_turn")
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
        """Return the usage. Raises `ModelError`."""
        try:
            usage = msgspec.json.decode(self._data, type=_Message).usage
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise failure("protocol") from None
        self.finished = True
        return [Finished("max_tokens", _usage_of(usage))]


def _usage_of(figures: Any) -> Usage:
    return Usage(*(token_count(figures.get(name)) for name in _USAGE) if isinstance(figures, dict) else ())
