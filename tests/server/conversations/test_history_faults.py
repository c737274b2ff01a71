"""A history keeps its length whatever a model's service, or a proxy before it, answers."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from conductor.messages import UserMessage
from tests.models import AnthropicService, Break, Call, HttpFailure, OpenAIService, Reply
from tests.serving import serving

STREAM = {"content-type": "text/event-stream"}
TURNS = 8
CONTEXT = (
    "This model's maximum context length is 8192 tokens.",
    "The request exceeds the available context size (4096).",
    "prompt is too long: 9000 tokens > 8000 maximum",
    "Invalid context.",
)


def odd(rng: random.Random) -> Reply | HttpFailure:
    """Make an answer of a service that is not well."""
    match rng.randrange(6):
        case 0:
            return HttpFailure(200, body=b"", headers=STREAM)
        case 1:
            return Reply(text="Half a", broken=Break("cut", rng.randint(0, 1)))
        case 2:
            return HttpFailure(413, body=b"<html>Request Entity Too Large</html>")
        case 3:
            return Reply(stop_reason="model_context_window_exceeded")
        case 4:
            return Reply(text="")
    return HttpFailure(400, "invalid_request_error", rng.choice(CONTEXT))


async def talk(kind: type[AnthropicService], sessions: range, seed: int) -> None:
    """Hold conversations, each of whose turns ends in an answer or an apology."""
    rng = random.Random(seed)
    async with kind() as model, serving(model.provider()) as served:
        for number in sessions:
            words = [f"These are words {turn} of {number}." for turn in range(TURNS)]
            async with served.phone(f"s-{number}") as phone:
                model.default = lambda _: odd(rng) if rng.random() < 0.6 else Reply(text="All right.")
                for sentence in words[:-1]:
                    await phone.ask(sentence)
                model.default = Reply(text="All right.")
                await phone.ask(words[-1])
                assert phone.finals()[-1] == "All right."
            (session,) = (s for s in served.listener.registry.sessions if s.key.session_id == f"s-{number}")
            kept = [message.text for message in session.state.log if isinstance(message, UserMessage)]
            assert kept == words, f"seed {seed}, session {number}"
            sent = [line for line in model.texts().splitlines() if "These are words" in line]
            assert sent == words, f"seed {seed}, session {number}"


@pytest.mark.parametrize("kind", [AnthropicService, OpenAIService])
async def test_no_answer_of_a_service_makes_a_history_shorter(kind: type[AnthropicService]) -> None:
    await talk(kind, range(10), seed=random.randrange(1 << 32))


@pytest.mark.extended
@pytest.mark.parametrize("kind", [AnthropicService, OpenAIService])
async def test_no_answer_of_a_service_makes_a_hundred_histories_shorter(kind: type[AnthropicService]) -> None:
    await talk(kind, range(100), seed=random.randrange(1 << 32))


def of_a_window(limit: int) -> Any:
    """Make a service that refuses more bytes of messages than ``limit``, and calls a tool once."""

    def answer(body: Any) -> Reply | HttpFailure:
        if len(msgspec.json.encode(body["messages"])) > limit:
            return HttpFailure(400, "invalid_request_error", CONTEXT[0])
        has_result = any(message["role"] == "tool" for message in body["messages"][-2:])
        return Reply(text="Done.") if has_result else Reply(calls=(Call("device_write", {}),))

    return answer


async def test_a_result_beyond_the_window_is_shortened_and_its_write_runs_once() -> None:
    declared = {"name": "device.write", "description": "Write.", "inputSchema": {"type": "object"}}
    fields = {"capabilities": ["tools"], "tools": [declared | {"annotations": {"readOnlyHint": True}}]}
    tools = {"device.write": lambda _: "r" * 15_000}
    async with OpenAIService() as model, serving(model.provider()) as served:
        async with served.phone(start_fields=fields, tools=tools) as phone:
            model.default = of_a_window(20_000)
            for _ in range(4):
                await phone.ask("Write it down.")
            assert phone.finals() == ["Done."] * 4 and len(phone.runs) == 4
            model.default = of_a_window(14_000)
            await phone.ask("Write it down.")
            assert phone.finals()[-1] == "Done." and len(phone.runs) == 5


async def test_a_service_that_is_empty_for_a_while_is_said_to_have_failed_and_logged() -> None:
    async with OpenAIService() as model, serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("one")
        empty: Any = HttpFailure(200, body=b"", headers=STREAM)
        model.default = empty
        with capture_logs() as lines:
            await phone.ask("two")
        assert [error["code"] for error in phone.errors()] == ["model_provider_failed"]
        assert [line["error"] for line in lines if line["event"] == "turn failed"] == [
            "The model service sent an empty reply."
        ]


async def test_a_request_that_was_too_long_is_one_log_line_a_try() -> None:
    async with OpenAIService() as model, serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("one")
        model.play(HttpFailure(413))
        with capture_logs() as lines:
            await phone.ask("two")
        (line,) = (line for line in lines if line["event"] == "history too long for the model")
        assert (line["session"], line["log_level"]) == ("s-1", "warning") and line["tokens"] > 0
