"""Every event comes back from the codec as it was written."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.events import client, server
from conductor.events.codec import decode_event
from conductor.events.envelope import encode_event
from tests.events.events import CLIENT, SERVER, events_of

session_ids = st.text("abcXYZ019._:-", min_size=1, max_size=128)
event_ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)


def test_the_unions_hold_every_struct() -> None:
    assert set(typing.get_args(client.ClientEvent)) == set(CLIENT.values())
    assert set(typing.get_args(server.ServerEvent)) == set(SERVER.values())


@pytest.mark.parametrize("event_type", sorted(CLIENT))
@given(data=st.data(), event_id=event_ids, session_id=session_ids)
def test_an_event_of_the_client_comes_back_as_it_was_written(
    event_type: str, data: st.DataObject, event_id: str, session_id: str
) -> None:
    event = data.draw(events_of(CLIENT[event_type]))
    frame = encode_event(event_id, session_id, event)
    inbound = decode_event(frame)
    assert inbound.event == event and type(inbound.event) is CLIENT[event_type]
    assert (inbound.id, inbound.type, inbound.session_id) == (event_id, event_type, session_id)
    assert inbound.size == len(frame)


@pytest.mark.parametrize("event_type", sorted(SERVER))
@given(data=st.data())
def test_an_event_of_the_server_comes_back_as_it_was_written(event_type: str, data: st.DataObject) -> None:
    event = data.draw(events_of(SERVER[event_type]))
    read = json.loads(encode_event("e-1", "s-1", event))
    assert read["type"] == event_type
    assert msgspec.convert(read["payload"], SERVER[event_type]) == event


@pytest.mark.parametrize("event_type", sorted(SERVER))
def test_the_server_ignores_its_own_events(event_type: str) -> None:
    frame = json.dumps(
        {"id": "e", "type": event_type, "timestamp": "t", "sessionId": "s", "payload": {"any": 1}}
    )
    assert decode_event(frame.encode()).event is None
