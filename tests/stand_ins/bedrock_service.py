"""A strict stand-in for Bedrock's ``converse-stream``, whose referee is botocore.

A request has to pass the validator of botocore's own service model, and the rules of the model's family as
others met them (AWS's reference of ``ToolResultBlock``; pydantic-ai's and strands-agents' issues). The frames
of the answers have the documented layout and checksums, and botocore's parser reads them back before they are
sent. Nothing was recorded.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from botocore.eventstream import EventStreamBuffer
from botocore.session import Session
from botocore.validate import ParamValidator

from conductor.plugins.models.bedrock import BedrockProvider
from tests.stand_ins.anthropic_script import Break, HttpFailure, JsonObject, Piece, Refused, Reply, words
from tests.stand_ins.http_connection import Connection, HttpRequest
from tests.stand_ins.model_service import ModelService, provider_options
from tests.stand_ins.picture_rules import check_picture
from tests.stand_ins.reply_writer import ReplyWriter

_SHAPE = Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
_STOPS = {"refusal": "content_filtered"}


class BedrockService(ModelService):
    """The stand-in; it wants a bearer key or a signature."""

    def accept(self, request: HttpRequest) -> JsonObject:
        if "authorization" not in {name.lower() for name in request.headers}:
            raise Refused("Missing Authentication Token", 403)
        path = request.path.split("/")
        if len(path) != 4 or path[1] != "model" or path[3] != "converse-stream":
            raise Refused("There is no such operation", 404)
        body: JsonObject = msgspec.json.decode(request.body)
        check(body, unquote(path[2]))
        return body

    def provider(self, *, model: str = "test-model", **options: Any) -> BedrockProvider:
        region = "eu-west-1"
        return BedrockProvider(
            "test-key", model, 512, region, base_url=self.base_url, **provider_options(options)
        )

    def error_body(self, failure: HttpFailure, request_id: str) -> JsonObject:
        return {"message": failure.message}

    async def reply(
        self, connection: Connection, reply: Reply, request: HttpRequest, body: JsonObject, request_id: str
    ) -> None:
        kind = "application/vnd.amazon.eventstream"
        if reply.content_type != "text/event-stream":
            kind = reply.content_type
        connection.start(200, {"x-amzn-requestid": request_id, "content-type": kind})
        usage = {"read": len(request.body) // 4, "written": 1 + len(reply.text) // 4, **reply.usage}
        await ReplyWriter(connection, reply, _error).send(pieces(reply, request_id, usage))


def check(body: JsonObject, model: str) -> None:
    """Refuse a request by botocore's validator, and by other rules of the service."""
    report = ParamValidator().validate({"modelId": model, **body}, _SHAPE)
    if report.has_errors():
        raise Refused(report.generate_report())
    messages = body["messages"]
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[number % 2]:
            raise Refused("A conversation must alternate between user and assistant roles.")
        result_ids = [
            block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block
        ]
        if sorted(result_ids) != sorted(open_ids):
            raise Refused(f"Expected toolResult blocks for: {open_ids}")
        open_ids = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        _check_family(message["content"], model)
        _check_images(message["content"], model)
        if any("text" in block and not block["text"].strip() for block in message["content"]):
            raise Refused("The text field in the ContentBlock object is blank.")
    tools = body.get("toolConfig", {}).get("tools", ())
    defined = {tool["toolSpec"]["name"] for tool in tools if "toolSpec" in tool}
    blocks = [block for message in messages for block in message["content"]]
    uses = [block["toolUse"] for block in blocks if "toolUse" in block]
    if uses and not tools:
        raise Refused(
            "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        )
    if not defined.issuperset(use["name"] for use in uses):
        raise Refused("A toolUse names a tool that is not defined.")
    # botocore leaves patterns to the service.
    if not all(_NAME.fullmatch(name) for name in (*defined, *(use["toolUseId"] for use in uses))):
        raise Refused("Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+")
    marks = sum("cachePoint" in block for block in (*tools, *body.get("system", ()), *blocks))
    if marks > 4:
        raise Refused("You can have up to 4 cache points.")
    if marks and "anthropic." not in model:
        raise Refused("extraneous key [cachePoint] is not permitted")


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _check_images(content: list[JsonObject], model: str) -> None:
    """Refuse images to a model that does not see, and images that are none, which botocore does not see."""
    for block in content:
        _check_images(block.get("toolResult", {}).get("content", []), model)
        if "image" not in block:
            continue
        if not ("anthropic." in model or "amazon.nova" in model):
            raise Refused("This model doesn't support the image field. Remove image and try again.")
        image = block["image"]
        check_picture(f"image/{image['format']}", image["source"]["bytes"], "image")


def _check_family(content: list[JsonObject], model: str) -> None:
    if not ("anthropic." in model or "amazon.nova" in model) and any(
        "status" in block.get("toolResult", ()) for block in content
    ):
        raise Refused("This model doesn't support the status field. Remove status and try again.")
    if any(family in model for family in ("meta.", "mistral.", "writer.")):
        # They have no reasoning, so that a signed one is another model's.
        if any("reasoningContent" in block for block in content):
            raise Refused("This model doesn't support the reasoningContent field.")
        kinds = {"toolUse" in block or "toolResult" in block for block in content}
        if len(kinds) > 1:
            raise Refused("Conversation blocks and tool blocks cannot be provided in the same turn.")


def frame(kind: str, payload: JsonObject, *, message_type: str = "event") -> bytes:
    """Make one message of an event stream, with its checksums."""
    header_values = {
        f":{message_type}-type": kind,
        ":content-type": "application/json",
        ":message-type": message_type,
    }
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in header_values.items()
    )
    body = json.dumps(payload).encode()  # it may hold halves of characters
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + body
    message_bytes = message + struct.pack(">I", binascii.crc32(message))
    parser = EventStreamBuffer()
    parser.add_data(message_bytes)
    assert [read.payload for read in parser] == [body]
    return message_bytes


