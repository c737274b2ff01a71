"""One turn: its rounds, its limits, and one result for each of its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from conductor.conversation.services import Services
from conductor.conversation.speech import CUT_BEFORE_SPEECH
from conductor.errors import ModelError, ModelFailure
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, StopReason, TextDelta
from tests.conversation.helpers import (
    SPOKEN,
    LocalTools,
    Stage,
    call,
    faults,
    later,
    make_services,
    run,
    stage,
    steps,
    tool,
)
from tests.models import Script, ScriptedProvider


def silent_tools(name: str, call_id: str) -> str | None:
    """Acknowledge the interface; leave tools to the test."""
    return SPOKEN if name.startswith(("convo.", "tts.")) else None


def outcomes(one: Stage) -> list[dict[str, Any]]:
    return [json.loads(m.content) for m in one.session.messages if isinstance(m, ToolResult)]


async def test_all_calls_of_a_reply_run_together_and_their_results_keep_the_models_order() -> None:
    local = LocalTools()
    scripts: list[Script] = [
        [call("local.wait"), call("device.do"), call("local.sum", '{"x": 3}'), call("device.look")],
        [TextDelta("Done.")],
    ]
    one = await stage(make_services(scripts, toolsets=[local]), silent_tools)
    one.app.say("go")
    look = await one.app.until("device.look")
    do = await one.app.until("device.do")
    await local.begun.wait()
    one.app.result(look["payload"]["callId"], "looked")
    await steps(10)
    one.app.result(do["payload"]["callId"], "did")
    await steps(10)
    local.go.set()
    await one.quiet()
    data = [outcome["data"] for outcome in outcomes(one)]
    assert data == [{"ran": "local.wait", "x": None}, "did", {"ran": "local.sum", "x": 3}, "looked"]
    assert faults(one.session.messages) == []
    request = one.provider.requests[1]
    assert faults(request.messages) == []
    await one.close()


TOO_LONG = ModelError("context_too_long", "too long")


@pytest.mark.parametrize("refused", [[TOO_LONG], [Finished("context_window")]])
async def test_a_history_that_is_too_long_for_the_model_is_halved_and_sent_again(refused: Script) -> None:
    scripts: list[Script] = [
        *([TextDelta(f"Answer {n}.")] for n in range(4)),
        refused,
        [TextDelta("Yes.")],
    ]
    one = await stage(make_services(scripts))
    for said in ("one", "two", "three", "four", "five"):
        one.app.say(said)
        await one.quiet()
    assert one.session.messages[-1] == AssistantMessage("Yes.", provider="scripted")
    asked = [
        message.text for message in one.provider.requests[-1].messages if isinstance(message, UserMessage)
    ]
    assert asked == ["four", "five"]
    assert [message.text for message in one.session.messages if isinstance(message, UserMessage)] == asked
    await one.close()


async def test_a_single_turn_that_is_too_long_fails_with_words() -> None:
    one = await stage(make_services([[TOO_LONG]]))
    one.app.say("one")
    await one.quiet()
    assert len(one.provider.requests) == 1
    assert one.app.errors() == ["model_provider_failed"] and len(one.app.spoken()) == 1
    await one.close()


def test_the_log_says_which_profile_failed_and_why() -> None:
    gone = ModelError("protocol", "The model service does not know this model or address.")
    gone.profile = "home"

    async def scenario() -> None:
        one = await stage(make_services([[gone]]))
        one.app.say("one")
        await one.quiet()
        await one.close()

    with capture_logs() as lines:
        run(scenario())
    (line,) = (line for line in lines if line["event"] == "turn failed")
    assert (line["profile"], line["reason"], line["error"]) == ("home", "protocol", str(gone))


CUT = ModelError("connection", "cut")
LATE = ModelError("timeout", "late")


@pytest.mark.parametrize("reason", ["connection", "timeout", "protocol"])
def test_a_reply_that_breaks_off_is_asked_for_once_more_and_nothing_of_it_is_kept(
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
        one = await stage(make_services(scripts, partial_interval=0.0))
        since = len(one.app.log)
        one.app.say("go")
        await one.quiet()
        assert one.app.errors() == []
        assert one.app.texts("assistant.speech.partial") == ["Let me think about it", "I do it.", "Done."]
        assert one.app.finals() == ["I do it.", "Done."]
        assert one.app.shapes(since).count("device.do") == 1
        assert [m.text for m in one.session.messages if isinstance(m, AssistantMessage)] == [
            "I do it.",
            "Done.",
        ]
        assert one.provider.requests[1].messages == one.provider.requests[0].messages
        assert [request.avoid for request in one.provider.requests] == [None, "home", None]
        await one.close()

    run(scenario())


@pytest.mark.parametrize(
    ("scripts", "asked"),
    [
        ([[TextDelta("One"), CUT], [TextDelta("Two"), CUT], [TextDelta("Three")]], 2),
        ([[TextDelta("One"), CUT], [CUT], [TextDelta("Three")]], 2),
        ([[CUT], [TextDelta("Two")]], 1),  # the provider has tried again already
        ([[TextDelta("One"), LATE], [TextDelta("Two"), LATE], [TextDelta("Three")]], 2),
        ([[LATE], [TextDelta("Two")]], 1),
        ([[TextDelta("One"), ModelError("refused", "no")], [TextDelta("Two")]], 1),
        ([[TextDelta("One"), ModelError("overloaded", "busy", retry_after=121.0)], [TextDelta("Two")]], 1),
    ],
)
async def test_a_reply_that_breaks_off_is_not_asked_for_without_end_or_hope(
    scripts: list[Script], asked: int
) -> None:
    one = await stage(make_services(scripts, turn_timeout=120.0))
    one.app.say("go")
    await one.quiet()
    assert len(one.provider.requests) == asked
    assert one.app.errors() == ["model_provider_failed"]
    assert len(one.app.spoken()) == 1
    await one.close()


async def test_a_turn_may_be_interrupted_before_it_asks_once_more() -> None:
    busy = ModelError("overloaded", "busy", retry_after=10.0)
    one = await stage(make_services([[TextDelta("Let me see"), busy], [TextDelta("x")]]))
    one.app.say("go")
    await one.app.until("assistant.speech.partial")
    await later(5)
    one.app.interrupt()
    await one.quiet()
    await later(60)
    assert len(one.provider.requests) == 1
    assert one.app.errors() == [] and one.app.states()[-1] == "idle"
    (message,) = [m for m in one.session.messages if isinstance(m, AssistantMessage)]
    assert message.text == f"Let me see {CUT_BEFORE_SPEECH}"
    await one.close()


async def test_the_limit_of_rounds_asks_once_more_with_the_tools_off() -> None:
    def reply(request: ModelRequest) -> Script:
        return [TextDelta("Words."), call("local.sum")]

    one = await stage(make_services(reply, toolsets=[LocalTools()], max_tool_rounds=3))
    one.app.say("go")
    await one.quiet()
    assert [r.tool_choice for r in one.provider.requests] == ["auto"] * 3 + ["none"]
    assert all(r.tools for r in one.provider.requests)
    assert one.app.errors() == ["tool_round_limit_exceeded"]
    assert one.app.finals()[-1] == "Words."
    assert len(outcomes(one)) == 3
    await one.close()


async def test_the_limit_of_calls_holds_over_all_rounds() -> None:
    local = LocalTools()

    def reply(request: ModelRequest) -> Script:
        return [call("local.sum")] * 3 if request.tool_choice == "auto" else [TextDelta("Enough.")]

    one = await stage(make_services(reply, toolsets=[local], max_calls_per_turn=7, max_calls_per_round=3))
    one.app.say("go")
    await one.quiet()
    assert len(local.ran) == 7
    assert [o["error_type"] for o in outcomes(one)] == ["none"] * 7 + ["rate_limited"] * 2
    assert one.app.finals() == ["Enough."]
    await one.close()


@pytest.mark.parametrize("stop", ["end_turn", "tool_use"])
async def test_an_empty_reply_still_says_something(stop: StopReason) -> None:
    one = await stage(make_services([[TextDelta(" \n"), Finished(stop)]]))
    one.app.say("go")
    await one.quiet()
    (said,) = one.app.finals()
    assert said.strip()
    assert one.app.states()[-1] == "idle"
    await one.close()


async def test_calls_of_a_reply_that_was_cut_off_are_not_run() -> None:
    scripts: list[Script] = [[call("device.do", '{"x":'), Finished("max_tokens")], [TextDelta("Sorry.")]]
    one = await stage(make_services(scripts))
    one.app.say("go")
    await one.quiet()
    assert "device.do" not in one.app.shapes()
    assert [o["error_type"] for o in outcomes(one)] == ["parse_error"]
    await one.close()


async def test_a_reply_that_was_declined_is_a_failure() -> None:
    one = await stage(make_services([[TextDelta("I"), Finished("refusal")]]))
    one.app.say("go")
    await one.quiet()
    assert one.app.errors() == ["model_provider_failed"]
    assert faults(one.session.messages) == []
    await one.close()


async def test_the_turns_clock_stands_still_while_a_person_chooses() -> None:
    scripts: list[Script] = [[call("device.pick")], [5.0, TextDelta("Done.")]]
    one = await stage(make_services(scripts, turn_timeout=10.0), silent_tools)
    one.app.say("go")
    pick = await one.app.until("device.pick")
    await later(500)
    one.app.result(pick["payload"]["callId"], "the second")
    await one.quiet()
    assert one.app.finals() == ["Done."]
    assert one.app.errors() == []
    await one.close()


async def test_the_turns_clock_runs_while_a_tool_runs() -> None:
    scripts: list[Script] = [[call("device.do")]]
    one = await stage(make_services(scripts, turn_timeout=10.0), silent_tools)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    one.app.say("go")
    await one.app.until("error")
    assert loop.time() - begun == pytest.approx(10.0)
    assert one.app.errors() == ["turn_timeout"]
    assert [o["error_type"] for o in outcomes(one)] == ["unknown"]
    await one.quiet()
    await one.close()


@pytest.mark.parametrize(("name", "error_type"), [("local.wait", "cancelled"), ("local.write", "unknown")])
async def test_a_call_that_was_running_when_its_turn_was_stopped_has_an_honest_result(
    name: str, error_type: str
) -> None:
    local = LocalTools()
    one = await stage(make_services([[call(name)]], toolsets=[local]))
    one.app.say("go")
    await local.begun.wait()
    one.app.interrupt()
    await one.quiet()
    assert [o["error_type"] for o in outcomes(one)] == [error_type]
    assert local.ran == []
    await one.close()


async def test_a_device_call_that_no_socket_had_when_its_turn_was_stopped_was_not_run() -> None:
    one = await stage(make_services([[call("device.do")], [TextDelta("Next.")]]), slow=True)
    assert one.app.line is not None
    one.app.say("go")
    await steps(30)
    one.app.interrupt()
    await one.settled()
    one.app.line.slow = False
    one.app.line.flush()
    await one.quiet()
    assert "device.do" not in one.app.shapes()
    assert [o["error_type"] for o in outcomes(one)] == ["cancelled"]
    await one.close()


async def test_an_interrupted_reply_is_closed_at_the_service_and_kept_as_not_heard() -> None:
    one = await stage(make_services([[TextDelta("Once upon"), asyncio.Event()]]))
    one.app.say("go")
    await one.app.until("assistant.speech.partial")
    one.app.interrupt()
    await one.quiet()
    assert one.provider.record(0).closed_early
    last = one.session.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert last.text.startswith("Once upon [")
    assert one.app.finals() == []
    await one.close()


async def test_what_had_arrived_of_an_interrupted_answer_is_not_shown_after_the_interruption() -> None:
    one = await stage(make_services([[TextDelta("Once upon"), asyncio.Event()]]), slow=True)
    line = one.app.line
    assert line is not None
    one.app.say("go")
    await steps(30)
    one.app.interrupt()
    await steps(30)
    line.flush()
    assert "append user" in one.app.shapes()
    assert one.app.texts("assistant.speech.partial") == []
    await one.close()


@pytest.mark.parametrize("arriving", [True, False])
async def test_a_client_cannot_have_said_more_of_an_answer_than_there_was(arriving: bool) -> None:
    reply: Script = [TextDelta("Once upon"), *([asyncio.Event()] if arriving else [])]
    one = await stage(make_services([reply]), lambda name, call_id: None if name == "tts.speak" else SPOKEN)
    one.app.say("go")
    await one.app.until("assistant.speech.partial" if arriving else "tts.speak")
    one.app.interrupt(spoken_text="Once upon a time " * 1_000)
    await one.settled()
    (said,) = [m.text for m in one.session.messages if isinstance(m, AssistantMessage)]
    assert said.startswith("Once upon [")
    await one.close()


class SlowToClose(ScriptedProvider):
    """A provider whose connection takes its time to close."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async for event in super().stream(request):
                yield event
        finally:
            await later(2)


