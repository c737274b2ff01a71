"""A strict stand-in for OpenAI's API: ``chat/completions``, ``completions`` and ``responses``, streaming.

It plays scripts (`anthropic_script`) and refuses requests as the service does (`openai_rules`). Its events
follow the documented streaming formats; recorded streams are in ``tests/providers/recorded``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from conductor.models.base import ModelProvider
from conductor.plugins.models.openai import Endpoint, OpenAIProvider
from conductor.plugins.models.text_protocol import TextProtocol
from tests.stand_ins.anthropic_script import (
    Break,
    Call,
    HttpFailure,
    JsonObject,
    Piece,
    Refused,
    Reply,
    redacted_data,
    words,
)
from tests.stand_ins.http_connection import Connection, HttpRequest
from tests.stand_ins.model_service import ModelService, provider_options
from tests.stand_ins.openai_rules import chat_key, check_body, check_headers
from tests.stand_ins.reply_writer import ReplyWriter

_FINISH = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"}


class OpenAIService(ModelService):
    """The stand-in; ``base_url`` ends in ``/v1``. Its `provider` posts to ``endpoint``."""

    def __init__(self, endpoint: Endpoint = "chat", **options: Any) -> None:
        super().__init__(**options)
        self._endpoint = endpoint
        self._issued: dict[str, JsonObject] = {}

    @property
    def base_url(self) -> str:
        """The base URL, as in OPENAI_BASE_URL."""
        return f"{super().base_url}/v1"

    def accept(self, request: HttpRequest) -> JsonObject:
        if request.method != "POST":
            raise Refused("Method Not Allowed", 405)
        check_headers(request.headers, self.api_keys)
        try:
            body = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Refused("We could not parse the JSON body of your request.") from None
        return check_body(request.path, body, self._issued)

    def provider(
        self, *, api_key: str | None = "test-key", model: str = "test-model", **options: Any
    ) -> ModelProvider:
        options.setdefault("endpoint", self._endpoint)
        return OpenAIProvider(api_key, model, 512, base_url=self.base_url, **provider_options(options))

    def error_body(self, failure: HttpFailure, request_id: str) -> JsonObject:
        error = {"message": failure.message, "type": failure.error_type, "param": None, "code": None}
        return {"error": error}

    async def reply(
        self, connection: Connection, reply: Reply, request: HttpRequest, body: JsonObject, request_id: str
    ) -> None:
        usage = {"read": len(request.body) // 4, "written": 1 + len(reply.text) // 4, **reply.usage}
        connection.start(200, {"x-request-id": request_id, "content-type": reply.content_type})
        if request.path == "/v1/responses":
            pieces = responses_pieces(reply, request_id, usage, self._issued)
            await ReplyWriter(connection, reply, _responses_error).send(pieces)
            return
        is_text = request.path == "/v1/completions"
        pieces = chat_pieces(reply, request_id, body["model"], usage, text=is_text, issued=self._issued)
        await ReplyWriter(connection, reply, _chat_error).send(pieces)


class TextService(OpenAIService):
    """A model without tool calls behind ``/chat/completions``: it writes its scripts' calls as text."""

    def provider(self, **options: Any) -> ModelProvider:
        return TextProtocol(super().provider(**options))

    async def reply(
        self, connection: Connection, reply: Reply, request: HttpRequest, body: JsonObject, request_id: str
    ) -> None:
        objects: list[JsonObject] = [{"type": "final_answer", "content": reply.text}] if reply.text else []
        for call in reply.calls:
            name = call.name.replace("agent_", "agent.")
            objects.append({"type": "tool_call", "name": name, "arguments": call.arguments})
        text = "\n".join(msgspec.json.encode(item).decode() for item in objects)
        text_reply = replace(reply, text=text, calls=(), thinking=None)
        await super().reply(connection, text_reply, request, body, request_id)

    def texts(self) -> str:
        return "\n".join(map(_observed, super().texts().splitlines()))


def _observed(line: str) -> str:
    is_result = line.startswith('{"type":"tool_observation"')
    return str(msgspec.json.decode(line)["content"]) if is_result else line


def _chat_error(broken: Break) -> bytes:
    error = {"message": "Scripted error", "type": broken.error_type, "param": None, "code": None}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def _responses_error(broken: Break) -> bytes:
    error = {"type": "error", "code": broken.error_type, "message": "Scripted error", "param": None}
    return b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"


def _id_of(call: Call, request_id: str, number: int) -> str:
    return call.id or f"call_{request_id}_{number}"


def _arguments(call: Call, reply: Reply) -> list[str]:
    raw = call.raw
    return [raw[at : at + reply.argument_size] for at in range(0, len(raw), reply.argument_size)]


