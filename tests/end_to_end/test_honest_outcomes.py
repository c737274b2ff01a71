"""What the model is told of calls that were cancelled, late, long or done unheard, in its next request.

The extensions ``cancel``, ``lease``, ``late``, ``async`` and ``activity``, and clients without them
(protocol, "Honest outcomes").
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from conductor.conversation.speech import CUT_HERE, HEARD_NOTHING
from tests.app import App
from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.test_approvals import DELETE, LOOK, MOVE, begin, decide, declared
from tests.end_to_end.test_barge_in import assistant_texts
from tests.end_to_end.test_gate_settings import asked, prompts
from tests.end_to_end.test_hostile_tools import LIMIT_MS, SAVE, answer_aloud, call, wishing
from tests.end_to_end.test_tool_turns import last_text, results_of
from tests.models import AnthropicService, Call, Reply
from tests.shapes import PLAIN_TURN, Event, arguments_of

STOPPABLE = wishing(declared("upload"), approval="never", onInterrupt="cancel")
SLOW_LOOK = wishing(LOOK, timeoutMs=LIMIT_MS)
SLOW_SAVE = wishing(declared("save_note"), approval="never", timeoutMs=LIMIT_MS)


def call_id(event: Event) -> str:
    return str(event["payload"]["callId"])


async def begin_call(phone: App, name: str, text: str = "go") -> Event:
    """Say something, and wait until the device is asked to run the tool."""
    since = len(phone.log)
    phone.say(text)
    return await phone.until(name, since=since)


async def waited(seconds: float) -> None:
    """Let time pass, where time is what is tested."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def answered(phone: App, since: int) -> Event:
    """Wait for the final text after ``since``, and for the microphone."""
    final = await phone.until("assistant.speech.final", since=since)
    await phone.until("state idle", since=phone.log.index(final))
    return final


