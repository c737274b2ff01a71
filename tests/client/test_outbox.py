"""What is kept until it is known to have arrived: against a way to the server in memory."""

from __future__ import annotations

import asyncio

import pytest

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.outbox import Answer, Outbox
from conductor.client.turns import Turn
from conductor.events.client import ResumeDone
from conductor.events.server import SessionStarted

LIMIT_S = 5.0


class Road:
    """A way that takes ``room`` frames on each socket and then breaks."""

    def __init__(self, *, acknowledges: bool = False) -> None:
        self.acknowledges = acknowledges
        self.started: SessionStarted | None = None
        self.connection = 0
        self.room = 0
        self.sent: list[list[bytes]] = []

    @property
    def connected(self) -> bool:
        return self.connection > 0 and self.room > 0

    def open(self, room: int = 1_000) -> None:
        self.connection += 1
        self.room = room
        self.sent.append([])

    async def send(self, frame: bytes) -> None:
        self.room -= 1
        self.sent[-1].append(frame)
        if not self.room:
            raise ConnectionLost("The road broke.")


def transcript(event_id: str) -> Turn:
    return Turn("hello", event_id, 1, LIMIT_S)


async def test_what_was_not_answered_is_sent_again_in_its_order_on_the_next_connection() -> None:
    road = Road()
    outbox = Outbox(road, ClientLimits())
    assert not await outbox.put(b"before there is a connection")
    road.open()
    assert await outbox.flush()
    assert await outbox.put(b"said", transcript("t"))
    assert await outbox.put(b"result")
    road.open()
    assert await outbox.flush()
    assert road.sent[1] == road.sent[0] == [b"before there is a connection", b"said", b"result"]


async def test_nothing_is_sent_twice_on_one_connection() -> None:
    road = Road()
    outbox = Outbox(road, ClientLimits())
    road.open()
    await outbox.put(b"one")
    await outbox.flush()
    await outbox.put(b"two")
    assert road.sent == [[b"one", b"two"]]


async def test_a_frame_during_which_the_connection_broke_is_sent_again() -> None:
    road = Road()
    outbox = Outbox(road, ClientLimits())
    road.open(room=2)
    await outbox.put(b"one")
    assert not await outbox.put(b"two")
    assert not await outbox.put(b"three")
    road.open()
    await outbox.flush()
    assert road.sent == [[b"one", b"two"], [b"one", b"two", b"three"]]


async def test_an_answered_transcript_confirms_all_that_was_sent_before_it_and_nothing_after() -> None:
    road = Road()
    outbox = Outbox(road, ClientLimits())
    road.open()
    await outbox.put(b"result 1")
    turn = transcript("t1")
    await outbox.put(b"said", turn)
    await outbox.put(b"result 2")
    outbox.confirm("some other")
    assert len(outbox) == 3
    outbox.confirm("t1")
    assert not turn.is_kept
    road.open()
    await outbox.flush()
    assert road.sent[1] == [b"result 2"]


async def test_the_oldest_frames_go_where_too_many_or_too_large_ones_wait() -> None:
    road = Road()
    road.open()
    outbox = Outbox(road, ClientLimits(unconfirmed=2))
    for frame in (b"1", b"2", b"3"):
        await outbox.put(frame)
    small = Outbox(road, ClientLimits(unconfirmed_bytes=10))
    for frame in (b"123456", b"1234567890123", b"12"):
        await small.put(frame)
    road.open()
    await outbox.flush()
    await small.flush()
    assert road.sent[1] == [b"2", b"3", b"12"]


async def test_what_has_left_takes_no_room() -> None:
    road = Road(acknowledges=True)
    road.open()
    outbox = Outbox(road, ClientLimits(unconfirmed_bytes=10))
    await outbox.put(b"1234567890", answer=result(1))
    outbox.acknowledge({"e1"})
    await outbox.put(b"12345")
    await outbox.put(b"67890")
    assert len(outbox) == 2


async def test_a_frame_waits_for_the_one_before_it() -> None:
    class SlowRoad(Road):
        async def send(self, frame: bytes) -> None:
            if frame == b"one":
                await let.wait()
            await super().send(frame)

    let, road = asyncio.Event(), SlowRoad()
    road.open()
    outbox = Outbox(road, ClientLimits())
    puts = [asyncio.create_task(outbox.put(frame)) for frame in (b"one", b"two")]
    await asyncio.sleep(0)
    let.set()
    await asyncio.gather(*puts)
    assert road.sent == [[b"one", b"two"]]


