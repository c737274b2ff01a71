"""Turns with tools on the device, against the strict stand-in for Claude."""

from __future__ import annotations

from tests.dialogues import results_of
from tests.models import AnthropicService, Call, Reply
from tests.serving import provider_for, serving
from tests.shapes import shape_of

STATUS = "agent_status"


async def test_text_beside_a_call_of_the_servers_own_is_spoken(claude: AnthropicService) -> None:
    claude.replies += [
        Reply(text="One moment.", calls=(Call("calculator", {"expression": "6*7"}),)),
        Reply(text="Forty-two."),
    ]
    async with serving(provider_for(claude)) as served, served.phone() as phone:
        await phone.ask("what is six times seven?")
        assert phone.speeches() == ["One moment.", "Forty-two."]
    assert results_of(claude.requests[-1])[0]["data"]["result"] in ("42", 42)


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
