"""The engines without a server keep the contract of a session store."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from conductor.plugins.stores import sqlite
from conductor.stores import memory
from conductor.testing.store import MakeStore, StoreContract

_numbers = count(1)


class TestEngines(StoreContract):
    """The contract on memory and SQLite."""

    @pytest.fixture(params=["memory", "sqlite"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
        if request.param == "memory":
            return partial(memory.from_url, "memory://")
        return lambda options: sqlite.from_url(f"sqlite:///{tmp_path}/a?#% {next(_numbers)}.db", options)
