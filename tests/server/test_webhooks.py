"""The backend is told what happens: signed, in order, again after failures, also after a restart."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from aiohttp import web

from conductor.clock import epoch_ms
from conductor.conversation.replay import replay
from conductor.conversation.webhook_events import WEBHOOK_EVENTS
from conductor.errors import SettingsError, StoreUnavailable
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.plugins.webhooks import delivery, pickup, processes
from conductor.plugins.webhooks.delivery import DEAD, DEAD_FIELD, read_dead
from conductor.plugins.webhooks.file import load_webhooks
from conductor.plugins.webhooks.processes import FORGOTTEN, GONE, PROCESSES, Processes
from conductor.session.fields import PREFIX, SubjectRecords
from conductor.settings import load_settings
from conductor.stores import base
from conductor.stores.base import PROCESS, SessionKey
from conductor.stores.memory import MemoryStore
from conductor.tools.reminders import FIELD, Reminder, write_reminders
from tests.app import App
from tests.conftest import ROOT, Main
from tests.cpu import least_cpu_s
from tests.hasty import SHORT_S, hasten
from tests.models import Script
from tests.server.api import Backend, backend
from tests.server.nodes import MOVE
from tests.server.receiver import SECRET, Receiver, receiving
from tests.server.wires import WAIT, WiredStore, until

HELLO = [TextDelta("Good morning.")]
TURNS = {"events": ["turn.ended"]}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


def values(receiver: Receiver, folder: Path, **file: Any) -> dict[str, Any]:
    return {
        "session_store_url": f"sqlite:///{folder}/s.db",
        "config_dir": receiver.file(folder, **file).parent,
        "session_grace_s": 0,
    }


def look(request: ModelRequest) -> Script:
    """Call the device, and tell the outcome."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        outcome = json.loads(last.content)
        return [TextDelta(f"It said {outcome['data'] or outcome['metadata']['reason']}.")]
    return [ToolCall("c-1", "look", "{}")]


