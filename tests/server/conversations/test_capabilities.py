"""The capabilities ``metrics`` and ``goaway``."""

from __future__ import annotations

from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving


async def test_an_app_with_the_capability_metrics_gets_the_times_of_a_turn(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(Call("calculator", {"expression": "6*7"}),)), Reply(text="It is 42.")]
    async with serving(provider_for(claude)) as served:
        async with served.phone(start_fields={"capabilities": ["metrics"]}) as phone:
            await phone.ask("what is it")
            metrics = (await phone.until("turn.metrics"))["payload"]
            assert 0 <= metrics["firstTokenMs"] <= metrics["firstSpeechMs"]
            assert metrics["inputTokens"] > 0 and metrics["outputTokens"] > 0
            assert metrics["interrupted"] is False and metrics["toolMs"] >= 0
        async with served.phone("s-2") as phone:
            await phone.ask("and without")
            assert not any(event["type"].startswith("turn.") for event in phone.log)


async def test_an_app_that_comes_back_with_fewer_capabilities_gets_no_event_of_the_others(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(text="The table is for four, at eight."), Reply(text="Yes.")]
    abilities = {"capabilities": ["resume", "turns", "pause"]}
    async with serving(provider_for(claude)) as served:
        # It answers no call, so that nothing is acknowledged.
        phone = served.phone(start_fields=abilities, answer=lambda call: None)
        async with phone:
            phone.say("book a table")
            speech = await phone.until("tts.speak")
            await phone.until("turn.ended")
            phone.pause(speechId=speech["payload"]["callId"])
            phone.say("mhm")
            await phone.until("audio.output.resume")
            await phone.until("turn.ended", reason="resumed")
        await served.empty()
        async with served.phone() as old:
            await old.ask("and by the window?")
            assert not old.events("turn.ended") and not old.events("audio.output.resume")


async def test_an_app_with_the_capability_goaway_is_warned_before_a_stop(claude: AnthropicService) -> None:
    async with serving(provider_for(claude)) as served:
        async with served.phone(start_fields={"capabilities": ["goaway"]}) as phone:
            await served.listener.stop(drain_s=2.0)
            await phone.closed.wait()
            goaway = phone.log[-1]
            assert goaway["type"] == "session.goaway"
            assert goaway["payload"] == {"timeLeftMs": 2000, "reason": "service restart"}
            assert phone.close_code == 1012
