"""The CPU time of a call, for bounds against work that is not linear."""

from __future__ import annotations

import time
from collections.abc import Callable

RUNS = 5


def least_cpu_s(run: Callable[[], object], enough: float) -> float:
    """Return the seconds of CPU that `run` took at best; a run of less than `enough` seconds is the last.

    One run alone may contain a collection of all the garbage in the process.
    """
    least = float("inf")
    for _ in range(RUNS):
        began = time.thread_time()
        run()
        least = min(least, time.thread_time() - began)
        if least < enough:
            break
    return least
