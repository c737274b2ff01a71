"""What a client tells of itself when it comes back: within its bounds, and as much as fits."""

from __future__ import annotations

import random

import msgspec

from conductor.client.events import ReplayCursor
from conductor.client.outbox import MAX_RESUME_BYTES, fit_cancelled, resume_entry
from conductor.client.resume import fit_resume
from conductor.events.client import MAX_RESUMED, Resume, ResumeDone, ToolCancelled, ToolResultEvent


def size(resume: Resume) -> int:
    return len(msgspec.json.encode(resume))


def test_a_little_is_told_whole() -> None:
    done = [ResumeDone("c1", "on"), ResumeDone("c2", error="no"), ResumeDone("c3")]
    assert fit_resume("evt", done, ["c4"], MAX_RESUME_BYTES) == Resume("evt", done, ["c4"])
    assert fit_resume(None, [], [], MAX_RESUME_BYTES) == Resume()


def test_results_that_do_not_fit_are_named_and_a_smaller_one_behind_them_is_told() -> None:
    done = [ResumeDone("c1", "x" * 20_000), ResumeDone("c2", "y" * 20_000), ResumeDone("c3", "on")]
    resume = fit_resume("evt", done, ["c4"], MAX_RESUME_BYTES)
    assert resume.done == [done[0], ResumeDone("c2"), done[2]]
    assert resume.pending == ["c4"]


def test_no_more_calls_are_named_than_the_server_takes() -> None:
    done = [ResumeDone(f"c{number}", "on") for number in range(300)]
    resume = fit_resume("evt", done, [f"p{number}" for number in range(300)], MAX_RESUME_BYTES)
    assert len(resume.done) == len(resume.pending) == MAX_RESUMED
    assert resume.done == done[:MAX_RESUMED]


def test_whatever_there_is_fits_into_the_room_and_is_true() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    for _ in range(300):
        done = [
            ResumeDone(
                f"c{number}" * chance.randint(1, 12),
                chance.choice(["x", "\n", "\u2028", "\x00", "é"]) * chance.choice([0, 3, 500, 9_000]),
            )
            for number in range(chance.choice([0, 1, 5, 300]))
        ]
        pending = [f"p{number}" * chance.randint(1, 12) for number in range(chance.choice([0, 3, 300]))]
        room = chance.choice([60, 200, 5_000, MAX_RESUME_BYTES])
        resume = fit_resume("evt_1", done, pending, room)
        assert size(resume) <= room
        assert resume.pending == pending[: len(resume.pending)]
        for told, whole in zip(resume.done, done, strict=False):
            assert told in (whole, ResumeDone(whole.call_id))


def test_no_room_at_all_is_no_error() -> None:
    assert fit_resume("evt", [ResumeDone("c1", "on")], ["c2"], -5_000) == Resume("evt")


def test_an_error_is_told_without_the_result_and_a_large_result_without_either() -> None:
    assert resume_entry(ToolResultEvent("c1", "on"), 100) == ResumeDone("c1", "on")
    assert resume_entry(ToolResultEvent("c1", "on", "broken"), 100) == ResumeDone("c1", None, "broken")
    assert resume_entry(ToolResultEvent("c1", "x"), MAX_RESUME_BYTES + 1) == ResumeDone("c1")


def test_the_last_handled_event_has_nothing_unfinished_before_it() -> None:
    handled = ReplayCursor()
    lasts = []
    for event_id, counts in (("a", True), ("b", True), ("c", False), ("d", True)):
        handled.begin(event_id, counts=counts)
    for event_id in ("b", "a", "c", "d"):
        handled.end(event_id)
        lasts.append(handled.last)
    assert lasts == [None, "b", "b", "d"]


def test_a_large_result_of_a_cancelled_call_is_truncated() -> None:
    text = fit_cancelled(ToolCancelled("c1", "complete", "x" * 100_000)).result
    assert text is not None and text.endswith("x… [91808 characters left out by the device]")
