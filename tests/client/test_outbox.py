"""The outbox, over a transport in memory."""

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


class Transport:
    """A transport that accepts ``room`` frames on each socket and then breaks."""

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
            raise ConnectionLost("The connection broke.")


def transcript(event_id: str) -> Turn:
    return Turn("hello", event_id, 1, LIMIT_S)


async def test_unconfirmed_frames_are_sent_again_in_order() -> None:
    transport = Transport()
    outbox = Outbox(transport, ClientLimits())
    assert not await outbox.put(b"before there is a connection")
    transport.open()
    assert await outbox.flush()
    assert await outbox.put(b"said", transcript("t"))
    assert await outbox.put(b"result")
    transport.open()
    assert await outbox.flush()
    assert transport.sent[1] == transport.sent[0] == [b"before there is a connection", b"said", b"result"]


async def test_a_frame_is_sent_once_per_connection() -> None:
    transport = Transport()
    outbox = Outbox(transport, ClientLimits())
    transport.open()
    await outbox.put(b"one")
    await outbox.flush()
    await outbox.put(b"two")
    assert transport.sent == [[b"one", b"two"]]


async def test_a_failed_send_is_repeated() -> None:
    transport = Transport()
    outbox = Outbox(transport, ClientLimits())
    transport.open(room=2)
    await outbox.put(b"one")
    assert not await outbox.put(b"two")
    assert not await outbox.put(b"three")
    transport.open()
    await outbox.flush()
    assert transport.sent == [[b"one", b"two"], [b"one", b"two", b"three"]]


async def test_an_answered_transcript_confirms_earlier_entries() -> None:
    transport = Transport()
    outbox = Outbox(transport, ClientLimits())
    transport.open()
    await outbox.put(b"result 1")
    turn = transcript("t1")
    await outbox.put(b"said", turn)
    await outbox.put(b"result 2")
    outbox.confirm("some other")
    assert len(outbox) == 3
    outbox.confirm("t1")
    assert not turn.is_kept
    transport.open()
    await outbox.flush()
    assert transport.sent[1] == [b"result 2"]


async def test_a_full_outbox_drops_the_oldest_frames() -> None:
    transport = Transport()
    transport.open()
    outbox = Outbox(transport, ClientLimits(unconfirmed=2))
    for frame in (b"1", b"2", b"3"):
        await outbox.put(frame)
    small = Outbox(transport, ClientLimits(unconfirmed_bytes=10))
    for frame in (b"123456", b"1234567890123", b"12"):
        await small.put(frame)
    transport.open()
    await outbox.flush()
    await small.flush()
    assert transport.sent[1] == [b"2", b"3", b"12"]


async def test_removed_frames_do_not_count() -> None:
    transport = Transport(acknowledges=True)
    transport.open()
    outbox = Outbox(transport, ClientLimits(unconfirmed_bytes=10))
    await outbox.put(b"1234567890", answer=result(1))
    outbox.acknowledge({"e1"})
    await outbox.put(b"12345")
    await outbox.put(b"67890")
    assert len(outbox) == 2


async def test_frames_are_sent_one_at_a_time() -> None:
    class SlowTransport(Transport):
        async def send(self, frame: bytes) -> None:
            if frame == b"one":
                await let.wait()
            await super().send(frame)

    let, transport = asyncio.Event(), SlowTransport()
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    puts = [asyncio.create_task(outbox.put(frame)) for frame in (b"one", b"two")]
    await asyncio.sleep(0)
    let.set()
    await asyncio.gather(*puts)
    assert transport.sent == [[b"one", b"two"]]


async def test_old_transcripts_and_ended_turns_expire() -> None:
    transport = Transport()
    old = Outbox(transport, ClientLimits(resend_s=0))
    outbox = Outbox(transport, ClientLimits())
    transport.open()
    turn, ended = transcript("old"), transcript("ended")
    await old.put(b"old", turn)
    await outbox.put(b"ended", ended)
    await outbox.put(b"waiting", transcript("waiting"))
    ended.end("lost")
    old.expire()
    outbox.expire()
    assert not turn.is_kept
    transport.open()
    await old.flush()
    await outbox.flush()
    assert transport.sent[1] == [b"waiting"]


async def test_a_cancelled_send_is_not_repeated_on_its_connection() -> None:
    class Slow(Transport):
        async def send(self, frame: bytes) -> None:
            await super().send(frame)
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    transport = Slow()
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    putting = asyncio.create_task(outbox.put(b"one"))
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await outbox.flush()
    assert transport.sent == [[b"one"]]


# -- a server that acknowledges


def result(number: int) -> Answer:
    return Answer(f"e{number}", f"c{number}", ResumeDone(f"c{number}", "on"))


def ui_answer(number: int) -> Answer:
    return Answer(f"e{number}", f"c{number}")


async def test_acknowledged_entries_are_dropped() -> None:
    transport = Transport(acknowledges=True)
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"said", turn)
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"result 2", answer=result(2))
    outbox.acknowledge(["e2", "t1", "unknown"])
    assert (turn.is_kept, turn.is_recorded) == (False, True)
    assert outbox.results() == [ResumeDone("c1", "on")]
    transport.open()
    await outbox.flush()
    assert transport.sent[1] == [b"result 1"]


async def test_entries_that_await_an_acknowledgement_remain() -> None:
    transport = Transport(acknowledges=True)
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"shown 2", answer=ui_answer(2))
    await outbox.put(b"said", turn)
    await outbox.put(b"shown 3", answer=ui_answer(3))
    outbox.confirm("t1")
    turn.stage = "running"
    outbox.expire()
    assert turn.is_kept and not turn.is_recorded
    transport.open()
    await outbox.flush()
    assert transport.sent[1] == [b"result 1", b"said", b"shown 3"]


async def test_a_refused_transcript_is_dropped() -> None:
    transport = Transport(acknowledges=True)
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    turn = transcript("t1")
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"said", turn)
    turn.stage = "refused"
    outbox.confirm("t1")
    transport.open()
    await outbox.flush()
    assert transport.sent[1] == [b"result 1"]


async def test_answers_are_forgotten_and_repeated_by_call() -> None:
    transport = Transport(acknowledges=True)
    transport.open()
    outbox = Outbox(transport, ClientLimits())
    await outbox.put(b"accepted 1", answer=Answer("e0", "c1"))
    for number in (1, 2):
        await outbox.put(f"result {number}".encode(), answer=result(number))
    outbox.forget({"c1"})
    await outbox.resend("c1")
    await outbox.resend("c2")
    assert transport.sent == [[b"accepted 1", b"result 1", b"result 2", b"result 2"]]
    assert len(outbox) == 1


async def test_a_full_outbox_drops_results_and_transcripts_last() -> None:
    transport = Transport(acknowledges=True)
    outbox = Outbox(transport, ClientLimits(unconfirmed=2))
    await outbox.put(b"result 1", answer=result(1))
    await outbox.put(b"shown 2", answer=ui_answer(2))
    await outbox.put(b"said", transcript("t1"))
    transport.open()
    await outbox.flush()
    await outbox.put(b"result 3", answer=result(3))
    transport.open()
    await outbox.flush()
    assert transport.sent == [[b"result 1", b"said", b"result 3"], [b"said", b"result 3"]]
