"""The traits of a client's events over the wire: who may send it, and whether it is recorded."""

from __future__ import annotations

import pytest
from protocol_schema import EVENTS, Event

from conductor.events import client
from conductor.events.server import CAPABILITIES
from conductor.models.base import TextDelta
from tests.app import App
from tests.models import ScriptedProvider
from tests.server.wires import until
from tests.serving import serving

SENT = [event for event in EVENTS if issubclass(event.struct, client.FromClient)]
GUARDED = [event for event in SENT if getattr(event.struct, "CAPABILITY", "")]
NOT_RECORDED = ("session.start", "session.update")  # answered by events of their own


def provider() -> ScriptedProvider:
    return ScriptedProvider([[TextDelta("Hello.")]] * 3)


def acked(phone: App) -> list[str]:
    return [event_id for event in phone.events("event.ack") for event_id in event["payload"]["eventIds"]]


@pytest.mark.parametrize("event", GUARDED, ids=lambda event: event.type)
async def test_an_event_without_its_capability_has_no_effect(event: Event) -> None:
    others = [name for name in CAPABILITIES if name != getattr(event.struct, "CAPABILITY", "")]
    async with serving(provider()) as served, served.phone(start_fields={"capabilities": others}) as phone:
        (session,) = served.listener.registry.sessions
        revision = session.state.revision
        event_id = phone.send(event.type, event.example["payload"])
        told = await phone.until("diagnostic", code="missing_capability")
        assert told["payload"]["eventId"] == event_id
        assert session.state.revision == revision


@pytest.mark.parametrize(
    "event", [event for event in SENT if event.type not in NOT_RECORDED], ids=lambda event: event.type
)
async def test_an_event_is_acknowledged_if_it_is_one_that_is_recorded(event: Event) -> None:
    fields = {"capabilities": list(CAPABILITIES)}
    async with serving(provider()) as served, served.phone(start_fields=fields) as phone:
        event_id = phone.send(event.type, event.example["payload"])
        last = phone.say("hello")
        await until(lambda: last in acked(phone))
        assert (event_id in acked(phone)) == getattr(event.struct, "RECORDED", False)