async def test_a_transcript_is_not_sent_again_when_it_is_old_or_its_turn_has_ended() -> None:
    road = Road()
    old = Outbox(road, ClientLimits(resend_s=0))
    outbox = Outbox(road, ClientLimits())
    road.open()
    turn, ended = transcript("old"), transcript("ended")
    await old.put(b"old", turn)
    await outbox.put(b"ended", ended)
    await outbox.put(b"waiting", transcript("waiting"))
    ended.end("lost")
    old.expire()
    outbox.expire()
    assert not turn.is_kept
    road.open()
    await old.flush()
    await outbox.flush()
    assert road.sent[1] == [b"waiting"]


async def test_a_frame_whose_wait_was_cancelled_is_not_sent_twice_on_its_connection() -> None:
    class Slow(Road):
        async def send(self, frame: bytes) -> None:
            await super().send(frame)
            taken.set()
            await asyncio.Event().wait()

    taken = asyncio.Event()
    road = Slow()
    road.open()
    outbox = Outbox(road, ClientLimits())
    putting = asyncio.create_task(outbox.put(b"one"))
    async with asyncio.timeout(LIMIT_S):
        await taken.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await outbox.flush()
    assert road.sent == [[b"one"]]


# -- a server that acknowledges


def result(number: int) -> Answer:
    return Answer(f"e{number}", f"c{number}", ResumeDone(f"c{number}", "on"))


def shown(number: int) -> Answer:
    return Answer(f"e{number}", f"c{number}")


async def test_what_is_acknowledged_by_its_id_is_forgotten_and_a_transcript_counts_as_recorded() -> None:
    road = Road(acknowledges=True)
    road.open()
    outbox = Outbox(road, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"said", turn)
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"result 2", answer=result(2))
    outbox.acknowledge(["e2", "t1", "unknown"])
    assert (turn.is_kept, turn.is_recorded) == (False, True)
    assert outbox.results() == [ResumeDone("c1", "on")]
    road.open()
    await outbox.flush()
    assert road.sent[1] == [b"result 1"]


async def test_an_answered_transcript_confirms_only_what_is_not_acknowledged_by_itself() -> None:
    road = Road(acknowledges=True)
    road.open()
    outbox = Outbox(road, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"shown 2", answer=shown(2))
    await outbox.put(b"said", turn)
    await outbox.put(b"shown 3", answer=shown(3))
    outbox.confirm("t1")
    turn.stage = "running"
    outbox.expire()
    assert turn.is_kept and not turn.is_recorded
    road.open()
    await outbox.flush()
    assert road.sent[1] == [b"result 1", b"said", b"shown 3"]


async def test_a_refused_transcript_is_forgotten_with_nothing_else_that_is_to_be_acknowledged() -> None:
    road = Road(acknowledges=True)
    road.open()
    outbox = Outbox(road, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"said", turn)
    turn.stage = "refused"
    outbox.confirm("t1")
    road.open()
    await outbox.flush()
    assert road.sent[1] == [b"result 1"]


async def test_a_forgotten_call_leaves_nothing_and_a_repeated_one_is_sent_on_the_same_connection() -> None:
    road = Road(acknowledges=True)
    road.open()
    outbox = Outbox(road, ClientLimits())
    await outbox.put(b"accepted 1", answer=Answer("e0", "c1"))
    for number in (1, 2):
        await outbox.put(f"result {number}".encode(), answer=result(number))
    outbox.forget({"c1"})
    await outbox.resend("c1")
    await outbox.resend("c2")
    assert road.sent == [[b"accepted 1", b"result 1", b"result 2", b"result 2"]]
    assert len(outbox) == 1


async def test_where_too_many_wait_results_and_transcripts_are_the_last_to_go() -> None:
    road = Road(acknowledges=True)
    outbox = Outbox(road, ClientLimits(unconfirmed=2))
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"shown 2", answer=shown(2))
    await outbox.put(b"said", transcript("t1"))
    road.open()
    await outbox.flush()
    await outbox.put(b"result 3", answer=result(3))
    road.open()
    await outbox.flush()
    assert road.sent == [[b"result 1", b"said", b"result 3"], [b"said", b"result 3"]]
