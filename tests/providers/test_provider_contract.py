"""The contract of model providers, run over each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from conductor.models.base import ModelProvider, StopReason
from conductor.plugins.models import anthropic_client
from tests.models import (
    AnthropicService,
    Break,
    Call,
    HttpFailure,
    ModelService,
    OpenAIService,
    Reply,
    ServiceScript,
)
from tests.providers.provider_contract import CASES, Answer, Harness
from tests.stand_ins.bedrock_service import BedrockService

assert anthropic_client  # imported here: it takes a while, and no case's wait should hold that

_STOPS: dict[StopReason, str] = {"context_window": "model_context_window_exceeded"}


class ServiceHarness:
    """A provider and the stand-in of its service."""

    def __init__(self, service: ModelService, provider: ModelProvider) -> None:
        self._service = service
        self._provider = provider

    @property
    def provider(self) -> ModelProvider:
        return self._provider

    @property
    def received(self) -> int:
        return self._service.received

    def script(self, *answers: Answer) -> None:
        self._service.replies.extend(_script(answer) for answer in answers)

    async def wait_disconnects(self, count: int) -> None:
        await self._service.wait_disconnects(count)

    async def wait_received(self, count: int) -> None:
        await self._service.wait_received(count)


def _script(answer: Answer) -> ServiceScript:
    if answer.fails == "status":
        return HttpFailure(529, "overloaded_error")
    calls = (Call(call.name.replace(".", "_"), call.arguments, call.call_id) for call in answer.calls)
    return Reply(
        text="".join(answer.text) or ("..." if answer.fails else ""),
        chunks=answer.text or None,
        calls=tuple(calls),
        stop_reason=_STOPS.get(answer.stop, answer.stop),
        split_bytes=answer.split_bytes,
        hold=answer.hold,
        hold_at=answer.after,
        broken=None if answer.fails is None else Break(answer.fails, answer.after),
    )


_SERVICES: dict[str, Callable[[], ModelService]] = {
    "anthropic": AnthropicService,
    "openai chat": partial(OpenAIService, "chat"),
    "openai responses": partial(OpenAIService, "responses"),
    "bedrock": BedrockService,
}


@pytest.fixture(params=_SERVICES)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with _SERVICES[request.param]() as service:
        provider = service.provider()
        try:
            yield ServiceHarness(service, provider)
        finally:
            await provider.aclose()
        assert list(service.refused) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
async def test_contract(case: Callable[[Harness], Awaitable[None]], harness: Harness) -> None:
    await case(harness)
