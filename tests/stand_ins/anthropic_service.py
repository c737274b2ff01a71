"""A strict stand-in for Anthropic's Messages API, over real HTTP on a loopback port.

It plays scripts (`anthropic_script`) and refuses requests as the service does (`anthropic_rules`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.plugins.models.anthropic_request import Account
from tests.stand_ins.anthropic_binding import THINKING, Prefix, content_of
from tests.stand_ins.anthropic_cache import PromptCache
from tests.stand_ins.anthropic_rules import MAX_BODY_BYTES, check_betas, check_body, check_headers
from tests.stand_ins.anthropic_script import (
    Break,
    HttpFailure,
    JsonObject,
    Refused,
    Reply,
    stream_pieces,
    whole_message,
)
from tests.stand_ins.http_connection import Connection, HttpRequest
from tests.stand_ins.model_service import ModelService, provider_options
from tests.stand_ins.reply_writer import ReplyWriter

ISSUED_KEPT = 1000


class AnthropicService(ModelService):
    """The stand-in. ``max_input_tokens`` is the context window; a token is four bytes of the body.

    ``usages`` holds the usage of each request. ``warmings`` are the requests that only fill the prompt
    cache, which answers no script and ``requests`` leaves out. ``advance_s`` is added to the cache's clock.
    """

    def __init__(self, *, max_input_tokens: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._max_input_tokens = max_input_tokens
        self._cache = PromptCache()
        self.usages: deque[JsonObject] = deque(maxlen=self.requests.maxlen)
        self.warmings: list[JsonObject] = []
        self.advance_s = 0.0
        self._issued: dict[str, list[JsonObject]] = {}

    def accept(self, request: HttpRequest) -> JsonObject:
        if request.path.partition("?")[0] != "/v1/messages":
            raise Refused("Not Found", 404, "not_found_error")
        if request.method != "POST":
            raise Refused("Method Not Allowed", 405)
        check_headers(request.headers, self.api_keys)
        if len(request.body) > MAX_BODY_BYTES:
            raise Refused("Request exceeds the maximum size", 413, "request_too_large")
        try:
            body = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"The request body is not valid JSON: {error}") from None
        accepted = check_body(body, self._issued)
        check_betas(request.headers, accepted)
        tokens = len(request.body) // 4
        if self._max_input_tokens is not None and tokens > self._max_input_tokens:
            raise Refused(f"prompt is too long: {tokens} tokens > {self._max_input_tokens} maximum")
        return accepted

    def provider(
        self, *, api_key: str = "test-key", model: str = "test-model", **options: Any
    ) -> AnthropicProvider:
        return AnthropicProvider(Account(api_key, self.base_url), model, 512, **provider_options(options))

    def error_body(self, failure: HttpFailure, request_id: str) -> JsonObject:
        error = {"type": failure.error_type, "message": failure.message}
        return {"type": "error", "error": error, "request_id": request_id}

    async def reply(
        self, connection: Connection, reply: Reply, request: HttpRequest, body: JsonObject, request_id: str
    ) -> None:
        message_id = request_id.removeprefix("req_")
        content = self.compose(reply, message_id, body)
        cached = self._cache.count(body, asyncio.get_running_loop().time() + self.advance_s)
        usage = {**cached, "output_tokens": 1 + len(reply.text) // 4, **reply.usage}
        self.usages.append(usage)
        headers = {"request-id": request_id, "content-type": reply.content_type}
        if body.get("stream"):
            connection.start(200, headers)
            pieces = stream_pieces(reply, content, message_id, body["model"], usage)
            await ReplyWriter(connection, reply, _error_event).send(pieces)
            return
        message = whole_message(reply, content, message_id, body["model"], usage)
        if reply.hold is not None:
            await reply.hold.wait()
        connection.respond(200, msgspec.json.encode(message), {**headers, "content-type": "application/json"})

    def unscripted(self, body: JsonObject) -> Reply | None:
        if body["max_tokens"]:
            return None
        self.warmings.append(body)
        return Reply(stop_reason="max_tokens", usage={"output_tokens": 0})

    def compose(self, reply: Reply, message_id: str, body: JsonObject) -> list[JsonObject]:
        """Give the blocks of a reply to this request, and remember their thinking."""
        content = content_of(reply, message_id, Prefix(body))
        if thinking := [block for block in content if block["type"] in THINKING]:
            self._issued |= {block["id"]: thinking for block in content if block["type"] == "tool_use"}
        while len(self._issued) > ISSUED_KEPT:
            del self._issued[next(iter(self._issued))]
        return content


def _error_event(broken: Break) -> bytes:
    error = {"type": broken.error_type, "message": "Scripted error"}
    return b"event: error\ndata: " + msgspec.json.encode({"type": "error", "error": error}) + b"\n\n"
