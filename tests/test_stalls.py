"""Inputs that once held the event loop for seconds hold it no more; a short search looks for others."""

from __future__ import annotations

import sys
from itertools import takewhile

import pytest

from tests.conftest import ROOT
from tests.cpu import RUNS

sys.path.append(str(ROOT / "scripts"))

from benchmarks.stall_inputs import FIXED, PATHS, Scene
from benchmarks.stalls import play, play_scene, search

BOUND_S = 0.25
"""Five times what one callback may take: machines differ."""
SEARCH_S = 8.0


@pytest.mark.parametrize("name", FIXED)
def test_an_input_that_once_held_the_loop_for_seconds_does_not_hold_it(name: str) -> None:
    path, data = FIXED[name]
    play(path, PATHS[path].seeds[0])  # loads what is loaded when it is needed
    runs = (play(path, data) for _ in range(RUNS))
    slow = list(takewhile(lambda longest: longest.seconds >= BOUND_S, runs))
    assert len(slow) < RUNS, slow


@pytest.mark.parametrize("seed", [1])
def test_a_short_search_through_every_path_finds_no_input_that_holds_the_loop(seed: int) -> None:
    found = search(SEARCH_S, seed)
    for path, known in found.items():
        assert known.inputs, path
        seconds, callback, data = known.slowest[0]
        assert seconds < BOUND_S, (path, callback, str(data)[:1_000])


def test_the_search_notices_a_session_that_holds_the_loop() -> None:
    longest = play_scene(Scene(replies=[[("local.get", "{}")]], busy_s=2 * BOUND_S))
    assert longest.seconds > BOUND_S
