"""``conductor sessions``: a real store, beside its server, seen and changed by an operator."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conductor.commands import sessions
from conductor.commands.sessions import NoSuchSession, private_file, row
from conductor.conversation.fields import RECORD_ID, SubjectRecords
from conductor.conversation.grants import FIELD as GRANTS
from conductor.errors import Fenced, SettingsError
from conductor.messages import UserMessage
from conductor.settings import load_settings
from conductor.stores.admin import SessionInfo
from conductor.stores.base import (
    AppendLog,
    CallRecord,
    Claim,
    OpenCall,
    PutOutbound,
    SessionKey,
    SessionStore,
    SetField,
)
from conductor.stores.registry import make_store
from conductor.tools.rules import Rule, encode_rules
from tests.stores.contract import outbound
from tests.stores.redis_server import RedisServer

WAIT = 15.0
SAID = "Remind me of 日本\x9b2J\u202e."
FILE = Path("data/conductor.db")


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"), "--save", "")
    running.start()
    yield running
    running.kill()


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a store of either kind in the environment; there is nothing in it."""
    if request.param == "sqlite":
        monkeypatch.setenv("DATA_DIR", "data")
        return str(FILE)
    server: RedisServer = request.getfixturevalue("server")
    server.ask("FLUSHALL")
    monkeypatch.setenv("SESSION_STORE_URL", server.url)
    return server.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[SessionStore]:
    """Open the store as a server does, which goes on using it."""
    opened = make_store(load_settings())
    await opened.open()
    yield opened
    await opened.aclose()


async def talk(store: SessionStore, subject: str, session_id: str, said: str = SAID) -> Claim:
    claim = await store.claim(SessionKey(subject, session_id))
    record = CallRecord("c-1", "agent.status", "turn-1", "device", "read", 1_772_366_400_123)
    await store.commit(
        claim, "commit-1", [AppendLog(UserMessage(said)), OpenCall(record), PutOutbound(outbound())]
    )
    return claim


def run(*given: str, answers: io.StringIO | None = None) -> tuple[int, str]:
    """Run a command; give its exit code and what it wrote."""
    parser = argparse.ArgumentParser()
    sessions.add_arguments(parser)
    out = io.StringIO()
    code = sessions.run(parser.parse_args(given), out, answers or io.StringIO())
    return code, out.getvalue()


async def ran(*given: str, code: int = 0, answers: io.StringIO | None = None) -> str:
    """Run a command beside the open store; give what it wrote."""
    ended, out = await asyncio.wait_for(asyncio.to_thread(run, *given, answers=answers), WAIT)
    assert ended == code
    return out


