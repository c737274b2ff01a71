"""``conductor sessions`` on a store that its server is using."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from conductor.commands.output import private_file
from conductor.conversation import records as r
from conductor.conversation.replay import replay
from conductor.conversation.state import Call, Profile
from conductor.errors import Fenced, SettingsError
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.session.fields import RECORD_ID, SubjectRecords
from conductor.session.gate import GRANTS
from conductor.settings import load_settings
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.stores.registry import make_store
from conductor.tools.rules import Rule, encode_rules
from tests.server.commands.conftest import mistake as run_mistake
from tests.server.commands.conftest import run
from tests.services.redis_server import RedisServer

WAIT = 60.0
TRANSCRIPT = "Remind me of 日本\x9b2J\u202e."
FILE = Path("data/conductor.db")
AT = 1_772_366_400_123
NOON = "2026-03-01T12:00:00.123Z"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--save", "").running() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configure an empty store of either kind in the environment."""
    if request.param == "sqlite":
        monkeypatch.setenv("DATA_DIR", "data")
        return str(FILE)
    server: RedisServer = request.getfixturevalue("server")
    server.ask("FLUSHALL")
    monkeypatch.setenv("SESSION_STORE_URL", server.url)
    return server.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[SessionLog]:
    """Open the store as a running server does."""
    opened = make_store(load_settings())
    await opened.open()
    yield opened
    await opened.aclose()


async def append(
    store: SessionLog, claim: Claim, *records: r.Record, acked: tuple[str, ...] = (), snapshot: bool = False
) -> None:
    """Commit records at noon; a snapshot has the state of the earlier commits."""
    stored = await store.read(claim.key) if snapshot else None
    state = replay(stored.commits()) if stored is not None else None
    data = r.encode(r.Commit(claim=claim.token, at=AT, records=records, acked=acked, state=state))
    await store.append(claim, f"commit-{claim.revision + 1}", data, snapshot=snapshot)


async def talk(store: SessionLog, subject: str, session_id: str, transcript: str = TRANSCRIPT) -> Claim:
    """Store a session in which the app runs a call."""
    claim = await store.claim(SessionKey(subject, session_id))
    arguments = '{"id":"agent-secret"}'
    await append(
        store,
        claim,
        r.Claimed(claim.token),
        r.ProfileDeclared(Profile(capabilities=("tools", "resume"), instructions="Speak of secret things.")),
        r.InputQueued("in-1", transcript),
        r.TurnStarted(cause="transcript", limit_ms=30_000, event_id="in-1", text=transcript),
        r.ReplyLogged(
            message=AssistantMessage(text="", calls=(ToolCall("c-1", "agent.status", arguments),)),
            calls=(Call(id="c-1", name="agent.status", arguments=arguments, source="device"),),
        ),
    )
    return claim


async def run_async(*arguments: str, code: int = 0, answers: str | None = None) -> str:
    """Run a command while the store is open; return its output."""
    command = partial(run, "sessions", *arguments, answers=answers, code=code)
    return await asyncio.wait_for(asyncio.to_thread(command), WAIT)


async def missing(*arguments: str) -> str:
    """Run a command on a missing session; return the sentence."""
    return await mistake(*arguments, code=1)


async def mistake(*arguments: str, code: int = 2) -> str:
    """Run a command with a wrong argument; return the sentence."""
    command = partial(run_mistake, "sessions", *arguments, code=code)
    return await asyncio.wait_for(asyncio.to_thread(command), WAIT)


def text(file: Path, value: str | None = None) -> str:
    """Read a file, after writing a given value."""
    if value is not None:
        file.write_text(value, encoding="utf-8")
    return file.read_text(encoding="utf-8")


async def list_keys(*arguments: str) -> list[tuple[str, str]]:
    _, *rows = (await run_async("list", *arguments)).splitlines()
    return [(row.split()[0], row.split()[1]) for row in rows]


# -- list


async def test_sessions_are_listed_as_a_table(store: SessionLog) -> None:
    await store.release(await talk(store, "token-2", "s-1", "x" * 3000))
    await talk(store, "anonymous", "s-2")
    headings, first, second = (await run_async("list")).splitlines()
    assert headings.split() == "subject session last written messages open calls unacked size owned".split()
    assert first.split()[:2] == ["anonymous", "s-2"] and first.split()[4:7] == ["2", "1", "3"]
    assert first.split()[-1] == "yes"
    assert second.split()[:2] == ["token-2", "s-1"] and second.split()[-2:] == ["kB", "no"]
    assert len({len(line.rstrip()) - len(line.split()[-1]) for line in (first, second)}) == 1