def pieces(reply: Reply, request_id: str, usage: dict[str, int]) -> Iterator[Piece]:
    """Give the whole stream of a reply, `Break` aside."""
    index = 0

    def block(kind: str, body: JsonObject, delta: bool = False) -> Piece:
        return Piece(frame(kind, {"contentBlockIndex": index, **body}), delta)

    yield Piece(frame("messageStart", {"role": "assistant"}))
    if reply.thinking is not None:
        for part in words(reply.thinking):
            yield block("contentBlockDelta", {"delta": {"reasoningContent": {"text": part}}})
        signature = base64.b64encode(request_id.encode()).decode()
        yield block("contentBlockDelta", {"delta": {"reasoningContent": {"signature": signature}}})
        yield block("contentBlockStop", {})
        index += 1
    if reply.text:
        for part in reply.chunks if reply.chunks is not None else words(reply.text):
            yield block("contentBlockDelta", {"delta": {"text": part}}, delta=True)
        yield block("contentBlockStop", {})
        index += 1
    for number, call in enumerate(reply.calls):
        use = {"toolUseId": call.id or f"tooluse_{request_id}_{number}", "name": call.name}
        yield block("contentBlockStart", {"start": {"toolUse": use}})
        for at in range(0, len(call.raw), reply.argument_size):
            part = call.raw[at : at + reply.argument_size]
            yield block("contentBlockDelta", {"delta": {"toolUse": {"input": part}}}, delta=True)
        yield block("contentBlockStop", {})
        index += 1
    yield Piece(frame("messageStop", {"stopReason": _STOPS.get(reply.stop, reply.stop)}))
    figures: dict[str, Any] = {"inputTokens": usage["read"], "outputTokens": usage["written"]}
    figures["totalTokens"] = usage["read"] + usage["written"]
    figures["cacheReadInputTokens"] = usage.get("cached", 0)
    yield Piece(frame("metadata", {"usage": figures, "metrics": {"latencyMs": 1}}))


def _error(broken: Break) -> bytes:
    # The script names errors as the Messages API does.
    kind = {"overloaded_error": "serviceUnavailableException"}.get(broken.error_type, broken.error_type)
    return frame(kind, {"message": "Scripted error"}, message_type="exception")
