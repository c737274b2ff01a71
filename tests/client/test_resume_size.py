"""The size of ``resume`` in ``session.start``."""

from __future__ import annotations

import random

import msgspec

from conductor.client.events import ReplayCursor
from conductor.client.outbox import MAX_RESUME_BYTES, fit_cancelled, resume_entry
from conductor.client.resume import fit_resume
from conductor.events.client import MAX_RESUMED, Resume, ResumeDone, ToolCancelled, ToolResultEvent


def size(resume: Resume) -> int:
    return len(msgspec.json.encode(resume))


def test_small_results_are_complete() -> None:
    entries = [ResumeDone("c1", "on"), ResumeDone("c2", error="no"), ResumeDone("c3")]
    assert fit_resume("evt", entries, ["c4"], MAX_RESUME_BYTES) == Resume("evt", entries, ["c4"])
    assert fit_resume(None, [], [], MAX_RESUME_BYTES) == Resume()


def test_results_that_do_not_fit_have_no_content() -> None:
    entries = [ResumeDone("c1", "x" * 20_000), ResumeDone("c2", "y" * 20_000), ResumeDone("c3", "on")]
    resume = fit_resume("evt", entries, ["c4"], MAX_RESUME_BYTES)
    assert resume.done == [entries[0], ResumeDone("c2"), entries[2]]
    assert resume.pending == ["c4"]


def test_the_number_of_calls_is_bounded() -> None:
    entries = [ResumeDone(f"c{number}", "on") for number in range(300)]
    resume = fit_resume("evt", entries, [f"p{number}" for number in range(300)], MAX_RESUME_BYTES)
    assert len(resume.done) == len(resume.pending) == MAX_RESUMED
    assert resume.done == entries[:MAX_RESUMED]


def test_a_resume_fits_into_its_limit() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    for _ in range(300):
        entries = [
            ResumeDone(
                f"c{number}" * chance.randint(1, 12),
                chance.choice(["x", "\n", "\u2028", "\x00", "é"]) * chance.choice([0, 3, 500, 9_000]),
            )
            for number in range(chance.choice([0, 1, 5, 300]))
        ]
        pending = [f"p{number}" * chance.randint(1, 12) for number in range(chance.choice([0, 3, 300]))]
        limit = chance.choice([60, 200, 5_000, MAX_RESUME_BYTES])
        resume = fit_resume("evt_1", entries, pending, limit)
        assert size(resume) <= limit
        assert resume.pending == pending[: len(resume.pending)]
        for entry, original in zip(resume.done, entries, strict=False):
            assert entry in (original, ResumeDone(original.call_id))


def test_a_negative_limit_is_not_an_error() -> None:
    assert fit_resume("evt", [ResumeDone("c1", "on")], ["c2"], -5_000) == Resume("evt")


def test_an_entry_has_an_error_or_a_small_result() -> None:
    assert resume_entry(ToolResultEvent("c1", "on"), 100) == ResumeDone("c1", "on")
    assert resume_entry(ToolResultEvent("c1", "on", "broken"), 100) == ResumeDone("c1", None, "broken")
    assert resume_entry(ToolResultEvent("c1", "x"), MAX_RESUME_BYTES + 1) == ResumeDone("c1")


def test_the_cursor_stops_before_unfinished_events() -> None:
    cursor = ReplayCursor()
    lasts = []
    for event_id, counts in (("a", True), ("b", True), ("c", False), ("d", True)):
        cursor.begin(event_id, counts=counts)
    for event_id in ("b", "a", "c", "d"):
        cursor.end(event_id)
        lasts.append(cursor.last)
    assert lasts == [None, "b", "b", "d"]


def test_a_large_result_of_a_cancelled_call_is_truncated() -> None:
    text = fit_cancelled(ToolCancelled("c1", "complete", "x" * 100_000)).result
    assert text is not None and text.endswith("x… [91808 characters left out by the device]")