async def test_permissions_are_listed_as_a_record(store: SessionLog) -> None:
    await SubjectRecords(store).update(
        "anonymous", GRANTS, lambda _: encode_rules([Rule(effect="allow", tool="calendar.*")])
    )
    await talk(store, "anonymous", "s-1")
    _, grants, conversation = (await run_async("list")).splitlines()
    assert grants.split()[:3] == ["anonymous", "$grants", "(grants)"] and grants.split()[5:8] == ["-"] * 3
    assert "grants" not in conversation
    kinds = [json.loads(line)["kind"] for line in (await run_async("export")).splitlines()]
    assert kinds == ["grants", "conversation"]


async def test_sessions_of_one_subject_are_listed(store: SessionLog) -> None:
    for subject in ("a", "b"):
        await talk(store, subject, f"of-{subject}")
    assert await list_keys("--subject", "b") == [("b", "of-b")]
    assert await missing("list", "--subject", "c") == "There is no session of 'c'."


# -- show and export


async def test_a_session_is_shown_without_fencing_its_owner(store: SessionLog) -> None:
    claim = await talk(store, "anonymous", "s-1")
    output = await run_async("show", "s-1")
    session = json.loads(output)
    assert (session["subject"], session["calls"], session["outbound"]) == ("anonymous", 1, 3)
    log = [(message["position"], message["type"]) for message in session["state"]["log"]]
    assert log == [(0, "user"), (1, "assistant")] and session["state"]["log"][0]["text"] == TRANSCRIPT
    assert [call["id"] for call in session["state"]["turn"]["calls"]] == ["c-1"]
    assert session["state"]["outbound"][0]["payload"]["name"] == "convo.setState"
    assert "日本" in output and "\x9b" not in output and "\u202e" not in output
    await append(store, claim, r.FieldSet("a", "b"))
    session = json.loads(await run_async("show", "s-1", "--subject", "anonymous"))
    assert session["state"]["fields"] == {"a": "b"}


# -- replay


async def test_a_replay_has_a_row_for_each_record_and_for_each_event(store: SessionLog) -> None:
    claim = await talk(store, "anonymous", "s-1")
    result = ToolResult("c-1", "the secret status")
    shown = json.loads(await run_async("show", "s-1"))["state"]["outbound"]
    await append(
        store,
        claim,
        r.CallFinished(result=result, tool="agent.status", source="device", took_ms=12),
        acked=(shown[0]["id"],),
    )
    headings, *lines = (await run_async("replay", "s-1")).splitlines()
    assert headings.split() == ["time", "number", "record", "fields"]
    rows = [(line[:24].strip(), *line[24:].split(maxsplit=2)) for line in lines]
    call = {"id": "c-1", "name": "agent.status", "arguments": "(21 characters)", "source": "device"}
    text = "(20 characters)"
    profile = {"capabilities": ["tools", "resume"], "instructions": "(23 characters)"}
    turn = {"cause": "transcript", "limit_ms": 30_000, "event_id": "in-1", "text": text}
    finished = {"tool": "agent.status", "source": "device", "took_ms": 12}
    records = [(*row[1:3], json.loads(row[3])) for row in rows if row[0] == NOON]
    assert records == [
        ("1", "Claimed", {"claim": claim.token}),
        ("2", "ProfileDeclared", {"profile": profile}),
        ("3", "InputQueued", {"event_id": "in-1", "text": text}),
        ("4", "TurnStarted", turn),
        ("5", "ReplyLogged", {"message": {}, "calls": [call]}),
        ("5", "Acknowledged", {"id": [shown[0]["id"]]}),
        ("6", "CallFinished", {"result": {"call_id": "c-1", "content": "(17 characters)"}, **finished}),
    ]
    events = [" ".join(row[1:]).split(maxsplit=1) for row in rows if row[0] != NOON]
    assert [(kind, json.loads(fields)["id"]) for kind, fields in events] == [
        ("tool.call", event["id"]) for event in shown
    ]
    assert all(
        line.index("tool.call") == headings.index("record") + 2 for line in lines if "tool.call" in line
    )
    assert "secret" not in str(rows) and "Remind" not in str(rows)


