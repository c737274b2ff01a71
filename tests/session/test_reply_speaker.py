"""Replies that are spoken sentence by sentence while the model writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation.heard import CUT_HERE, CUT_SOMEWHERE
from conductor.conversation.phrases import CONTINUE, CUT_OFF
from conductor.errors import ModelError
from conductor.messages import AssistantMessage, Note
from conductor.models.base import TextDelta
from conductor.session.services import Services
from tests.models import Script, ScriptedProvider
from tests.session.helpers import (
    SPOKEN,
    App,
    Disk,
    LocalTools,
    Stage,
    at_every_step,
    call,
    faults,
    later,
    make_services,
    open_session,
    open_stage,
    steps,
)
from tests.shapes import arguments_of, shape_of

OWLS = ("Owls hunt at night. ", "They hear a mouse under the snow. ", "Some of them hunt by day.")
FOREVER = 1_000.0


def always(replies: Sequence[Script] | ScriptedProvider, **fields: Any) -> Services:
    """Make the services of a server that speaks in segments to every app."""
    return replace(make_services(replies, **fields), speak_segments=True)


async def capable(services: Services, answer: Any = None) -> Stage:
    """Open a session with an app that has the capability."""
    session = await open_session(services)
    app = App(answer)
    app.capabilities = ["segments"]
    await app.connect(session)
    assert app.line.segments
    return Stage(session, app, services)


def mute(name: str, call_id: str) -> str | None:
    """Acknowledge all calls except speeches."""
    return None if name == "tts.speak" else SPOKEN


def speeches(app: App) -> list[dict[str, Any]]:
    return [arguments_of(event) for event in app.log if shape_of(event) == "tts.speak"]


def call_ids(app: App) -> list[str]:
    return [event["payload"]["callId"] for event in app.log if shape_of(event) == "tts.speak"]


def answers(stage: Stage) -> list[str]:
    return [message.text for message in stage.session.state.log if isinstance(message, AssistantMessage)]


async def test_a_sentence_is_spoken_while_the_reply_streams() -> None:
    more = asyncio.Event()
    stage = await capable(make_services([[TextDelta(OWLS[0] + "They"), more, TextDelta(" hear well.")]]))
    stage.app.say("owls")
    await stage.app.until("tts.speak")
    assert stage.app.shapes() == [
        "session.started",
        "state thinking",
        "append user",
        "state speaking",
        "tts.speak",
    ]
    assert stage.app.finals() == []
    more.set()
    await stage.quiet()
    speech_id = speeches(stage.app)[0]["speechId"]
    assert speeches(stage.app) == [
        {"text": "Owls hunt at night.", "speechId": speech_id, "segment": 0, "last": False},
        {"text": "They hear well.", "speechId": speech_id, "segment": 1, "last": True},
    ]
    assert stage.app.shapes()[5:] == [
        "assistant.speech.final",
        "append assistant",
        "tts.speak",
        "state idle",
    ]
    appended = [arguments_of(event) for event in stage.app.log if shape_of(event) == "append assistant"]
    assert [message["messageId"] for message in appended] == [speech_id]
    partials = [event["payload"] for event in stage.app.log if event["type"] == "assistant.speech.partial"]
    assert {partial["speechId"] for partial in partials} == {speech_id}
    assert answers(stage) == ["Owls hunt at night. They hear well."]


async def test_an_app_with_segments_gets_all_segments_while_it_speaks() -> None:
    scripts: list[Script] = [[TextDelta("".join(OWLS)), call("device.look")], [TextDelta("Done.")]]
    stage = await capable(make_services(scripts), mute)
    stage.app.say("owls")
    await stage.app.until("device.look")
    assert stage.app.speeches() == [text.strip() for text in OWLS]


async def test_an_app_without_segments_gets_one_segment_at_a_time() -> None:
    stage = await open_stage(always([[TextDelta("".join(OWLS))]]), mute, say="owls")
    await stage.settled()
    for number in range(3):
        assert speeches(stage.app) == [{"text": text.strip()} for text in OWLS[: number + 1]]
        stage.app.result(call_ids(stage.app)[-1], SPOKEN)
        await steps(20)
    assert stage.app.shapes()[-1] == "state idle"


async def test_a_client_without_the_capability_gets_whole_replies_by_default() -> None:
    stage = await open_stage(make_services([[TextDelta("".join(OWLS))]]), say="owls")
    await stage.quiet()
    assert stage.app.speeches() == ["".join(OWLS)]


@pytest.mark.parametrize(
    ("fields", "heard_text"),
    [
        ({"spokenText": "They hear"}, f"Owls hunt at night. They hear {CUT_HERE}"),
        ({"playedMs": 800}, f"Owls hunt at night. They hear a {CUT_HERE}"),
        ({}, f"Owls hunt at night. {CUT_HERE}"),
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
async def test_an_interruption_keeps_the_segments_that_were_heard(
    fields: dict[str, Any], heard_text: str, is_complete: bool
) -> None:
    reply: Script = [TextDelta("".join(OWLS)), *([] if is_complete else [FOREVER])]
    stage = await capable(make_services([reply, [TextDelta("Yes?")]], turn_timeout=5_000.0), mute)
    stage.app.say("owls")
    await stage.app.until("tts.speak")
    await steps(50)
    stage.app.result(call_ids(stage.app)[0], SPOKEN)
    await steps(10)
    stage.app.interrupt(**fields)
    await stage.settled()
    assert answers(stage) == [heard_text]
    assert stage.session.outbox.transport is not None
    for call_id in call_ids(stage.app)[1:]:
        stage.app.result(call_id, SPOKEN)
    await stage.quiet()
    assert answers(stage) == [heard_text]


async def test_unspeakable_text_is_not_part_of_the_heard_text() -> None:
    stage = await capable(make_services([[TextDelta("<details>\n\nOwls hunt at night.")]]), mute)
    stage.app.say("owls")
    await stage.app.until("tts.speak")
    stage.app.interrupt(spokenText="Owls hunt")
    await stage.settled()
    assert answers(stage) == [f"Owls hunt {CUT_HERE}"]


async def test_without_acknowledged_segments_the_heard_text_is_unknown() -> None:
    stage = await capable(make_services([[TextDelta("".join(OWLS)), FOREVER]], turn_timeout=5_000.0), mute)
    stage.app.say("owls")
    await stage.app.until("tts.speak")
    await steps(50)
    stage.app.interrupt()
    await stage.settled()
    assert answers(stage) == [f"{OWLS[0]}{OWLS[1].strip()} {CUT_SOMEWHERE}"]


async def test_a_transcript_withdraws_unsent_segments() -> None:
    stage = await open_stage(always([[TextDelta("".join(OWLS))], [TextDelta("Yes.")]]), mute, say="owls")
    await stage.settled()
    stage.app.say("stop")
    await steps(50)
    stage.app.result(call_ids(stage.app)[0], SPOKEN)
    await stage.settled()
    assert stage.app.speeches() == ["Owls hunt at night.", "Yes."]
    assert answers(stage) == [f"Owls hunt at night. {CUT_HERE}", "Yes."]


BROKE = ModelError("connection", "gone")


async def test_a_broken_reply_continues_after_its_spoken_part() -> None:
    scripts: list[Script] = [[TextDelta(OWLS[0] + "They he"), BROKE], [TextDelta("They hear well.")]]
    stage = await capable(make_services(scripts))
    await stage.ask("owls")
    assert stage.app.speeches() == ["Owls hunt at night.", "They hear well."]
    assert stage.app.finals() == ["Owls hunt at night.", "They hear well."]
    assert stage.session.state.log[1:] == [
        AssistantMessage(text="Owls hunt at night."),
        Note(CONTINUE),
        AssistantMessage(text="They hear well.", provider="scripted"),
    ]


async def test_a_failed_turn_keeps_its_spoken_part_and_apologises() -> None:
    refusal = ModelError("refused", "no")
    failures = {"model_provider_failed": "Sorry."}
    services = make_services([[TextDelta(OWLS[0] + "They"), refusal]], failures=failures)  # type: ignore[arg-type]  # a dict of literals
    stage = await capable(services)
    await stage.ask("owls")
    assert stage.app.speeches() == ["Owls hunt at night.", "Sorry."]
    assert answers(stage) == [f"Owls hunt at night. They {CUT_OFF} Sorry."]


async def test_code_is_announced_once_and_text_without_sound_is_skipped() -> None:
    code = "```\nx = 1. Y\n```\n"
    text = f"{code}And once more in another way:\n{code}That is all that I have for you. 🎉🎉"
    stage = await capable(make_services([[TextDelta(text)]]))
    await stage.ask("code")
    assert stage.app.speeches() == [
        "The code is on the screen.",
        "And once more in another way:",
        "That is all that I have for you.",
    ]
    assert not any(speech["last"] for speech in speeches(stage.app))
    assert stage.app.shapes()[-1] == "state idle"


def test_an_interruption_at_every_step_leaves_a_valid_history() -> None:
    async def scenario(after: int) -> bool:
        scripts: list[Script] = [
            [
                TextDelta(OWLS[0] + "They"),
                TextDelta(" hear a mouse under the snow. Some"),
                TextDelta(" hunt by day."),
            ],
            [TextDelta("Yes?")],
        ]
        stage = await capable(make_services(scripts, store=Disk(lambda: 1, lambda: 1)))
        stage.app.say("owls")
        await steps(after)
        over = not stage.session.busy and bool(stage.app.finals())
        stage.app.interrupt()
        await stage.ask("stop")
        assert faults(stage.session.state.log) == []
        assert stage.app.shapes()[-1] == "state idle"
        assert stage.app.finals()[-1] == answers(stage)[-1]
        return over

    at_every_step(scenario)


# -- the bridging phrase


def bridging(scripts: Sequence[Script], **fields: Any) -> Services:
    return replace(make_services(scripts, **fields), bridge_phrases=("One moment.",))


async def test_a_slow_tool_is_bridged_once_by_an_unlogged_phrase() -> None:
    local = LocalTools()
    scripts: list[Script] = [[call("local.wait")], [call("local.wait")], [TextDelta("Done.")]]
    stage = await open_stage(bridging(scripts, toolsets=[local]), say="go")
    await later(1.4)
    assert stage.app.speeches() == []
    await later(0.2)
    assert stage.app.speeches() == ["One moment."]
    assert stage.app.states() == ["thinking", "speaking", "thinking"]
    await later(5.0)
    local.go.set()
    await stage.quiet()
    assert stage.app.speeches() == ["One moment.", "Done."]
    assert "One moment." not in str(stage.session.state.log)


async def test_a_tool_that_is_fast_or_follows_speech_is_not_bridged() -> None:
    local = LocalTools()
    scripts: list[Script] = [
        [call("local.sum")],
        [TextDelta("Let me look."), call("local.wait")],
        [TextDelta("Done.")],
    ]
    stage = await open_stage(bridging(scripts, toolsets=[local]), say="go")
    await later(5.0)
    local.go.set()
    await stage.quiet()
    assert stage.app.speeches() == ["Let me look.", "Done."]


async def test_a_model_that_begins_late_is_bridged_once() -> None:
    scripts: list[Script] = [[26.0, TextDelta("Hello.")], [1.0, TextDelta("Yes. "), 26.0, TextDelta("No.")]]
    stage = await open_stage(bridging(scripts), say="go")
    await later(1.4)
    assert stage.app.speeches() == []
    await later(0.2)
    assert stage.app.speeches() == ["One moment."]
    await stage.quiet()
    assert stage.app.speeches() == ["One moment.", "Hello."]
    assert "One moment." not in str(stage.session.state.log)
    await stage.ask("And one that begins in time?")
    assert stage.app.speeches()[2:] == ["Yes. No."]


async def test_the_retry_of_a_late_reply_is_in_the_same_silence() -> None:
    cut = ModelError("connection", "cut")
    scripts: list[Script] = [[1.0, TextDelta("<"), cut], [26.0, TextDelta("Hello.")]]
    stage = await open_stage(bridging(scripts, model_retry=0.1), say="go")
    await later(1.6)
    assert stage.app.speeches() == ["One moment."]
    await stage.quiet()
    assert stage.app.speeches() == ["One moment.", "Hello."]


async def test_a_slow_model_behind_a_call_of_a_serial_device_is_bridged() -> None:
    scripts: list[Script] = [[call("device.look")], [26.0, TextDelta("Done.")]]
    stage = await open_stage(bridging(scripts), say="go")
    await stage.quiet()
    assert stage.app.speeches() == ["One moment.", "Done."]


async def test_a_person_who_interrupts_the_bridging_phrase_of_a_slow_model_ends_its_request() -> None:
    stage = await open_stage(bridging([[26.0, TextDelta("Hello.")]]), say="go")
    await later(2.0)
    stage.app.interrupt()
    await stage.quiet()
    assert stage.app.speeches() == ["One moment."] and stage.app.states()[-1] == "idle"
    assert stage.provider.record(0).closed_early


@pytest.mark.parametrize("segments", [True, False])
async def test_a_call_of_a_serial_device_is_not_bridged(segments: bool) -> None:
    def slow(name: str, call_id: str) -> str | None:
        return None if name == "device.look" else SPOKEN

    services = bridging([[call("device.look")], [TextDelta("Done.")]])
    stage = await (capable(services, slow) if segments else open_stage(services, slow))
    stage.app.say("go")
    device_call = await stage.app.until("device.look")
    await later(5.0)
    assert stage.app.speeches() == (["One moment."] if segments else [])
    stage.app.result(device_call["payload"]["callId"], "seen")
    await stage.quiet()
