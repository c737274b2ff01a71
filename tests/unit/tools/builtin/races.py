"""A file system that changes while a tool works."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SWAPS = 100


@contextmanager
def swapping(swap: Callable[[], object], seconds: float = 0.5) -> Iterator[Iterator[int]]:
    """Repeat ``swap`` in a thread during the block; yields numbers, one an attempt.

    They last for ``seconds``, and on a busy machine until there were `SWAPS`.
    """
    over, swaps = threading.Event(), 0

    def repeat() -> None:
        nonlocal swaps
        while not over.is_set():
            swap()
            swaps += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    deadline = time.monotonic() + seconds
    try:
        yield itertools.takewhile(
            lambda _: time.monotonic() < deadline or (swaps < SWAPS and thread.is_alive()), itertools.count()
        )
    finally:
        over.set()
        thread.join()
    assert swaps >= SWAPS


def exchange_at_once(path: Path, link: Path) -> None:
    """Exchange two names, with no moment in which one is missing."""
    folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None).renameat2(folder, bytes(path), folder, bytes(link), exchange):
        raise OSError("not exchanged")


def exchange(path: Path, link: Path) -> None:
    """Put a link in the place of a file or folder, and then the file or folder back."""
    aside = link.with_name("aside")
    path.rename(aside)
    link.rename(path)
    path.rename(link)
    aside.rename(path)
