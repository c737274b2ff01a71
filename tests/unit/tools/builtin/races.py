"""A file system that changes at a chosen moment of a tool's work."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def interrupted(*steps: tuple[int, Callable[[], object]]) -> Iterator[Iterator[int]]:
    """Count the calls of the system in the block, and in the threads that it starts; yields the counter.

    A step is taken before the call of its number, from 0, or else at the end of the block.
    """
    waiting, numbers = list(steps), itertools.count()

    def profile(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ == "posix":
            number = next(numbers)
            while waiting and waiting[0][0] <= number:
                waiting.pop(0)[1]()

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield numbers
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for _, step in waiting:
            step()


def exchange(path: Path, link: Path) -> None:
    """Put a link in the place of a file or folder, and then the file or folder back."""
    aside = link.with_name("aside")
    path.rename(aside)
    link.rename(path)
    aside.rename(link)
