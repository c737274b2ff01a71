"""Reminders are delivered by a connected session of the person, even if sessions die."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from conductor.conversation.commit import CallLimits, Committer, EventEncoder
from conductor.conversation.fields import PREFIX, RECORD_ID, PersonFields, SubjectRecords
from conductor.conversation.outbox import Outbox
from conductor.conversation.pending_inputs import PendingInputs
from conductor.conversation.reminders import Reminders
from conductor.conversation.snapshot import WAITING
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, Fenced, StoreError, StoreUnavailable
from conductor.messages import Note
from conductor.settings import Limits
from conductor.stores.base import AppendLog, SessionKey, SessionStore
from conductor.stores.memory import MemoryStore
from conductor.tools.builtin.schedule import FIELD, Reminder, read_reminders, write_reminders
from tests.conversation.helpers import SlowStore, later, steps
from tests.conversation.test_outbox import Wire


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


class Talker:
    """A session of a person with a connected client; its turns tell the notices at once."""

    def __init__(self, store: SessionStore, name: str) -> None:
        self.store = store
        self.key = SessionKey("ann", name)
        self.records = SubjectRecords(store)

    async def open(self, *, connected: bool = True) -> Talker:
        await self.records.load("ann")
        self.outbox = Outbox(Limits(), lambda record: None)
        encoder = EventEncoder(self.key.session_id, self.outbox, Limits(), lambda name: CallLimits(1, "read"))
        self.tasks = Tasks()
        claim = await self.store.claim(self.key)
        self.committer = Committer(self.store, claim, encoder, self.tasks, lambda stale: None)
        self.waiting = PendingInputs(3, 16)
        self.waiting.restore(claim.state.fields.get(WAITING), {})
        self.reminders = Reminders(
            PersonFields(self.records, "ann"),
            self.committer,
            self.waiting,
            self.outbox,
            self.tasks,
            self.deliver,
            now_ms,
        )
        if connected:
            self.outbox.attach(Wire())
        self.reminders.look()
        await self.tell()
        return self

    def deliver(self) -> None:
        self.reminders.look()
        self.tasks.spawn(self.tell())

    async def tell(self) -> None:
        delivered = self.waiting.notices()
        if delivered:
            try:
                notes = [AppendLog(Note(note.text)) for note in delivered]
                without = {WAITING: lambda: self.waiting.dump(None, delivered)}
                await self.committer.commit(
                    notes, snapshots=without, after=lambda: self.waiting.drop_notices(delivered)
                )
            except StoreError:
                return
            self.reminders.look()

    async def kill(self) -> None:
        """Leave without a word: nothing more is written."""
        self.reminders.close()
        await self.tasks.close(0.0)

    def said(self) -> list[str]:
        notes = [note.text for note in self.committer.state.log if isinstance(note, Note)]
        return [text.partition(" of this: ")[2].partition("\n")[0] for text in notes]


async def keep(store: SessionStore, *reminders: Reminder) -> None:
    await SubjectRecords(store).update("ann", PREFIX + FIELD, lambda _: write_reminders(reminders))


async def left(store: SessionStore) -> tuple[Reminder, ...]:
    claim = await store.claim(SessionKey("ann", RECORD_ID))
    return read_reminders(claim.state.fields.get(PREFIX + FIELD))


def in_s(seconds: float, number: int = 1) -> Reminder:
    return Reminder(f"reminder_{number}", f"thing {number}", now_ms() + round(seconds * 1000))


async def test_a_reminder_is_delivered_when_it_is_due() -> None:
    store = MemoryStore()
    await keep(store, in_s(200))
    ann = await Talker(store, "s-1").open()
    await later(199)
    assert ann.committer.state.log == []
    await later(2)
    assert ann.said() == ["thing 1"]
    assert await left(store) == ()


async def test_a_reminder_is_delivered_in_any_session_of_the_person() -> None:
    store = MemoryStore()
    await keep(store, in_s(5))
    away = await Talker(store, "s-1").open(connected=False)
    await later(100)
    assert len(await left(store)) == 1
    await away.kill()
    back = await Talker(store, "s-2").open()
    await later(1)
    assert back.said() == ["thing 1"]
    assert "was away then" in str(back.committer.state.log)


async def test_a_repetition_recurs_and_missed_ones_are_delivered_once() -> None:
    store, day = MemoryStore(), 24 * 3600.0
    first = in_s(10)
    await keep(store, Reminder(first.id, first.text, first.due_ms, "daily"))
    ann = await Talker(store, "s-1").open()
    await later(day * 2)
    assert ann.said() == ["thing 1"] * 2
    await ann.kill()
    await later(day * 3)
    ann = await Talker(store, "s-1").open()
    await later(5)
    assert ann.said() == ["thing 1"] * 3
    assert (await left(store))[0].due_ms == first.due_ms + round(day * 5 * 1000)


async def test_more_reminders_than_the_limit_are_delivered_in_turn() -> None:
    store = MemoryStore()
    await keep(store, *(in_s(1, number) for number in range(1, 101)))
    ann = await Talker(store, "s-1").open()
    await later(120)
    assert Counter(ann.said()) == Counter(f"thing {number}" for number in range(1, 101))


async def test_an_unreachable_store_is_retried_after_a_pause() -> None:
    tries = 0

    def fail(_: object) -> StoreError | None:
        nonlocal tries
        tries += 1
        return StoreUnavailable("away") if 1 < tries < 5 else None  # the first one keeps it

    store = SlowStore(fail=fail)
    await keep(store, in_s(1))
    ann = await Talker(store, "s-1").open()
    await later(3)
    assert tries <= 3
    await later(30)
    assert ann.said() == ["thing 1"]


async def test_a_reminder_claimed_by_a_dead_session_is_delivered_by_another() -> None:
    store = MemoryStore()
    reminder = Reminder("reminder_1", "thing 1", now_ms(), None, "UTC", "s-gone", now_ms())
    await keep(store, reminder)
    ann = await Talker(store, "s-1").open()
    await later(500)
    assert ann.said() == []
    await later(200)
    assert ann.said() == ["thing 1"]


@pytest.mark.parametrize("seed", [3, 5])
async def test_a_thousand_reminders_on_three_nodes_with_kills_are_delivered(seed: int) -> None:
    rng, inner = random.Random(seed), MemoryStore()

    def store() -> SlowStore:
        failures = (StoreUnavailable("away"), None)
        slow = SlowStore(
            lambda: rng.randint(0, 3),
            lambda: rng.randint(0, 3),
            lambda _: rng.choices(failures, (1, 30))[0],
        )
        slow.inner = inner
        return slow

    nodes = [store() for _ in range(3)]
    for first in range(1, 1001, 200):  # as many as a person may have
        numbers = range(first, first + 200)
        await keep(inner, *(in_s(rng.uniform(0, 100), number) for number in numbers))
        while await left(inner):
            # Two sessions of the person; each comes back on any node after any number of steps.
            for name in rng.sample(["s-1", "s-2"], 2):
                talker = Talker(rng.choice(nodes), name)
                try:
                    await talker.open()
                except (StoreError, Fenced, Duplicate):
                    continue
                await later(rng.choice((0.0, 0.0, 1.0, 30.0)))
                await steps(rng.randint(0, 60))
                await talker.kill()
    delivered = Counter[str]()
    for name in ("s-1", "s-2"):
        last = await Talker(inner, name).open()
        await steps(100)
        delivered.update(last.said())
    missing = [number for number in range(1, 1001) if not delivered[f"thing {number}"]]
    twice = [text for text, times in delivered.items() if times > 1]
    assert (missing, twice) == ([], []), f"seed {seed}"