async def test_a_replay_with_text_has_texts_and_arguments(store: SessionLog) -> None:
    await talk(store, "anonymous", "s-1", "Remind me of 日本.")
    output = await run_async("replay", "s-1", "--text")
    assert '"text": "Remind me of 日本."' in output and "agent-secret" in output


async def test_a_replay_starts_at_the_snapshot(store: SessionLog) -> None:
    claim = await talk(store, "anonymous", "s-1")
    await append(store, claim, r.FieldSet("a", "1"), snapshot=True)
    _, snapshot, record = (await run_async("replay", "s-1")).splitlines()
    assert snapshot.split() == [NOON, "5", "Snapshot", '{"messages":', "2}"]
    assert record.split(maxsplit=3) == [NOON, "6", "FieldSet", '{"name": "a", "value": "(1 characters)"}']


async def test_commits_that_cannot_be_read_are_one_sentence(store: SessionLog) -> None:
    claim = await store.claim(SessionKey("anonymous", "s-1"))
    await store.append(claim, "commit-1", b"\x93unheard of")
    sentence = "The store holds commits that this version cannot read."
    for command in ("replay", "show"):
        assert await mistake(command, "s-1") == sentence
    assert await mistake("export") == sentence
    _, line = (await run_async("list")).splitlines()
    assert line.split()[4:7] == ["0", "0", "0"]
    assert await run_async("delete", "s-1", "--yes") == "Deleted session 's-1' of 'anonymous'.\n"


async def test_an_ambiguous_id_needs_its_subject(store: SessionLog) -> None:
    for subject in ("a", "b"):
        await talk(store, subject, "s-1", f"of {subject}")
    sentence = "2 subjects have a session 's-1'; use --subject."
    assert await mistake("show", "s-1") == await mistake("delete", "s-1", "--yes") == sentence
    assert json.loads(await run_async("show", "s-1", "--subject", "b"))["state"]["log"][0]["text"] == "of b"


async def test_a_missing_session_is_exit_code_1(store: SessionLog) -> None:
    await talk(store, "a", "s-1")
    assert await missing("show", "s-2") == "There is no session 's-2'."
    assert await missing("show", "s-1", "--subject", "b") == "There is no session 's-1' of 'b'."
    assert await missing("delete", "s-2", "--yes") == "There is no session 's-2'."
    assert await missing("delete", "s-1", "--subject", "b", "--yes") == "There is no session 's-1' of 'b'."
    assert await missing("delete", "--all", "--subject", "b", "--yes") == "There is no session of 'b'."
    assert await missing("export", "--subject", "b") == "There is no session of 'b'."
    assert await list_keys() == [("a", "s-1")]


async def test_an_export_has_a_line_for_each_session(store: SessionLog) -> None:
    keys = [("a", "s-1"), ("a", "s-2"), ("b", "s-1")]
    for key in keys:
        await talk(store, *key, "two\nlines\u2028")
    lines = (await run_async("export")).splitlines()
    assert [(session["subject"], session["session_id"]) for session in map(json.loads, lines)] == keys
    assert {json.loads(line)["state"]["log"][0]["text"] for line in lines} == {"two\nlines\u2028"}
    assert len((await run_async("export", "--subject", "a")).splitlines()) == 2


async def test_an_exported_file_is_private_and_replaces_no_file(
    store: SessionLog,
) -> None:
    await talk(store, "a", "s-1")
    file = Path("kept.jsonl")
    assert await run_async("export", "--output", "kept.jsonl") == "1 session written to kept.jsonl.\n"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    first = text(file)
    assert json.loads(first)["state"]["log"][0]["text"] == TRANSCRIPT
    await talk(store, "a", "s-2")
    sentence = "kept.jsonl exists; --force replaces it."
    assert await mistake("export", "--output", "kept.jsonl") == sentence
    assert text(file) == first
    os.chmod(file, 0o644)
    assert (
        await run_async("export", "--output", "kept.jsonl", "--force")
        == "2 sessions written to kept.jsonl.\n"
    )
    assert len(text(file).splitlines()) == 2
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


