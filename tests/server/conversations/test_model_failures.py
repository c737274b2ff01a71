"""The model's service fails in every way it can: retried where that is right, else one spoken sentence."""

from __future__ import annotations

from conductor.conversation.phrases import CUT_OFF, FAILURES
from tests.models import AnthropicService, Break, HttpFailure, Reply
from tests.server.conversations.test_barge_in import assistant_texts
from tests.serving import provider_for, serving
from tests.shapes import shape_of

SORRY = FAILURES["model_provider_failed"]


async def test_retries_end(claude: AnthropicService) -> None:
    claude.default = HttpFailure(529, "overloaded_error")
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert phone.speeches() == [SORRY]
    assert claude.received == 3


async def test_text_shown_before_a_failure_stays_in_the_history(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One two three", broken=Break("cut", 2))] * 2
    claude.replies += [Reply(text="Sorry for that.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("count")
        await phone.ask("what happened?")
    (text,) = assistant_texts(claude.requests[-1])
    assert text == f"One two {CUT_OFF} {SORRY}"


async def test_shown_text_is_cleared_even_if_failures_are_not_spoken(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One two three", broken=Break("cut", 2))] * 2
    async with serving(provider_for(claude), speak_errors=False) as served, served.phone() as phone:
        await phone.ask("count")
        assert phone.finals() == ["One two"]
        assert shape_of(phone.log[-1]) == "state idle"


async def test_a_service_that_is_not_there_is_a_failure_like_others() -> None:
    async with AnthropicService() as stopped_service:
        provider = provider_for(stopped_service)
    async with serving(provider) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert phone.speeches() == [SORRY]
