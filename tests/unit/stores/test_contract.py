"""Every engine keeps the contract of a session store."""

from __future__ import annotations

import pytest

from tests.contract.store import MakeStore, StoreContract


class TestEngines(StoreContract):
    """The contract on each engine of conftest.py."""

    @pytest.fixture
    def make(self, engine: MakeStore) -> MakeStore:
        return engine
