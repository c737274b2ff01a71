"""A model within a daily budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from conductor.errors import BudgetSpent
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, Usage
from conductor.models.budget import BudgetedProvider
from conductor.rate_limit import DailyBudget
from tests.models import ScriptedProvider

REPLY: list[TextDelta | Finished] = [TextDelta("Hi."), Finished("end_turn", Usage(60, 50, 1_000, 1_000))]
REQUEST = ModelRequest("system", [])


async def reply(provider: BudgetedProvider) -> list[ModelEvent]:
    async with aclosing(provider.stream(REQUEST)) as events:
        return [event async for event in events]


async def test_a_spent_budget_sends_no_request() -> None:
    inner, budget = ScriptedProvider(lambda _: REPLY), DailyBudget(200)
    provider = BudgetedProvider(inner, budget, "one")
    for _ in range(2):
        assert await reply(provider) == REPLY
    with pytest.raises(BudgetSpent):
        await reply(provider)
    assert len(inner.requests) == 2
    assert await reply(BudgetedProvider(inner, budget, "other")) == REPLY


class Reconnector(ScriptedProvider):
    """Keeps its streams, so that only closing one ends it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.opened = super().stream(request)
        return self.opened


async def test_closing_the_reply_closes_the_request() -> None:
    inner = Reconnector(lambda _: REPLY)
    async with aclosing(BudgetedProvider(inner, DailyBudget(1), "one").stream(REQUEST)) as events:
        await anext(events)
    assert inner.record(0).closed.is_set()
