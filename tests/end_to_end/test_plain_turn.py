"""A plain turn, to the letter."""

from __future__ import annotations

from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from conductor.models.scripted import ScriptedProvider
from tests.end_to_end.conftest import Serve
from tests.end_to_end.phone import PLAIN_TURN, shape_of


async def test_a_plain_turn_has_exactly_these_events(serve: Serve) -> None:
    provider = ScriptedProvider([[TextDelta("Hello "), TextDelta("**there**.")]])
    async with serve(provider) as served, served.phone() as phone:
        events = await phone.ask("hi")
        assert [shape_of(e) for e in events if e["type"] != "assistant.speech.partial"] == PLAIN_TURN
        partials = [e["payload"]["text"] for e in events if e["type"] == "assistant.speech.partial"]
        assert partials[0] == "Hello "
        assert all("Hello **there**.".startswith(text) for text in partials)
        assert phone.finals() == ["Hello **there**."]
        assert phone.spoken() == ["Hello there."]


async def test_a_tool_on_the_device_is_called_and_its_result_reaches_the_model(serve: Serve) -> None:
    provider = ScriptedProvider(
        [[ToolCall("x", "agent.status", '{"id":"a-77"}')], [TextDelta("It is done.")]]
    )
    async with serve(provider) as served:
        async with served.phone(tools={"agent.status": lambda a: f"state of {a['id']}"}) as phone:
            await phone.ask("how is my agent?")
            assert phone.runs == [("agent.status", {"id": "a-77"})]
            assert phone.finals() == ["It is done."]
    result = provider.requests[1].messages[-1]
    assert "state of a-77" in result.content  # type: ignore[union-attr]
