"""Whatever a model, a device, a person and a line do: each call has one outcome, and none runs undecided."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest
import structlog

from tests.conversation.gate_world import World
from tests.conversation.helpers import run

TURNS = int(os.environ.get("GATE_TURNS", "1000"))
"""How many turns are played in all; GATE_TURNS=20000 plays more."""
TURNS_A_WORLD = 50
SEEDS = range(1, TURNS // TURNS_A_WORLD + 1)
QUIET = {"turn", "turn failed"}
"""What a log may say: a turn's line, and that a turn ended by an error with a code, as the model's do."""


@cache
def play(seed: int) -> Counter[str]:
    """Play one world; gives how often what happened in it."""
    with structlog.testing.capture_logs() as lines:
        world = World(seed)

        def left() -> int:
            return TURNS_A_WORLD - len([line for line in lines if line["event"] == "turn"])

        try:
            run(world.play(left))
        except BaseException as error:
            found = "\n".join(map(str, world.book.faults))
            raise AssertionError(
                f"seed {seed} ({world.mode}): {error!r}\n{found}\n{world.trail[-30:]}"
            ) from error
    loud = [
        line
        for line in lines
        if line["log_level"] in ("warning", "error", "critical")
        and (line["event"] not in QUIET or line.get("exc_info") or line.get("code") == "internal_error")
    ]
    assert not loud, f"seed {seed}: {loud}"
    for line in lines:
        if line["event"] == "turn":
            world.book.tally[f"turn {line['end']}"] += 1
    return world.book.tally


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_has_one_outcome_and_nothing_runs_twice_or_undecided(seed: int) -> None:
    play(seed)
