"""Calls that run only if a person says so, by cards and by voice, against the strict stand-in for Claude."""

from __future__ import annotations

import json

from tests.dialogues import decide, results_of, talking
from tests.models import AnthropicService, Call, Reply

THREE = Reply(
    calls=(
        Call("delete_file", {"path": "old.txt"}),
        Call("look", {"path": "."}),
        Call("move_file", {"path": "notes.txt"}),
    )
)


async def test_of_three_calls_the_safe_one_runs_at_once_and_the_others_when_they_are_allowed(
    claude: AnthropicService,
) -> None:
    claude.replies += [THREE, Reply(text="Done, as far as you let me.")]
    tools = {
        name: (lambda a, name=name: f"{name} {a['path']}") for name in ("look", "move_file", "delete_file")
    }
    async with talking(claude, "approval", device=tools) as phone:
        phone.say("tidy up")
        high = await phone.until("approval.request", name="delete_file")
        assert [name for name, _ in phone.runs] == ["look"], "the safe call has run before anything is asked"
        medium = await phone.until("approval.request", name="move_file")
        assert (high["payload"]["risk"], medium["payload"]["risk"]) == ("high", "medium")
        assert high["payload"]["batchId"] == medium["payload"]["batchId"]
        assert high["payload"]["arguments"] == {"path": "old.txt"}
        resolved = await decide(phone, medium, "allow", message="yes, just this once")
        assert resolved["payload"]["outcome"] == "allowed"
        resolved = await decide(phone, high, "deny", message="no, leave it")
        assert resolved["payload"]["outcome"] == "denied"
        await phone.idle(since=phone.log.index(resolved))
        assert phone.speeches() == ["Done, as far as you let me."]
    assert [name for name, _ in phone.runs] == ["look", "move_file"]
    first, second, third = results_of(claude.requests[-1])
    assert (first["error_type"], "no, leave it" in first["error_message"]) == ("permission_denied", True)
    assert second["data"] == "look ."
    assert third["data"] == "move_file notes.txt"
    assert any("just this once" in note for note in third["metadata"]["notes"])


async def test_a_decision_about_other_arguments_or_a_second_one_runs_nothing_and_is_answered(
    claude: AnthropicService,
) -> None:
    claude.replies += [Reply(calls=(Call("move_file", {"path": "a"}),)), Reply(text="Moved.")]
    async with talking(claude, "approval", device={"move_file": lambda a: "moved"}) as phone:
        phone.say("move it")
        request = await phone.until("approval.request")
        wrong = await decide(phone, request, "allow", argumentsDigest="0" * 64)
        assert wrong["payload"]["outcome"] == "refused" and phone.runs == []
        allowed = await decide(phone, request, "allow")
        assert allowed["payload"]["outcome"] == "allowed"
        second_resolved = await decide(phone, request, "allow")
        assert second_resolved["payload"]["outcome"] == "refused"
        await phone.idle(since=phone.log.index(allowed))
        assert len(phone.runs) == 1
    (result,) = results_of(claude.requests[-1])
    assert json.loads(json.dumps(result))["success"]
