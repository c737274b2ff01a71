"""Random histories of each engine, compared with a list of commits."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conductor.errors import Conflict, Fenced, Rollback, StoreError
from conductor.stores.base import Claim
from tests.stores.engines import KEY, Engine


class History(RuleBasedStateMachine):
    """Claims, appends, retries, releases and deletions of one session."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.loop = asyncio.new_event_loop()
        self.store = engine.make()
        self.run(engine.open(self.store))
        self.claims: list[Claim] = []
        self.forget()
        self.commits = 0

    def forget(self) -> None:
        """Expect no session."""
        self.expected: list[bytes] = []
        self.epoch = self.revision = 0
        self.is_owned = False
        self.last: tuple[str, bytes, bool] | None = None
        self.before: Claim | None = None

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.loop.close()

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaitable, 5))

    @initialize()
    def first_claim(self) -> None:
        self.claim()

    @rule()
    def claim(self) -> None:
        claim = self.run(self.store.claim(KEY))
        self.epoch += 1
        assert (claim.epoch, claim.revision, list(claim.commits)) == (
            self.epoch,
            self.revision,
            self.expected,
        )
        self.claims.append(claim)
        self.is_owned = True

    @rule(
        data=st.binary(max_size=20),
        snapshot=st.booleans(),
        which=st.sampled_from([-1, -1, -1, -2]),
        by=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def append(self, data: bytes, snapshot: bool, which: int, by: int) -> None:
        if len(self.claims) < -which:
            return
        self.commits += 1
        commit = (f"commit-{self.commits}", data, snapshot)
        claim = self.claims[which]
        expected: type[StoreError] | None = {-1: Conflict, 0: None, 1: Rollback}[by]
        if which != -1 or not self.is_owned:
            expected = Fenced
        before = deepcopy(claim)
        target = replace(claim, revision=claim.revision + by) if by else claim
        try:
            self.run(self.store.append(target, *commit[:2], snapshot=snapshot))
        except StoreError as error:
            assert type(error) is expected
            return
        assert expected is None
        self.expected = [data] if snapshot else [*self.expected, data]
        self.revision += 1
        self.last, self.before = commit, before
        assert claim.revision == self.revision

    @precondition(lambda self: self.is_owned and self.last is not None)
    @rule(behind=st.booleans())
    def retry(self, behind: bool) -> None:
        """Repeat the last commit; ``behind``: its reply was lost."""
        assert self.last is not None and self.before is not None
        claim = deepcopy(self.before) if behind else self.claims[-1]
        claim.token = self.claims[-1].token
        commit_id, data, snapshot = self.last
        self.run(self.store.append(claim, commit_id, data, snapshot=snapshot))
        assert claim.revision == self.revision

    @rule()
    def read(self) -> None:
        stored = self.run(self.store.read(KEY))
        assert (stored is None) == (self.epoch == 0)
        if stored is not None:
            assert (stored.commits(), bool(stored.meta.token)) == (self.expected, self.is_owned)

    @precondition(lambda self: len(self.claims) > 1)
    @rule()
    def release_a_fenced_claim(self) -> None:
        self.run(self.store.release(self.claims[-2]))

    @rule()
    def release(self) -> None:
        self.run(self.store.release(self.claims[-1]))
        if self.is_owned and not self.engine.durable:
            self.forget()
        self.is_owned = False

    @rule()
    def delete(self) -> None:
        assert self.run(self.store.delete(KEY.subject)) == (self.epoch > 0)
        self.forget()


def test_random_histories_are_those_of_a_list(engine: Engine) -> None:
    run_state_machine_as_test(
        lambda: History(engine),  # type: ignore[arg-type]  # any callable that makes one
        settings=settings(max_examples=30, stateful_step_count=30, deadline=None),
    )
