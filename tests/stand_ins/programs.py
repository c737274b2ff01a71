"""Programs and packages that tests need and a machine may not have."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(name: str, group: str) -> NoReturn:
    """Skip the test, or fail where ``CI_REQUIRE_`` with the group is 1, as ``.ci/run`` sets it."""
    reason = f"{name} is not here; .ci/run installs it"
    if os.environ.get(f"CI_REQUIRE_{group}") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def program(group: str, *names: str, path: str | None = None) -> str:
    """Give the path of the first of these programs; its test is skipped without it."""
    for name in names:
        if (executable := shutil.which(name, path=path)) is not None:
            return executable
    missing(names[0], group)
