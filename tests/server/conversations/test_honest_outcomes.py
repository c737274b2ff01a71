"""The next request reports calls that were cancelled, late, long, or done without being heard.

The extensions ``cancel``, ``lease``, ``late``, ``async`` and ``activity``, and clients without them.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from conductor.conversation.phrases import CUT_HERE, HEARD_NOTHING
from tests.app import App
from tests.dialogues import (
    LOOK,
    MOVE,
    SAVE,
    SLOW_SAVE,
    begin,
    call,
    call_id,
    decide,
    extended,
    last_text,
    results_of,
    talking,
)
from tests.models import AnthropicService, Call, Reply
from tests.server.conversations.test_barge_in import assistant_texts
from tests.serving import provider_for, serving
from tests.shapes import PLAIN_TURN, Event


async def begin_call(phone: App, name: str, text: str = "go") -> Event:
    """Say something, and wait until the device is asked to run the tool."""
    since = len(phone.log)
    phone.say(text)
    return await phone.until(name, since=since)


async def pass_time(seconds: float) -> None:
    """Let real time pass."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def final_after(phone: App, since: int) -> Event:
    """Wait for the final text after ``since``, and for the microphone."""
    final = await phone.until("assistant.speech.final", since=since)
    await phone.until("state idle", since=phone.log.index(final))
    return final


def all_results(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Read every tool result of a request."""
    blocks = [block for message in request["messages"] for block in message["content"]]
    results = [block for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]
    return [json.loads(block["content"]) for block in results]


# -- cancel


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"effect": "none"}, None),
        ({"effect": "partial", "result": "3 of 7"}, "What was done: 3 of 7"),
        ({"effect": "complete", "result": "all 7"}, "all 7"),
    ],
    ids=["none", "partial", "complete"],
)
async def test_a_barge_in_cancels_a_reading_call_and_its_effect_reaches_the_next_turn(
    claude: AnthropicService, fields: dict[str, str], expected: str | None
) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Yes?")]
    async with talking(claude, "cancel") as phone:
        since = len(phone.log)
        look = await begin_call(phone, "look")
        phone.interrupt()
        cancel = await phone.until("tool.cancel")
        assert cancel["payload"] == {"callId": call_id(look), "reason": "barge_in"}
        await phone.until("state idle", since=since)
        phone.send("tool.cancelled", {"callId": call_id(look), **fields})
        await phone.ask("hello?")
        assert phone.finals() == ["Yes?"]  # a reading call deserves no turn of its own
    (result,) = all_results(claude.requests[-1])
    assert result["error_type"] == "cancelled"
    assert last_text(claude.requests[-1]).endswith("hello?")
    if expected is None:
        assert last_text(claude.requests[-1]) == "hello?"
    else:
        assert expected in last_text(claude.requests[-1])


async def test_a_client_without_the_capability_cancel_neither_gets_nor_sends_cancels(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Yes?")]
    async with talking(claude) as phone:
        look = await begin_call(phone, "look")
        payload = {"callId": call_id(look), "effect": "complete", "result": "x"}
        phone.send("tool.cancelled", payload)
        phone.send("response.cancel", {})
        since = len(phone.log)
        phone.say("hello?")
        await final_after(phone, since)
        assert not phone.events("tool.cancel")
        assert phone.errors() == []
    (result,) = results_of(claude.requests[-1])
    assert result["error_type"] == "cancelled" and result["data"] is None


# -- response.cancel


async def test_a_button_stops_the_turn_as_a_barge_in_does(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("look"), call("save_note"))), Reply(text="Yes?")]
    async with talking(claude, "cancel", "activity", tools=[LOOK, SAVE]) as phone:
        since = len(phone.log)
        saved = await begin_call(phone, "save_note")
        phone.send("response.cancel", {})
        await phone.until("state idle", since=since)
        assert phone.finals() == [] and phone.speeches() == []
        cancelled = [event["payload"]["callId"] for event in phone.log if event["type"] == "tool.cancel"]
        assert len(cancelled) == 1 and cancelled != [call_id(saved)]
        await phone.ask("hello?")
    kinds = [result["error_type"] for result in all_results(claude.requests[-1])]
    assert kinds == ["cancelled", "unknown"]
    assert [e["payload"]["errorType"] for e in phone.events("tool.activity", status="finished")] == kinds


# -- lease


async def test_a_call_says_how_long_it_may_take_only_where_that_is_understood(
    claude: AnthropicService,
) -> None:
    tools = [extended(LOOK, timeoutMs=1_500), extended(MOVE, interactive=True, approval="never"), SAVE]
    calling = Reply(calls=(call("look"), call("move_file"), call("save_note")))
    claude.replies += [calling, Reply(text="Done."), calling, Reply(text="Done.")]
    answers = dict.fromkeys(("look", "move_file", "save_note"), lambda a: "done")
    async with talking(
        claude, "lease", tools=tools, device=answers, tool_timeout=7.0, interactive_timeout=99.0
    ) as phone:
        events = await phone.ask("go")
        timeouts = {e["payload"]["name"]: e["payload"].get("timeoutMs") for e in events if is_run(e)}
        assert timeouts == {"look": 1_500, "move_file": 99_000, "save_note": 7_000}
        since = len(phone.log)
        phone.start()  # declares no capability any more; the tools stay
        await phone.idle(since=since)
        events = await phone.ask("go")
        assert [set(e["payload"]) for e in events if is_run(e)] == [{"callId", "name", "arguments"}] * 3


def is_run(event: Event) -> bool:
    return event["type"] == "tool.call" and not event["payload"]["name"].startswith(("convo.", "tts."))


# -- late


async def late_when_idle(claude: AnthropicService, phone: App, late_call: Call | None = None) -> list[Event]:
    """Let a call's time pass, then answer it when nothing is going on; gives the events after that."""
    claude.replies += [
        Reply(calls=(late_call or call("save_note"),)),
        Reply(text="I cannot tell."),
        Reply(text="It did work."),
    ]
    since = len(phone.log)
    phone.say("go")
    late = await phone.until(lambda event: is_run(event), since=since)
    await final_after(phone, since)
    assert results_of(claude.requests[-1])[0]["error_type"] == "unknown"
    since = len(phone.log)
    phone.result(call_id(late), "worked")
    await final_after(phone, since)
    assert "worked" in last_text(claude.requests[-1])
    assert last_text(claude.requests[-1]).startswith("[A late result came for the earlier call of ")
    return phone.log[since:]


async def test_a_late_result_begins_a_turn_of_its_own_when_nothing_is_going_on(
    claude: AnthropicService,
) -> None:
    async with talking(claude, "late", tools=[SLOW_SAVE]) as phone:
        events = await late_when_idle(claude, phone)
        assert events[0]["type"] == "tool.late" and events[0]["payload"]["deliveredAs"] == "turn"
        shape = phone.shapes(phone.log.index(events[1]))
        assert shape == PLAIN_TURN[2:]  # no "thinking", no words of the user's
        assert phone.speeches()[-1] == "It did work."


# -- async


async def test_a_job_frees_the_turn_and_its_result_begins_one_of_its_own(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="It is under way."),
        Reply(text="Something else."),
        Reply(text="The job is done."),
    ]
    async with talking(
        claude, "async", "late", tools=[extended(SAVE, approval="never", timeoutMs=400)]
    ) as phone:
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
        await final_after(phone, since)
        (result,) = results_of(claude.requests[-1])
        assert result["data"] == {"status": "accepted", "jobId": "job-7"}
        assert any("not finished" in note for note in result["metadata"]["notes"])
        await pass_time(0.5)  # the call's limit does not end the job
        await phone.ask("something else")
        since = len(phone.log)
        phone.result(call_id(save), "uploaded 7 of 7")
        await final_after(phone, since)
        assert phone.finals(since) == ["The job is done."]
        assert phone.shapes(since) == ["tool.late", *PLAIN_TURN[2:]]
    assert "uploaded 7 of 7" in last_text(claude.requests[-1])