async def missing(*given: str) -> str:
    """Run a command that finds nothing of what was named; give its sentence."""
    with pytest.raises(NoSuchSession) as caught:
        await ran(*given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def mistake(*given: str) -> str:
    """Run a command that ends with a mistake; give its sentence."""
    with pytest.raises(SettingsError) as caught:
        await ran(*given)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    return str(caught.value)


def text(file: Path, value: str | None = None) -> str:
    """Read a file, after having written it where there is something to write."""
    if value is not None:
        file.write_text(value, encoding="utf-8")
    return file.read_text(encoding="utf-8")


async def listed(*given: str) -> list[tuple[str, str]]:
    found = json.loads(await ran("list", "--json", *given))
    return [(one["subject"], one["session_id"]) for one in found["sessions"]]


# -- list


@pytest.fixture(params=[("UTC0", "2026-03-01 12:00"), ("XST-5:45", "2026-03-01 17:45")])
def noon(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the process's time zone; give what noon in Greenwich is called in it."""
    zone, name = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        yield name
    time.tzset()


async def test_sessions_are_listed_as_a_table(store: SessionStore) -> None:
    await store.release(await talk(store, "token-2", "s-1", "x" * 3000))
    await talk(store, "anonymous", "s-2")
    headings, first, second = (await ran("list")).splitlines()
    assert headings.split() == "subject session last written messages open calls unacked size owned".split()
    assert first.split()[:2] == ["anonymous", "s-2"] and first.split()[4:7] == ["1", "1", "1"]
    assert first.split()[-1] == "yes"
    assert second.split()[:2] == ["token-2", "s-1"] and second.split()[-2:] == ["KiB", "no"]
    assert len({len(line.rstrip()) - len(line.split()[-1]) for line in (first, second)}) == 1


def test_the_time_is_the_operators_own(noon: str) -> None:
    assert noon in row(SessionInfo("anonymous", "s-1", 1_772_366_400.5, 1, 1, False, 1, 1, 1, 1))


async def test_what_is_always_allowed_is_marked_as_no_conversation(store: SessionStore) -> None:
    await SubjectRecords(store).update(
        "anonymous", GRANTS, lambda _: encode_rules([Rule("allow", "calendar.*")])
    )
    await talk(store, "anonymous", "s-1")
    _, grants, talked = (await ran("list")).splitlines()
    assert grants.split()[:3] == ["anonymous", "$grants", "(grants)"] and grants.split()[5:8] == ["-"] * 3
    assert "grants" not in talked
    kinds = [one["kind"] for one in json.loads(await ran("list", "--json"))["sessions"]]
    assert kinds == ["grants", "conversation"]


async def test_one_subjects_sessions_are_listed(store: SessionStore) -> None:
    for subject in ("a", "b"):
        await talk(store, subject, f"of-{subject}")
    assert await listed("--subject", "b") == [("b", "of-b")]
    assert await missing("list", "--subject", "c") == "There is no session of 'c'."


async def test_a_limit_is_kept_and_it_is_said_that_there_are_more(store: SessionStore) -> None:
    keys = [("a", f"s-{number}") for number in range(5)]
    for key in keys:
        await talk(store, *key)
    assert await listed("--limit", "2") == keys[:2]
    assert json.loads(await ran("list", "--json", "--limit", "2"))["more"] is True
    assert json.loads(await ran("list", "--json", "--limit", "5"))["more"] is False
    lines = (await ran("list", "--limit", "2")).splitlines()
    assert len(lines) == 4 and lines[-1] == "There are more; --limit 4 shows more of them."
    assert len((await ran("list", "--limit", "5")).splitlines()) == 6
    assert await mistake("list", "--limit", "0") == "--limit must be at least 1."


async def test_a_list_goes_through_all_pages(store: SessionStore) -> None:
    keys = [(subject, f"s-{number:04}") for subject in "ab" for number in range(600)]
    await asyncio.gather(*(store.claim(SessionKey(*key)) for key in keys))
    assert await listed("--limit", "1200") == await listed("--limit", "5000") == keys
    assert await listed() == keys[:1000]


async def test_names_that_a_terminal_would_act_upon_are_escaped(store: SessionStore) -> None:
    await talk(store, "\x1b[2J", "s\n1")
    listing = await ran("list")
    assert "\\x1b[2J" in listing and "s\\n1" in listing and "\x1b" not in listing


# -- show and export


async def test_a_session_is_shown_whole_and_nobody_is_fenced(store: SessionStore) -> None:
    claim = await talk(store, "anonymous", "s-1")
    whole = await ran("show", "s-1")
    shown = json.loads(whole)
    assert shown["subject"] == "anonymous" and shown["log"][0]["text"] == SAID
    assert [record["call_id"] for record in shown["call_records"]] == ["c-1"]
    assert "日本" in whole and "\x9b" not in whole and "\u202e" not in whole
    await store.commit(claim, "commit-2", [SetField("a", "b")])
    assert json.loads(await ran("show", "s-1", "--subject", "anonymous"))["fields"] == {"a": "b"}


async def test_a_session_id_that_several_have_needs_its_subject(store: SessionStore) -> None:
    for subject in ("a", "b"):
        await talk(store, subject, "s-1", f"of {subject}")
    sentence = "2 subjects have a session 's-1': say whose with --subject."
    assert await mistake("show", "s-1") == await mistake("delete", "s-1", "--yes") == sentence
    assert json.loads(await ran("show", "s-1", "--subject", "b"))["log"][0]["text"] == "of b"


async def test_a_session_that_is_not_there_is_exit_code_1(store: SessionStore) -> None:
    await talk(store, "a", "s-1")
    assert await missing("show", "s-2") == "There is no session 's-2'."
    assert await missing("show", "s-1", "--subject", "b") == "There is no session 's-1' of 'b'."
    assert await missing("delete", "s-2", "--yes") == "There is no session 's-2'."
    assert await missing("delete", "s-1", "--subject", "b", "--yes") == "There is no session 's-1' of 'b'."
    assert await missing("delete", "--all", "--subject", "b", "--yes") == "There is no session of 'b'."
    assert await missing("export", "--subject", "b") == "There is no session of 'b'."
    assert await listed() == [("a", "s-1")]


async def test_all_is_exported_a_line_for_each_session(store: SessionStore) -> None:
    keys = [("a", "s-1"), ("a", "s-2"), ("b", "s-1")]
    for key in keys:
        await talk(store, *key, "two\nlines\u2028")
    lines = (await ran("export")).splitlines()
    assert [(one["subject"], one["session_id"]) for one in map(json.loads, lines)] == keys
    assert {json.loads(line)["log"][0]["text"] for line in lines} == {"two\nlines\u2028"}
    assert len((await ran("export", "--subject", "a")).splitlines()) == 2


async def test_an_export_to_a_file_is_its_owners_alone_and_replaces_nothing_by_chance(
    store: SessionStore,
) -> None:
    await talk(store, "a", "s-1")
    file = Path("kept.jsonl")
    assert await ran("export", "--output", "kept.jsonl") == "1 session written to kept.jsonl.\n"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    first = text(file)
    assert json.loads(first)["log"][0]["text"] == SAID
    await talk(store, "a", "s-2")
    sentence = "kept.jsonl is there already; --force replaces it."
    assert await mistake("export", "--output", "kept.jsonl") == sentence
    assert text(file) == first
    os.chmod(file, 0o644)
    assert await ran("export", "--output", "kept.jsonl", "--force") == "2 sessions written to kept.jsonl.\n"
    assert len(text(file).splitlines()) == 2
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


async def test_an_export_that_fails_leaves_no_file_and_the_old_one_as_it_was(store: SessionStore) -> None:
    before = set(os.listdir())
    assert "no sessions" in await mistake("export", "--output", "new.jsonl")
    assert set(os.listdir()) == before
    text(Path("old.jsonl"), "old")
    assert "no sessions" in await mistake("export", "--output", "old.jsonl", "--force")
    assert text(Path("old.jsonl")) == "old" and set(os.listdir()) == {*before, "old.jsonl"}
    assert "cannot be written: No such file" in await mistake("export", "--output", "none/new.jsonl")
    assert await mistake("export", "--force") == "--force goes with --output."


def test_a_file_that_came_up_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new.jsonl"
    with pytest.raises(SettingsError, match="is there already"), private_file(target, replace=False) as file:
        file.write("ours")
        target.write_text("theirs")
    assert target.read_text() == "theirs" and os.listdir(tmp_path) == ["new.jsonl"]


# -- delete


async def test_a_deleted_session_is_gone_and_its_owner_fenced(store: SessionStore) -> None:
    claim = await talk(store, "a", "s-1")
    await talk(store, "a", "s-2")
    assert await ran("delete", "s-1", "--subject", "a", "--yes") == "Deleted session 's-1' of 'a'.\n"
    with pytest.raises(Fenced):
        await store.commit(claim, "commit-2", [])
    assert await listed() == [("a", "s-2")]


async def test_all_of_a_subject_is_deleted_with_what_they_always_allowed(store: SessionStore) -> None:
    for subject in ("a", "b"):
        await SubjectRecords(store).update(
            subject, GRANTS, lambda _: encode_rules([Rule("allow", "calendar.*")])
        )
        for number in range(3):
            await talk(store, subject, f"s-{number}")
    said = await ran("delete", "--subject", "a", "--all", "--yes")
    assert said == "Deleted 3 sessions and what was always allowed of 'a'.\n"
    assert {subject for subject, _ in await listed()} == {"b"} and len(await listed()) == 4
    grants = SubjectRecords(store)
    await grants.load("a")
    assert not grants.get("a", GRANTS)
    assert (
        await ran("delete", RECORD_ID, "--subject", "b", "--yes")
        == "Deleted what was always allowed of 'b'.\n"
    )


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)])
async def test_a_person_is_asked_first(store: SessionStore, answer: str, deleted: bool) -> None:
    for number in range(2):
        await talk(store, "a", f"s-{number}")
    said = await ran("delete", "--subject", "a", "--all", code=0 if deleted else 1, answers=Terminal(answer))
    end = "Deleted 2 sessions of 'a'.\n" if deleted else "Nothing was deleted.\n"
    assert said == f"Delete 2 sessions of 'a', for good? [y/N] {end}"
    if not deleted:
        assert len(await listed()) == 2


