"""A model provider with a subject's daily budget of tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from conductor.errors import BudgetSpent
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, warm
from conductor.rate_limit import DailyBudget


class BudgetedProvider:
    """Delegates to ``provider`` while the ``subject`` has tokens left, and spends them."""

    def __init__(self, provider: ModelProvider, budget: DailyBudget, subject: str) -> None:
        self.name = provider.name
        self._provider = provider
        self._budget = budget
        self._subject = subject

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply. Raises `BudgetSpent`, and the provider's errors."""
        if self._budget.is_spent(self._subject):
            raise BudgetSpent("The tokens of this day are used up.")
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                # A reply that was cut short has no usage.
                if isinstance(event, Finished):
                    self._budget.spend(self._subject, event.usage.input_tokens + event.usage.output_tokens)
                yield event

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached (`base.CacheWarmer`), while there are tokens left."""
        if self._budget.is_spent(self._subject):
            return None
        finished = await warm(self._provider, request)
        if finished is not None:
            self._budget.spend(self._subject, finished.usage.input_tokens)
        return finished

    async def start(self) -> None:
        """Prepare the provider."""
        await self._provider.start()

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()
