"""Daily budgets: of a person, of cut replies, and of two processes over one store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec
import pytest

from conductor.errors import BudgetSpent, ModelError, StoreUnavailable
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, Usage
from conductor.models.budget import DAY_S, Amount, BudgetedProvider, DailyBudget
from conductor.server.auth import person_id
from conductor.session.fields import SubjectRecords
from conductor.stores.base import Claim, SessionKey
from conductor.stores.memory import MemoryStore
from tests.models import ScriptedProvider

REPLY: list[TextDelta | Finished] = [
    TextDelta("Hi."),
    Finished("end_turn", Usage(40, 50, 1_000, 20), cost=0.5),
]
REQUEST = ModelRequest("system", [])
ADA, BOB = (person_id("shop", name) for name in ("ada", "bob"))
STRANGER = person_id("bank", "ada")


class Clock:
    """Epoch seconds that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0 * DAY_S

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Records(SubjectRecords):
    """Notes a write, and fails as long as it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, "$spent")
        self.written = asyncio.Event()
        self.is_away = False

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None:
        self.written.set()
        if self.is_away:
            raise StoreUnavailable("away")
        await super().update(subject, name, change)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def budget(store: MemoryStore, clock: Clock) -> AsyncIterator[DailyBudget]:
    budget = DailyBudget(Amount(200, 2.0), Records(store), clock)
    yield budget
    await budget.aclose()


async def reply(provider: BudgetedProvider, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with aclosing(provider.stream(request)) as events:
        return [event async for event in events]


async def test_a_spent_budget_sends_no_request(budget: DailyBudget) -> None:
    inner = ScriptedProvider(lambda _: REPLY)
    provider = BudgetedProvider(inner, budget, ADA)
    for _ in range(2):
        assert await reply(provider) == REPLY
    with pytest.raises(BudgetSpent):
        await reply(provider)
    assert len(inner.requests) == 2
    assert await reply(BudgetedProvider(inner, budget, BOB)) == REPLY


async def test_money_counts_as_tokens_do(budget: DailyBudget) -> None:
    budget.spend(ADA, 1, 1.5)
    assert not await budget.is_spent(BOB)
    assert not await budget.is_spent(ADA)
    budget.spend(ADA, 1, 0.5)
    assert await budget.is_spent(ADA)


async def test_a_budget_is_of_one_day(budget: DailyBudget, clock: Clock) -> None:
    budget.spend(ADA, 200, 0.0)
    clock.time += DAY_S - 0.001
    assert await budget.is_spent(ADA) and not await budget.is_spent(BOB)
    clock.time = 101.0 * DAY_S
    assert not await budget.is_spent(ADA)
    budget.spend(ADA, 200, 0.0)
    clock.time = 100.0 * DAY_S
    assert await budget.is_spent(ADA), "a clock that is put back gives nothing back"


async def test_two_processes_and_a_restart_share_a_budget(store: MemoryStore, clock: Clock) -> None:
    def process() -> DailyBudget:
        return DailyBudget(Amount(300), Records(store), clock)

    first, second = process(), process()
    assert not await first.is_spent(ADA) and not await second.is_spent(ADA)
    first.spend(ADA, 150, 0.0)
    second.spend(ADA, 150, 0.0)
    await asyncio.gather(first.aclose(), second.aclose())
    clock.time += 5.0
    for budget in (first, second, process()):
        assert await budget.is_spent(ADA) and not await budget.is_spent(STRANGER)


async def test_replies_are_written_together_and_again_after_a_failure(clock: Clock) -> None:
    records = Records(MemoryStore())
    budget = DailyBudget(Amount(100), records, clock, write_s=0.01)
    records.is_away = True
    for _ in range(10):
        budget.spend(ADA, 10, 0.0)
    await records.written.wait()
    assert await budget.is_spent(ADA), "what is not written counts"
    records.is_away = False
    await budget.aclose()
    clock.time += 5.0
    assert await DailyBudget(Amount(100), records, clock).is_spent(ADA)


async def test_what_is_on_its_way_to_the_store_counts(store: MemoryStore, clock: Clock) -> None:
    records = Records(store)
    arrived, go = asyncio.Event(), asyncio.Event()
    claim = store.claim

    async def slow(key: SessionKey) -> Claim:
        arrived.set()
        await go.wait()
        return await claim(key)

    store.claim = slow  # type: ignore[method-assign] # a store that takes its time
    budget = DailyBudget(Amount(100), records, clock, write_s=0.0)
    budget.spend(ADA, 100, 0.0)
    await arrived.wait()
    assert await budget.is_spent(ADA)
    go.set()
    await budget.aclose()
    assert await budget.is_spent(ADA)


async def test_two_replies_at_once_share_what_is_left(budget: DailyBudget) -> None:
    hold = asyncio.Event()
    inner = ScriptedProvider(lambda _: [hold, *REPLY])
    request = ModelRequest("x" * 700, [])  # 200 tokens
    first = asyncio.create_task(reply(BudgetedProvider(inner, budget, ADA), request))
    await inner.record(0).started.wait()
    with pytest.raises(BudgetSpent):
        await reply(BudgetedProvider(inner, budget, ADA), request)
    hold.set()
    assert await first == REPLY
    assert not await budget.is_spent(ADA), "only what was used counts in the end"


async def test_a_warming_counts_what_it_writes_to_the_cache(budget: DailyBudget) -> None:
    class Warmer(ScriptedProvider):
        async def warm(self, request: ModelRequest) -> Finished:
            return Finished("max_tokens", Usage(0, 0, 5, 200))

    await BudgetedProvider(Warmer([]), budget, ADA).warm(REQUEST)
    assert await budget.is_spent(ADA)


@pytest.mark.parametrize("days", [2, 400])
async def test_a_clock_that_was_ahead_counts_once_and_not_for_ever(
    store: MemoryStore, clock: Clock, days: int
) -> None:
    clock.time += days * DAY_S
    wrong = DailyBudget(Amount(200), Records(store), clock)
    wrong.spend(ADA, 200, 0.0)
    await wrong.aclose()
    clock.time -= days * DAY_S
    for budget in (wrong, DailyBudget(Amount(200), Records(store), clock)):
        assert await budget.is_spent(ADA), "it was used"
        await budget.aclose()
    clock.time += DAY_S
    for budget in (wrong, DailyBudget(Amount(200), Records(store), clock)):
        assert not await budget.is_spent(ADA)
        budget.spend(ADA, 100, 0.0)
        await budget.aclose()
    assert await DailyBudget(Amount(200), Records(store), clock).is_spent(ADA)


class Process:
    """A process of the ledger's test: a budget, and a provider of each person."""

    def __init__(self, store: MemoryStore, clock: Clock, use: Callable[[], Usage]) -> None:
        self.records = Records(store)
        self.budget = DailyBudget(Amount(10**9), self.records, clock, write_s=0.0)
        inner = ScriptedProvider(lambda _: [TextDelta("Hi."), Finished("end_turn", use())])
        self.providers = {name: BudgetedProvider(inner, self.budget, name) for name in (ADA, BOB, STRANGER)}


