"""One turn: its rounds, its limits, and one result for each of its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from conductor.conversation.heard import CUT_BEFORE_SPEECH
from conductor.conversation.phrases import NOTHING_CAME
from conductor.errors import ModelError, ModelFailure
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, Usage
from conductor.session.services import Services
from tests.models import Script, ScriptedProvider
from tests.session.helpers import (
    SPOKEN,
    LocalTools,
    Stage,
    call,
    faults,
    later,
    make_services,
    open_stage,
    run,
    steps,
    tool,
)


def silent_tools(name: str, call_id: str) -> str | None:
    """Acknowledge the interface; leave tools to the test."""
    return SPOKEN if name.startswith(("convo.", "tts.")) else None


def outcomes(stage: Stage) -> list[dict[str, Any]]:
    return [json.loads(m.content) for m in stage.session.state.log if isinstance(m, ToolResult)]


async def test_the_calls_of_a_reply_run_concurrently_and_their_results_keep_the_order() -> None:
    local = LocalTools()
    scripts: list[Script] = [
        [call("local.wait"), call("device.do"), call("local.sum", '{"x": 3}'), call("device.look")],
        [TextDelta("Done.")],
    ]
    stage = await open_stage(make_services(scripts, toolsets=[local]), silent_tools, say="go")
    look = await stage.app.until("device.look")
    do = await stage.app.until("device.do")
    await local.started.wait()
    stage.app.result(look["payload"]["callId"], "looked")
    await steps(10)
    stage.app.result(do["payload"]["callId"], "did")
    await steps(10)
    local.go.set()
    await stage.quiet()
    data = [outcome["data"] for outcome in outcomes(stage)]
    assert data == [{"ran": "local.wait", "x": None}, "did", {"ran": "local.sum", "x": 3}, "looked"]
    assert faults(stage.session.state.log) == []
    request = stage.provider.requests[1]
    assert faults(request.messages) == []


async def test_the_next_request_of_a_turn_goes_on_from_the_last_and_the_next_turn_begins_anew() -> None:
    local = LocalTools()
    scripts: list[Script] = [[call("local.wait")], [call("local.sum", '{"x": 3}')], [TextDelta("Three.")]]
    stage = await open_stage(make_services(scripts, toolsets=[local]), say="wait")
    await local.started.wait()
    stage.app.say("add")
    await stage.quiet()
    first, second, third = (request.kept for request in stage.provider.requests)
    assert first is not second and second is third


TOO_LONG = ModelError("context_too_long", "too long")


@pytest.mark.parametrize("refused", [[TOO_LONG], [Finished("context_window")]])
async def test_a_history_that_is_too_long_is_sent_again_in_half_and_stays(refused: Script) -> None:
    scripts: list[Script] = [
        *([TextDelta(f"Answer {n}.")] for n in range(4)),
        refused,
        refused,
        [TextDelta("Yes.")],
        [TextDelta("All.")],
    ]
    stage = await open_stage(make_services(scripts))
    for text in ("one", "two", "three", "four", "five", "six"):
        await stage.ask(text)
    assert stage.app.finals()[-2:] == ["Yes.", "All."]
    requests = [
        " ".join(message.text for message in request.messages if isinstance(message, UserMessage))
        for request in stage.provider.requests[4:]
    ]
    assert requests == ["one two three four five", "four five", "five", "one two three four five six"]


async def test_the_next_request_of_a_turn_continues_the_shorter_one() -> None:
    scripts: list[Script] = [[TextDelta("Answer.")], [TOO_LONG], [call("local.sum")], [TextDelta("Yes.")]]
    stage = await open_stage(make_services(scripts, toolsets=[LocalTools()]))
    for text in ("one", "two"):
        await stage.ask(text)
    first, second = stage.provider.requests[-2:]
    assert second.messages[: len(first.messages)] == first.messages and len(first.messages) == 1


@pytest.mark.parametrize("large", ["result", "arguments"])
async def test_what_a_turn_itself_reads_or_writes_too_much_of_is_shortened(large: str) -> None:
    arguments = f'{{"x": 1, "y": "{"y" * 14_000}"}}' if large == "arguments" else '{"x": 1}'
    scripts: list[Script] = [[call("device.do", arguments)], [TOO_LONG], [TextDelta("Done it.")]]
    stage = await open_stage(make_services(scripts), silent_tools, say="go")
    running = await stage.app.until("device.do")
    stage.app.result(running["payload"]["callId"], "r" * 14_000 if large == "result" else "did")
    await stage.quiet()
    assert stage.app.finals() == ["Done it."]
    whole, short = (msgspec.json.encode(request.messages) for request in stage.provider.requests[1:])
    assert len(whole) > 14_000 > 9_000 > len(short) and b"[shortened: " in short
    assert stage.app.shapes().count("device.do") == 1
    assert len(msgspec.json.encode(stage.session.state.log)) > 14_000


async def test_a_single_turn_that_is_too_long_fails_with_an_apology() -> None:
    stage = await open_stage(make_services([[TOO_LONG]]), say="one")
    await stage.quiet()
    assert len(stage.provider.requests) == 1
    assert stage.app.error_codes() == ["model_provider_failed"] and len(stage.app.speeches()) == 1


def test_the_log_names_the_failed_profile_and_the_reason() -> None:
    error = ModelError("protocol", "The model service does not know this model or address.")
    error.profile = "home"

    async def scenario() -> None:
        stage = await open_stage(make_services([[error]]), say="one")
        await stage.quiet()

    with capture_logs() as lines:
        run(scenario())
    (line,) = (line for line in lines if line["event"] == "turn failed")
    assert (line["profile"], line["reason"], line["error"]) == ("home", "protocol", str(error))


CUT = ModelError("connection", "cut")
LATE = ModelError("timeout", "late")


@pytest.mark.parametrize("reason", ["connection", "timeout", "protocol"])
def test_a_broken_reply_is_requested_once_more_and_discarded(
    reason: ModelFailure,
) -> None:
    cut = ModelError(reason, "cut")
    cut.profile = "home"

    async def scenario() -> None:
        scripts: list[Script] = [
            [TextDelta("Let me think about it"), call("device.do"), cut],
            [TextDelta("I do it."), call("device.do")],
            [TextDelta("Done.")],
        ]
        stage = await open_stage(make_services(scripts, partial_interval=0.0))
        since = len(stage.app.log)
        await stage.ask("go")
        assert stage.app.error_codes() == []
        assert stage.app.partials() == ["Let me think about it", "I do it.", "Done."]
        assert stage.app.finals() == ["I do it.", "Done."]
        assert stage.app.shapes(since).count("device.do") == 1
        assert [m.text for m in stage.session.state.log if isinstance(m, AssistantMessage)] == [
            "I do it.",
            "Done.",
        ]
        assert stage.provider.requests[1].messages == stage.provider.requests[0].messages
        assert [request.avoid for request in stage.provider.requests] == [None, "home", None]

    run(scenario())


@pytest.mark.parametrize(
    ("scripts", "requests"),
    [
        ([[TextDelta("One"), CUT], [TextDelta("Two"), CUT], [TextDelta("Three")]], 2),
        ([[TextDelta("One"), CUT], [CUT], [TextDelta("Three")]], 2),
        ([[CUT], [TextDelta("Two")]], 1),  # the provider has tried again already
        ([[TextDelta("One"), LATE], [TextDelta("Two"), LATE], [TextDelta("Three")]], 2),
        ([[LATE], [TextDelta("Two")]], 1),
        ([[TextDelta("One"), ModelError("refused", "no")], [TextDelta("Two")]], 1),
        (
            [
                [TextDelta("One"), 118.0, ModelError("overloaded", "busy", retry_after=2.5)],
                [TextDelta("Two")],
            ],
            1,
        ),
    ],
)
async def test_a_broken_reply_is_retried_only_once_and_within_the_time_limit(
    scripts: list[Script], requests: int
) -> None:
    stage = await open_stage(make_services(scripts, turn_timeout=120.0), say="go")
    await stage.quiet()
    assert len(stage.provider.requests) == requests
    assert stage.app.error_codes() == ["model_provider_failed"]
    assert len(stage.app.speeches()) == 1


async def test_a_turn_can_be_interrupted_before_its_retry() -> None:
    busy = ModelError("overloaded", "busy", retry_after=3.0)
    stage = await open_stage(make_services([[TextDelta("Let me see"), busy], [TextDelta("x")]]), say="go")
    await stage.app.until("assistant.speech.partial")
    await later(2)
    stage.app.interrupt()
    await stage.quiet()
    await later(60)
    assert len(stage.provider.requests) == 1
    assert stage.app.error_codes() == [] and stage.app.states()[-1] == "idle"
    (message,) = [m for m in stage.session.state.log if isinstance(m, AssistantMessage)]
    assert message.text == f"Let me see {CUT_BEFORE_SPEECH}"


# Replies that say nothing and call nothing.
LOST: dict[str, Script] = {
    "empty": [Finished("end_turn")],
    "blank": [TextDelta(" \n"), Finished("end_turn")],
    "cut before its words": [Finished("max_tokens")],
    "an emoji": [TextDelta("👍"), Finished("end_turn")],
    "a rule": [TextDelta("---"), Finished("end_turn")],
    "a call that is missing": [Finished("tool_use")],
    "a pause without content": [Finished("pause_turn")],
}
EMPTY = LOST["empty"]
WORDS_BEFORE_A_LOST_CALL: Script = [TextDelta("Let me look."), Finished("tool_use")]


@pytest.mark.parametrize("speak_segments", [False, True])
@pytest.mark.parametrize(
    "lost", [*LOST.values(), WORDS_BEFORE_A_LOST_CALL], ids=[*LOST, "words before a lost call"]
)
async def test_a_lost_reply_is_requested_once_more(lost: Script, speak_segments: bool) -> None:
    services = make_services([lost, [TextDelta("It is on.")]])
    stage = await open_stage(replace(services, speak_segments=speak_segments))
    await stage.ask("go")
    assert stage.app.speeches() == ["It is on."] and stage.app.error_codes() == []
    first, second = (request.messages for request in stage.provider.requests)
    assert [*first, Note(NOTHING_CAME)] == list(second)


@pytest.mark.parametrize("speak_segments", [False, True])
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
async def test_a_reply_that_is_lost_twice_becomes_a_sentence(lost: Script, speak_segments: bool) -> None:
    services = make_services([lost, lost, [call("device.look")], lost, lost, [call("device.do")], lost, lost])
    stage = await open_stage(replace(services, speak_segments=speak_segments))
    for _ in range(3):
        await stage.ask("go")
    assert stage.app.speeches() == ["I have nothing to say to that.", "Done.", "Done."]
    assert len(stage.provider.requests) == 8 and stage.app.error_codes() == []
    assert faults(stage.session.state.log) == []


@pytest.mark.parametrize("report", ["tool.accepted", "tool.cancelled"])
async def test_a_call_that_has_not_succeeded_is_not_called_done(report: str) -> None:
    fields = {"tool.accepted": {"jobId": "job"}, "tool.cancelled": {"effect": "none"}}[report]
    stage = await open_stage(make_services([[call("device.do")], EMPTY, EMPTY]), silent_tools)
    stage.app.capabilities = ["cancel", "async"]
    await stage.app.connect(stage.session)
    stage.app.say("go")
    do = await stage.app.until("device.do")
    stage.app.send(report, {"callId": do["payload"]["callId"], **fields})
    await stage.settled()
    assert stage.app.speeches() == ["I have nothing to say to that."]


async def test_words_before_a_call_that_is_lost_twice_are_the_answer() -> None:
    stage = await open_stage(make_services([WORDS_BEFORE_A_LOST_CALL] * 2), say="go")
    await stage.quiet()
    assert stage.app.speeches() == ["Let me look."]


@pytest.mark.parametrize("speak_segments", [False, True])
async def test_a_reply_that_only_repeats_itself_is_ended(speak_segments: bool) -> None:
    endless: Script = [TextDelta("Well."), *[TextDelta(" I do not know.")] * 100, asyncio.Event()]
    services = make_services([endless, [TextDelta("Yes.")]])
    stage = await open_stage(replace(services, speak_segments=speak_segments))
    await stage.ask("go")
    assert 20 <= " ".join(stage.app.speeches()).count("I do not know.") <= 22
    assert stage.provider.record(0).closed_early and stage.app.error_codes() == []
    await stage.ask("And now?")
    assert stage.app.speeches()[-1] == "Yes."


def test_the_log_tells_of_a_lost_reply() -> None:
    async def scenario() -> None:
        reasoning_alone: Script = [Finished("max_tokens", Usage(7, 200))]
        stage = await open_stage(make_services([reasoning_alone, [TextDelta("Here.")]]), say="one")
        await stage.quiet()

    with capture_logs() as lines:
        run(scenario())
    (line,) = (line for line in lines if line["event"] == "model reply without words or call")
    assert (line["stop"], line["output_tokens"]) == ("max_tokens", 200)


async def test_calls_of_a_cut_off_reply_are_not_run() -> None:
    scripts: list[Script] = [[call("device.do", '{"x":'), Finished("max_tokens")], [TextDelta("Sorry.")]]
    stage = await open_stage(make_services(scripts), say="go")
    await stage.quiet()
    assert "device.do" not in stage.app.shapes()
    assert [o["error_type"] for o in outcomes(stage)] == ["parse_error"]


async def test_a_refusal_of_the_model_is_a_failure() -> None:
    stage = await open_stage(make_services([[TextDelta("I"), Finished("refusal")]]), say="go")
    await stage.quiet()
    assert stage.app.error_codes() == ["model_provider_failed"]
    assert faults(stage.session.state.log) == []


async def test_the_turns_clock_stops_during_an_interactive_tool() -> None:
    scripts: list[Script] = [[call("device.pick")], [5.0, TextDelta("Done.")]]
    stage = await open_stage(make_services(scripts, turn_timeout=10.0), silent_tools, say="go")
    pick = await stage.app.until("device.pick")
    await later(500)
    stage.app.result(pick["payload"]["callId"], "the second")
    await stage.quiet()
    assert stage.app.finals() == ["Done."]
    assert stage.app.error_codes() == []


async def test_the_turns_clock_runs_while_a_tool_runs() -> None:
    scripts: list[Script] = [[call("device.do")]]
    stage = await open_stage(make_services(scripts, turn_timeout=10.0), silent_tools)
    loop = asyncio.get_running_loop()
    start = loop.time()
    stage.app.say("go")
    await stage.app.until("error")
    assert loop.time() - start == pytest.approx(10.0)
    assert stage.app.error_codes() == ["turn_timeout"]
    assert [o["error_type"] for o in outcomes(stage)] == ["unknown"]
    await stage.quiet()


@pytest.mark.parametrize(("name", "error_type"), [("local.wait", "cancelled"), ("local.write", "unknown")])
async def test_a_running_call_of_a_stopped_turn_is_cancelled_or_unknown(name: str, error_type: str) -> None:
    local = LocalTools()
    stage = await open_stage(make_services([[call(name)]], toolsets=[local]), say="go")
    await local.started.wait()
    stage.app.interrupt()
    await stage.quiet()
    assert [o["error_type"] for o in outcomes(stage)] == [error_type]
    assert local.ran == []


async def test_an_interrupted_stream_is_closed_and_logged_as_not_heard() -> None:
    stage = await open_stage(make_services([[TextDelta("Once upon"), asyncio.Event()]]), say="go")
    await stage.app.until("assistant.speech.partial")
    stage.app.interrupt()
    await stage.quiet()
    assert stage.provider.record(0).closed_early
    last = stage.session.state.log[-1]
    assert isinstance(last, AssistantMessage)
    assert last.text.startswith("Once upon [")
    assert stage.app.finals() == []


async def test_no_partial_of_an_interrupted_reply_is_sent() -> None:
    stage = await open_stage(make_services([[TextDelta("Once upon"), asyncio.Event()]]), slow=True)
    line = stage.app.line
    stage.app.say("go")
    await steps(30)
    stage.app.interrupt()
    await steps(30)
    line.flush()
    assert "append user" in stage.app.shapes()
    assert stage.app.partials() == []


@pytest.mark.parametrize("arriving", [True, False])
async def test_a_client_cannot_report_more_than_the_reply(arriving: bool) -> None:
    reply: Script = [TextDelta("Once upon"), *([asyncio.Event()] if arriving else [])]
    stage = await open_stage(
        make_services([reply]), lambda name, call_id: None if name == "tts.speak" else SPOKEN, say="go"
    )
    await stage.app.until("assistant.speech.partial" if arriving else "tts.speak")
    stage.app.interrupt(spokenText="Once upon a time " * 1_000)
    await stage.settled()
    (text,) = [m.text for m in stage.session.state.log if isinstance(m, AssistantMessage)]
    assert text.startswith("Once upon [")


class SlowToClose(ScriptedProvider):
    """A provider whose connection takes its time to close."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async for event in super().stream(request):
                yield event
        finally:
            await later(2)


