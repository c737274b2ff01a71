"""Reminders are delivered by a connected session of the person, even if sessions die."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from conductor.conversation.records import Commit, FieldSet, NoticeTaken
from conductor.conversation.replay import replay
from conductor.errors import Fenced, StoreError, StoreUnavailable
from conductor.messages import Note
from conductor.models.base import TextDelta
from conductor.session.fields import PREFIX, RECORD_ID, SubjectRecords
from conductor.session.session import Session
from conductor.stores.base import SessionKey, SessionLog, Stored
from conductor.stores.memory import MemoryStore
from conductor.tools.reminders import FIELD, Reminder, read_reminders, write_reminders
from tests.session.helpers import App, Disk, SlowStore, later, make_services, now_ms, steps


class Talker:
    """A session of a person whose client is connected; the model answers each notice."""

    def __init__(self, store: SessionLog, name: str) -> None:
        self.store = store
        self.key = SessionKey("ann", name)

    async def open(self, *, connected: bool = True, wall: Callable[[], int] | None = None) -> Talker:
        services = make_services(lambda _: [TextDelta("So it is.")], store=self.store, turns_per_minute=1e6)
        records = SubjectRecords(self.store)
        await records.load("ann")
        claim = await self.store.claim(self.key)
        state = replay(claim.commits)
        services = replace(services, subject_records=records)
        self.session = Session(services, self.store, claim, state, now=now_ms, wall=wall)
        self.app = App()
        if connected:
            await self.app.connect(self.session, resumed=bool(claim.commits))
        return self

    async def kill(self) -> None:
        """Leave without a word: nothing more is written."""
        self.session.commits.lose(Fenced("The process has died."))

    def reminders(self) -> list[str]:
        notes = [note.text for note in self.session.state.log if isinstance(note, Note)]
        return [line for text in notes for line in reminded(text)]


def reminded(text: str) -> list[str]:
    """List the reminders of a note."""
    return re.findall(r"thing \d+", text)


async def keep(store: SessionLog, *reminders: Reminder) -> None:
    await SubjectRecords(store).update("ann", PREFIX + FIELD, lambda _: write_reminders(reminders))


async def stored_reminders(store: SessionLog) -> tuple[Reminder, ...]:
    claim = await store.claim(SessionKey("ann", RECORD_ID))
    return read_reminders(replay(claim.commits).fields.get(PREFIX + FIELD))


def in_s(seconds: float, number: int = 1) -> Reminder:
    return Reminder(id=f"reminder_{number}", text=f"thing {number}", due_ms=now_ms() + round(seconds * 1000))


async def test_a_reminder_is_delivered_when_it_is_due() -> None:
    store = MemoryStore()
    await keep(store, in_s(200))
    ann = await Talker(store, "s-1").open()
    await later(199)
    assert ann.session.state.log == []
    await later(2)
    assert ann.reminders() == ["thing 1"]
    assert await stored_reminders(store) == ()


async def test_a_reminder_that_another_process_sets_is_told_by_a_session_that_was_idle_before() -> None:
    store = Disk()
    ann = await Talker(store, "s-1").open()
    await later(300)
    await keep(store, in_s(5))
    await later(61)
    assert ann.reminders() == ["thing 1"]
    await keep(store, in_s(100, 2))
    await later(102)
    assert ann.reminders() == ["thing 1", "thing 2"]


async def test_an_idle_session_reads_the_reminders_of_its_person_once_a_minute() -> None:
    class CountingStore(Disk):
        reads = 0

        async def read(self, key: SessionKey) -> Stored | None:
            self.reads += 1
            return await super().read(key)

    store = CountingStore()
    await Talker(store, "s-1").open()
    store.reads = 0
    await later(600)
    assert 9 <= store.reads <= 10


@pytest.mark.parametrize(
    ("seed", "hours"),
    [(0, 6), *(pytest.param(seed, 48, marks=pytest.mark.extended) for seed in range(1, 20))],
)
async def test_steps_of_the_wall_clock_lose_and_repeat_no_reminder(seed: int, hours: int) -> None:
    rng, store, hour_ms = random.Random(seed), SlowStore(), 3_600_000
    offset_ms = 0

    def wall() -> int:
        return now_ms() + offset_ms

    due = {f"thing {n}": now_ms() + round(rng.uniform(0, hours) * hour_ms) for n in range(1, 31)}
    await keep(
        store, *(Reminder(id=f"reminder_{text[6:]}", text=text, due_ms=at) for text, at in due.items())
    )
    await Talker(store, "s-1").open(wall=wall)
    told: dict[str, int] = {}
    latest, offsets = wall(), (0, 1, -1, 24, -24)
    while len(told) < len(due):
        if not rng.randrange(5):
            offset_ms = rng.choice(offsets) * hour_ms
        latest = max(latest, wall())
        await later(rng.uniform(100, 600))
        latest = max(latest, wall())
        notices = [record.notice.text for record in store.records if isinstance(record, NoticeTaken)]
        texts = [text for notice in notices for text in reminded(notice)]
        assert len(set(texts)) == len(texts), f"seed {seed}: one is told twice"
        told |= {text: latest for text in texts if text not in told}
        early = [text for text in told if due[text] > told[text]]
        missing = [text for text in due if due[text] <= wall() - 90_000 and text not in told]
        assert (early, missing) == ([], []), f"seed {seed}"


async def test_a_reminder_is_delivered_in_any_session_of_the_person() -> None:
    store = MemoryStore()
    await keep(store, in_s(5))
    away = await Talker(store, "s-1").open(connected=False)
    await later(100)
    assert len(await stored_reminders(store)) == 1
    await away.kill()
    back = await Talker(store, "s-2").open()
    await later(1)
    assert back.reminders() == ["thing 1"]
    assert "was away then" in str(back.session.state.log)


async def test_a_repetition_recurs_and_missed_ones_are_delivered_once() -> None:
    store, day = MemoryStore(), 24 * 3600.0
    first = in_s(10)
    await keep(store, Reminder(id=first.id, text=first.text, due_ms=first.due_ms, repeat="daily"))
    ann = await Talker(store, "s-1").open()
    await later(day * 2)
    assert ann.reminders() == ["thing 1"] * 2
    await ann.kill()
    await later(day * 3)
    ann = await Talker(store, "s-1").open()
    await later(5)
    assert ann.reminders() == ["thing 1"] * 3
    assert (await stored_reminders(store))[0].due_ms == first.due_ms + round(day * 5 * 1000)


async def test_more_reminders_than_the_limit_are_delivered_in_turn() -> None:
    store = MemoryStore()
    await keep(store, *(in_s(1, number) for number in range(1, 101)))
    ann = await Talker(store, "s-1").open()
    await later(120)
    assert Counter(ann.reminders()) == Counter(f"thing {number}" for number in range(1, 101))


async def test_an_unreachable_store_is_retried_after_a_pause() -> None:
    tries = 0

    def fail(commit: Commit) -> StoreError | None:
        nonlocal tries
        tries += any(isinstance(record, FieldSet) for record in commit.records)
        return StoreUnavailable("away") if 1 < tries < 5 else None  # the first one keeps it

    store = SlowStore(fail=fail)
    await keep(store, in_s(1))
    ann = await Talker(store, "s-1").open()
    await later(3)
    assert tries <= 3
    await later(30)
    assert ann.reminders() == ["thing 1"]


async def test_a_reminder_claimed_by_a_dead_session_is_delivered_by_another() -> None:
    store = MemoryStore()
    reminder = Reminder(
        id="reminder_1",
        text="thing 1",
        due_ms=now_ms(),
        repeat=None,
        zone="UTC",
        session="s-gone",
        taken_ms=now_ms(),
    )
    await keep(store, reminder)
    ann = await Talker(store, "s-1").open()
    await later(500)
    assert ann.reminders() == []
    await later(200)
    assert ann.reminders() == ["thing 1"]


@pytest.mark.parametrize("seed", [3])
async def test_hundreds_of_reminders_on_three_nodes_with_kills_are_delivered(seed: int) -> None:
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
    for first in range(1, 201, 100):  # as many as a person may have
        numbers = range(first, first + 100)
        await keep(inner, *(in_s(rng.uniform(0, 100), number) for number in numbers))
        while await stored_reminders(inner):
            # Two sessions of the person; each comes back on any node after any number of steps.
            for name in rng.sample(["s-1", "s-2"], 2):
                talker = Talker(rng.choice(nodes), name)
                try:
                    await talker.open()
                except StoreError:
                    continue
                await later(rng.choice((0.0, 0.0, 1.0, 30.0)))
                await steps(rng.randint(0, 60))
                await talker.kill()
    notices = [
        record.notice.text for node in nodes for record in node.records if isinstance(record, NoticeTaken)
    ]
    counts = Counter(text for notice in notices for text in reminded(notice))
    missing = [number for number in range(1, 201) if not counts[f"thing {number}"]]
    twice = [text for text, times in counts.items() if times > 1]
    assert (missing, twice) == ([], []), f"seed {seed}"
