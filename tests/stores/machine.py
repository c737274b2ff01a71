"""Random histories of a store, compared with a simple model.

The model applies one operation at a time; the store must give the same answers and the same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from conductor.errors import Conflict, Duplicate, Fenced, StoreError
from conductor.messages import AssistantMessage, Message, ToolResult, UserMessage
from conductor.stores.base import (
    AckOutbound,
    Amendment,
    AppendLog,
    Claim,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    PutOutbound,
    RememberInbound,
    SessionStore,
    SetField,
    TrimLog,
)
from conductor.stores.records import SNAPSHOT_COMMITS
from tests.stores.contract import KEY, call, outbound

names = st.sampled_from(["a", "b", "c"])
words = st.sampled_from(["", "x", "y"])
operations = st.one_of(
    words.map(lambda text: AppendLog(UserMessage(text))),
    words.map(lambda text: AppendLog(AssistantMessage(text))),
    st.builds(Amendment, st.integers(0, 6), words).map(AppendLog),
    st.integers(0, 3).map(TrimLog),
    names.map(lambda name: OpenCall(call(name))),
    st.builds(lambda name, text: FinishCall(name, ToolResult(name, text)), names, words),
    names.map(ForgetCall),
    names.map(RememberInbound),
    names.map(lambda name: PutOutbound(outbound(name))),
    names.map(AckOutbound),
    st.builds(SetField, names, words),
)


class _RepeatedError(Exception):
    pass


@dataclass
class Model:
    """The expected state; the log is a dict by position."""

    log: dict[int, Message] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    calls: dict[str, str | None] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    outbound: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(
            dict(self.log),
            self.start,
            self.end,
            dict(self.calls),
            list(self.seen),
            list(self.outbound),
            dict(self.fields),
        )

    def commit(self, batch: Sequence[Operation]) -> type[StoreError] | None:
        """Apply some operations; half of them where one is a duplicate, so use a copy."""
        try:
            for operation in batch:
                self.apply_to_log(operation)
                self.apply_elsewhere(operation)
        except _RepeatedError:
            return Duplicate
        return None

    def apply_to_log(self, operation: Operation) -> None:
        match operation:
            case AppendLog(Amendment(position=position, text=text)):
                message = self.log.get(position)
                if isinstance(message, AssistantMessage):
                    self.log[position] = AssistantMessage(text)
            case AppendLog(entry):
                assert not isinstance(entry, Amendment)
                self.log[self.end] = entry
                self.end += 1
            case TrimLog(before):
                self.log = {at: message for at, message in self.log.items() if at >= before}
                self.start = max(self.start, before)
                self.end = max(self.end, before)

    def apply_elsewhere(self, operation: Operation) -> None:
        match operation:
            case OpenCall(record):
                self._refuse_if(record.call_id in self.calls)
                self.calls[record.call_id] = None
            case FinishCall(name, result):
                self._refuse_if(self.calls.get(name, "unknown") is not None)
                self.calls[name] = result.content
            case ForgetCall(name):
                self.calls.pop(name, None)
            case RememberInbound(name):
                self._refuse_if(name in self.seen)
                self.seen.append(name)
            case PutOutbound(event):
                if event.event_id not in self.outbound:
                    self.outbound.append(event.event_id)
            case AckOutbound(name):
                self.outbound = [event_id for event_id in self.outbound if event_id != name]
            case SetField(name, value):
                self.fields = {key: old for key, old in self.fields.items() if key != name}
                self.fields |= {name: value} if value else {}

    @staticmethod
    def _refuse_if(repeated: bool) -> None:
        if repeated:
            raise _RepeatedError


class StoreMachine(RuleBasedStateMachine):
    """The machine; a subclass makes the store. Memory forgets a session on its release."""

    make_store: ClassVar[Callable[[], SessionStore]]
    forgets_on_release: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = type(self).make_store()
        self.model = Model()
        self.claims: list[Claim] = []
        self.epoch = 0
        self.revision = 0
        self.owned = False
        self.last: tuple[str, Sequence[Operation]] | None = None
        self.before: Claim | None = None
        self.commits = 0

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.aclose())
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
        assert (claim.epoch, claim.revision) == (self.epoch, self.revision)
        self.claims.append(claim)
        self.owned = True
        self.agrees(claim)

    def agrees(self, claim: Claim) -> None:
        state, model = claim.state, self.model
        assert state.log == [model.log[at] for at in sorted(model.log)]
        assert (state.log_start, state.log_end) == (model.start, model.end)
        results = {key: record.result and record.result.content for key, record in state.calls.items()}
        assert results == model.calls
        assert list(state.seen) == model.seen
        assert list(state.outbound) == model.outbound
        assert state.fields == model.fields

    @rule(
        batch=st.lists(operations, max_size=6),
        which=st.sampled_from([-1, -1, -1, -2]),
        behind=st.sampled_from([0, 0, 0, 1]),
    )
    def commit(self, batch: list[Operation], which: int, behind: int) -> None:
        if len(self.claims) < -which:
            return
        self.commits += 1
        commit_id = f"commit-{self.commits}"
        claim = self.claims[which]
        stale = replace(claim, revision=claim.revision - behind) if behind else claim
        model = self.model.copy()
        expected: type[StoreError] | None = model.commit(batch)
        if which != -1 or not self.owned:
            expected = Fenced
        elif behind:
            expected = Conflict
        before = deepcopy(claim)
        try:
            self.run(self.store.commit(stale, commit_id, batch))
        except StoreError as error:
            assert type(error) is expected
            return
        assert expected is None
        self.model, self.last, self.before = model, (commit_id, batch), before
        self.revision += 1
        assert claim.revision == self.revision
        self.agrees(claim)

    @rule()
    def write_a_snapshot_next(self) -> None:
        self.claims[-1].commits = SNAPSHOT_COMMITS

    @precondition(lambda self: self.owned and self.last is not None)
    @rule(behind=st.booleans())
    def retry(self, behind: bool) -> None:
        """Repeat the last commit; ``behind``: its reply was lost."""
        assert self.last is not None and self.before is not None
        claim = deepcopy(self.before) if behind else self.claims[-1]
        claim.token = self.claims[-1].token
        self.run(self.store.commit(claim, *self.last))
        assert claim.revision == self.revision
        self.agrees(claim)

    @precondition(lambda self: len(self.claims) > 1)
    @rule()
    def release_a_fenced_claim(self) -> None:
        self.run(self.store.release(self.claims[-2]))

    @rule()
    def release(self) -> None:
        self.run(self.store.release(self.claims[-1]))
        if self.forgets_on_release and self.owned:
            self.model, self.epoch, self.revision, self.last = Model(), 0, 0, None
        self.owned = False