async def test_no_partial_is_sent_while_an_interrupted_stream_closes() -> None:
    provider = SlowToClose([[TextDelta("Once "), TextDelta("upon "), asyncio.Event()]])
    stage = await open_stage(make_services(provider, partial_interval=1.0), say="go")
    await stage.app.until("assistant.speech.partial")
    await steps(10)
    position = len(stage.app.log)
    stage.app.interrupt()
    await stage.quiet()
    assert stage.app.partials(position) == []
    assert stage.app.states()[-1] == "idle"


async def test_each_request_is_a_valid_history_with_the_input_last() -> None:
    stage = await open_stage(
        make_services(
            lambda r: [call("local.sum")] if isinstance(r.messages[-1], UserMessage) else [TextDelta("ok")],
            toolsets=[LocalTools()],
            max_turns=3,
        )
    )
    for number in range(8):
        await stage.ask(f"q{number}")
    for request in stage.provider.requests:
        assert faults(request.messages) == []
        assert isinstance(request.messages[-1], UserMessage | Note | ToolResult)
        assert sum(isinstance(m, UserMessage) for m in request.messages) <= 3


# -- denied calls


@pytest.mark.parametrize("name", ["local.sum", "device.look"])
async def test_the_model_reads_once_how_its_arguments_were_changed(name: str) -> None:
    scripts: list[Script] = [[call(name, '{"x":"7"}')], [TextDelta("Done.")]]
    stage = await open_stage(make_services(scripts, toolsets=[LocalTools()]), say="go")
    await stage.quiet()
    (outcome,) = outcomes(stage)
    assert len(outcome["metadata"]["notes"]) == 1


