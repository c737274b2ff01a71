"""Turns with tools on the device, against the strict stand-in for Claude."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.dialogues import results_of
from tests.models import AnthropicService, Call, Reply
from tests.shapes import PLAIN_TURN, shape_of

STATUS = "agent_status"


async def test_text_beside_a_call_comes_first_as_a_message_of_its_own(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(text="Let me look.", calls=(Call(STATUS, {"id": "a-1"}),)),
        Reply(text="It runs."),
    ]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            since = len(phone.log)
            await phone.ask("how is it?")
            shape = phone.shapes(since)
            assert shape[:5] == [
                "state thinking",
                "append user",
                "assistant.speech.final",
                "append assistant",
                "agent.status",
            ]
            assert shape[5:] == PLAIN_TURN[2:]
            assert phone.finals() == ["Let me look.", "It runs."]
            assert phone.speeches() == ["It runs."]  # the device is busy with the call


async def test_text_beside_a_call_of_the_servers_own_is_spoken(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(text="One moment.", calls=(Call("calculator", {"expression": "6*7"}),)),
        Reply(text="Forty-two."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("what is six times seven?")
        assert phone.speeches() == ["One moment.", "Forty-two."]
    assert results_of(claude.requests[-1])[0]["data"]["result"] in ("42", 42)


async def test_a_tools_error_is_a_result_the_model_reads(claude: AnthropicService) -> None:
    def broken(_: dict[str, Any]) -> str:
        raise RuntimeError("no such agent")

    claude.replies += [Reply(calls=(Call(STATUS, {"id": "x"}),)), Reply(text="There is none.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.status": broken}) as phone:
            await phone.ask("how is x?")
            assert phone.finals() == ["There is none."]
    (result,) = results_of(claude.requests[-1])
    assert (result["success"], result["error_message"]) == (False, "no such agent")


async def test_an_unknown_tool_and_bad_arguments_never_reach_the_device(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(Call("agent_statos", {"id": "x"}), Call(STATUS, {"ID": "x"}))),
        Reply(text="Something is off."),
    ]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is x?")
            assert phone.runs == []
    unknown, invalid = results_of(claude.requests[-1])
    assert unknown["error_type"] == "not_found"
    assert invalid["error_type"] == "validation_failed"
    assert invalid["error_message"].endswith("Nothing was run. Call it again with corrected arguments.")


async def test_arguments_cut_off_by_the_length_limit_are_never_run(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(calls=(Call(STATUS, '{"id": "a-'),), stop_reason="max_tokens"),
        Reply(text="That was too long."),
    ]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("how is it?")
            assert phone.runs == []
            assert phone.finals() == ["That was too long."]
    (result,) = results_of(claude.requests[-1])
    assert result["error_type"] == "parse_error"
    assert "cut off" in result["error_message"]


async def test_more_calls_than_a_round_may_have_are_answered_but_not_run(claude: AnthropicService) -> None:
    calls = tuple(Call(STATUS, {"id": f"a-{number}"}) for number in range(5))
    claude.replies += [Reply(calls=calls), Reply(text="Three of them.")]
    async with serving(provider_for(claude), max_calls_per_round=3) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            await phone.ask("all of them")
            assert len(phone.runs) == 3
    kinds = [result["error_type"] for result in results_of(claude.requests[-1])]
    assert kinds == ["none", "none", "none", "rate_limited", "rate_limited"]


async def test_the_clock_stands_still_while_a_person_chooses(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("repositories_select", {}),)), Reply(text="That one, then.")]
    async with serving(provider_for(claude), turn_timeout=0.3) as served, served.phone() as phone:
        since = len(phone.log)
        phone.say("pick one")
        call = await phone.until("repositories.select")
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(0.6, late.set)  # twice the turn's machine time
        await late.wait()
        phone.result(call["payload"]["callId"], "octo/cat")
        await phone.idle(since=since)
        assert phone.finals() == ["That one, then."]
        assert phone.errors() == []


async def test_a_turn_that_takes_too_long_says_so(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="never", hold=asyncio.Event()), Reply(text="Here I am.")]
    async with serving(provider_for(claude), turn_timeout=0.5) as served, served.phone() as phone:
        await phone.ask("hello?")
        assert [e["code"] for e in phone.errors()] == ["turn_timeout"]
        assert phone.speeches() == ["Sorry, that took too long, so I stopped. Please try again."]
        await phone.ask("hello again")
        assert phone.finals()[-1] == "Here I am."


async def test_fifty_turns_with_three_tools_each_in_one_session(claude: AnthropicService) -> None:
    calls = tuple(Call(STATUS, {"id": f"a-{number}"}) for number in range(3))
    for number in range(50):
        claude.replies += [Reply(calls=calls), Reply(text=f"Answer {number}.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools={"agent.status": lambda a: "runs"}) as phone:
            for number in range(50):
                events = await phone.ask(f"question {number}")
                assert shape_of(events[-1]) == "state idle"
                assert phone.finals()[-1] == f"Answer {number}."
            assert len(phone.runs) == 150
            (session,) = served.listener.registry.sessions
            assert len([m for m in session.state.log if type(m).__name__ == "UserMessage"]) <= 20
    assert all(len(request["messages"]) < 100 for request in claude.requests)


async def test_an_empty_reply_is_not_silence(claude: AnthropicService) -> None:
    claude.replies.append(Reply(text=""))
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("hm")
        assert len(phone.speeches()) == 1


async def test_a_client_that_answers_no_ui_call_is_not_waited_for(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(text="One."),
        Reply(calls=(Call(STATUS, {"id": "a"}),)),
        Reply(text="Two."),
    ]
    async with serving(provider_for(claude)) as served:
        phone = served.phone(acknowledge=lambda name: False, tools={"agent.status": lambda a: "runs"})
        async with phone:
            await phone.ask("first")
            await phone.ask("second")
            assert phone.speeches() == ["One.", "Two."]


async def test_only_one_speech_is_outstanding(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="One."), Reply(text="Two.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(acknowledge=lambda name: name != "tts.speak") as phone:
            await phone.ask("first")
            since = len(phone.log)
            phone.say("second")
            await phone.until("state speaking", since=since)
            await served.quiet()
            assert phone.speeches() == ["One."]
            speech = phone.events("tts.speak")[0]
            phone.result(speech["payload"]["callId"], '{"spoken":true}')
            await phone.idle(since=since)
            assert phone.speeches() == ["One.", "Two."]