def chat_pieces(
    reply: Reply,
    request_id: str,
    model: str,
    usage: Mapping[str, int],
    *,
    text: bool,
    issued: dict[str, JsonObject],
) -> Iterator[Piece]:
    """Give the whole stream of a reply, `Break` aside; ``text`` is the form of ``/completions``.

    ``issued`` remembers the reasoning of its calls; ``redacted`` signs the first, as with Gemini.
    """
    common = {"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk", "created": 1, "model": model}

    def data(value: JsonObject, delta: bool = False) -> Piece:
        line = msgspec.json.encode({**common, **value}).decode()
        return Piece(f"data: {line}\n\n".encode(), delta)

    def chunk(delta: JsonObject, reason: str | None = None, *, counts: bool = True) -> Piece:
        part = {"text": delta.get("content", "")} if text else {"delta": delta}
        return data({"choices": [{"index": 0, **part, "finish_reason": reason}]}, counts)

    yield chunk({"role": "assistant", "content": ""}, counts=False)
    for part in words(reply.thinking or ""):
        yield chunk({"reasoning_content": part})
    for part in reply.chunks if reply.chunks is not None else words(reply.text):
        if reply.pings:
            yield Piece(b": ping\n\n")
        yield chunk({"content": part})
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        first = {
            "index": index,
            "id": _id_of(call, request_id, index),
            "type": "function",
            "function": function,
        }
        reasoning: JsonObject = {} if reply.thinking is None else {"reasoning_content": reply.thinking}
        if reply.redacted is not None and not index:
            reasoning["extra_content"] = {"google": {"thought_signature": redacted_data(reply.redacted)}}
            first["extra_content"] = reasoning["extra_content"]
        if reply.stop == "tool_use":
            issued[chat_key(call.name, call.raw)] = reasoning
        yield chunk({"tool_calls": [first]})
        for part in _arguments(call, reply):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, _FINISH.get(reply.stop, reply.stop), counts=False)
    figures = {
        "prompt_tokens": usage["read"],
        "completion_tokens": usage["written"],
        "total_tokens": usage["read"] + usage["written"],
        "prompt_tokens_details": {"cached_tokens": usage.get("cached", 0)},
    }
    yield data({"choices": [], "usage": figures})
    yield Piece(b"data: [DONE]\n\n")


def responses_pieces(
    reply: Reply, request_id: str, usage: Mapping[str, int], issued: dict[str, JsonObject]
) -> Iterator[Piece]:
    """Give the whole stream of a reply, `Break` aside; ``issued`` remembers the reasoning of its calls."""

    def event(kind: str, body: JsonObject, delta: bool = False) -> Piece:
        line = msgspec.json.encode({"type": kind, **body}).decode()
        return Piece(f"event: {kind}\ndata: {line}\n\n".encode(), delta)

    response = {"id": f"resp_{request_id}", "object": "response", "status": "in_progress"}
    yield event("response.created", {"response": response})
    thought: JsonObject | None = None
    if reply.thinking is not None:
        thought = {
            "id": f"rs_{request_id}",
            "type": "reasoning",
            "summary": [],
            "encrypted_content": reply.thinking.encode().hex(),
        }
        yield event("response.output_item.done", {"item": thought})
    if reply.text:
        message = {"id": f"msg_{request_id}", "type": "message", "role": "assistant"}
        yield event("response.output_item.added", {"item": message})
        for part in reply.chunks if reply.chunks is not None else words(reply.text):
            yield event("response.output_text.delta", {"item_id": message["id"], "delta": part}, delta=True)
        content = [{"type": "output_text", "text": reply.text}]
        yield event("response.output_item.done", {"item": {**message, "content": content}})
    for number, call in enumerate(reply.calls):
        item = {"type": "function_call", "name": call.name, "call_id": _id_of(call, request_id, number)}
        if thought is not None:
            issued[item["call_id"]] = thought
        yield event("response.output_item.added", {"item": {**item, "arguments": ""}})
        for part in _arguments(call, reply):
            yield event("response.function_call_arguments.delta", {"delta": part}, delta=True)
        status = "incomplete" if reply.stop == "max_tokens" else "completed"
        yield event("response.output_item.done", {"item": {**item, "arguments": call.raw, "status": status}})
    figures = {
        "input_tokens": usage["read"],
        "input_tokens_details": {"cached_tokens": usage.get("cached", 0), "cache_write_tokens": 0},
        "output_tokens": usage["written"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["read"] + usage["written"],
    }
    why = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}.get(reply.stop)
    if why is None:
        yield event("response.completed", {"response": {**response, "status": "completed", "usage": figures}})
        return
    ended = {**response, "status": "incomplete", "usage": figures, "incomplete_details": {"reason": why}}
    yield event("response.incomplete", {"response": ended})
