"""With a random model, device, person and line, each call has one outcome, and runs only if allowed.

The rules are in `gate_book`, the events in `gate_world`. A failure names its seed. Without ``--extended``, a
tenth of the worlds is played.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest
import structlog

from tests.session.gate_world import World
from tests.session.helpers import run

TURNS = int(os.environ.get("GATE_TURNS", "2000"))
"""How many turns are played in all; GATE_TURNS=20000 plays more."""
TURNS_A_WORLD = 50
SEEDS = range(1, max(1, TURNS // TURNS_A_WORLD) + 1)
USUAL = ("turn", "turn failed")
"""The permitted log events: a turn's line, and a failed turn with its code."""


@cache
def play(seed: int) -> Counter[str]:
    """Play one world; returns the counts of its events."""
    with structlog.testing.capture_logs() as lines:
        world = World(seed)

        def missing() -> int:
            return TURNS_A_WORLD - len([line for line in lines if line["event"] == "turn"])

        try:
            run(world.play(missing))
        except BaseException as error:
            report = "\n".join([*world.book.faults, *world.trail[-30:]])
            raise AssertionError(f"seed {seed} ({world.mode}): {error!r}\n{report}") from error
    loud = [
        line
        for line in lines
        if line["log_level"] in ("warning", "error", "critical")
        and (line["event"] not in USUAL or line.get("exc_info") or line.get("code") == "internal_error")
    ]
    assert not loud, f"seed {seed}: {loud}"
    world.book.tally.update(f"turn {line['end']}" for line in lines if line["event"] == "turn")
    return world.book.tally


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.extended] if seed % 10 else []) for seed in SEEDS]
)
def test_every_call_has_one_outcome_and_nothing_runs_twice_or_undecided(seed: int) -> None:
    play(seed)


EVERYTHING = """
    card, prompt, ran silently, released by card, released by words to a card, released by voice
    listened to a question
    resolved allowed, resolved denied, resolved edited, resolved expired, resolved refused
    resolved superseded
    result none, result unknown, result cancelled, result approval_timeout, result permission_denied
    result not_found, result validation_failed, result parse_error, result io_error, result rate_limited
    device now, device soon, device twice, device late, device never, device job, device busy
    cancelled none, cancelled partial, cancelled complete
    turn answered, turn interrupted, turn failed, turn timed_out
"""


@pytest.mark.extended
def test_the_random_worlds_cover_all_cases() -> None:
    tally: Counter[str] = Counter()
    for seed in SEEDS[:20]:
        tally += play(seed)
    names = [name.strip() for line in EVERYTHING.split("\n") for name in line.split(",") if name.strip()]
    assert [name for name in names if not tally[name]] == [], dict(tally)
    assert sum(count for name, count in tally.items() if name.startswith("turn ")) >= 1_000