async def test_where_nobody_can_be_asked_nothing_is_deleted_without_a_word(store: SessionStore) -> None:
    await talk(store, "a", "s-1")
    assert await mistake("delete", "s-1") == "The input is no terminal to ask at: give --yes."
    assert await listed() == [("a", "s-1")]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "Say either which session to delete, or --all."),
        (["s-1", "--all"], "Say either which session to delete, or --all."),
        (["--all"], "--all needs --subject: say whose sessions to delete."),
    ],
)
async def test_what_to_delete_must_be_said_in_one_way(given: list[str], sentence: str) -> None:
    assert await mistake("delete", *given, "--yes") == sentence


# -- stores that have nothing to show

COMMANDS = [["list"], ["list", "--json"], ["show", "s-1"], ["export"], ["delete", "s-1", "--yes"]]


@pytest.mark.parametrize("given", COMMANDS)
async def test_a_file_that_is_not_there_is_said_and_not_made(
    monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    monkeypatch.setenv("DATA_DIR", "data")
    assert await mistake(*given) == "There is no session store yet: data/conductor.db is not there."
    assert os.listdir() == []


@pytest.mark.parametrize("given", COMMANDS)
async def test_sessions_in_memory_cannot_be_seen(given: list[str]) -> None:
    assert (await mistake(*given)).startswith("Sessions are in memory, and only their server can read them")


@pytest.mark.parametrize("given", COMMANDS)
async def test_a_server_that_is_away_is_said_without_the_password(
    monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    monkeypatch.setenv("SESSION_STORE_URL", "redis://:hunter2-hunter2@127.0.0.1:1/0")
    sentence = await mistake(*given)
    assert sentence.startswith("SESSION_STORE_URL names redis://127.0.0.1:1/0, which cannot be used: ")


async def test_an_empty_store_is_said(store: SessionStore, url: str) -> None:
    sentence = f"There are no sessions in {url}."
    assert await mistake("list") == await mistake("list", "--json") == await mistake("export") == sentence


# -- as a process


def process(*given: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    environment = {**os.environ, "DATA_DIR": "data", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONUNBUFFERED", None)  # output is written as a user's is
    return subprocess.Popen(
        [sys.executable, "-m", "conductor", "sessions", *given],
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def ended(*given: str) -> tuple[int, str, str]:
    with process(*given) as running:
        out, err = running.communicate(timeout=30)
        return running.returncode, out, err


async def test_the_command_ends_with_its_exit_code_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", "data")
    absent = "conductor: There is no session store yet: data/conductor.db is not there.\n"
    assert await asyncio.to_thread(ended, "list") == (2, "", absent)
    store = make_store(load_settings())
    await store.open()
    await talk(store, "anonymous", "s-1")
    code, out, err = await asyncio.to_thread(ended, "list")
    assert (code, err) == (0, "") and "s-1" in out
    gone = "conductor: There is no session 's-2'.\n"
    assert await asyncio.to_thread(ended, "show", "s-2") == (1, "", gone)
    await store.aclose()


async def test_an_interrupt_at_the_question_ends_it_and_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_DIR", "data")
    store = make_store(load_settings())
    await store.open()
    await talk(store, "a", "s-1")

    def interrupt() -> int:
        keyboard, terminal = os.openpty()
        try:
            with process("delete", "s-1", stdin=terminal) as running:
                assert running.stdout is not None
                question = "Delete session 's-1' of 'a', for good? [y/N] "
                assert running.stdout.read(len(question)) == question
                running.send_signal(signal.SIGINT)
                try:
                    return running.wait(timeout=WAIT)
                finally:
                    running.kill()
        finally:
            os.close(keyboard)
            os.close(terminal)

    assert await asyncio.to_thread(interrupt) == 130
    await store.aclose()
    assert await listed() == [("a", "s-1")]


@pytest.mark.parametrize("lines", [0, 1])
async def test_a_reader_that_has_seen_enough_ends_it_as_a_closed_pipe_does(
    monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setenv("DATA_DIR", "data")
    store = make_store(load_settings())
    await store.open()
    for number in range(1 + 200 * lines):  # less than is written at once, or more than a pipe takes
        await talk(store, "anonymous", f"s-{number}", "x" * 1_000)
    await store.aclose()

    def read_some() -> tuple[list[str], str, int]:
        with process("export") as running:
            assert running.stdout is not None and running.stderr is not None
            read = [running.stdout.readline() for _ in range(lines)]
            running.stdout.close()
            return read, running.stderr.read(), running.wait(timeout=30)

    read, err, code = await asyncio.to_thread(read_some)
    assert [json.loads(line)["session_id"] for line in read] == ["s-0"] * lines and (err, code) == ("", 141)


@pytest.mark.parametrize("action", ["show", "export"])
def test_the_help_says_that_it_holds_what_people_said(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    sessions.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([action, "--help"])
    assert "what was said" in " ".join(capsys.readouterr().out.split())


def test_the_help_of_delete_says_that_an_owner_is_fenced(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    sessions.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["delete", "--help"])
    assert "is fenced" in " ".join(capsys.readouterr().out.split())
