"""When the prompt cache of the model's service is warmed, and that nothing waits for it; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from conductor.errors import ModelError
from conductor.events import client
from conductor.messages import AssistantMessage, UserMessage
from conductor.models.base import CACHE_S, Finished, ModelRequest, TextDelta, Usage
from conductor.models.budget import Amount, BudgetedProvider, DailyBudget
from conductor.session.fields import SubjectRecords
from conductor.stores.memory import MemoryStore
from tests.models import ScriptedProvider
from tests.session.helpers import (
    Disk,
    Stage,
    later,
    loose_ends,
    make_services,
    open_stage,
    steps,
)


class Service(ScriptedProvider):
    """A service with a prompt cache; ``warmed`` are the requests that only fill it."""

    def __init__(self, answer: Callable[[], Any] = lambda: None) -> None:
        super().__init__(lambda request: [TextDelta("Yes.")])
        self.warmed: list[ModelRequest] = []
        self._answer = answer

    async def warm(self, request: ModelRequest) -> Finished | None:
        self.warmed.append(request)
        answer = self._answer()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        elif isinstance(answer, ModelError):
            raise answer
        return Finished("max_tokens", Usage(1, 0, 2, 3))


def speaks(stage: Stage) -> None:
    stage.app.line.say(client.TranscriptPartial("and"))


async def test_the_cache_is_warmed_once_in_its_lifetime() -> None:
    service = Service()
    stage = await open_stage(make_services(service))
    await steps(5)
    (start,) = service.warmed
    assert (start.system, list(start.messages)) == ("Be brief.", [])
    assert start.tools and start.max_tokens is None
    # It is warm, by the start and by the turns.
    speaks(stage)
    await stage.ask("Hello")
    await later(CACHE_S - 1)
    speaks(stage)
    await stage.ask("And?")
    await later(CACHE_S - 1)
    speaks(stage)
    await steps(5)
    assert len(service.warmed) == 1
    await later(2)
    speaks(stage)
    speaks(stage)
    await steps(5)
    messages = [UserMessage("Hello"), AssistantMessage(text="Yes.", provider="scripted")]
    assert list(service.warmed[1].messages)[:2] == messages and len(service.warmed) == 2
    await stage.ask("And now?")
    assert (service.requests[2].system, service.requests[2].tools) == (start.system, start.tools)
    assert list(service.requests[2].messages)[:-1] == list(service.warmed[1].messages)
    count = stage.services.model_metrics.registry.get_sample_value
    assert count("conductor_model_cache_warmings_total", {"profile": "scripted"}) == 2
    assert count("conductor_model_tokens_total", {"profile": "scripted", "kind": "cache_write"}) == 6
    assert stage.services.model_metrics.totals["replies"] == 3


async def test_the_history_of_a_resumed_session_is_warmed_when_its_person_speaks() -> None:
    service = Service()
    services = make_services(service, store=Disk())
    stage = await open_stage(services, say="Hello")
    await stage.quiet()
    await stage.session.close()
    two = await open_stage(services)
    await steps(5)
    assert [len(request.messages) for request in service.warmed] == [0, 0]
    speaks(two)
    await later(1)
    assert [len(request.messages) for request in service.warmed] == [0, 0, 2]


async def test_a_turn_does_not_wait_for_warming_and_closing_cancels_it() -> None:
    stage = await open_stage(make_services(Service(asyncio.Event)), say="Hello")
    await stage.app.until("assistant.speech.final")
    await later(5)
    assert stage.app.finals() == ["Yes."] and not stage.session.busy
    assert loose_ends(stage.session) == {"tasks": 1}
    await stage.session.close()
    assert loose_ends(stage.session) == {}


async def test_a_failed_warming_changes_nothing() -> None:
    stage = await open_stage(make_services(Service(lambda: ModelError("overloaded", "No."))), say="Hello")
    await stage.quiet()
    assert stage.app.finals() == ["Yes."] and not stage.app.error_codes()


async def test_a_spent_budget_prevents_warming() -> None:
    service = Service()
    budget = DailyBudget(Amount(10), SubjectRecords(MemoryStore(), "$spent"))
    provider = BudgetedProvider(service, budget, "anna")
    request = ModelRequest("", [])
    assert await provider.warm(request) is not None
    budget.spend("anna", 9, 0.0)
    assert await provider.warm(request) is None and len(service.warmed) == 1
    await budget.aclose()
