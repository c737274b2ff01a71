"""The two clocks of a process: one for deadlines, which nobody sets, and the wall clock.

Deadlines, and the times of records, are read from `epoch_ms`. Only what is promised by date reads `wall_ms`:
reminders, and the expiry of rules, tokens and stored sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_STARTED_NS = time.time_ns() - time.monotonic_ns()


def epoch_ns() -> int:
    """Return the wall time at the start of the process plus the time since then, in epoch nanoseconds."""
    return _STARTED_NS + time.monotonic_ns()


def epoch_ms() -> int:
    """Return the same in epoch milliseconds."""
    return epoch_ns() // 1_000_000


def wall_ms() -> int:
    """Return the time of the wall clock in epoch milliseconds; a step of it goes either way."""
    return time.time_ns() // 1_000_000


def not_before(at_ms: int, now: Callable[[], int]) -> Callable[[], int]:
    """Return the clock ``now``; one that is behind ``at_ms`` goes on from there.

    A session's clock is its owner's. Where the former owner's was ahead, no deadline moves away.
    """
    behind = at_ms - now()
    return now if behind <= 0 else lambda: now() + behind
