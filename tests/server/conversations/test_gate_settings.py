"""The gate under the operator's settings, from the settings to the next request at the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import IOS_CATALOG
from tests.dialogues import (
    DELETE,
    DEVICE,
    LOOK,
    MOVE,
    ask_deciding,
    begin,
    calls,
    cards,
    declared,
    prompts,
    results_of,
)
from tests.models import AnthropicService, Call, Reply
from tests.serving import configured

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
    async with configured(claude, tmp_path, local_only="true", device_tools_file=IOS_CATALOG) as server:
        async with server.phone(tools={"agent.spawn": lambda a: "a-1"}) as phone:
            await phone.ask("start an agent")
            assert phone.runs == []
    assert not {name for name in offered(claude) if name.startswith("repositories")}
    # What was called is defined, since it is in the history, but is not to be called.
    (former,) = [tool for tool in claude.requests[-1]["tools"] if tool["name"] in AGENTS]
    assert "No longer available" in former["description"]
    assert not AGENTS & {tool["name"] for tool in claude.requests[0]["tools"]}
    assert results_of(claude.requests[-1])[0]["error_type"] == "not_found"


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
        assert any("may hold secrets" in reason for reason in request["payload"]["reasons"])
        assert results_of(claude.requests[-1])[0]["error_type"] == "permission_denied"
        await phone.ask("read the rules")
        assert results_of(claude.requests[-1])[0]["success"] is False
        assert len(cards(phone)) == 2


async def test_always_on_one_of_nine_cards_is_kept(
    claude: AnthropicService, tmp_path: Path, files: Path
) -> None:
    calls = tuple(Call("read_file", {"path": "notes.txt", "limit": number}) for number in range(1, 10))
    claude.replies += [Reply(calls=calls), Reply(text="Read."), *reads("more.txt")]
    async with configured(claude, tmp_path, file_roots=str(files)) as server, server.phone() as phone:
        await begin(phone, "approval")
        await ask_deciding(phone, "read my notes", scope="always")
        assert len(cards(phone)) == 9
        await phone.ask("read more")
        assert len(cards(phone)) == 9
        assert results_of(claude.requests[-1])[0]["data"]["text"] == "and bread"


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
