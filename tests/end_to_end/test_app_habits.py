"""The habits of the shipped app, as `tests.app` has them: it decides cards, repeats answers, and resumes."""

from __future__ import annotations

from tests.end_to_end.conftest import provider_for, serving
from tests.end_to_end.dialogues import DELETE, TOOLS, calls, results_of
from tests.models import AnthropicService, Reply
from tests.server.wires import until

DEVICE = {"move_file": lambda arguments: "moved", "delete_file": lambda arguments: "deleted"}


async def test_an_app_that_decides_each_card_by_its_risk(claude: AnthropicService) -> None:
    claude.replies += [calls(("move_file", "a"), ("delete_file", "b")), Reply(text="Moved only.")]
    fields = {"capabilities": ["tools", "approval"], "tools": TOOLS}
    async with serving(provider_for(claude)) as served:
        phone = served.phone(
            tools=DEVICE,
            start_fields=fields,
            decide=lambda card: "deny" if card["risk"] == "high" else "allow",
        )
        async with phone:
            phone.say("tidy up")
            await phone.until("assistant.speech.final")
            assert [card["payload"]["outcome"] for card in phone.events("approval.resolved")] == [
                "allowed",
                "denied",
            ]
    assert [result["success"] for result in results_of(claude.requests[-1])] == [True, False]


async def test_an_app_that_resumes_sends_lost_words_and_results_again(claude: AnthropicService) -> None:
    claude.replies += [calls(("move_file", "a")), Reply(text="Moved."), Reply(text="You are welcome.")]
    tool = {**DELETE, "name": "move_file", "_meta": {"conductor": {"approval": "never"}}}
    fields = {"capabilities": ["tools", "resume"], "tools": [tool]}
    async with serving(provider_for(claude)) as served:
        async with served.phone(start_fields=fields, copies=2) as phone:
            phone.say("move it")
            call = await phone.until("move_file")
            await phone.cut()
            phone.result(call["payload"]["callId"], "moved")
            phone.say("thanks")
            await phone.open()
            await phone.until("assistant.speech.final", text="You are welcome.")
            await until(lambda: not phone.outbox)
            assert len(phone.runs) == 1 and phone.pending == {}
    assert "moved" in str(claude.requests[-1]["messages"])
    assert not phone.events("error")