async def test_nothing_of_an_interrupted_answer_is_shown_while_the_service_lets_go_of_it() -> None:
    provider = SlowToClose([[TextDelta("Once "), TextDelta("upon "), asyncio.Event()]])
    one = await stage(make_services(provider, partial_interval=1.0))
    one.app.say("go")
    await one.app.until("assistant.speech.partial")
    await steps(10)
    shown = len(one.app.log)
    one.app.interrupt()
    await one.quiet()
    assert one.app.texts("assistant.speech.partial", shown) == []
    assert one.app.states()[-1] == "idle"
    await one.close()


async def test_each_request_is_a_valid_history_that_ends_with_what_is_to_be_answered() -> None:
    one = await stage(
        make_services(
            lambda r: [call("local.sum")] if isinstance(r.messages[-1], UserMessage) else [TextDelta("ok")],
            toolsets=[LocalTools()],
            max_turns=3,
        )
    )
    for number in range(8):
        one.app.say(f"q{number}")
        await one.quiet()
    for request in one.provider.requests:
        assert faults(request.messages) == []
        assert isinstance(request.messages[-1], UserMessage | Note | ToolResult)
        assert sum(isinstance(m, UserMessage) for m in request.messages) <= 3
    await one.close()


# -- what a person does not allow


ASKS = (tool("device.move", effect="write", risk="medium"),)


def asking(scripts: list[Script]) -> Services:
    return replace(make_services(scripts), catalog=ASKS)


async def test_a_question_that_nobody_answered_is_no_denial() -> None:
    """Asked again in the same turn, it is asked again: nobody has said no."""
    scripts: list[Script] = [[call("device.move")], [call("device.move")], [TextDelta("Well.")]]
    one = await stage(asking(scripts))
    one.app.capabilities = ["approval"]
    one.app.connect(one.session, resumed=False)
    one.app.say("go")
    await one.quiet()
    assert [o["error_type"] for o in outcomes(one)] == ["approval_timeout", "approval_timeout"]
    assert one.app.shapes().count("approval.request") == 2
    await one.close()


async def test_two_rounds_in_which_nothing_was_allowed_end_without_tools() -> None:
    scripts: list[Script] = [[call("device.move", f'{{"x":{n}}}')] for n in range(3)]
    one = await stage(asking([*scripts[:2], [TextDelta("Well.")]]))
    one.app.capabilities = ["approval"]
    one.app.connect(one.session, resumed=False)
    one.app.say("go")
    await one.quiet()
    assert [request.tool_choice for request in one.provider.requests] == ["auto", "auto", "none"]
    assert one.app.spoken() == ["Well."]
    await one.close()
