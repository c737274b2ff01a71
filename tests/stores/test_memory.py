"""The store in memory keeps the contract, and deletes released sessions."""

from __future__ import annotations

import pytest
from hypothesis import settings

from conductor.stores.memory import MemoryStore
from tests.stores.contract import KEY, SessionLimitContract, StoreContract, filled
from tests.stores.machine import StoreMachine


class TestMemorySessionLimit(SessionLimitContract):
    """The limit of sessions per subject, over memory."""

    @pytest.fixture
    def few(self) -> MemoryStore:
        return MemoryStore(max_sessions=2)


class TestMemoryStore(StoreContract):
    """The contract, over memory."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    async def test_a_released_session_leaves_nothing_behind(self, store: MemoryStore) -> None:
        claim = await filled(store)
        await store.release(claim)
        assert len(store) == 0
        fresh = await store.claim(KEY)
        assert fresh.epoch == 1 and not fresh.state.log

    async def test_closing_is_harmless(self, store: MemoryStore) -> None:
        await store.aclose()
        await store.aclose()


class MemoryMachine(StoreMachine):
    """Random histories, over memory."""

    make_store = MemoryStore
    forgets_on_release = True


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