@pytest.mark.parametrize("seed", range(5))
async def test_a_budget_equals_the_ledger_of_usage_to_the_token(seed: int, store: MemoryStore) -> None:
    rng, clock, used = random.Random(seed), Clock(), list[Usage]()

    def use() -> Usage:
        used.append(Usage(*(rng.randrange(5_000) for _ in range(4))))
        return used[-1]

    processes = [Process(store, clock, use) for _ in range(3)]
    for _ in range(4):  # days
        ledger = Counter[str]()
        for _ in range(30):
            clock.time += rng.uniform(0, DAY_S / 40)
            name = rng.choice((ADA, BOB, STRANGER))
            replies = [rng.choice(processes).providers[name] for _ in range(rng.randint(1, 3))]
            used.clear()
            await asyncio.gather(*map(reply, replies))
            count = sum(usage.input_tokens + usage.cache_write_tokens + usage.output_tokens for usage in used)
            ledger += Counter({name: count})
            if rng.random() < 0.2:  # a restart
                number = rng.randrange(3)
                await processes[number].budget.aclose()
                processes[number] = Process(store, clock, use)
        await asyncio.gather(*(process.budget.aclose() for process in processes))
        processes = [Process(store, clock, use) for _ in range(3)]
        for name, count in ledger.items():
            await processes[0].records.load(name)
            spent = msgspec.json.decode(processes[0].records.get(name, "spent"), type=Amount)
            assert (spent.tokens, spent.day) == (count, clock.time // DAY_S), f"seed {seed}, {name}"
        clock.time = (clock.time // DAY_S + 1) * DAY_S


class Reconnector(ScriptedProvider):
    """Keeps its streams, so that only closing one ends it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.opened = super().stream(request)
        return self.opened


async def test_closing_the_reply_closes_the_request_and_counts_it(budget: DailyBudget, clock: Clock) -> None:
    inner = Reconnector(lambda _: [TextDelta("word " * 140), *REPLY])
    async with aclosing(BudgetedProvider(inner, budget, ADA).stream(REQUEST)) as events:
        await anext(events)
    assert inner.record(0).closed.is_set()
    assert await budget.is_spent(ADA), "700 characters are 200 tokens"


async def test_a_cut_reply_reads_as_much_as_the_one_before(budget: DailyBudget) -> None:
    provider = BudgetedProvider(ScriptedProvider(lambda _: REPLY), budget, ADA)
    await reply(provider)  # 110
    for expected in (False, True):  # 60 and a word each
        async with aclosing(provider.stream(REQUEST)) as events:
            await anext(events)
        assert await budget.is_spent(ADA) is expected


async def test_a_request_that_fails_at_once_costs_nothing(budget: DailyBudget) -> None:
    inner = ScriptedProvider(lambda _: [ModelError("connection", "No.")])
    long = ModelRequest("x" * 10_000, [])
    with pytest.raises(ModelError):
        async with aclosing(BudgetedProvider(inner, budget, ADA).stream(long)) as events:
            await anext(events)
    assert not await budget.is_spent(ADA)
