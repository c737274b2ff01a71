"""The same conversations through each provider, from the phone to the strict stand-in of its service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from conductor.conversation.phrases import FAILURES
from conductor.plugins.models import text_protocol
from tests.dialogues import MOVE, begin, decide
from tests.hasty import SHORT_S, hasten
from tests.models import (
    AnthropicService,
    Break,
    Call,
    HttpFailure,
    ModelService,
    OpenAIService,
    Reply,
    ServiceScript,
    TextService,
)
from tests.serving import serving
from tests.shapes import PLAIN_TURN, arguments_of
from tests.stand_ins.bedrock_service import BedrockService

STATUS = "agent_status"
SECRET = "internal-detail-4711"
SORRY = FAILURES["model_provider_failed"]


_SERVICES: dict[str, Callable[[], ModelService]] = {
    "anthropic": AnthropicService,
    "openai chat": partial(OpenAIService, "chat"),
    "openai responses": partial(OpenAIService, "responses"),
    "text chat": TextService,
    "bedrock": BedrockService,
}


@pytest.fixture(params=_SERVICES)
async def model(request: pytest.FixtureRequest) -> AsyncIterator[ModelService]:
    async with _SERVICES[request.param]() as service:
        yield service
        assert not service.refused, list(service.refused)


async def test_plain(model: ModelService) -> None:
    model.play(Reply(text="Hello there."))
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("hi")
        assert phone.shapes(1) == PLAIN_TURN
        assert phone.finals() == ["Hello there."]
    assert "hi" in model.texts().splitlines()


async def test_a_tool(model: ModelService) -> None:
    model.play(Reply(calls=(Call(STATUS, {"id": "a-5"}),)), Reply(text="It runs."))
    async with serving(model.provider()) as served:
        async with served.phone(tools={"agent.status": lambda a: f"{a['id']} runs"}) as phone:
            await phone.ask("how is a-5?")
            assert phone.runs == [("agent.status", {"id": "a-5"})]
            assert phone.speeches() == ["It runs."]
    assert '"data":"a-5 runs"' in model.texts()


async def test_parallel_tools_are_answered_in_the_models_order(model: ModelService) -> None:
    calls = tuple(Call(STATUS, {"id": name}) for name in ("a-1", "a-2"))
    model.play(Reply(calls=calls), Reply(text="Both run."))
    async with serving(model.provider()) as served, served.phone() as phone:
        phone.say("how are they?")
        first = await phone.until("agent.status")
        second = await phone.until("agent.status", since=first)
        for event in (second, first):
            phone.result(event["payload"]["callId"], f"{arguments_of(event)['id']} runs")
        await phone.idle()
        assert phone.finals() == ["Both run."]
    read = model.texts()
    assert 0 < read.index("a-1 runs") < read.index("a-2 runs")


async def test_text_beside_a_call(model: ModelService) -> None:
    model.play(Reply(text="Let me look.", calls=(Call(STATUS, {"id": "a"}),)), Reply(text="It runs."))
    async with serving(model.provider()) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is it?")
            assert phone.finals() == ["Let me look.", "It runs."]
    assert "Let me look." in model.texts()


@pytest.mark.parametrize(
    "failure",
    [
        HttpFailure(401, "authentication_error", SECRET),
        HttpFailure(200, body=b"<html>"),
        Reply(stop_reason="refusal"),
    ],
    ids=["key", "page", "refusal"],
)
async def test_an_error_is_one_sentence_and_the_next_turn_works(
    model: ModelService, failure: ServiceScript
) -> None:
    model.play(failure, Reply(text="Here I am."))
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert phone.speeches() == [SORRY]
        assert phone.shapes(1) == [*PLAIN_TURN[:2], "error", *PLAIN_TURN[2:]]
        assert [error["code"] for error in phone.errors()] == ["model_provider_failed"]
        assert SECRET not in str(phone.log)
        await phone.ask("hello again")
        assert phone.finals()[-1] == "Here I am."


@pytest.mark.parametrize(
    "failure",
    [
        HttpFailure(529, "overloaded_error"),
        HttpFailure(429, "rate_limit_error", headers={"retry-after": "0"}),
        Reply(text="One two three", broken=Break("cut", 2)),
    ],
    ids=["overloaded", "rate", "cut"],
)
async def test_a_passing_failure_is_retried_unnoticed(model: ModelService, failure: ServiceScript) -> None:
    model.play(failure, Reply(text="Here I am."))
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert phone.shapes(1) == PLAIN_TURN and phone.finals() == ["Here I am."]


async def test_silence_of_the_service_is_told(model: ModelService) -> None:
    stall = Reply(text="One two three", broken=Break("stall", 1))
    model.play(stall, stall)  # the second is the repeat
    async with serving(model.provider(), model_silence=SHORT_S) as served, served.phone() as phone:
        phone.say("hello?")
        await phone.until("assistant.speech.partial")
        hasten(4 * SHORT_S)
        await phone.until("tts.speak")
        assert phone.speeches() == [SORRY]
    await model.wait_disconnects(1)


async def test_barge_in_stops_the_request(model: ModelService) -> None:
    story = Reply(text="Once upon a time there was", hold=asyncio.Event(), hold_at=3)
    model.play(story, Reply(text="All right."))
    async with serving(model.provider()) as served, served.phone() as phone:
        phone.say("tell me a story")
        await phone.until("assistant.speech.partial")
        since = len(phone.log)
        phone.say("something else")
        await model.wait_disconnects(1)
        await phone.idle(since=since)
        assert phone.finals() == ["All right."]
    assert "Once upon" in model.texts()


@pytest.mark.parametrize("by_voice", [False, True], ids=["card", "voice"])
async def test_an_approval(model: ModelService, by_voice: bool) -> None:
    model.play(Reply(calls=(Call("move_file", {"path": "notes.txt"}),)), Reply(text="Moved."))
    tools = {"move_file": lambda a: f"{a['path']} is elsewhere"}
    async with serving(model.provider()) as served, served.phone(tools=tools) as phone:
        await begin(phone, *([] if by_voice else ["approval"]), tools=[MOVE])
        phone.say("move my notes")
        if by_voice:
            question = await phone.until("tts.speak")
            await phone.until("state idle", since=phone.log.index(question))
            assert phone.runs == []
            phone.say("yes, just this once")
        else:
            await decide(phone, await phone.until("approval.request"), "allow")
        await phone.until("assistant.speech.final", text="Moved.")
        assert phone.runs == [("move_file", {"path": "notes.txt"})]
    assert "notes.txt is elsewhere" in model.texts()


async def test_a_late_result_begins_a_turn(model: ModelService) -> None:
    call = Call("agent_followup", {"id": "a-1", "prompt": "go on"})
    model.play(Reply(calls=(call,)), Reply(text="I cannot tell."), Reply(text="It did work."))
    async with serving(model.provider(), tool_timeout=SHORT_S) as served, served.phone() as phone:
        phone.say("tell a-1 to go on")
        await phone.until("agent.followup")
        hasten()
        await phone.until("tts.speak")
        assert '"error_type":"unknown"' in model.texts()
        (late,) = phone.events("agent.followup")
        phone.result(late["payload"]["callId"], "it has been told")
        await phone.until("assistant.speech.final", text="It did work.")
    assert "it has been told" in model.texts()


async def test_the_limit_of_rounds(model: ModelService) -> None:
    rounds = text_protocol.MAX_ROUNDS if isinstance(model, TextService) else 8
    looks = (Reply(calls=(Call(STATUS, {"id": str(n)}),)) for n in range(rounds))
    model.play(*looks, Reply(text="So far."))
    async with serving(model.provider()) as served:
        async with served.phone(tools={"agent.status": lambda a: "still running"}) as phone:
            await phone.ask("wait for it")
            assert len(phone.runs) == rounds
            assert phone.speeches() == ["So far."]
    request = model.requests[-1]
    if isinstance(model, TextService):
        assert "agent.status(" not in request["messages"][0]["content"]
        return
    if isinstance(model, BedrockService):
        assert request["toolConfig"] and "without calling" in request["system"][-1]["text"]
    elif isinstance(model, OpenAIService) and "messages" in request:
        assert "tools" not in request  # such servers ignore the choice
    else:
        assert request["tools"] and request["tool_choice"] in ("none", {"type": "none"})


async def test_a_reconnect_in_the_middle_of_an_answer(model: ModelService) -> None:
    going_on = asyncio.Event()
    model.play(Reply(text="One two three.", hold=going_on, hold_at=1))
    async with serving(model.provider()) as served, served.phone() as phone:
        phone.say("count")
        await phone.until("assistant.speech.partial")
        await phone.cut()
        going_on.set()
        await served.quiet()
        since = len(phone.log)
        await phone.open()
        await phone.idle(since=since)
        assert phone.finals() == phone.speeches() == ["One two three."]


async def test_a_restart_keeps_the_conversation(
    model: ModelService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    model.play(
        Reply(calls=(Call(STATUS, {"id": "a"}),), thinking="Hm."), Reply(text="It runs."), Reply(text="Yes.")
    )
    async with serving(model.provider()) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is a?")
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("still?")
        assert phone.finals()[-1] == "Yes."
    read = model.texts()
    assert (
        read.index("how is a?") < read.index('"data":"runs"') < read.index("It runs.") < read.index("still?")
    )


# -- models that misbehave


async def test_a_model_that_never_ends_is_stopped(model: ModelService) -> None:
    model.play(Reply(text="and so " * 10_000, delay_s=0.001))
    async with serving(model.provider(), turn_timeout=SHORT_S) as served, served.phone() as phone:
        phone.say("hello?")
        await phone.until("assistant.speech.partial")
        hasten()
        await phone.until("tts.speak")
        assert phone.speeches() == [FAILURES["turn_timeout"]]
    await model.wait_disconnects(1)


async def test_a_model_that_repeats_itself_is_stopped(model: ModelService) -> None:
    model.play(Reply(text="I am sorry about that. " * 10_000, delay_s=0.001))
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("hello?")
        (speech,) = phone.speeches()
        assert 20 <= speech.count("I am sorry about that.") < 25 and phone.errors() == []
    await model.wait_disconnects(1)


# Calls that a model wrote as words, although it was offered tools.
WRITTEN = {
    "Hermes": '<tool_call>\n{"name": "agent_status", "arguments": {"id": "a"}}\n</tool_call>',
    "bare JSON": '{"name": "agent_status", "arguments": {"id": "a"}}',
    "Mistral": '[TOOL_CALLS][{"name": "agent_status", "arguments": {"id": "a"}}]',
    "Qwen": "<function=agent_status>\n<parameter=id>\na\n</parameter>\n</function>",
}


@pytest.mark.parametrize("model", [name for name in _SERVICES if name != "text chat"], indirect=True)
@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
async def test_a_call_that_is_written_as_words_runs_and_is_not_read_aloud(
    model: ModelService, written: str
) -> None:
    model.play(Reply(text=f"Let me look.\n{written}"), Reply(text="It runs."))
    async with serving(model.provider()) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is it?")
            assert phone.runs == [("agent.status", {"id": "a"})]
            assert phone.finals() == ["Let me look.", "It runs."]


async def test_a_model_that_calls_a_tool_that_is_not_there_for_ever(model: ModelService) -> None:
    model.default = Reply(calls=(Call("no_such_tool", {}),))
    async with serving(model.provider()) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert len(phone.speeches()) == 1
        assert phone.runs == []
    assert model.received <= 9
