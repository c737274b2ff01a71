"""Images in each service's form, byte for byte, and in words to a model that does not see."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from conductor.errors import ModelError
from conductor.images import Picture, take
from conductor.messages import AssistantMessage, Image, Message, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelProvider, ModelRequest, TextDelta, ToolDefinition
from conductor.plugins.models.text_protocol import TextProtocol
from tests.models import AnthropicService, HttpFailure, ModelService, OpenAIService, Reply
from tests.pictures import JPEG, WEBP, broken_png, png
from tests.stand_ins.bedrock_service import BedrockService

PNG = png(64, 48, seed=7, noise=2_000)
TAKEN = take([Picture("image/png", PNG), Picture("image/jpeg", JPEG), Picture("image/webp", WEBP)])
FIRST, SECOND, THIRD = TAKEN.images
GONE = Image(id="gone", media_type="image/png", size=40_960, width=8, height=8, gone=True)
LOST = Image(id="lost", media_type="image/png", size=40_960, width=8, height=8)
TOOLS = (ToolDefinition("camera.look", "Look.", {"type": "object"}),)
MESSAGES: list[Message] = [
    UserMessage("What is this?", images=(FIRST,)),
    AssistantMessage(
        calls=(ToolCall("call_1", "camera.look", "{}"), ToolCall("call_2", "camera.look", "{}"))
    ),
    ToolResult("call_1", "a photo", images=(SECOND, GONE)),
    ToolResult("call_2", "another", images=(THIRD, LOST)),
]
REQUEST = ModelRequest("You see.", MESSAGES, TOOLS, images=dict(TAKEN.pictures))
SERVICES: dict[str, tuple[Any, str]] = {
    "anthropic": (AnthropicService, "test-model"),
    "chat": (OpenAIService, "test-model"),
    "responses": (lambda: OpenAIService("responses"), "test-model"),
    "bedrock": (BedrockService, "eu.anthropic.claude-sonnet-5-5"),
}
BLIND_AT = {**SERVICES, "bedrock": (BedrockService, "meta.llama3-1-8b")}
BLIND_AT["completions"] = (lambda: OpenAIService("completions"), "test-model")


@asynccontextmanager
async def asked(
    make: Any, model: str, request: ModelRequest, **options: Any
) -> AsyncIterator[tuple[ModelService, str]]:
    """Ask a stand-in; gives it with the request that it accepted, as text."""
    async with make() as service:
        service.replies.append(Reply(text="A cat."))
        provider: ModelProvider = service.provider(model=model, **options)
        await provider.start()
        try:
            assert await said(provider, request) == "A cat."
        finally:
            await provider.aclose()
        assert not service.refused, list(service.refused)
        yield service, json.dumps(service.requests[-1])


async def said(provider: ModelProvider, request: ModelRequest) -> str:
    async with aclosing(provider.stream(request)) as events:
        return "".join([event.text async for event in events if isinstance(event, TextDelta)]).strip()


@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_a_service_gets_each_image_in_its_form_with_its_bytes(make: Any, model: str) -> None:
    async with asked(make, model, REQUEST) as (_, text):
        found = [b64decode(data) for data in re.findall(r'(?<=[",])[A-Za-z0-9+/]{40,}={0,2}(?=")', text)]
        assert sorted(found) == sorted([PNG, JPEG, WEBP])
        assert text.count("[an image that is no longer shown: image/png, 40 KB]") == 2


@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_an_image_of_a_result_is_in_the_next_request_of_its_turn(make: Any, model: str) -> None:
    look, again = (
        AssistantMessage(calls=(ToolCall(key, "camera.look", "{}"),)) for key in ("call_1", "call_2")
    )
    one: list[Message] = [UserMessage("Look."), look, ToolResult("call_1", "a photo", images=(FIRST,))]
    two: list[Message] = [*one, again, ToolResult("call_2", "another", images=(SECOND,))]
    pictures = dict(TAKEN.pictures)
    first = replace(REQUEST, messages=one, images={FIRST.id: pictures[FIRST.id]}, kept={})
    async with make() as service:
        service.replies += [Reply(text="I look."), Reply(text="A cat.")]
        provider: ModelProvider = service.provider(model=model)
        await provider.start()
        try:
            await said(provider, first)
            await said(provider, replace(first, messages=two, images=pictures))  # shares ``kept``
        finally:
            await provider.aclose()
        text = json.dumps(service.requests[-1])
    assert all(b64encode(pictures[image.id]).decode() in text for image in (FIRST, SECOND))


@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_an_image_of_a_failed_result_is_seen(make: Any, model: str) -> None:
    failed = replace_fields(MESSAGES[2], is_error=True)
    request = replace(REQUEST, messages=[*MESSAGES[:2], failed, MESSAGES[3]])
    async with asked(make, model, request) as (_, text):
        assert all(b64encode(data).decode() in text for _, data in TAKEN.pictures)


BROKEN = broken_png()
BAD = replace_fields(FIRST, id="bad", size=len(BROKEN))


@pytest.mark.parametrize("where", ["words", "a result", "a failed result"])
@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_a_request_whose_image_is_refused_is_sent_once_more_with_words_in_its_place(
    make: Any, model: str, where: str
) -> None:
    words, calls, second, third = MESSAGES
    if where == "words":
        words = replace_fields(words, images=(BAD,))
    else:
        second = replace_fields(second, images=(BAD,), is_error=where == "a failed result")
    messages: list[Message] = [words, calls, second, third]
    request = replace(REQUEST, messages=messages, images={**dict(TAKEN.pictures), "bad": BROKEN}, kept={})
    later = [*messages, UserMessage("And this?", images=(replace_fields(FIRST, id="new"),))]
    async with make() as service:
        service.replies += [Reply(text="A cat."), Reply(text="Still a cat."), Reply(text="A dog.")]
        provider: ModelProvider = service.provider(model=model)
        await provider.start()
        try:
            assert await said(provider, request) == "A cat."
            assert await said(provider, replace(request, kept={})) == "Still a cat."
            new = replace(request, messages=later, images={**dict(request.images or {}), "new": PNG}, kept={})
            assert await said(provider, new) == "A dog."
        finally:
            await provider.aclose()
        assert len(service.refused) == 1, "it is known from then on"
        first, second_text, last = (json.dumps(body) for body in service.requests)
    line = "[an image that the model's service refused: image/"
    assert first == second_text and first.count(line) == last.count(line) == 3
    pictures = [b64encode(data).decode() for data in (BROKEN, PNG)]
    assert [text in first for text in pictures] == [False, False]
    assert [text in last for text in pictures] == [False, True]


@pytest.mark.parametrize("images", [True, False], ids=["with images", "without"])
@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_a_request_that_is_refused_for_another_reason_still_fails(
    make: Any, model: str, images: bool
) -> None:
    request = REQUEST if images else replace(REQUEST, messages=[UserMessage("Hello.")], images={})
    async with make() as service:
        service.replies += [HttpFailure(400, "invalid_request_error", "No.")] * 2
        provider = service.provider(model=model)
        await provider.start()
        with pytest.raises(ModelError) as caught:
            await said(provider, request)
        await provider.aclose()
        assert caught.value.reason == "protocol"
        assert len(service.replies) == (0 if images else 1), "once more, and only without the images"


@pytest.mark.parametrize(("make", "model"), BLIND_AT.values(), ids=BLIND_AT)
async def test_a_model_that_does_not_see_reads_so(make: Any, model: str) -> None:
    options = {} if make is BLIND_AT["completions"][0] else {"sees": False}
    request = REQUEST if options else replace(REQUEST, tools=())
    async with asked(make, model, request, **options) as (_, text):
        assert text.count("[an image that this model cannot see: image/") == 4
        assert text.count("[an image that is no longer shown: image/png, 40 KB]") == 1
        assert not re.search(r"[A-Za-z0-9+/]{60,}", text)


async def test_a_model_that_writes_its_calls_as_text_reads_that_it_cannot_see() -> None:
    async with OpenAIService() as service:
        service.replies.append(Reply(text='{"type":"final_answer","content":"A cat."}'))
        provider = TextProtocol(service.provider())
        await provider.start()
        assert await said(provider, REQUEST) == "A cat."
        text = json.dumps(service.requests[-1])
        await provider.aclose()
    assert text.count("an image that this model cannot see") == 4 and "image_url" not in text


WRONG: dict[str, tuple[str, bytes]] = {
    "another type": ("image/png", JPEG),
    "a type that no service takes": ("image/tiff", b"II*\x00" + bytes(40)),
}


@pytest.mark.parametrize(("media_type", "data"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("make", "model"), SERVICES.values(), ids=SERVICES)
async def test_the_stand_ins_refuse_images_that_are_none(
    make: Any, model: str, media_type: str, data: bytes
) -> None:
    image = Image(id="i", media_type=media_type, size=len(data), width=8, height=8)
    request = replace(REQUEST, messages=[UserMessage("Look.", images=(image,))], images={"i": data})
    async with make() as service:
        provider = service.provider(model=model)
        await provider.start()
        service.replies.append(Reply(text="I see nothing."))
        assert await said(provider, request) == "I see nothing."
        await provider.aclose()
        assert len(service.refused) == 1


async def test_bedrock_refuses_images_for_a_model_that_does_not_see() -> None:
    async with BedrockService() as service:
        provider = service.provider(model="meta.llama3-1-8b")
        await provider.start()
        service.replies.append(Reply(text="I see nothing."))
        assert await said(provider, REQUEST) == "I see nothing."
        await provider.aclose()
        assert "doesn't support the image field" in str(service.refused)