async def test_a_failed_export_changes_no_file(store: SessionLog) -> None:
    before = set(os.listdir())
    assert "no sessions" in await mistake("export", "--output", "new.jsonl")
    assert set(os.listdir()) == before
    text(Path("old.jsonl"), "old")
    assert "no sessions" in await mistake("export", "--output", "old.jsonl", "--force")
    assert text(Path("old.jsonl")) == "old" and set(os.listdir()) == {*before, "old.jsonl"}
    assert "cannot be written: No such file" in await mistake("export", "--output", "none/new.jsonl")
    assert await mistake("export", "--force") == "--force requires --output."


def test_a_file_of_another_process_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new.jsonl"
    with pytest.raises(SettingsError, match="exists; --force"), private_file(target, replace=False) as file:
        file.write("ours")
        target.write_text("theirs")
    assert target.read_text() == "theirs" and os.listdir(tmp_path) == ["new.jsonl"]


# -- delete


async def test_a_deleted_session_fences_its_owner(store: SessionLog) -> None:
    claim = await talk(store, "a", "s-1")
    await talk(store, "a", "s-2")
    assert await run_async("delete", "s-1", "--subject", "a", "--yes") == "Deleted session 's-1' of 'a'.\n"
    with pytest.raises(Fenced):
        await append(store, claim)
    assert await list_keys() == [("a", "s-2")]


async def test_all_sessions_of_a_subject_are_deleted_with_their_permissions(store: SessionLog) -> None:
    for subject in ("a", "b"):
        await SubjectRecords(store).update(
            subject, GRANTS, lambda _: encode_rules([Rule(effect="allow", tool="calendar.*")])
        )
        for number in range(3):
            await talk(store, subject, f"s-{number}")
    output = await run_async("delete", "--subject", "a", "--all", "--yes")
    assert output == "Deleted all data of 'a' (4 records).\n"
    assert {subject for subject, _ in await list_keys()} == {"b"} and len(await list_keys()) == 4
    grants = SubjectRecords(store)
    await grants.load("a")
    assert not grants.get("a", GRANTS)
    assert (
        await run_async("delete", RECORD_ID, "--subject", "b", "--yes")
        == f"Deleted session {RECORD_ID!r} of 'b'.\n"
    )


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)])
async def test_a_deletion_is_confirmed(store: SessionLog, answer: str, deleted: bool) -> None:
    for number in range(2):
        await talk(store, "a", f"s-{number}")
    output = await run_async("delete", "--subject", "a", "--all", code=0 if deleted else 1, answers=answer)
    end = "Deleted all data of 'a' (2 records).\n" if deleted else "Nothing was deleted.\n"
    assert output == f"Delete all data of 'a' (2 records) permanently? [y/N] {end}"
    if not deleted:
        assert len(await list_keys()) == 2


async def test_a_deletion_without_a_terminal_needs_yes(store: SessionLog) -> None:
    await talk(store, "a", "s-1")
    assert await mistake("delete", "s-1") == "The input is not a terminal; use --yes."
    assert await list_keys() == [("a", "s-1")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give either a session to delete, or --all."),
        (["s-1", "--all"], "Give either a session to delete, or --all."),
        (["--all"], "--all requires --subject."),
    ],
)
async def test_a_deletion_names_a_session_or_all(arguments: list[str], sentence: str) -> None:
    assert await mistake("delete", *arguments, "--yes") == sentence


# -- unusable stores

COMMANDS = [["list"], ["replay", "s-1"], ["show", "s-1"], ["export"], ["delete", "s-1", "--yes"]]


@pytest.mark.parametrize("arguments", COMMANDS)
async def test_a_missing_file_is_an_error_and_not_created(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("DATA_DIR", "data")
    assert await mistake(*arguments) == "There is no session store: data/conductor.db does not exist."
    assert os.listdir() == []


@pytest.mark.parametrize("arguments", COMMANDS)
async def test_sessions_in_memory_are_not_available(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("SESSION_STORE_URL", "memory://")
    assert (await mistake(*arguments)).startswith(
        "Sessions are in memory, and only their server can read them"
    )


@pytest.mark.parametrize("arguments", COMMANDS)
async def test_an_unreachable_store_is_an_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("SESSION_STORE_URL", "redis://:hunter2-hunter2@127.0.0.1:1/0")
    sentence = await mistake(*arguments)
    assert sentence.startswith("SESSION_STORE_URL names redis://127.0.0.1:1/0, which cannot be used: ")


async def test_an_empty_store_is_an_error(store: SessionLog, url: str) -> None:
    sentence = f"There are no sessions in {url}."
    assert await mistake("list") == await mistake("export") == sentence
