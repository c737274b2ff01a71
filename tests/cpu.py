"""The CPU time of a call, for bounds against work that is not linear."""

from __future__ import annotations

import time
from collections.abc import Callable

RUNS = 5
REFERENCE_S = 0.02
"""The CPU time of `_work` on the machine on which the bounds were measured."""


def least_cpu_s(run: Callable[[], object], enough: float) -> float:
    """Return the seconds of CPU that `run` took at best; a run of less than `enough` seconds is the last.

    One run alone may contain a collection of all the garbage in the process. On a machine that is slower than
    that of the bounds, its seconds count as so much less.
    """
    least = float("inf")
    for _ in range(RUNS):
        seconds = _cpu_s(run)
        if seconds >= enough:
            seconds /= max(1.0, _cpu_s(_work) / REFERENCE_S)
        least = min(least, seconds)
        if least < enough:
            break
    return least


def _cpu_s(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def _work() -> int:
    return sum(number * number % 7 for number in range(100_000))