ASKS = (tool("device.move", effect="write", risk="medium"),)


def asking(scripts: list[Script]) -> Services:
    return replace(make_services(scripts), catalog=ASKS)


async def test_an_expired_question_is_not_a_denial() -> None:
    """An identical call of the same turn asks again."""
    scripts: list[Script] = [[call("device.move")], [call("device.move")], [TextDelta("Well.")]]
    stage = await open_stage(asking(scripts))
    stage.app.capabilities = ["approval"]
    await stage.app.connect(stage.session, resumed=False)
    await stage.ask("go")
    assert [o["error_type"] for o in outcomes(stage)] == ["approval_timeout", "approval_timeout"]
    assert stage.app.shapes().count("approval.request") == 2


async def test_a_turn_that_words_interrupt_keeps_its_own_figures() -> None:
    scripts: list[Script] = [
        [call("local.sum", '{"x": 3}')],
        [TextDelta("Once "), asyncio.Event()],
        [TextDelta("Yes.")],
    ]
    stage = await open_stage(make_services(scripts, toolsets=[LocalTools()]), say="tell me")
    await stage.app.until("assistant.speech.partial")
    with capture_logs() as lines:
        await stage.ask("stop")
    turns = [line for line in lines if line["event"] == "turn"]
    figures = [(line["end"], line["rounds"], line["first_token_ms"] is not None) for line in turns]
    assert figures == [("interrupted", 1, True), ("answered", 0, True)]
    assert turns[1]["trace"] == "transcript -> final"