def all_results(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Read every tool result of a request."""
    blocks = [block for message in request["messages"] for block in message["content"]]
    found = [block for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]
    return [json.loads(block["content"]) for block in found]


# -- cancel


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"effect": "none"}, None),
        ({"effect": "partial", "result": "3 of 7"}, "What was done: 3 of 7"),
        ({"effect": "complete", "result": "all 7"}, "all 7"),
    ],
    ids=["none", "partial", "complete"],
)
async def test_a_barge_in_cancels_a_reading_call_and_what_it_did_reaches_the_next_turn(
    claude: AnthropicService, fields: dict[str, str], told: str | None
) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel")
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
    if told is None:
        assert last_text(claude.requests[-1]) == "hello?"
    else:
        assert told in last_text(claude.requests[-1])


async def test_another_transcript_cancels_a_reading_call_too(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Something else, then.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel")
        look = await begin_call(phone, "look")
        since = len(phone.log)
        phone.say("something else")
        await answered(phone, since)
        cancels = [event["payload"] for event in phone.log if event["type"] == "tool.cancel"]
        assert cancels == [{"callId": call_id(look), "reason": "barge_in"}]
    (result,) = results_of(claude.requests[-1])
    assert result["error_type"] == "cancelled"


async def test_a_write_is_left_to_end_unless_it_wants_to_be_cancelled(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"), call("upload"))), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", tools=[SAVE, STOPPABLE])
        upload = await begin_call(phone, "upload")
        phone.interrupt()
        await phone.until("tool.cancel")
        await phone.ask("hello?")
        cancels = [event["payload"]["callId"] for event in phone.log if event["type"] == "tool.cancel"]
        assert cancels == [call_id(upload)]
    kinds = [result["error_type"] for result in all_results(claude.requests[-1])]
    assert kinds == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"effect": "partial", "result": "3 of 7"}, "What was done: 3 of 7"),
        ({"effect": "complete", "result": "all 7"}, "had happened already"),
    ],
    ids=["partial", "complete"],
)
async def test_what_a_cancelled_write_did_is_told_in_a_turn_of_its_own(
    claude: AnthropicService, fields: dict[str, str], told: str
) -> None:
    claude.replies += [Reply(calls=(call("upload"),)), Reply(text="This is how far it got.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", "late", tools=[STOPPABLE])
        upload = await begin_call(phone, "upload")
        phone.interrupt()
        await phone.until("tool.cancel")
        await phone.until("state idle", since=phone.log.index(upload))
        since = len(phone.log)
        phone.send("tool.cancelled", {"callId": call_id(upload), **fields})
        await answered(phone, since)
        assert phone.finals() == ["This is how far it got."]
        late = await phone.until("tool.late", since=since)
        assert late["payload"] == {"callId": call_id(upload), "deliveredAs": "turn"}
    assert told in last_text(claude.requests[-1]) and fields["result"] in last_text(claude.requests[-1])


async def test_a_write_that_was_cancelled_before_it_did_anything_may_run_again_unasked(
    claude: AnthropicService,
) -> None:
    claude.replies += [
        Reply(calls=(call("upload"),)),
        Reply(calls=(call("upload"),)),
        Reply(text="Uploaded."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", "approval", tools=[STOPPABLE])
        upload = await begin_call(phone, "upload")
        phone.interrupt()
        await phone.until("tool.cancel")
        phone.send("tool.cancelled", {"callId": call_id(upload), "effect": "none"})
        phone.tools["upload"] = lambda a: "done"
        await phone.ask("again, please")
        assert asked(phone) == [] and len(phone.runs) == 2
    assert results_of(claude.requests[-1])[0]["data"] == "done"


async def test_until_the_device_says_what_became_of_it_the_same_write_asks(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("upload"),)),
        Reply(calls=(call("upload"),)),
        Reply(text="Very well."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", "approval", tools=[STOPPABLE])
        await begin_call(phone, "upload")
        phone.interrupt()
        await phone.until("tool.cancel")
        since = len(phone.log)
        phone.say("again, please")
        request = await phone.until("approval.request", since=since)
        await decide(phone, request, "deny")
        await answered(phone, since)
        assert len(phone.runs) == 1


async def test_a_call_whose_time_is_over_is_cancelled_for_that(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="I cannot tell."),
        Reply(text="It is saved after all."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", tools=[SLOW_SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        cancel = await phone.until("tool.cancel")
        assert cancel["payload"] == {"callId": call_id(save), "reason": "timeout"}
        await answered(phone, since)
        assert results_of(claude.requests[-1])[0]["error_type"] == "unknown"
        since = len(phone.log)
        payload = {"callId": call_id(save), "effect": "complete", "result": "note 7"}
        phone.send("tool.cancelled", payload)
        await answered(phone, since)
        assert not [event for event in phone.log if event["type"] == "tool.late"]  # it has not asked for that
    assert "note 7" in last_text(claude.requests[-1])


async def test_that_nothing_was_done_is_told_after_it_was_called_unknown(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="I cannot tell."),
        Reply(text="It was not saved."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", tools=[SLOW_SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        await phone.until("tool.cancel")
        await answered(phone, since)
        phone.send("tool.cancelled", {"callId": call_id(save), "effect": "none"})
        await phone.ask("is it saved?")
    assert "Nothing was done" in last_text(claude.requests[-1])


async def test_a_call_that_the_device_gave_up_by_itself_is_told_at_once(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Half of it.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", tools=[SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.cancelled", {"callId": call_id(save), "effect": "partial", "result": "half"})
        await answered(phone, since)
        assert not [event for event in phone.log if event["type"] == "tool.cancel"]
    (result,) = results_of(claude.requests[-1])
    assert (result["error_type"], result["metadata"]["reason"]) == ("cancelled", "partial")
    assert "What was done: half" in result["error_message"]


async def test_a_client_that_knows_no_cancelling_is_told_nothing_and_its_word_does_not_count(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone)
        look = await begin_call(phone, "look")
        payload = {"callId": call_id(look), "effect": "complete", "result": "x"}
        phone.send("tool.cancelled", payload)
        phone.send("response.cancel", {})
        since = len(phone.log)
        phone.say("hello?")
        await answered(phone, since)
        assert not [event for event in phone.log if event["type"] == "tool.cancel"]
        assert phone.errors() == []
    (result,) = results_of(claude.requests[-1])
    assert result["error_type"] == "cancelled" and result["data"] is None


# -- response.cancel


async def test_a_button_stops_the_turn_as_a_barge_in_does(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("look"), call("save_note"))), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", "activity", tools=[LOOK, SAVE])
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
    assert [e["payload"]["errorType"] for e in activities(phone, "finished")] == kinds


async def test_a_button_stops_an_answer_that_is_being_written(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One two three", hold=asyncio.Event(), hold_at=2), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel")
        since = len(phone.log)
        phone.say("count")
        await phone.until("assistant.speech.partial")
        phone.send("response.cancel", {})
        await phone.until("state idle", since=since)
        await claude.wait_disconnects(1)
        assert phone.shapes(since) == ["state thinking", "append user", "state idle"]
        await phone.ask("hello?")


async def test_a_button_withdraws_a_question(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="Yes?")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel", "approval")
        since = len(phone.log)
        phone.say("move it")
        request = await phone.until("approval.request")
        phone.send("response.cancel", {})
        resolved = await phone.until("approval.resolved")
        assert resolved["payload"]["outcome"] == "superseded"
        await phone.until("state idle", since=since)
        too_late = await decide(phone, request, "allow")
        assert too_late["payload"]["outcome"] == "superseded" and phone.runs == []
        await phone.ask("hello?")
    (result,) = all_results(claude.requests[-1])
    assert result["error_type"] == "approval_timeout"


async def test_a_button_with_nothing_to_stop_does_nothing(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "cancel")
        since = len(phone.log)
        phone.send("response.cancel", {})
        await phone.ask("hello?")
        assert phone.shapes(since) == PLAIN_TURN


# -- lease


async def test_a_call_says_how_long_it_may_take_only_where_that_is_understood(
    claude: AnthropicService,
) -> None:
    tools = [wishing(LOOK, timeoutMs=1_500), wishing(MOVE, interactive=True, approval="never"), SAVE]
    calling = Reply(calls=(call("look"), call("move_file"), call("save_note")))
    claude.replies += [calling, Reply(text="Done."), calling, Reply(text="Done.")]
    answers = dict.fromkeys(("look", "move_file", "save_note"), lambda a: "done")
    async with serving(provider_for(claude), tool_timeout=7.0, interactive_timeout=99.0) as served:
        async with served.phone(tools=answers) as phone:
            await begin(phone, "lease", tools=tools)
            events = await phone.ask("go")
            limits = {e["payload"]["name"]: e["payload"].get("timeoutMs") for e in events if is_run(e)}
            assert limits == {"look": 1_500, "move_file": 99_000, "save_note": 7_000}
            since = len(phone.log)
            phone.start()  # declares no capability any more; the tools stay
            await phone.idle(since=since)
            events = await phone.ask("go")
            assert [set(e["payload"]) for e in events if is_run(e)] == [{"callId", "name", "arguments"}] * 3


def is_run(event: Event) -> bool:
    return event["type"] == "tool.call" and not event["payload"]["name"].startswith(("convo.", "tts."))


@pytest.mark.parametrize("sign", ["tool.started", "tool.progress"])
async def test_a_sign_of_life_lets_the_time_begin_anew(claude: AnthropicService, sign: str) -> None:
    look = wishing(LOOK, timeoutMs=600)
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="That took a while.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "lease", tools=[look])
        since = len(phone.log)
        looking = await begin_call(phone, "look")
        more = {"message": "3 of 7", "percent": 42} if sign == "tool.progress" else {}
        for _ in range(3):
            await waited(0.3)
            phone.send(sign, {"callId": call_id(looking), **more})
        phone.result(call_id(looking), "seen")  # after 0.9 s and more
        await answered(phone, since)
    assert results_of(claude.requests[-1])[0]["data"] == "seen"


async def test_silence_after_a_sign_of_life_ends_the_call(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="I cannot tell.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "lease", "cancel", tools=[SLOW_SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.started", {"callId": call_id(save)})
        phone.send("tool.progress", {"callId": call_id(save), "percent": 99})
        cancel = await phone.until("tool.cancel")
        assert cancel["payload"]["reason"] == "timeout"
        await answered(phone, since)
    (result,) = results_of(claude.requests[-1])
    assert (result["error_type"], result["metadata"]["reason"]) == ("unknown", "tool_result_timeout")


async def test_signs_of_life_of_a_client_without_the_lease_do_not_count(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="It does not answer.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, tools=[SLOW_LOOK])
        since = len(phone.log)
        looking = await begin_call(phone, "look")
        signs = asyncio.create_task(keep_saying(phone, looking))
        await answered(phone, since)
        signs.cancel()
        await asyncio.wait([signs])
    assert results_of(claude.requests[-1])[0]["error_type"] == "unknown"


async def keep_saying(phone: App, event: Event) -> None:
    while True:
        phone.send("tool.progress", {"callId": call_id(event)})
        await waited(LIMIT_MS / 4_000)


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
    await answered(phone, since)
    assert results_of(claude.requests[-1])[0]["error_type"] == "unknown"
    since = len(phone.log)
    phone.result(call_id(late), "worked")
    await answered(phone, since)
    assert "worked" in last_text(claude.requests[-1])
    assert last_text(claude.requests[-1]).startswith("[A late result came for the earlier call of ")
    return phone.log[since:]


async def test_a_late_result_begins_a_turn_of_its_own_when_nothing_is_going_on(
    claude: AnthropicService,
) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "late", tools=[SLOW_SAVE])
        events = await late_when_idle(claude, phone)
        assert events[0]["type"] == "tool.late" and events[0]["payload"]["deliveredAs"] == "turn"
        shape = phone.shapes(phone.log.index(events[1]))
        assert shape == PLAIN_TURN[2:]  # no "thinking", no words of the user's
        assert phone.speeches()[-1] == "It did work."


async def test_without_the_capability_it_is_the_same_but_for_the_event(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, tools=[SLOW_SAVE])
        since = len(phone.log)
        events = await late_when_idle(claude, phone)
        assert "tool.late" not in phone.shapes(since)
        assert phone.shapes(phone.log.index(events[0])) == PLAIN_TURN[2:]


async def test_the_unmodified_client_gets_its_late_results_told_too(claude: AnthropicService) -> None:
    async with serving(provider_for(claude), tool_timeout=LIMIT_MS / 1000) as served:
        async with served.phone() as phone:
            followup = Call("agent_followup", {"id": "a", "prompt": "go on"})
            events = await late_when_idle(claude, phone, followup)
            assert phone.shapes(phone.log.index(events[0])) == PLAIN_TURN[2:]


@pytest.mark.parametrize("capable", [True, False])
async def test_a_late_result_during_a_turn_is_context_for_the_next(
    claude: AnthropicService, capable: bool
) -> None:
    going_on = asyncio.Event()
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="I cannot tell.", hold=going_on, hold_at=1),
        Reply(text="It is."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, *(["late"] if capable else []), tools=[SLOW_SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        await phone.until("assistant.speech.partial", since=since)
        phone.result(call_id(save), "saved as note 7")
        if capable:
            late = await phone.until("tool.late")
            assert late["payload"] == {"callId": call_id(save), "deliveredAs": "context"}
        going_on.set()
        await answered(phone, since)
        await phone.ask("is it saved?")
        assert phone.shapes(since).count("tool.late") == capable
        assert phone.finals() == ["I cannot tell.", "It is."]
    assert "saved as note 7" in last_text(claude.requests[-1])
    assert last_text(claude.requests[-1]).endswith("is it saved?")


async def test_after_a_late_result_the_same_call_is_not_asked_about(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "late", "approval", tools=[SLOW_SAVE])
        await late_when_idle(claude, phone)
        claude.replies += [Reply(calls=(call("save_note", "b"),)), Reply(text="b, then.")]
        phone.tools["save_note"] = lambda a: "saved"
        claude.replies += [Reply(calls=(call("save_note"),))]
        await phone.ask("b")
        await phone.ask("and a again")
        assert asked(phone) == [] and len(phone.runs) == 3


async def test_a_late_result_that_comes_twice_is_told_once(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "late", tools=[SLOW_SAVE])
        await late_when_idle(claude, phone)
        save = phone.events("save_note")[0]
        phone.result(call_id(save), "once more")
        await phone.ask("and?")
        assert phone.shapes().count("tool.late") == 1
    assert "once more" not in json.dumps(claude.requests[-1])


# -- async


async def test_a_job_frees_the_turn_and_its_result_begins_one_of_its_own(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="It is under way."),
        Reply(text="Something else."),
        Reply(text="The job is done."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "async", "late", tools=[wishing(SAVE, approval="never", timeoutMs=400)])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
        await answered(phone, since)
        (result,) = results_of(claude.requests[-1])
        assert result["data"] == {"status": "accepted", "jobId": "job-7"}
        assert any("not finished" in note for note in result["metadata"]["notes"])
        await waited(0.5)  # the limit of the call is none of the job's
        await phone.ask("something else")
        since = len(phone.log)
        phone.result(call_id(save), "uploaded 7 of 7")
        await answered(phone, since)
        assert phone.finals(since) == ["The job is done."]
        assert phone.shapes(since) == ["tool.late", *PLAIN_TURN[2:]]
    assert "uploaded 7 of 7" in last_text(claude.requests[-1])


async def test_a_job_that_fails_is_told_as_failed(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Under way."), Reply(text="It failed.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "async", tools=[SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
        await answered(phone, since)
        since = len(phone.log)
        phone.result(call_id(save), None, "disk full")
        await answered(phone, since)
    assert "disk full" in last_text(claude.requests[-1])


async def test_a_job_that_ends_while_the_model_talks_has_its_turn_afterwards(
    claude: AnthropicService,
) -> None:
    going_on = asyncio.Event()
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="It is under way.", hold=going_on, hold_at=1),
        Reply(text="The job is done."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "async", "late", tools=[SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
        await phone.until("assistant.speech.partial", since=since)
        phone.result(call_id(save), "uploaded")
        await phone.until("tool.late")
        going_on.set()
        first = await answered(phone, since)
        await answered(phone, phone.log.index(first) + 1)
        assert phone.finals() == ["It is under way.", "The job is done."]
    assert "uploaded" in last_text(claude.requests[-1])


async def test_a_job_that_was_only_accepted_is_not_called_done(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Under way."), Reply(text="Not yet.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(acknowledge=lambda name: name != "tts.speak") as phone:
            await begin(phone, "async", tools=[SAVE])
            since = len(phone.log)
            save = await begin_call(phone, "save_note")
            phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
            await answered(phone, since)
            phone.interrupt(playedMs=0)
            since = len(phone.log)
            phone.say("is it done?")
            await answered(phone, since)
    assert assistant_texts(claude.requests[-1])[-1] == HEARD_NOTHING


async def test_a_job_waits_until_what_is_said_was_heard(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Under way."), Reply(text="Done.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(acknowledge=lambda name: name != "tts.speak") as phone:
            await begin(phone, "async", tools=[SAVE])
            since = len(phone.log)
            save = await begin_call(phone, "save_note")
            phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
            await answered(phone, since)
            phone.result(call_id(save), "uploaded")
            await served.quiet()
            assert phone.finals() == ["Under way."]
            speech = await phone.until("tts.speak", since=since)
            phone.result(call_id(speech), '{"spoken":true}')
            await answered(phone, phone.log.index(speech))
            assert phone.finals() == ["Under way.", "Done."]


async def test_without_the_capability_a_job_is_a_call_that_does_not_answer(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="I cannot tell.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, tools=[SLOW_SAVE])
        since = len(phone.log)
        save = await begin_call(phone, "save_note")
        phone.send("tool.accepted", {"callId": call_id(save), "jobId": "job-7"})
        await answered(phone, since)
    assert results_of(claude.requests[-1])[0]["error_type"] == "unknown"


# -- activity


def activities(phone: App, status: str | None = None) -> list[Event]:
    found = [event for event in phone.log if event["type"] == "tool.activity"]
    return [event for event in found if status in (None, event["payload"]["status"])]


async def test_the_client_sees_every_tool_at_work_in_order_wherever_it_runs(claude: AnthropicService) -> None:
    def broken(_: dict[str, Any]) -> str:
        raise RuntimeError("the secret reason")

    tools = [LOOK, MOVE, SLOW_SAVE]
    claude.replies += [
        Reply(calls=(Call("calculator", {"expression": "6*7"}),)),
        Reply(calls=(Call("calculator", {"expression": "6*"}),)),
        Reply(calls=(call("look", "the secret place"),)),
        Reply(calls=(call("move_file"),)),
        Reply(calls=(call("save_note"),)),
        Reply(calls=(Call("no_such_tool"), Call("look", {"path": 7}))),
        Reply(text="Done."),
    ]
    answers = {"look": lambda a: "the secret result", "move_file": broken}
    async with serving(provider_for(claude)) as served, served.phone(tools=answers) as phone:
        await begin(phone, "activity", "approval", tools=tools)
        since = len(phone.log)
        phone.say("go")
        request = await phone.until("approval.request")
        assert "move_file" not in {event["payload"]["name"] for event in activities(phone)}
        await decide(phone, request, "allow")
        await phone.until("assistant.speech.final", since=since)
        seen = [
            (e["payload"]["name"], e["payload"]["source"], e["payload"]["status"]) for e in activities(phone)
        ]
        names = [("calculator", "builtin")] * 2 + [
            (name, "device") for name in ("look", "move_file", "save_note")
        ]
        assert seen == [(*name, status) for name in names for status in ("started", "finished")]
        ended = activities(phone, "finished")
        kinds = [event["payload"]["errorType"] for event in ended]
        assert kinds[0] == "none" and kinds[1] != "none"
        assert kinds[2:] == ["none", "internal_error", "unknown"]
        assert ended[2]["payload"]["dataSizeBytes"] == len("the secret result")
        assert ended[4]["payload"]["executionTimeMs"] >= LIMIT_MS
        assert ended[2]["payload"]["display"].startswith("look: done, 17 bytes, ")
        assert "secret" not in json.dumps(activities(phone))
        for begun, over in zip(activities(phone, "started"), ended, strict=True):
            assert begun["payload"]["callId"] == over["payload"]["callId"]
        looked = phone.events("look")[0]
        assert call_id(ended[2]) == call_id(looked)


async def test_a_client_that_has_not_asked_for_it_sees_no_activity(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("calculator", {"expression": "6*7"}),)), Reply(text="42.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone)
        await phone.ask("go")
        assert activities(phone) == []


async def test_a_call_that_is_not_allowed_was_never_at_work(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("delete_file"),)), Reply(text="Very well.")]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await begin(phone, "activity", tools=[DELETE])
        since = len(phone.log)
        phone.say("delete it")
        since = await answer_aloud(phone, "no", since)
        await answered(phone, since)
        assert activities(phone) == [] and phone.runs == []


# -- done, but not heard


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"spokenText": "I have moved"}, f"I have moved {CUT_HERE}"),
        ({"playedMs": 0}, HEARD_NOTHING),
        ({}, "I have moved the file."),
    ],
)
async def test_that_something_was_done_and_not_heard_is_in_the_next_request(
    claude: AnthropicService, fields: dict[str, Any], heard: str
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
            await answered(phone, since)
            phone.interrupt(**fields)
            since = len(phone.log)
            phone.say("so?")
            await answered(phone, since)
    said = assistant_texts(claude.requests[-1])[-1]
    assert said.startswith(heard)
    assert said.endswith("[Done, though the user may not have heard so: move_file.]")


async def test_by_voice_too_what_was_done_and_not_heard_is_told(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(call("move_file"),)),
        Reply(text="I have moved the file."),
        Reply(text="It is moved."),
    ]
    quiet = False
    async with serving(provider_for(claude)) as served:
        phone = served.phone(
            acknowledge=lambda name: not (quiet and name == "tts.speak"),
            tools={"move_file": lambda a: "moved"},
        )
        async with phone:
            await begin(phone)
            since = len(phone.log)
            phone.say("move it")
            prompt = await phone.until("tts.speak", since=since)
            opened = await phone.until("state idle", since=phone.log.index(prompt))
            quiet = True
            phone.say("yes")
            await answered(phone, phone.log.index(opened))
            phone.interrupt(playedMs=0)
            since = len(phone.log)
            phone.say("so?")
            await answered(phone, since)
            assert len(phone.runs) == 1 and len(prompts(phone)) == 1
    said = assistant_texts(claude.requests[-1])[-1]
    assert HEARD_NOTHING in said and "move_file" in said


async def test_what_was_heard_to_the_end_is_not_called_unheard(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("save_note"),)), Reply(text="Saved."), Reply(text="Yes.")]
    async with serving(provider_for(claude), heard_window=-1.0) as served:
        async with served.phone(tools={"save_note": lambda a: "saved"}) as phone:
            await begin(phone, tools=[SAVE])
            await phone.ask("save it")
            phone.interrupt(playedMs=0)
            await phone.ask("so?")
    assert assistant_texts(claude.requests[-1])[-1] == "Saved."


async def test_a_barge_in_before_the_confirmation_was_written_leaves_the_result(
    claude: AnthropicService,
) -> None:
    claude.replies += [
        Reply(calls=(call("save_note"),)),
        Reply(text="I have saved it.", hold=asyncio.Event(), hold_at=2),
        Reply(text="It is saved."),
    ]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"save_note": lambda a: "saved as note 7"}) as phone:
            await begin(phone, tools=[SAVE])
            since = len(phone.log)
            phone.say("save it")
            await phone.until("assistant.speech.partial", since=since)
            phone.say("wait")
            await answered(phone, since)
            assert phone.finals() == ["It is saved."]
    request = claude.requests[-1]
    assert [result["data"] for result in all_results(request)] == ["saved as note 7"]
    assert "before any of this was spoken" in assistant_texts(request)[-1]


async def test_a_question_that_was_interrupted_moves_nothing_and_claims_nothing(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="Very well.")]
    async with serving(provider_for(claude), floor_timeout=0.05) as served:
        phone = served.phone(acknowledge=lambda name: name != "tts.speak")
        async with phone:
            await begin(phone)
            since = len(phone.log)
            phone.say("move it")
            prompt = await phone.until("tts.speak", since=since)
            phone.interrupt(playedMs=100)
            again = await phone.until("tts.speak", since=phone.log.index(prompt) + 1)
            assert "May I run move file" in arguments_of(again)["text"]
            phone.result(call_id(again), '{"spoken":true}')
            phone.say("no")
            await answered(phone, phone.log.index(again))
            assert phone.runs == []
    assert results_of(claude.requests[-1])[0]["error_type"] == "permission_denied"
    assert "Done, though" not in json.dumps(claude.requests[-1])
