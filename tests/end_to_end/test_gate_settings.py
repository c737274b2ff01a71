"""The gate under the operator's settings, from the settings to the next request at the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import configured, write_rules
from tests.end_to_end.dialogues import (
    DELETE,
    DEVICE,
    LOOK,
    MOVE,
    ask_aloud,
    ask_deciding,
    begin,
    calls,
    cards,
    decide,
    declared,
    prompts,
    results_of,
)
from tests.models import AnthropicService, Call, Reply

AGENTS = {"agent_spawn", "agent_status", "agent_cancel", "agent_followup", "agent_list"}


def offered(claude: AnthropicService) -> set[str]:
    """Name the tools that the last request offers."""
    return {tool["name"] for tool in claude.requests[-1]["tools"]}


# -- the tools that the model is offered


async def test_only_the_allowed_tools_reach_the_model(claude: AnthropicService, tmp_path: Path) -> None:
    claude.replies += [calls(("look", "."), ("move_file", "a")), Reply(text="I cannot.")]
    async with configured(claude, tmp_path, allowed_tools="look, calc*") as server:
        async with server.phone(tools=DEVICE) as phone:
            await begin(phone, "approval")
            await phone.ask("look and move")
            assert [name for name, _ in phone.runs] == ["look"]
            assert cards(phone) == []
    assert {"look", "calculator"} <= offered(claude)
    assert not {"delete_file", "get_current_time", "add_task"} & offered(claude)
    looked, moved = results_of(claude.requests[-1])
    assert looked["success"] and moved["error_type"] == "not_found"


async def test_a_declared_tool_that_the_gate_does_not_offer_is_not_called_accepted(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path, allowed_tools="look") as server, server.phone() as phone:
        await begin(phone)
        (started,) = [e["payload"] for e in phone.log if "acceptedTools" in e["payload"]]
    assert started["acceptedTools"] == ["look"]


async def test_local_only_takes_the_cloud_out_of_the_shipped_catalogue(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [Reply(calls=(Call("agent_spawn", {"prompt": "go"}),)), Reply(text="I cannot.")]
    async with configured(claude, tmp_path, local_only="true") as server:
        async with server.phone(tools={"agent.spawn": lambda a: "a-1"}) as phone:
            await phone.ask("start an agent")
            assert phone.runs == []
    assert not {name for name in offered(claude) if name.startswith("repositories")}
    # What was called is defined, since it is in the history, but is not to be called.
    (former,) = [tool for tool in claude.requests[-1]["tools"] if tool["name"] in AGENTS]
    assert "No longer available" in former["description"]
    assert not AGENTS & {tool["name"] for tool in claude.requests[0]["tools"]}
    assert results_of(claude.requests[-1])[0]["error_type"] == "not_found"


async def test_without_local_only_the_shipped_catalogue_is_whole(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await phone.ask("hi")
    assert AGENTS <= offered(claude)


async def test_local_only_takes_out_declared_tools_that_reach_the_world(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path, local_only="true") as server, server.phone() as phone:
        await begin(phone, tools=[LOOK, declared("fetch_page", readOnlyHint=True, openWorldHint=True)])
        await phone.ask("hi")
    assert "look" in offered(claude) and "fetch_page" not in offered(claude)


# -- denied calls and dry runs


@pytest.mark.parametrize("by_card", [True, False])
async def test_deny_irreversible_denies_an_irreversible_call(
    claude: AnthropicService, tmp_path: Path, by_card: bool
) -> None:
    claude.replies += [calls(("delete_file", "a"), ("look", ".")), Reply(text="I may not.")]
    async with configured(claude, tmp_path, deny_irreversible="true") as server:
        async with server.phone(tools=DEVICE) as phone:
            await begin(phone, *(["approval"] if by_card else []))
            await phone.ask("delete it")
            assert [name for name, _ in phone.runs] == ["look"]
            assert cards(phone) == [] and prompts(phone) == []
    deleted, looked = results_of(claude.requests[-1])
    assert (deleted["error_type"], deleted["metadata"]["reason"]) == ("permission_denied", "policy")
    assert "Nothing was run" in deleted["error_message"] and looked["success"]


@pytest.mark.parametrize("by_card", [True, False])
async def test_a_dry_run_neither_runs_nor_asks_about_a_write(
    claude: AnthropicService, tmp_path: Path, by_card: bool
) -> None:
    never = {**declared("send_mail"), "_meta": {"conductor": {"approval": "never"}}}
    reply = calls(("delete_file", "a"), ("move_file", "b"), ("look", "."), ("send_mail", "c"))
    claude.replies += [reply, Reply(text="That is what I would do.")]
    async with configured(claude, tmp_path, dry_run="true") as server:
        async with server.phone(tools=DEVICE) as phone:
            await begin(phone, *(["approval"] if by_card else []), tools=[LOOK, MOVE, DELETE, never])
            await phone.ask("tidy up")
            assert [name for name, _ in phone.runs] == ["look"]
            assert cards(phone) == [] and prompts(phone) == []
    deleted, moved, looked, mailed = results_of(claude.requests[-1])
    for result, name, path in (
        (deleted, "delete_file", "a"),
        (moved, "move_file", "b"),
        (mailed, "send_mail", "c"),
    ):
        assert result["data"] == {"dry_run": True, "would_call": name, "arguments": {"path": path}}
        assert any("nothing was run" in note for note in result["metadata"]["notes"])
    assert looked["data"] == "seen"


async def test_a_dry_run_describes_the_change_of_a_file_tool(
    claude: AnthropicService, tmp_path: Path
) -> None:
    roots = tmp_path / "files"
    roots.mkdir()
    write = Call("create_file", {"path": "new.txt", "content": "hello"})
    claude.replies += [Reply(calls=(write,)), Reply(text="That is what I would do.")]
    async with configured(claude, tmp_path, dry_run="true", file_roots=str(roots)) as server:
        async with server.phone() as phone:
            await phone.ask("write it")
    (result,) = results_of(claude.requests[-1])
    assert result["data"]["would"].startswith("Would create 'new.txt'")
    assert list(roots.iterdir()) == []


async def test_in_a_dry_run_a_denied_call_is_denied(claude: AnthropicService, tmp_path: Path) -> None:
    write_rules(tmp_path, {"effect": "deny", "tool": "move_file", "args": {"path": {"eq": "a"}}})
    claude.replies += [calls(("move_file", "a"), ("move_file", "b")), Reply(text="So it would be.")]
    async with configured(claude, tmp_path, dry_run="true") as server, server.phone() as phone:
        await begin(phone, "approval")
        await phone.ask("move both")
    denied, dry = results_of(claude.requests[-1])
    assert denied["error_type"] == "permission_denied"
    assert dry["data"]["dry_run"] is True


# -- files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Make a folder with notes and a file that may hold secrets."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "notes.txt").write_text("buy milk")
    (folder / "more.txt").write_text("and bread")
    (folder / ".env").write_text("DEBUG=1")
    return folder


def reads(*paths: str) -> list[Reply]:
    replies = []
    for path in paths:
        replies += [Reply(calls=(Call("read_file", {"path": path}),)), Reply(text="Read.")]
    return replies


async def test_after_a_lasting_grant_only_a_file_that_may_hold_secrets_asks(
    claude: AnthropicService, tmp_path: Path, files: Path
) -> None:
    claude.replies += reads("notes.txt", "more.txt", ".env", "../policies.json")
    async with configured(claude, tmp_path, file_roots=str(files)) as server, server.phone() as phone:
        await begin(phone, "approval")
        request = await ask_deciding(phone, "read my notes", scope="always")
        assert (request["payload"]["risk"], request["payload"]["name"]) == ("medium", "read_file")
        assert results_of(claude.requests[-1])[0]["data"]["text"] == "buy milk"
        await phone.ask("read more")
        assert len(cards(phone)) == 1
        assert results_of(claude.requests[-1])[0]["data"]["text"] == "and bread"
        request = await ask_deciding(phone, "read the environment", "deny")
        assert any("environment secrets" in reason for reason in request["payload"]["reasons"])
        assert results_of(claude.requests[-1])[0]["error_type"] == "permission_denied"
        await phone.ask("read the rules")
        assert results_of(claude.requests[-1])[0]["success"] is False
        assert len(cards(phone)) == 2


async def test_a_card_for_writing_a_file_shows_the_diff(
    claude: AnthropicService, tmp_path: Path, files: Path
) -> None:
    write = Call("write_file", {"path": "notes.txt", "content": "buy oats"})
    claude.replies += [Reply(calls=(write,)), Reply(text="Written.")]
    async with configured(claude, tmp_path, file_roots=str(files)) as server, server.phone() as phone:
        await begin(phone, "approval")
        request = await ask_deciding(phone, "oats it is")
    assert "\n-buy milk\n+buy oats" in request["payload"]["preview"]
    assert results_of(claude.requests[-1])[0]["data"]["replaced"] is True
    assert (files / "notes.txt").read_text() == "buy oats"


async def test_reading_a_file_asks_aloud_where_there_are_no_cards(
    claude: AnthropicService, tmp_path: Path, files: Path
) -> None:
    claude.replies += reads("notes.txt", "more.txt", ".env")
    async with configured(claude, tmp_path, file_roots=str(files)) as server, server.phone() as phone:
        await ask_aloud(phone, "read my notes", "yes, for this session")
        await phone.ask("read more")
        assert len(prompts(phone)) == 1
        await ask_aloud(phone, "read the environment", "no")
        assert len(prompts(phone)) == 2
    assert results_of(claude.requests[-1])[0]["error_type"] == "permission_denied"


async def test_without_folders_there_are_no_file_tools(claude: AnthropicService, tmp_path: Path) -> None:
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await phone.ask("hi")
    assert not {"read_file", "get_file_tree", "create_file"} & offered(claude)


# -- across reconnects and sessions


async def test_tasks_are_kept_with_the_session_across_a_reconnect(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [
        Reply(calls=(Call("add_task", {"title": "water the plants"}),)),
        Reply(text="Noted."),
        Reply(calls=(Call("list_tasks"),)),
        Reply(text="One thing."),
        Reply(calls=(Call("list_tasks"),)),
        Reply(text="Nothing."),
    ]
    async with configured(claude, tmp_path) as server, server.phone() as phone:
        await phone.ask("remind me of the plants")
        await phone.cut()
        await phone.open()
        await phone.ask("what is there to do?")
        (listed,) = results_of(claude.requests[-1])
        assert listed["data"]["tasks"] == [{"id": "task_1", "title": "water the plants", "status": "pending"}]
        async with server.phone("s-2") as other_phone:
            await other_phone.ask("and what have I to do?")
        (empty_list,) = results_of(claude.requests[-1])
        assert empty_list["data"]["tasks"] == []


def as_subject(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_lasting_grant_holds_in_all_sessions_of_its_person_only(
    claude: AnthropicService, tmp_path: Path
) -> None:
    for number in range(5):
        claude.replies += [calls(("move_file", str(number))), Reply(text="Moved.")]
    async with configured(claude, tmp_path, auth_tokens="alpha-token,beta-token") as server:
        alpha, beta = as_subject("alpha-token"), as_subject("beta-token")
        async with server.phone("s-1", headers=alpha, tools=DEVICE) as phone:
            await begin(phone, "approval")
            await ask_deciding(phone, "move 0", scope="session")
        async with server.phone("s-2", headers=alpha, tools=DEVICE) as two:
            await begin(two, "approval")
            await ask_deciding(two, "move 1", scope="always")  # the other's was for its session only
        async with server.phone("s-3", headers=alpha, tools=DEVICE) as three:
            await begin(three)  # by voice, too, nothing is asked
            await three.ask("move 2")
            assert prompts(three) == [] and len(three.runs) == 1
        for session_id in ("s-2", "s-9"):
            async with server.phone(session_id, headers=beta, tools=DEVICE) as other_phone:
                await begin(other_phone, "approval")
                await ask_deciding(other_phone, "move 3", "deny")
                assert other_phone.runs == []


# -- metrics


async def test_the_metrics_count_calls_questions_and_decisions(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [
        calls(("delete_file", "a"), ("move_file", "b"), ("look", ".")),
        Reply(text="Done."),
        calls(("move_file", "c")),
        Reply(text="Done."),
        calls(("look", "broken")),
        Reply(text="Hm."),
    ]

    def look(asked_for: dict[str, Any]) -> str:
        if asked_for["path"] == "broken":
            raise RuntimeError("no")
        return "seen"

    async with configured(claude, tmp_path, admin_token="operators-only") as server:
        async with server.phone(tools={**DEVICE, "look": look}) as phone:
            await begin(phone, "approval")
            since = len(phone.log)
            phone.say("tidy up")
            high = await phone.until("approval.request", name="delete_file")
            medium = await phone.until("approval.request", name="move_file")
            await decide(phone, high, "deny")
            await decide(phone, medium, "allow")
            await phone.idle(since=since)
            await ask_deciding(phone, "move c", "edit", editedArguments={"path": "d"})
            await phone.ask("look again")
        value = server.services.metrics.registry.get_sample_value
    looks, moves, deletions = (
        {"tool": tool, "source": "device"} for tool in ("look", "move_file", "delete_file")
    )
    calls_total, decided = "conductor_tool_calls_total", "conductor_tool_approvals_decided_total"
    asked_total, decide_s = "conductor_tool_approvals_asked_total", "conductor_tool_decide_seconds_count"
    assert value(calls_total, {**looks, "error_type": "none"}) == 1
    assert value(calls_total, {**looks, "error_type": "internal_error"}) == 1
    assert value(calls_total, {**moves, "error_type": "none"}) == 2
    assert [value(asked_total, tool) for tool in (looks, moves, deletions)] == [None, 2, 1]
    assert [value(decided, {**moves, "outcome": outcome}) for outcome in ("allowed", "edited")] == [1, 1]
    assert value(decided, {**deletions, "outcome": "denied"}) == 1
    assert value("conductor_tool_run_seconds_count", moves) == 2
    assert value(decide_s, deletions) == 1
