"""Daily budgets of people, and a model provider within them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec
import structlog

from conductor.errors import BudgetSpent, ModelError, StoreError
from conductor.models.base import (
    CHARS_PER_TOKEN,
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    TextDelta,
    Usage,
    warm,
)
from conductor.models.router import ModelRouter

log = structlog.get_logger(__name__)

DAY_S = 86_400
# Seconds from a reply to its record, and for which a record that was read is current.
WRITE_S = 5.0
_FIELD = "spent"
# People whose time of reading is kept.
_MAX_READ = 1_000


class Records(Protocol):
    """The records of people, as `conductor.session.fields.SubjectRecords`."""

    def get(self, subject: str, name: str) -> str: ...

    def forget(self, subject: str) -> None: ...

    async def load(self, subject: str) -> None: ...

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None: ...


class Amount(msgspec.Struct, frozen=True):
    """The use of a ``day`` since the epoch; as a limit, 0 is unlimited."""

    tokens: int = 0
    cost: float = 0.0
    day: int = 0

    def plus(self, other: Amount, today: int) -> Amount:
        """Add an amount; of two days the later one counts.

        An amount of tomorrow comes of a process whose clock is ahead, and today's is added to it. One of a
        later day comes of a clock that was wrong, and counts today.
        """
        mine, others = self.dated(today), other.dated(today)
        if mine.day != others.day and min(mine.day, others.day) < today:
            return max(mine, others, key=lambda amount: amount.day)
        return Amount(mine.tokens + others.tokens, mine.cost + others.cost, max(mine.day, others.day))

    def dated(self, today: int) -> Amount:
        """Correct the day of a clock that was wrong."""
        return self if self.day <= today + 1 else Amount(self.tokens, self.cost, today)

    def reaches(self, limit: Amount) -> bool:
        """Return whether a limit is used up."""
        return 0 < limit.tokens <= self.tokens or 0 < limit.cost <= self.cost


class DailyBudget:
    """Limits the use of each person in a day, which starts at midnight UTC.

    Amounts count at the end of a reply; while it runs, its estimate does, so that replies at once share what
    is left. The last reply may exceed a limit. ``records`` keep the amounts across processes and restarts:
    written ``write_s`` seconds after a reply, and read again at that age. ``now`` returns epoch seconds.
    """

    def __init__(
        self,
        limit: Amount,
        records: Records,
        now: Callable[[], float] = time.time,
        write_s: float = WRITE_S,
    ) -> None:
        self._limit = limit
        self._records = records
        self._now = now
        self._write_s = write_s
        self._read_at: dict[str, float] = {}
        self._unwritten: dict[str, Amount] = {}
        self._written: dict[str, Amount] = {}  # on its way to the records
        self._running: dict[str, list[Amount]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._writing = asyncio.Lock()

    async def is_spent(self, subject: str) -> bool:
        """Return whether the person has used up today's budget, with the replies that run."""
        await self._read(subject)
        # Without a wait from here on: the caller may begin a reply at once.
        return self._spent(subject).reaches(self._limit)

    async def _read(self, subject: str) -> None:
        # A clock that is set back makes the age negative.
        if 0.0 <= self._now() - self._read_at.get(subject, float("-inf")) < self._write_s:
            return
        if len(self._read_at) >= _MAX_READ:
            for read in self._read_at:
                self._records.forget(read)
            self._read_at.clear()
        with suppress(StoreError):  # the turn itself reports a store that is away
            await self._records.load(subject)
            self._read_at[subject] = self._now()
        if _decode(self._records.get(subject, _FIELD)).day > self._today + 1:
            self._add(subject, Amount(day=self._today))  # to write the right day

    def _spent(self, subject: str) -> Amount:
        # A clock that is set back must not reset the budget: the later day counts.
        spent, nothing = Amount(day=self._today), Amount()
        written, unwritten = self._written.get(subject, nothing), self._unwritten.get(subject, nothing)
        for amount in (_decode(self._records.get(subject, _FIELD)), written, unwritten):
            spent = spent.plus(amount, self._today)
        for estimate in self._running.get(subject, ()):
            spent = Amount(spent.tokens + estimate.tokens, spent.cost + estimate.cost, spent.day)
        return spent

    def spend(self, subject: str, tokens: int, cost: float) -> None:
        """Count the use of a reply."""
        self._add(subject, Amount(tokens, cost, self._today))

    @contextmanager
    def running(self, subject: str, tokens: int, cost: float) -> Iterator[None]:
        """Count the estimate of a reply during the block."""
        estimate = Amount(tokens, cost)
        self._running.setdefault(subject, []).append(estimate)
        try:
            yield
        finally:
            self._running[subject].remove(estimate)
            if not self._running[subject]:
                del self._running[subject]

    async def forget(self, subject: str) -> None:
        """Write nothing more of what a person has used, because the person is deleted."""
        async with self._writing:
            self._unwritten.pop(subject, None)
            self._read_at.pop(subject, None)

    async def aclose(self) -> None:
        """Write the amounts that are not written yet."""
        self._closing.set()
        if self._writer is not None:
            await self._writer

    @property
    def _today(self) -> int:
        return int(self._now() // DAY_S)

    def _add(self, subject: str, amount: Amount) -> None:
        self._unwritten[subject] = self._unwritten.get(subject, Amount()).plus(amount, self._today)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._unwritten:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._write_s)
            for subject in list(self._unwritten):
                async with self._writing:
                    await self._write_one(subject)
            if self._closing.is_set():
                return

    async def _write_one(self, subject: str) -> None:
        if subject not in self._unwritten:  # the person was deleted
            return
        amount = self._written[subject] = self._unwritten.pop(subject)
        try:
            await self._records.update(subject, _FIELD, partial(_added, amount, self._today))
        except StoreError as error:
            log.warning("spent budget not recorded", error=type(error).__name__)
            self._add(subject, amount)
        finally:
            del self._written[subject]