# -- done, but not heard


@pytest.mark.parametrize(
    ("fields", "expected_text"),
    [
        ({"spokenText": "I have moved"}, f"I have moved {CUT_HERE}"),
        ({"playedMs": 0}, HEARD_NOTHING),
        ({}, "I have moved the file."),
    ],
)
async def test_an_unheard_confirmation_is_in_the_next_request(
    claude: AnthropicService, fields: dict[str, Any], expected_text: str
) -> None:
    claude.replies += [
        Reply(calls=(call("look"), call("move_file"))),
        Reply(text="I have moved the file."),
        Reply(text="It is moved."),
    ]
    answers = {"look": lambda a: "seen", "move_file": lambda a: "moved"}
    async with serving(provider_for(claude)) as served:
        phone = served.phone(acknowledge=lambda name: name != "tts.speak", tools=answers)
        async with phone:
            await begin(phone, "approval")
            since = len(phone.log)
            phone.say("move it")
            await decide(phone, await phone.until("approval.request"), "allow")
            await final_after(phone, since)
            phone.interrupt(**fields)
            since = len(phone.log)
            phone.say("so?")
            await final_after(phone, since)
    reply_text = assistant_texts(claude.requests[-1])[-1]
    assert reply_text.startswith(expected_text)
    assert reply_text.endswith("[Done, though the user may not have heard so: move_file.]")
