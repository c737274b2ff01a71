"""The operator sees what a SQLite store keeps, and deletes it for good."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conductor.errors import Fenced, StoreUnavailable
from conductor.messages import UserMessage
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import AppendLog, Claim, PutOutbound, SessionKey, SetField, TrimLog
from conductor.stores.sqlite import SqliteStore
from tests.stores.contract import HISTORY, KEY, filled, outbound


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a file?#%.db", now=lambda: 1_772_366_400.5)
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
def admin(store: SqliteStore) -> SessionAdmin:
    return SessionAdmin(store)


async def _made(store: SqliteStore, subject: str, session_id: str) -> Claim:
    claim = await store.claim(SessionKey(subject, session_id))
    await store.commit(claim, "commit-1", [AppendLog(UserMessage("SECRET-" * 40))])
    return claim


async def test_sessions_are_listed_with_their_sizes(store: SqliteStore, admin: SessionAdmin) -> None:
    await store.release(await filled(store))
    await _made(store, "other", "s-2")
    other, mine = await admin.sessions()
    assert (other.subject, other.session_id, other.owned) == ("other", "s-2", True)
    assert (mine.subject, mine.session_id, mine.owned) == (KEY.subject, KEY.session_id, False)
    assert (mine.epoch, mine.revision, mine.updated) == (1, 1, 1_772_366_400.5)
    assert (mine.messages, mine.calls, mine.outbound) == (len(HISTORY), 1, 1)
    assert 280 < other.size < 600
    assert [info.subject for info in await admin.sessions("other")] == ["other"]
    assert await admin.sessions("nobody") == []


async def test_the_list_comes_in_pages(store: SqliteStore, admin: SessionAdmin) -> None:
    keys = [SessionKey(subject, str(number)) for subject in "ab" for number in range(5)]
    for key in reversed(keys):
        await store.claim(key)
    found: list[SessionKey] = []
    while page := await admin.sessions(after=found[-1] if found else None, limit=3):
        assert len(page) <= 3
        found += [SessionKey(info.subject, info.session_id) for info in page]
    assert found == keys


async def test_those_who_have_a_session_of_an_id_are_named(store: SqliteStore, admin: SessionAdmin) -> None:
    for subject, session_id in (("b", "s-1"), ("a", "s-1"), ("a", "s-2"), ("c", "S-1")):
        await store.claim(SessionKey(subject, session_id))
    assert await admin.subjects("s-1") == ["a", "b"]
    assert await admin.subjects("s-%") == []
    await admin.delete("b", "s-1")
    assert await admin.subjects("s-1") == ["a"]


async def test_a_session_is_shown_as_json_and_nobody_is_fenced(
    store: SqliteStore, admin: SessionAdmin
) -> None:
    claim = await filled(store)
    await store.commit(claim, "commit-1", [TrimLog(3)])
    shown = await admin.show(KEY)
    assert shown is not None
    assert json.loads(json.dumps(shown)) == shown
    assert shown["subject"] == KEY.subject and shown["log_start"] == 3
    assert [(one["position"], one["type"]) for one in shown["log"]] == [(3, "assistant"), (4, "note")]
    assert shown["log"][1]["text"] == "An agent is done."
    assert [record["call_id"] for record in shown["call_records"]] == ["c-1"]
    assert shown["outbound_records"][0]["frame"] == {"text": '日本 " 🎉'}
    assert shown["seen"] == ["in-1"] and shown["fields"] == {"a": "b"}
    await store.commit(claim, "commit-2", [SetField("c", "d")])
    assert await admin.show(SessionKey("other", KEY.session_id)) is None


async def test_an_export_has_all_sessions(store: SqliteStore, admin: SessionAdmin) -> None:
    for number in range(120):
        claim = await store.claim(SessionKey(f"subject-{number % 2}", str(number)))
        await store.commit(claim, "commit-1", [PutOutbound(outbound())])
    exported = [session async for session in admin.export()]
    assert {session["session_id"] for session in exported} == {str(number) for number in range(120)}
    assert len([session async for session in admin.export("subject-1")]) == 60
    assert all(len(session["outbound_records"]) == 1 for session in exported)


async def test_a_deleted_session_is_gone_from_the_disk_and_its_owner_fenced(
    store: SqliteStore, admin: SessionAdmin
) -> None:
    claim = await _made(store, "subject", "s-1")
    other = await _made(store, "other", "s-1")
    assert [await admin.delete("subject", "s-1") for _ in range(2)] == [1, 0]
    with pytest.raises(Fenced):
        await store.commit(claim, "commit-2", [])
    assert (await store.claim(claim.key)).epoch == 1
    await store.commit(other, "commit-2", [])
    assert await admin.delete("subject") == 1
    assert await admin.delete("other") == 1
    files = store.path.parent.glob(f"{_pattern(store.path.name)}*")
    assert not any(b"SECRET-" in each.read_bytes() for each in files)


def _pattern(name: str) -> str:
    """Name a file with a question mark in a pattern."""
    return name.replace("?", "[?]")


async def test_all_sessions_of_a_subject_are_deleted(store: SqliteStore, admin: SessionAdmin) -> None:
    for number in range(3):
        await _made(store, "subject", str(number))
    await _made(store, "subject-2", "0")
    assert await admin.delete("subject") == 3
    assert [info.subject for info in await admin.sessions()] == ["subject-2"]


async def test_a_file_that_cannot_be_read_is_a_store_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await SessionAdmin(SqliteStore(tmp_path / "none.db")).sessions()
