"""The model's service fails in every way it can: retried where that is right, else one spoken sentence."""

from __future__ import annotations

import json

import pytest

from conductor.conversation.phrases import CUT_OFF, FAILURES
from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.test_barge_in import assistant_texts
from tests.models import AnthropicService, Break, Call, HttpFailure, Reply, ServiceScript
from tests.shapes import PLAIN_TURN, shape_of

SECRET = "internal-detail-4711"
FAILED_TURN = [*PLAIN_TURN[:2], "error", *PLAIN_TURN[2:]]
SORRY = FAILURES["model_provider_failed"]

LASTING: dict[str, ServiceScript] = {
    "authentication": HttpFailure(401, "authentication_error", SECRET),
    "forbidden": HttpFailure(403, "permission_error", SECRET),
    "no such model": HttpFailure(404, "not_found_error", SECRET),
    "bad request": HttpFailure(400, "invalid_request_error", SECRET),
    "too long": HttpFailure(400, "invalid_request_error", "prompt is too long: 210000 tokens"),
    "too large": HttpFailure(413, "request_too_large", SECRET),
    "html instead of JSON": HttpFailure(400, body=b"<html>" + SECRET.encode()),
    "stall at once": Reply(text="One two three", broken=Break("stall", 0)),
    "refusal": Reply(text="", stop_reason="refusal"),
    "later than the turn": HttpFailure(429, "rate_limit_error", SECRET, {"retry-after": "3600"}),
}

PASSING: dict[str, list[ServiceScript]] = {
    "429": [HttpFailure(429, "rate_limit_error", SECRET)],
    "429 with retry-after": [HttpFailure(429, "rate_limit_error", SECRET, {"retry-after": "0"})],
    "500": [HttpFailure(500, "api_error", SECRET)],
    "529 twice": [HttpFailure(529, "overloaded_error", SECRET)] * 2,
    "overloaded before the first word": [Reply(text="never", broken=Break("error", 0))],
    "cut before the first word": [Reply(text="never", broken=Break("cut", 0))],
    "overloaded after two words": [Reply(text="One two three", delay_s=0.02, broken=Break("error", 2))],
    "cut after two words": [Reply(text="One two three", broken=Break("cut", 2))],
    "garbage before the first word": [Reply(text="never", broken=Break("garbage", 0))],
    "garbage after two words": [Reply(text="One two three", delay_s=0.02, broken=Break("garbage", 2))],
    "stall after two words": [Reply(text="One two three", broken=Break("stall", 2))],
    "an end without an end": [Reply(text="One two three", broken=Break("end", 2))],
    "cut in a call": [
        Reply(text="I look.", calls=(Call("agent_status", {"id": "a"}),), broken=Break("cut", 3))
    ],
}


@pytest.mark.parametrize("name", LASTING)
async def test_a_failure_is_one_error_one_sentence_and_the_next_turn_works(
    claude: AnthropicService, name: str
) -> None:
    claude.replies += [LASTING[name], Reply(text="Here I am.")]
    provider = provider_for(claude)
    async with serving(provider, model_silence=0.3) as served, served.phone() as phone:
        events = await phone.ask("hello?")
        assert phone.shapes(1) == FAILED_TURN
        (error,) = phone.errors()
        assert error["code"] == "model_provider_failed"
        assert phone.speeches() == phone.finals() == [SORRY]
        assert SECRET not in json.dumps(events)
        await phone.ask("hello again")
        assert phone.finals()[-1] == "Here I am."


@pytest.mark.parametrize("name", PASSING)
async def test_a_passing_failure_is_retried_unnoticed(claude: AnthropicService, name: str) -> None:
    claude.replies += [*PASSING[name], Reply(text="Here I am.")]
    provider = provider_for(claude)
    async with serving(provider, model_silence=0.3) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert phone.shapes(1) == PLAIN_TURN
        assert phone.finals() == ["Here I am."]
    assert claude.received == len(PASSING[name]) + 1


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
