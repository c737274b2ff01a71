"""What a person hears of a turn that failed: when to come back, and the calls that ran."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conductor.conversation.phrases import in_about, name_for_the_ear
from conductor.errors import ModelError
from conductor.models.base import Finished, Usage
from conductor.models.budget import Amount, DailyBudget
from conductor.session.fields import SubjectRecords
from conductor.stores.memory import MemoryStore
from tests.models import Script, ScriptedProvider
from tests.session.helpers import call, make_services, open_stage
from tests.session.test_turn import silent_tools

BUSY = ModelError("rate_limited", "busy", retry_after=40.0)


async def heard_after(*scripts: Script, tool: str = "device.do") -> str:
    """Give the last words of a turn in which the device runs its tool."""
    stage = await open_stage(make_services(scripts), silent_tools, say="go")
    if len(scripts) > 1:
        running = await stage.app.until(tool)
        stage.app.result(running["payload"]["callId"], "did")
    await stage.quiet()
    assert stage.app.speeches() == stage.app.finals()
    return stage.app.speeches()[-1]


async def test_a_service_that_rests_is_not_waited_for_and_the_person_hears_when_to_come_back() -> None:
    words = await heard_after([BUSY])
    assert words == "Sorry, the language model's service is busy. Please try again in about 40 seconds."


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.1, "10 seconds"), (41, "50 seconds"), (90, "90 seconds"), (91, "2 minutes"), (300, "5 minutes")],
)
def test_a_time_is_said_as_people_say_it(seconds: float, words: str) -> None:
    assert in_about(seconds) == f"in about {words}"


@pytest.mark.parametrize("error", [ModelError("protocol", "no"), BUSY, ModelError("context_too_long", "no")])
async def test_after_a_call_that_changed_something_nobody_is_asked_to_try_again(error: ModelError) -> None:
    words = await heard_after([call("device.do")], [error], [error], [error])
    assert words == "This is done: device do. I could not finish my answer."


async def test_a_budget_that_is_spent_in_mid_turn_says_what_ran_before() -> None:
    model = ScriptedProvider([[call("device.do"), Finished("tool_use", Usage(0, 0, 0, 100))]])
    budget = DailyBudget(Amount(100), SubjectRecords(MemoryStore(), "$spent"))
    stage = await open_stage(replace(make_services(model), budget=budget), silent_tools, say="go")
    running = await stage.app.until("device.do")
    stage.app.result(running["payload"]["callId"], "did")
    await stage.quiet()
    assert stage.app.speeches() == [
        "This is done: device do. I could not finish my answer. "
        "Sorry, today's allowance is used up. Please come back tomorrow."
    ]
    await stage.ask("and now?")
    assert stage.app.speeches()[-1] == "Sorry, today's allowance is used up. Please come back tomorrow."
    await budget.aclose()


async def test_after_a_call_that_only_read_the_person_is_asked_to_try_again() -> None:
    words = await heard_after([call("device.look")], [ModelError("protocol", "no")], tool="device.look")
    assert words == "Sorry, I could not get an answer just now. Please try again."


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("note.delete", "note delete"),
        ("readFile", "read file"),
        ("getHTTP", "get http"),
        ("öffne_tür", "öffne tür"),
    ],
)
def test_a_tools_name_is_said_as_words(tool: str, words: str) -> None:
    assert name_for_the_ear(tool) == words
