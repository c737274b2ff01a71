"""What a test leaves, such as a process that runs or an open socket, is reported where it was left.

Python warns of it when the garbage is collected, and pytest fails the test that runs by then.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator, Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def collect_leftovers_of_module() -> Iterator[None]:
    """Report what the tests of a module left in the last one of them.

    What stays, such as imported modules, stays to the end: each later collection is spared it.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Drop what a failed test leaves: its traceback keeps all that its frames held, up to the next test."""
    failed = item.session.testsfailed
    result = yield
    if item.session.testsfailed > failed:
        sys.__dict__.update(dict.fromkeys(("last_type", "last_value", "last_traceback", "last_exc")))
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
    return result
