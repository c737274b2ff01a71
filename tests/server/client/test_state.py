"""Events until their confirmation, over sockets in memory."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from conductor.client.connection import ClientLimits
from conductor.client.state import ClientSession, fit_resume
from conductor.events.client import (
    MAX_RESUMED,
    ClientEvent,
    Resume,
    ResumeDone,
    ToolAccepted,
    ToolCancelled,
    ToolResultEvent,
    TranscriptFinal,
)
from tests.server.client.memory_socket import open_socket

ROOM = 32_768


def make(**limits: float) -> ClientSession:
    return ClientSession("s", ClientLimits(**limits), lambda _: None, lambda _: None)  # type: ignore[arg-type]


def result(number: int) -> ToolResultEvent:
    return ToolResultEvent(f"c{number}", f"result {number}")


async def add(session: ClientSession, *events: ClientEvent) -> None:
    """Add events with the ids ``e1``, ``e2`` and so on; UI results are those of ``ui`` calls."""
    for number, event in enumerate(events, 1):
        is_ui = isinstance(event, ToolResultEvent) and event.call_id == "ui"
        session.add(event, f"e{number}", is_ui=is_ui)
    await session.flush()


HELLO = TranscriptFinal("hello")
SHOWN = ToolResultEvent("ui", "shown")


async def test_unconfirmed_events_are_sent_once_per_connection_in_order() -> None:
    session = make()
    session.add(result(0), "e0")
    assert not await session.flush()
    first = await open_socket(session)
    await add(session, HELLO, result(1))
    assert await session.flush()
    second = await open_socket(session)
    await session.flush()
    assert first.contents == second.contents == ["result 0", "hello", "result 1"]
    assert [event["id"] for event in second.frames] == ["e0", "e1", "e2"]


async def test_a_failed_send_is_repeated() -> None:
    session = make()
    await open_socket(session, room=1)
    await add(session, result(1), result(2))
    assert not session.connected
    link = await open_socket(session)
    assert await session.flush()
    assert link.contents == ["result 1", "result 2"]


async def test_events_are_sent_one_at_a_time_and_a_cancelled_send_is_not_repeated() -> None:
    session = make()
    link = await open_socket(session)
    link.through.clear()
    sending = asyncio.create_task(session.keep(result(1)))
    await link.sending.get()
    waiting = asyncio.create_task(session.keep(result(2)))
    sending.cancel()
    await asyncio.wait({sending})
    link.through.set()
    await waiting
    assert link.contents == ["result 1", "result 2"]


@pytest.mark.parametrize(
    ("capabilities", "is_refused", "remaining"),
    [
        ((), False, ["result 2"]),
        (("resume",), False, ["result 1", "shown", "hello", "result 2"]),
        (("resume",), True, ["result 1", "shown", "result 2"]),
    ],
)
async def test_an_answer_to_a_transcript_confirms_events_without_acknowledgement(
    capabilities: tuple[str, ...], is_refused: bool, remaining: list[str]
) -> None:
    session = make()
    await open_socket(session, *capabilities)
    await add(session, result(1), SHOWN, HELLO, result(2))
    session.confirm("e3", is_refused=is_refused)
    session.confirm("unknown", is_refused=True)
    link = await open_socket(session, *capabilities)
    await session.flush()
    assert link.contents == remaining


async def test_acknowledged_events_are_dropped_with_earlier_cancellations() -> None:
    session = make()
    await open_socket(session, "resume")
    await add(session, ToolAccepted("c0", "job"), HELLO, result(1), result(2), ToolCancelled("c3", "none"))
    session.acknowledge(["e4", "e2", "unknown"])
    session.acknowledge([])
    link = await open_socket(session, "resume")
    await session.flush()
    assert [event["id"] for event in link.frames] == ["e3", "e5"]


async def test_a_result_is_sent_again_on_request() -> None:
    session = make()
    link = await open_socket(session, "resume")
    await add(session, ToolAccepted("c1", "job"), result(1), result(2))
    await session.resend("c1")
    await session.resend("unknown")
    assert [event["id"] for event in link.frames] == ["e1", "e2", "e3", "e1", "e2"]


async def test_a_full_list_drops_the_oldest_but_transcripts_and_results_last() -> None:
    session = make(unconfirmed=3)
    await add(session, HELLO, SHOWN, result(1), ToolAccepted("c2", "job"), result(3), result(4))
    link = await open_socket(session)
    await session.flush()
    assert link.contents == ["result 1", "result 3", "result 4"]


@pytest.mark.parametrize(("resend_s", "is_open", "remaining"), [(60, True, 2), (60, False, 1), (0, True, 1)])
async def test_old_transcripts_and_those_of_ended_turns_expire(
    resend_s: float, is_open: bool, remaining: int
) -> None:
    session = make(resend_s=resend_s)
    await add(session, HELLO, result(1))
    session.expire(lambda _: is_open)
    assert len(session.entries) == remaining


# -- the size of ``resume`` in ``session.start``


def test_results_that_do_not_fit_have_no_content() -> None:
    results = [ToolResultEvent("c1", "x" * 20_000), ToolResultEvent("c2", "y" * 20_000), result(3)]
    results.append(ToolResultEvent("c4", "on", "broken"))
    resume = fit_resume("evt", results, ["c5"], ROOM)
    assert resume.done == [
        ResumeDone("c1", "x" * 20_000),
        ResumeDone("c2"),
        ResumeDone("c3", "result 3"),
        ResumeDone("c4", None, "broken"),
    ]
    assert resume.pending == ["c5"]
    assert fit_resume("evt", results, ["c5"], -5_000) == Resume("evt")


def test_a_resume_fits_into_its_limit() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    for _ in range(300):
        results = [
            ToolResultEvent(
                f"c{number}" * chance.randint(1, 12),
                chance.choice(["x", "\n", "\u2028", "\x00", "é"]) * chance.choice([0, 3, 500, 9_000]),
            )
            for number in range(chance.choice([0, 1, 5, 300]))
        ]
        pending = [f"p{number}" * chance.randint(1, 12) for number in range(chance.choice([0, 3, 300]))]
        limit = chance.choice([60, 200, 5_000, ROOM])
        resume = fit_resume("evt_1", results, pending, limit)
        assert len(msgspec.json.encode(resume)) <= limit
        assert resume.pending == pending[: len(resume.pending)]
        assert len(resume.done) <= MAX_RESUMED and len(resume.pending) <= MAX_RESUMED