def _decode(text: str) -> Amount:
    return msgspec.json.decode(text, type=Amount) if text else Amount()


def _added(amount: Amount, today: int, text: str) -> str:
    return msgspec.json.encode(_decode(text).plus(amount, today)).decode()


def _counted(usage: Usage) -> int:
    """Return the tokens that count: what is read from a cache costs next to nothing."""
    return usage.input_tokens + usage.cache_write_tokens + usage.output_tokens


class BudgetedProvider:
    """Delegates to ``provider`` while the ``subject`` has a budget left, and spends it."""

    def __init__(self, provider: ModelProvider, budget: DailyBudget, subject: str) -> None:
        self.name = provider.name
        self._provider = provider
        self._budget = budget
        self._subject = subject
        self._usage: Usage | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply. Raises `BudgetSpent`, and the provider's errors."""
        if await self._budget.is_spent(self._subject):
            raise BudgetSpent("The budget of this day is used up.")
        size, is_open = 0, True
        before = self._estimate(request, 0)
        with self._budget.running(self._subject, _counted(before), self._cost(request, before)):
            try:
                async with aclosing(self._provider.stream(request)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            is_open, self._usage = False, event.usage
                            self._budget.spend(self._subject, _counted(event.usage), event.cost)
                        else:
                            size += len(event.text if isinstance(event, TextDelta) else event.arguments)
                        yield event
            except BaseException as error:
                # No usage comes of a reply that is cut off, and a request that failed costs nothing.
                if is_open and (size or not isinstance(error, ModelError)):
                    usage = self._estimate(request, size)
                    self._budget.spend(self._subject, _counted(usage), self._cost(request, usage))
                raise

    def _estimate(self, request: ModelRequest, size: int) -> Usage:
        """Estimate a reply of ``size`` characters; it read as much as the one before in this session."""
        usage = self._usage or Usage(int(len(f"{request.system}{request.messages}") / CHARS_PER_TOKEN))
        return replace(usage, output_tokens=int(size / CHARS_PER_TOKEN))

    def _cost(self, request: ModelRequest, usage: Usage) -> float:
        router = self._provider
        return router.cost(request, usage) if isinstance(router, ModelRouter) else 0.0

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached (`base.CacheWarmer`), while there is a budget left."""
        if await self._budget.is_spent(self._subject):
            return None
        finished = await warm(self._provider, request)
        if finished is not None:
            self._budget.spend(self._subject, _counted(finished.usage), finished.cost)
        return finished

    async def start(self) -> None:
        """Prepare the provider."""
        await self._provider.start()

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()
