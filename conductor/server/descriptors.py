"""File descriptors: raise the limit, and derive the number of connections from it."""

from __future__ import annotations

import contextlib
import resource

# Descriptors reserved for the program's files, its store and its log.
OWN = 64
# The limit to request if there is no hard limit; some systems refuse more.
INFINITE = 65_536


def raise_limit() -> int:
    """Raise the limit of open files to its hard limit; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS says infinity, and refuses it as a soft limit.
    wanted = INFINITE if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    """Return this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return INFINITE if soft == resource.RLIM_INFINITY else soft


def connections_within(descriptors: int) -> int:
    """Return how many connections the descriptors allow.

    Each is counted as one and a half: the rest is for incomplete handshakes and requests to the model.
    """
    # At least one: with a tiny limit the server still starts, and says what it can take.
    return max((descriptors - OWN) * 2 // 3, 1)
