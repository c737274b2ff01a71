"""No request has thinking of another prompt, even if prompt or tools change."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import structlog

from tests.session.helpers import run
from tests.session.thinking_world import World

CONVERSATIONS = int(os.environ.get("THINKING_CONVERSATIONS", "2000"))
"""How many the extended tests play."""
FEW = 60


def play(seed: int, tally: Counter[str]) -> list[str]:
    """Play a conversation; gives why its requests were refused."""
    with structlog.testing.capture_logs():
        world = World(seed, tally)
        try:
            run(world.play())
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r} {world.trail}") from error
    return [f"seed {seed} {world.trail}: {reason}" for reason in world.model.refused]


EVERYTHING = (
    "tools", "prompt", "barge in", "interrupt", "late", "agent", "move", "broken replies",
    "requests with thinking", "thinking of several replies",
)  # fmt: skip


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(FEW), id="few"),
        pytest.param(range(FEW, CONVERSATIONS), id="many", marks=pytest.mark.extended),
    ],
)
def test_no_request_of_a_random_conversation_is_refused_for_its_thinking(seeds: range) -> None:
    tally: Counter[str] = Counter()
    refused = [reason for seed in seeds for reason in play(seed, tally)]
    print(dict(tally))  # noqa: T201 -- shown where the test fails
    assert refused == []
    assert [name for name in EVERYTHING if not tally[name]] == []
