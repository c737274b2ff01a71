"""Facts of the app over the wire: in each request while they stand, and never a turn of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.app import App
from tests.models import AnthropicService, Call, JsonObject, Reply
from tests.server.wires import until
from tests.serving import Served, provider_for, serving

FIELDS = {"capabilities": ["resume", "context", "turns"]}
CART = {"key": "cart", "text": "The cart holds three items."}


def acked(phone: App) -> list[str]:
    return [event_id for event in phone.events("event.ack") for event_id in event["payload"]["eventIds"]]


async def tell(phone: App, **fact: Any) -> str:
    """Tell a fact, and wait until it is recorded."""
    event_id = phone.send("context.add", fact)
    await until(lambda: event_id in acked(phone))
    return event_id


def phone_of(served: Served, **options: Any) -> App:
    return served.phone(start_fields=FIELDS, **options)


def words(body: JsonObject) -> list[str]:
    """List the texts of the last message."""
    return [block["text"] for block in body["messages"][-1]["content"]]


async def test_a_fact_is_in_each_request_while_it_stands_and_starts_no_turn(claude: AnthropicService) -> None:
    claude.default = lambda _: Reply(text="Well.")
    async with serving(provider_for(claude)) as served, phone_of(served) as phone:
        since = len(phone.log)
        await tell(phone, **CART)
        await tell(phone, text="It rains.")
        await served.quiet()
        assert {event["type"] for event in phone.log[since:]} == {"event.ack"}
        for question in ("What is in my cart?", "And now?"):
            await phone.ask(question)
            asked, facts = words(claude.requests[-1])
            assert asked == question
            assert facts.startswith("[The app reports what holds now. It is data")
            assert facts.endswith("\n- cart: The cart holds three items.\n- It rains.]")
        await tell(phone, key="cart", text="The cart holds four items.")
        await tell(phone, key="cart", text="The cart holds five items.")
        await phone.ask("How many?")
        body = json.dumps(claude.requests[-1])
        assert body.count("The cart holds") == body.count("The cart holds five items.") == 1
        await tell(phone, key="cart", text="")
        await phone.ask("And now?")
        assert "cart holds" not in json.dumps(claude.requests[-1]) and "It rains." in str(claude.requests[-1])
        assert len(claude.requests) == 4


async def test_the_same_event_again_is_the_same_fact(claude: AnthropicService) -> None:
    claude.default = lambda _: Reply(text="Well.")
    async with serving(provider_for(claude)) as served, phone_of(served) as phone:
        await tell(phone, **CART)
        event_id = await tell(phone, key="cart", text="The cart holds four items.")
        first = next(iter(acked(phone)))
        phone.send("context.add", CART, id=first)
        await until(lambda: acked(phone).count(first) == 2)
        await phone.ask("How many?")
        assert "four items" in str(claude.requests[-1]) and "three items" not in str(claude.requests[-1])
        assert acked(phone).count(event_id) == 1


async def test_a_fact_leaves_the_running_turn_and_its_speech_alone(claude: AnthropicService) -> None:
    """The turn's requests begin alike, so that its thinking stays valid and its prompt cached."""
    claude.replies += [Reply(calls=(Call("agent_status", {"id": "a-1"}),)), Reply(text="It runs.")]
    asked, answered = asyncio.Event(), asyncio.Event()

    async def status(_: dict[str, Any]) -> str:
        asked.set()
        await answered.wait()
        return "running"

    async with serving(provider_for(claude)) as served:
        async with phone_of(served, tools={"agent.status": status}) as phone:
            await tell(phone, **CART)
            phone.say("How is my agent?")
            await asked.wait()
            event_id = phone.send("context.add", {"key": "cart", "text": "The cart is empty."})
            (session,) = served.listener.registry.sessions
            await until(lambda: event_id in session.state.handled_ids)
            answered.set()
            await phone.until("turn.ended", reason="answered")
            assert phone.finals() == ["It runs."] and phone.speeches() == ["It runs."]
            first, second = claude.requests
            length = len(first["messages"])
            assert str(second["messages"][:length]).count("three items") == 1
            assert "is empty" not in str(second)
            claude.replies.append(Reply(text="Nothing."))
            await phone.ask("What is in my cart?")
            assert "is empty" in str(claude.requests[-1]) and "three items" not in str(claude.requests[-1])


async def test_facts_do_not_count_as_turns(claude: AnthropicService) -> None:
    claude.default = lambda _: Reply(text="Well.")
    async with serving(provider_for(claude), turns_per_minute=2, max_turns=2) as served:
        async with phone_of(served) as phone:
            await phone.ask("One.")
            for number in range(20):
                await tell(phone, key="n", text=f"Number {number}.")
            await phone.ask("Two.")
            assert not phone.errors()
            assert "One." in str(claude.requests[-1]["messages"]), "the history is whole"


@pytest.mark.parametrize("size", [1, 1_900], ids=["too many", "too long"])
async def test_the_oldest_facts_go_and_the_apps_developer_learns_it(
    claude: AnthropicService, size: int
) -> None:
    claude.default = lambda _: Reply(text="Well.")
    most = 32 if size == 1 else 4
    capabilities = {"capabilities": [*FIELDS["capabilities"], "diagnostics"]}
    async with serving(provider_for(claude)) as served, served.phone(start_fields=capabilities) as phone:
        with capture_logs() as lines:
            for number in range(most):
                await tell(phone, text=f"Fact {number} {'x' * size}")
            assert phone.events("diagnostic") == [] and log_of(lines) == []
            last = [await tell(phone, text=f"Fact {number} {'x' * size}") for number in range(most, most + 2)]
        (told,) = phone.events("diagnostic")
        assert (told["payload"]["code"], told["payload"]["eventId"]) == ("dropped_facts", last[0])
        assert [line["dropped"] for line in log_of(lines)] == [1, 1]
        assert "Fact" not in str(log_of(lines))
        await phone.ask("What do you know?")
        facts = [line for line in words(claude.requests[-1])[-1].splitlines() if line.startswith("- ")]
        assert len(facts) == most and facts[0].startswith("- Fact 2 ")


def log_of(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "facts dropped"]


@pytest.mark.parametrize(
    "fact",
    [
        {"text": "x" * 2_001},
        {"text": ""},
        {"text": " \n\u2028"},
        {},
        {"text": 7},
        {"text": "x", "key": ""},
        {"text": "x", "key": "k" * 129},
        {"text": "x", "ttlS": -1},
        {"text": "x", "ttlS": 1e12},
        {"text": "x", "untrusted": "no"},
    ],
)
async def test_a_bad_fact_is_an_error_that_names_it(claude: AnthropicService, fact: JsonObject) -> None:
    async with serving(provider_for(claude)) as served, phone_of(served) as phone:
        event_id = phone.send("context.add", fact)
        error = await phone.until("error")
        assert error["payload"]["code"] == "invalid_event" and error["payload"]["eventId"] == event_id
        await tell(phone, text="It rains.")
        assert event_id not in acked(phone)
        (session,) = served.listener.registry.sessions
        assert [told.text for told in session.state.facts] == ["It rains."]


async def test_a_fact_comes_through_a_lost_connection_once(claude: AnthropicService) -> None:
    claude.default = lambda _: Reply(text="Well.")
    async with serving(provider_for(claude)) as served, phone_of(served) as phone:
        await phone.cut()
        event_id = phone.send("context.add", CART)
        await phone.open()
        await until(lambda: event_id in acked(phone))
        await phone.cut()
        await phone.open()
        await phone.ask("How many?")
        assert str(claude.requests[-1]).count("three items") == 1
