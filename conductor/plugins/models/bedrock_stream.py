"""Amazon Bedrock's Converse: render a request and decode its stream; pure.

The request is made from the request of the Messages API, whose rules are stricter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby

import msgspec
from botocore.eventstream import EventStreamBuffer, ParserError

from conductor.errors import ModelError
from conductor.models.base import Finished, ModelEvent, ModelRequest, StopReason, Usage, may_call
from conductor.models.failures import failure
from conductor.plugins.models import anthropic_request
from conductor.plugins.models.decoding import EventDecoder, Item, joined, json_decoder
from conductor.plugins.models.families import Claude
from conductor.plugins.models.reasoning import CallSlot, Reasoning, ReplyBlock, Words, opaque_of
from conductor.plugins.models.rendering import Json, encode
from conductor.plugins.models.service_errors import ServiceProblem, from_status
from conductor.plugins.models.thought_filter import ThoughtFilter
from conductor.plugins.models.tool_names import ToolNameMap

_STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "content_filtered": "refusal",
    "guardrail_intervened": "refusal",
    "model_context_window_exceeded": "context_window",
}
_MALFORMED = ("malformed_model_output", "malformed_tool_use")
# The status of an exception in a stream.
_STATUS = {
    "throttlingException": 429,
    "validationException": 400,
    "modelTimeoutException": 408,
    "serviceUnavailableException": 503,
}
# Models with marks for the prompt cache. Nova caches by itself, and refuses a mark after tools.
_CACHES = re.compile(r"anthropic\.claude-(?:(?:opus|sonnet|haiku)-\d|3-7|3-5-haiku)")
# Models that accept the status of a result, by the API's reference.
_TAKES_STATUS = re.compile(r"anthropic\.|amazon\.nova")
# Models that refuse words with calls or results in one message.
_WANTS_APART = re.compile(r"(?:meta|mistral|writer)\.")
# Between such words and calls, since roles alternate.
_BETWEEN = {"assistant": ("user", "[Go on.]"), "user": ("assistant", "Noted.")}
_MARK: Json = {"cachePoint": {"type": "default"}}
# The API cannot forbid calls while the history holds some.
_NO_CALLS = "Answer in words now, without calling a tool."


def converse_body(
    request: ModelRequest, names: ToolNameMap, claude: Claude, max_tokens: int, *, reasoning: bool = True
) -> Json:
    """Render a request to ``converse-stream``; arguments as in `anthropic_request.body_of`."""
    rendered = anthropic_request.body_of(request, names, claude, max_tokens, reasoning=reasoning)
    # Its blocks are structs.
    source = msgspec.json.decode(encode(rendered))
    marks = _CACHES.search(claude.model) is not None
    messages = [
        {"role": message["role"], "content": _blocks(message["content"], marks=marks)}
        for message in source["messages"]
    ]
    body: Json = {
        "messages": _adapted(messages, claude.model),
        "inferenceConfig": {"maxTokens": source["max_tokens"]},
    }
    # Claude's own fields.
    if own := {key: source[key] for key in ("thinking", "output_config") if key in source}:
        body["additionalModelRequestFields"] = own
    if request.stop:
        body["inferenceConfig"]["stopSequences"] = list(request.stop)
    system = _blocks(source.get("system", ()), marks=marks)
    if source.get("tools"):
        tools: list[Json] = [{"toolSpec": _tool(tool)} for tool in source["tools"]]
        body["toolConfig"] = {"tools": [*tools, _MARK] if marks else tools}
        if not may_call(request):
            system.append({"text": _NO_CALLS})
    if system:
        body["system"] = system
    return body


def _adapted(messages: list[Json], model: str) -> list[Json]:
    if not _TAKES_STATUS.search(model):
        for message in messages:
            for block in message["content"]:
                block.get("toolResult", {}).pop("status", None)
    if not _WANTS_APART.search(model):
        return messages
    apart: list[Json] = []
    for message in messages:
        # These models sign no reasoning.
        content = [block for block in message["content"] if "reasoningContent" not in block]
        for number, (_, blocks) in enumerate(groupby(content, _is_of_tool)):
            if number:
                role, text = _BETWEEN[message["role"]]
                apart.append({"role": role, "content": [{"text": text}]})
            apart.append({"role": message["role"], "content": list(blocks)})
    return apart


def _is_of_tool(block: Json) -> bool:
    return "toolUse" in block or "toolResult" in block


def _tool(tool: Json) -> Json:
    rendered = {"name": tool["name"], "inputSchema": {"json": tool["input_schema"]}}
    return rendered | {"description": tool["description"]} if "description" in tool else rendered


def _blocks(blocks: Iterable[Json], *, marks: bool) -> list[Json]:
    rendered: list[Json] = []
    for block in blocks:
        rendered.append(_block(block))
        if marks and "cache_control" in block:
            rendered.append(_MARK)
    return rendered


def _block(block: Json) -> Json:
    match block["type"]:
        case "tool_use":
            return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
        case "tool_result":
            status = "error" if block.get("is_error") else "success"
            parts = block["content"]
            content = [{"text": parts}] if isinstance(parts, str) else list(map(_block, parts))
            return {"toolResult": {"toolUseId": block["tool_use_id"], "content": content, "status": status}}
        case "image":
            source = block["source"]
            kind = source["media_type"].removeprefix("image/")
            return {"image": {"format": kind, "source": {"bytes": source["data"]}}}
        case "thinking":
            reasoning = {"text": block["thinking"], "signature": block["signature"]}
            return {"reasoningContent": {"reasoningText": reasoning}}
        case "redacted_thinking":
            return {"reasoningContent": {"redactedContent": block["data"]}}
        case _:
            return {"text": block["text"]}


class _ToolUse(msgspec.Struct, gc=False):
    id: str = msgspec.field(default="", name="toolUseId")
    name: str = ""
    input: str = ""


class _Reasoning(msgspec.Struct, gc=False):
    text: str = ""
    signature: str = ""
    redacted: str = msgspec.field(default="", name="redactedContent")


class _Part(msgspec.Struct):
    text: str = ""
    tool: _ToolUse | None = msgspec.field(default=None, name="toolUse")
    reasoning: _Reasoning | None = msgspec.field(default=None, name="reasoningContent")


class _Usage(msgspec.Struct, rename="camel", gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0


class _Event(msgspec.Struct, rename="camel"):
    content_block_index: int = 0
    start: _Part | None = None
    delta: _Part | None = None
    stop_reason: str = ""
    usage: _Usage | None = None
    message: str = ""


_decode = json_decoder(_Event)


class ConverseDecoder(EventDecoder):
    """Decodes a streamed reply.

    ``prefix`` gives the request's digest, which is kept with the reply's reasoning
    (`conductor.plugins.models.reasoning`).
    """

    undecodable = (*EventDecoder.undecodable, ParserError)

    def __init__(self, names: ToolNameMap, prefix: Callable[[], str]) -> None:
        # Models without signed reasoning write it as text.
        super().__init__(ThoughtFilter())
        self._names = names
        self._prefix = prefix
        self._frames = EventStreamBuffer()
        self._calls: dict[int, tuple[_ToolUse, list[str]]] = {}
        self._words: dict[int, list[str]] = {}
        self._reasoning: dict[int, Json] = {}
        self._received: dict[int, ReplyBlock] = {}
        self._stop: str | None = None

    def end(self) -> list[ModelEvent]:
        """Return the last events if only the figures are missing. Raises `ModelError` for a cut reply."""
        return super().end() if self._stop is None else self._events([self._finish(_Usage())])

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        self._frames.add_data(chunk)
        for frame in self._frames:
            if frame.headers.get(":message-type") != "event":
                raise _failed(frame.headers, frame.payload)
            event = _decode(frame.payload)
            if event.delta is not None and event.delta.text:
                self._words.setdefault(event.content_block_index, []).append(event.delta.text)
                items.append(event.delta.text)
            elif (result := self._take(str(frame.headers.get(":event-type")), event)) is not None:
                items.append(result)

    def _take(self, kind: str, event: _Event) -> Item | None:
        index = event.content_block_index
        match kind:
            case "contentBlockStart" if event.start is not None and event.start.tool is not None:
                self._calls[index] = event.start.tool, []
            case "contentBlockDelta" if event.delta is not None:
                self._extend(index, event.delta)
            case "contentBlockStop" if index in self._calls:
                call, parts = self._calls.pop(index)
                if CallSlot(call.id) not in self._received.values():  # else it is repeated
                    self._received[index] = CallSlot(call.id)
                self._add_call(call.id, self._names.to_tool(call.name), "".join(parts) or "{}")
            case "messageStop":
                self._stop = event.stop_reason
            case "metadata":  # the last event
                return self._finish(event.usage or _Usage())
        return None

    def _extend(self, index: int, delta: _Part) -> None:
        if delta.tool is not None and index in self._calls:
            self._calls[index][1].append(delta.tool.input)
        elif delta.reasoning is not None:
            # As the Messages API has it: the next request is made from that.
            if delta.reasoning.redacted:
                self._reasoning[index] = {"type": "redacted_thinking", "data": delta.reasoning.redacted}
                return
            thought = self._reasoning.setdefault(index, {"type": "thinking", "thinking": "", "signature": ""})
            thought["thinking"] += delta.reasoning.text
            thought["signature"] += delta.reasoning.signature

    def _finish(self, figures: _Usage) -> Finished:
        if self._stop is None:
            raise failure("connection")
        # A call whose block has not ended is incomplete.
        if self._stop in _MALFORMED or (self._stop == "tool_use" and self._calls):
            raise failure("malformed")
        self.finished = True
        usage = Usage(
            figures.input_tokens,
            figures.output_tokens,
            figures.cache_read_input_tokens,
            figures.cache_write_input_tokens,
        )
        received: dict[int, ReplyBlock] = {n: Words(joined(parts)) for n, parts in self._words.items()}
        received |= self._received
        # Models that do not sign their reasoning do not want it back.
        received |= {n: Reasoning(t) for n, t in self._reasoning.items() if t.get("signature") or "data" in t}
        opaque = opaque_of([received[index] for index in sorted(received)], self._prefix)
        # With an unknown stop reason no call runs.
        return Finished(_STOPS.get(self._stop, "end_turn"), usage, opaque)


def _failed(headers: Json, payload: bytes) -> ModelError:
    kind = str(headers.get(":exception-type") or headers.get(":error-code"))
    try:
        message = _decode(payload).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = ""
    return from_status(_STATUS.get(kind, 500), ServiceProblem(message=message), {})