LOOK = {
    "name": "look",
    "description": "Looks.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
LOOKS = {"capabilities": ["tools"], "tools": [LOOK]}


async def test_a_session_and_its_turns_are_told_in_order(receiver: Receiver, tmp_path: Path) -> None:
    async with backend([HELLO, HELLO], **values(receiver, tmp_path)) as served:
        async with served.phone() as phone:
            await phone.ask("Hello.")
            await phone.ask("Hello again.")
        await receiver.until("session.started", "turn.ended", "turn.ended", "session.ended")
        assert len(set(receiver.ids)) == 4
        first, turn, _, end = (event["data"] for event in receiver.events)
        assert first == {"person": "anonymous", "session": "s-1", "number": first["number"], "new": True}
        assert (turn["reason"], turn["cause"], turn["error"]) == ("answered", "transcript", None)
        numbers = [event["data"]["number"] for event in receiver.events]
        assert numbers == sorted(numbers) and end["inputTokens"] >= 0
        await served.released()
        async with served.phone():
            data = await receiver.until(
                *["session.started", "turn.ended", "turn.ended", "session.ended"], "session.started"
            )
            assert not data["new"]


async def test_a_session_that_ends_has_nothing_left_to_tell(receiver: Receiver, tmp_path: Path) -> None:
    async with backend([HELLO], **values(receiver, tmp_path)) as served:
        async with served.phone() as phone:
            await phone.ask("Hello.")
        await receiver.until("session.started", "turn.ended", "session.ended")
        await served.released()
        stored = await served.services.store.read(SessionKey("anonymous", "s-1"))
        assert stored is not None
        assert not replay(stored.commits(), stored.meta.revision).webhook_events


async def test_an_approval_is_told_and_decided(receiver: Receiver, tmp_path: Path) -> None:
    replies: Any = lambda request: (  # noqa: E731
        [TextDelta("Done.")]
        if isinstance(request.messages[-1], ToolResult)
        else [ToolCall("c-1", "move_file", "{}")]
    )
    start = {"capabilities": ["tools", "approval"], "tools": [MOVE]}
    events = {"events": ["approval.waiting", "approval.decided"]}
    async with backend(replies, **values(receiver, tmp_path, **events)) as served:
        async with served.phone(tools={"move_file": lambda _: "moved"}, start_fields=start) as phone:
            phone.say("Move it.")
            await until(lambda: receiver.types() == ["approval.waiting"])
            waiting = receiver.events[0]["data"]
            assert (waiting["tool"], waiting["risk"]) == (
                "move_file",
                "medium",
            ) and "arguments" not in waiting
            body = {"decision": "allow", "argumentsDigest": waiting["argumentsDigest"]}
            path = f"/v1/sessions/s-1/approvals/{waiting['approval']}"
            assert (await served.ask("POST", path, body)).status == 200
            await phone.idle()
            decided = await receiver.until("approval.waiting", "approval.decided")
            assert (decided["outcome"], decided["decidedBy"]) == ("allowed", "api:all")


async def test_a_receiver_that_fails_gets_each_event_once_it_works(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    receiver.status = 500
    async with backend([HELLO] * 3, **values(receiver, tmp_path, **TURNS)) as served, served.phone() as phone:
        for _ in range(3):
            await phone.ask("Hello.")
        await until(lambda: receiver.tries > 3)
        receiver.status = 200
        await receiver.until(*["turn.ended"] * 3)
        numbers = [event["data"]["number"] for event in receiver.events]
        assert numbers == sorted(set(numbers))


async def test_a_receiver_that_hangs_holds_up_no_turn_and_no_stop(receiver: Receiver, tmp_path: Path) -> None:
    receiver.hangs = asyncio.Event()
    async with asyncio.timeout(delivery.REQUEST_S - 1):
        async with backend([HELLO] * 3, **values(receiver, tmp_path)) as served, served.phone() as phone:
            for _ in range(3):
                await phone.ask("Hello.")
            assert phone.speeches() == ["Good morning."] * 3
    receiver.hangs.set()


async def test_what_a_stopped_server_left_is_told_by_the_next_one(receiver: Receiver, tmp_path: Path) -> None:
    receiver.hangs = asyncio.Event()
    async with backend([HELLO], **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
    receiver.hangs.set()
    await until(lambda: bool(receiver.ids))  # of the request that was cut off
    first = list(receiver.ids)
    async with backend([HELLO], **values(receiver, tmp_path)) as served:
        await until(lambda: "session.ended" in receiver.types())
        await served.released()
    times = dict(zip(receiver.ids, receiver.types(), strict=True))
    assert list(times.values()) == ["session.started", "turn.ended", "session.ended"]
    assert set(first) <= set(times)
    async with backend([HELLO], **values(receiver, tmp_path)):
        pass
    assert len(set(receiver.ids)) == 3


async def test_an_old_event_is_given_up_and_shown(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    receiver.status = 410
    options = {**values(receiver, tmp_path, **TURNS), "session_ttl_s": 1}
    async with backend([HELLO], **options) as served, served.phone() as phone:
        await phone.ask("Hello.")
        (session,) = served.listener.registry.sessions
        with structlog.testing.capture_logs() as logs:
            await until(lambda: not session.state.webhook_events)
        assert SECRET.removeprefix("whsec_") not in str(logs)
        dead = SubjectRecords(served.services.store)
        await dead.load(DEAD)
        (event,) = read_dead(dead.get(DEAD, DEAD_FIELD))
        assert (event.type, event.session, event.reason) == ("turn.ended", "s-1", "status 410")


# -- the device


@asynccontextmanager
async def wanted(receiver: Receiver, folder: Path, **limits: Any) -> AsyncIterator[tuple[Backend, App]]:
    """Have the model call a phone that has just gone, until the backend knows."""
    gate = asyncio.Event()

    def replies(request: ModelRequest) -> Script:
        return look(request) if isinstance(request.messages[-1], ToolResult) else [gate, *look(request)]

    options = {**values(receiver, folder, events=["device.wanted"]), "session_grace_s": 60}
    async with backend(replies, limits=limits, **options) as served:
        phone = served.phone(tools={"look": lambda _: "a cat"}, start_fields=LOOKS)
        await phone.open()
        phone.say("Look.")
        await until(lambda: bool(served.provider.requests))
        await phone.cut()
        await until(lambda: not served.listener.connections)
        gate.set()
        data = await receiver.until("device.wanted")
        assert set(data) == {"person", "session", "number", "call", "tool", "expiresAt"}
        assert data["tool"] == "look"
        yield served, phone
        await phone.close()
    assert receiver.tries == 1


async def test_a_phone_that_is_wanted_and_comes_back_runs_the_call_once(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with wanted(receiver, tmp_path) as (_, phone):
        await phone.open()
        await until(lambda: phone.speeches() == ["It said a cat."])
        assert phone.runs == [("look", {})]


async def test_a_call_whose_phone_comes_too_late_is_told_as_it_was(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with wanted(receiver, tmp_path, tool_timeout=SHORT_S) as (served, phone):
        hasten()
        await until(lambda: len(served.provider.requests) == 2)
        await phone.open()
        await until(lambda: phone.speeches() == ["It said device_not_connected."])
        assert not phone.runs


async def test_a_change_without_an_answer_is_unknown_and_its_late_result_is_told(
    receiver: Receiver, tmp_path: Path
) -> None:
    def replies(request: ModelRequest) -> Script:
        results = [message for message in request.messages if isinstance(message, ToolResult)]
        return [TextDelta("I do not know.")] if results else [ToolCall("c-1", "move_file", "{}")]

    start = {"capabilities": ["tools", "approval"], "tools": [MOVE]}
    options = values(receiver, tmp_path, events=["call.unknown", "call.late"])
    async with backend(replies, limits={"tool_timeout": SHORT_S}, **options) as served:
        phone = served.phone(tools={"move_file": lambda _: None}, start_fields=start)
        phone.decide = lambda _: "allow"
        async with phone:
            phone.say("Move it.")
            await phone.until("move_file")
            hasten()
            unknown = await receiver.until("call.unknown")
            assert unknown["tool"] == "move_file" and unknown["reason"] == "tool_result_timeout"
            phone.result(unknown["call"], "moved")
            late = await receiver.until("call.unknown", "call.late")
            assert (late["call"], late["tool"]) == (unknown["call"], "move_file")


# -- what cannot be sent, and what nobody sends


async def test_events_beyond_the_limit_of_a_session_are_given_up_and_shown(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MAX_WAITING", 2)
    monkeypatch.setattr(delivery, "MAX_RETRY_S", 0.01)
    receiver.status = 500
    async with backend([HELLO] * 4, **values(receiver, tmp_path, **TURNS)) as served, served.phone() as phone:
        for _ in range(4):
            await phone.ask("Hello.")
        (session,) = served.listener.registry.sessions
        await until(lambda: len(session.state.webhook_events) == 2)
        waiting = [event.data["number"] for event in session.state.webhook_events.values()]
        receiver.status = 200
        await receiver.until("turn.ended", "turn.ended")
        assert [event["data"]["number"] for event in receiver.events] == waiting
        dead = SubjectRecords(served.services.store)
        await dead.load(DEAD)
        entries = read_dead(dead.get(DEAD, DEAD_FIELD))
        assert [entry.reason for entry in entries] == ["too many events"] * 2


async def test_a_session_that_cannot_be_read_holds_up_no_other(receiver: Receiver, tmp_path: Path) -> None:
    receiver.hangs = asyncio.Event()
    async with backend([HELLO], **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
    receiver.hangs.set()
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    claim = await store.claim(SessionKey("anonymous", "s-0"))  # the first one of the list
    await store.append(claim, "c", b"no commit")
    await store.aclose()
    async with backend([HELLO], **values(receiver, tmp_path)) as served:
        deliverer: Any = served.services.webhooks.delivery
        looking = pickup.Pickup(served.listener, deliverer)
        with pytest.raises(StoreUnavailable):
            await looking.look()
        with suppress(StoreUnavailable):
            await looking.look()
        await until(lambda: "session.ended" in receiver.types())


@pytest.mark.parametrize("taken_in_s", [None, -3_600, 3_600])  # the wall clock was set back by an hour
async def test_a_reminder_of_a_person_who_is_away_is_told_once(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_in_s: int | None
) -> None:
    monkeypatch.setattr(pickup, "OFFLINE_MS", 0)
    monkeypatch.setattr(pickup, "REMINDER_S", 0.01)
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    due = epoch_ms() - 1_000
    reminder = Reminder(id="reminder_1", text="Call Ann.", due_ms=due)
    if taken_in_s is not None:
        reminder = msgspec.structs.replace(reminder, session="gone", taken_ms=due + taken_in_s * 1_000)
    await SubjectRecords(store).update("ann", PREFIX + FIELD, lambda _: write_reminders((reminder,)))
    await store.aclose()
    async with backend(**values(receiver, tmp_path)) as served:
        data = await receiver.until("reminder.due_offline")
        assert (data["person"], data["text"]) == ("ann", "Call Ann.")
        records = served.services.subject_records
        assert records is not None
        await until(lambda: '"announced_ms"' in records.get("ann", PREFIX + FIELD))
    assert receiver.tries == 1


async def test_a_refused_reminder_holds_up_no_other(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickup, "OFFLINE_MS", 0)
    monkeypatch.setattr(pickup, "REMINDER_S", 0.01)
    receiver.refuses = "Call Ann."
    due = epoch_ms() - 1_000
    async with open_store(tmp_path) as store:
        for person, texts in {"ann": ["Call Ann.", "Call Eve."], "bob": ["Call Bob."]}.items():
            reminders = [
                Reminder(id=f"reminder_{n}", text=text, due_ms=due) for n, text in enumerate(texts, 1)
            ]
            await SubjectRecords(store).update(person, PREFIX + FIELD, partial(write_reminders, reminders))
    async with backend(**values(receiver, tmp_path, events=["reminder.due_offline"])):
        await until(lambda: len(receiver.events) == 2)
        assert {event["data"]["text"] for event in receiver.events} == {"Call Eve.", "Call Bob."}
        receiver.refuses = ""
        await until(lambda: len(receiver.events) == 3)
        assert receiver.events[-1]["data"]["text"] == "Call Ann."


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder / "s.db")
    await store.open()
    yield store
    await store.aclose()


async def test_reminders_that_are_not_due_cost_nothing_however_many_people_there_are(
    receiver: Receiver, tmp_path: Path
) -> None:
    records = SubjectRecords(MemoryStore())
    reminders = write_reminders(
        Reminder(id=f"reminder_{n}", text="x" * 50, due_ms=2**50) for n in range(1, 6)
    )
    options = values(receiver, tmp_path, events=["reminder.due_offline"])
    async with backend(**options) as served:
        listener: Any = served.listener
        listener.services = replace(served.services, subject_records=records)
        deliverer: Any = served.services.webhooks.delivery
        announcing: Any = pickup.Pickup(listener, deliverer)
        for number in range(500):
            await records.update(f"person-{number}", PREFIX + FIELD, lambda _: reminders)
        assert len(announcing._due) == 500

        def look() -> None:
            with suppress(StopIteration):
                announcing._announce_reminders().send(None)

        assert least_cpu_s(look, 0.0005) < 0.0005


# -- processes that are gone


async def test_a_session_of_a_living_process_is_left_to_it(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may have the same host name and process id."""
    monkeypatch.setattr(pickup, "LOOK_S", 0.01)
    looks = 40  # on a busy machine one of the two looks several times in a row
    monkeypatch.setattr(processes, "GONE", looks)
    monkeypatch.setattr(processes, "FORGOTTEN", 10 * looks)
    receiver.hangs = asyncio.Event()
    async with backend([HELLO] * 2, **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
        host, pid, _ = PROCESS.rsplit("-", 2)
        monkeypatch.setattr(pickup, "PROCESS", f"{host}-{pid}-other")
        async with backend([HELLO], **values(receiver, tmp_path)) as other:
            seen = SubjectRecords(served.services.store)
            counts: dict[str, int] = {}
            async with asyncio.timeout(WAIT):
                while len(counts) < 2 or min(counts.values()) < looks + 5:
                    await seen.load(DEAD)
                    counts = msgspec.json.decode(seen.get(DEAD, PROCESSES) or "{}")
            assert not other.listener.registry.sessions
        await phone.ask("Hello again.")
        receiver.hangs.set()


async def test_a_session_of_a_process_that_is_gone_is_told_after_some_looks(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.hangs = asyncio.Event()
    async with backend([HELLO], **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
    receiver.hangs.set()
    receiver.hangs = None
    await until(lambda: bool(receiver.ids))  # of the request that was cut off
    monkeypatch.setattr(base, "PROCESS", "container-1-gone")
    async with open_store(tmp_path) as store:
        await store.claim(SessionKey("anonymous", "s-1"))
    monkeypatch.undo()
    async with backend([HELLO], **values(receiver, tmp_path)) as served:
        deliverer: Any = served.services.webhooks.delivery
        looking = pickup.Pickup(served.listener, deliverer)
        for _ in range(GONE):
            await looking.look()
            assert not served.listener.registry.sessions
        await looking.look()
        await until(lambda: "session.ended" in receiver.types())


async def test_the_end_of_an_open_session_is_told_whose_process_is_gone(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend([HELLO], **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
        await receiver.until("session.started", "turn.ended")
        (session,) = served.listener.registry.sessions
        await until(lambda: not session.state.webhook_events)
        with monkeypatch.context() as patch:
            patch.setattr(base, "PROCESS", "container-1-gone")
            async with open_store(tmp_path) as store:
                await store.claim(session.key)
    monkeypatch.setattr(pickup, "LOOK_S", 0.01)
    async with backend([HELLO], **values(receiver, tmp_path)):
        await until(lambda: receiver.types() == ["session.started", "turn.ended", "session.ended"])


async def test_processes_that_were_suspended_together_are_not_gone_for_one_another() -> None:
    store = MemoryStore()
    one, two, three = (Processes(store, name) for name in ("one", "two", "three"))
    for process in (one, two, three):
        await process.look()
    for _ in range(GONE + 2):
        await one.look()
        await two.look()
        assert not (one.is_gone("two") or two.is_gone("one") or one.is_gone("one"))
    assert one.is_gone("three") and one.is_gone("never seen") is False
    for _ in range(GONE + 1):
        await one.look()
    assert one.is_gone("never seen") and one.is_gone("two")
    await two.look()
    await one.look()
    assert not one.is_gone("two")
    for _ in range(FORGOTTEN + 1):
        await one.look()
        await two.look()
    assert "three" not in one.counts and one.is_gone("two") is False


class SlowToClaim(WiredStore):
    """A store whose gate holds only the claims of sessions."""

    async def claim(self, key: SessionKey) -> base.Claim:
        return await (self.inner.claim(key) if key.never_expires else super().claim(key))


async def test_looking_goes_on_after_a_suspension_in_a_claim(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.hangs = asyncio.Event()
    async with backend([HELLO], **values(receiver, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
    receiver.hangs.set()
    monkeypatch.setattr(pickup, "LOOK_S", 0.01)
    store = SlowToClaim(SqliteStore(tmp_path / "s.db"))
    store.claim_gate.clear()
    async with backend([HELLO], store=store, **values(receiver, tmp_path)) as served:
        await until(lambda: len(served.listener.registry) == 1)
        served.listener.registry.recheck_ownership()
        store.claim_gate.set()
        await until(lambda: "session.ended" in receiver.types())


async def test_a_spent_budget_is_told(receiver: Receiver, tmp_path: Path) -> None:
    options = values(receiver, tmp_path, events=["budget.spent"])
    async with (
        backend([[*HELLO, Finished("end_turn", Usage(5, 5))]] * 2, daily_token_budget=1, **options) as served,
        served.phone() as phone,
    ):
        await phone.ask("Hello.")
        await phone.ask("Hello.")
        assert (await receiver.until("budget.spent"))["turn"]


async def test_the_documented_receiver_takes_each_event_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    page = (ROOT / "docs" / "api.md").read_text()
    program = re.search(r"```python\n(import os.*?)```", page, re.DOTALL)
    assert program is not None
    names: dict[str, Any] = {}
    exec(program[1], names)
    runner = web.AppRunner(names["app"])
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    documented = Receiver(f"http://127.0.0.1:{runner.addresses[0][1]}/conductor")
    async with backend([HELLO], **values(documented, tmp_path)) as served, served.phone() as phone:
        await phone.ask("Hello.")
        await until(lambda: len(names["seen"]) == 2)
    await runner.cleanup()
    assert "turn.ended s-1" in capsys.readouterr().out.splitlines()


def test_dead_events_are_listed(tmp_path: Path, conductor: Main) -> None:
    event = delivery.DeadEvent("msg_1", "turn.ended", "ann", "s-1", 1_000, "status 500")

    async def bury() -> None:
        store = SqliteStore(tmp_path / "s.db")
        await store.open()
        text = msgspec.json.encode([event]).decode()
        await SubjectRecords(store).update(DEAD, DEAD_FIELD, lambda _: text)
        await store.aclose()

    asyncio.run(bury())
    code, out, _ = conductor("webhooks", "dead", SESSION_STORE_URL=f"sqlite:///{tmp_path}/s.db")
    assert code == 0 and "status 500" in out


# -- the file


async def test_without_a_file_nothing_is_recorded(tmp_path: Path) -> None:
    async with (
        backend([HELLO], session_store_url=f"sqlite:///{tmp_path}/s.db") as served,
        served.phone() as phone,
    ):
        await phone.ask("Hello.")
        (session,) = served.listener.registry.sessions
        state = session.state
        assert not (state.webhooks or state.webhook_events or state.opened)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "url is missing"),
        ("url = 1\nsecret = 'x'", "url is not valid"),
        ("url = 'https://a.example'", "secret is missing"),
        (
            "url = 'https://a.example'\nsecret = 'x'",
            "secret is not valid: it must be whsec_ and 24 to 64 bytes",
        ),
        ("url = 'https://a.example'\nsecret = '${NOT_SET}'", "the variable NOT_SET is not set"),
        (f"url = 'http://a.example'\nsecret = '{SECRET}'", "url is not valid"),
        (f"url = 'https://u:p@a.example'\nsecret = '{SECRET}'", "url is not valid: it must be https://"),
        (f"url = 'https://a.example:x'\nsecret = '{SECRET}'", "url is not valid"),
        (f"url = 'https://a.example'\nsecret = '{SECRET}'\nevents = ['turn']", "there are: session.started"),
        (f"url = 'https://a.example'\nsecret = '{SECRET}'\nevents = 1", "events must be a list"),
        (f"url = 'https://a.example'\nsecret = '{SECRET}'\nmore = 1", "there is no more"),
        ("url = ", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence(tmp_path: Path, text: str, mistake: str) -> None:
    path = tmp_path / "webhooks.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_webhooks(load_settings(None, config_dir=path.parent))
    assert mistake in str(raised.value) and SECRET not in str(raised.value)


def test_a_file_without_events_has_all_of_them_and_hides_its_key(tmp_path: Path) -> None:
    path = tmp_path / "webhooks.toml"
    path.write_text(f"url = 'https://a.example'\nsecret = '{SECRET}'")
    file = load_webhooks(load_settings(None, config_dir=path.parent))
    assert file is not None and file.events == WEBHOOK_EVENTS
    assert "the-secret" not in repr(file)


async def test_local_only_reaches_no_public_receiver(tmp_path: Path, receiver: Receiver) -> None:
    options = values(receiver, tmp_path, url="https://192.0.2.1/hook")
    async with backend([HELLO], local_only=True, **options) as served, served.phone() as phone:
        await phone.ask("Hello.")
        delivering: Any = served.services.webhooks.delivery
        await until(lambda: delivering.problem == "ForbiddenAddressError")
