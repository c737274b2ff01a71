"""Stored commits make the same states and events as when they were committed, at once or step by step."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.replay import (
    Moment,
    moments,
    plain_event,
    plain_moment,
    plain_state,
    read_commits,
    replay,
)
from conductor.conversation.state import Conversation, Event, Profile
from conductor.errors import StoreUnavailable
from conductor.messages import AssistantMessage, Message, UserMessage

AT = 1_772_366_400_123
COMMITS = (
    r.Commit(claim="node:1", at=AT, records=(r.Claimed("node:1"), r.InputQueued("in-1", "hello"))),
    r.Commit(
        claim="node:1",
        at=AT + 1,
        records=(r.TurnStarted(cause="transcript", limit_ms=30_000, event_id="in-1", text="hello"),),
    ),
    r.Commit(
        claim="node:1",
        at=AT + 2,
        records=(
            r.ReplyLogged(message=AssistantMessage(text="Hi."), speech_text="Hi."),
            r.TurnEnded(reason="answered"),
        ),
    ),
    r.Commit(claim="node:1", at=AT + 3),
    r.Commit(claim="node:2", at=AT + 4, records=(r.Claimed("node:2"), r.FieldSet("a", "b"))),
)
HELLO, HI, WHO = UserMessage("hello"), AssistantMessage(text="Hi."), UserMessage("Who?")
SNAPSHOT = r.Commit(claim="node:2", at=AT, state=Conversation(log=[WHO]))


def encoded(commits: tuple[r.Commit, ...]) -> list[bytes]:
    return [r.encode(commit) for commit in commits]


def test_each_record_has_its_events_and_the_state_after_it() -> None:
    state = Conversation()
    events: list[Event] = [event for commit in COMMITS for event in advance(state, commit)]
    stored = encoded(COMMITS)
    steps = [(moment.name, moment.number, moment.at - AT) for moment in moments(stored, len(stored))]
    assert steps == [
        ("Claimed", 1, 0),
        ("InputQueued", 2, 0),
        ("TurnStarted", 3, 1),
        ("ReplyLogged", 4, 2),
        ("TurnEnded", 5, 2),
        ("Claimed", 6, 4),
        ("FieldSet", 7, 4),
    ]
    assert [event for moment in moments(stored, len(stored)) for event in moment.events] == events
    states = [deepcopy(moment.state) for moment in moments(stored, len(stored))]
    assert states[-1] == replay(stored, len(stored)) == state
    assert [len(state.log) for state in states] == [0, 0, 1, 2, 2, 2, 2]


def test_a_snapshot_comes_first_and_an_acknowledgement_before_its_records() -> None:
    before = replay(encoded(COMMITS))
    ids = tuple(before.outbound)
    commit = r.Commit(claim="node:2", at=AT + 5, records=(r.FieldSet("a", "c"),), acked=ids, state=before)
    snapshot, acknowledged, changed = [
        (moment.name, moment.acked, len(moment.state.outbound), dict(moment.state.fields))
        for moment in moments(encoded((commit,)), 6)
    ]
    assert snapshot == ("Snapshot", (), len(ids), {"a": "b"})
    assert acknowledged == ("Acknowledged", ids, 0, {"a": "b"})
    assert changed == ("FieldSet", (), 0, {"a": "c"})


@pytest.mark.parametrize(
    ("commits", "revision", "log"),
    [
        pytest.param((), 0, [], id="nothing"),
        pytest.param(COMMITS[:1], 1, [], id="a claim"),
        pytest.param(COMMITS[:2], 2, [HELLO], id="a turn"),
        pytest.param(COMMITS, 5, [HELLO, HI], id="all"),
        pytest.param(COMMITS[1:], None, [HELLO, HI], id="a part, of which nobody knows the revision"),
        pytest.param((SNAPSHOT,), 9, [WHO], id="a snapshot"),
        pytest.param((*COMMITS, SNAPSHOT), 6, [WHO], id="a snapshot at the end"),
    ],
)
def test_commits_make_a_state(
    commits: tuple[r.Commit, ...], revision: int | None, log: list[Message]
) -> None:
    stored = encoded(commits)
    assert replay(stored, revision).log == log
    assert read_commits(stored, revision) == list(commits)


@pytest.mark.parametrize("missing", [1, 2])
def test_commits_without_the_first_ones_are_refused(missing: int) -> None:
    stored = encoded(COMMITS)[missing:]
    with pytest.raises(StoreUnavailable, match="lost a part"):
        list(moments(stored, len(COMMITS)))
    with pytest.raises(StoreUnavailable, match="lost a part"):
        replay(stored, len(COMMITS))


@pytest.mark.parametrize("data", [b"", b"{", b"\x93", b"\xc0", b'{"claim":1}', b"\xff"])
def test_commits_that_cannot_be_read_are_refused(data: bytes) -> None:
    with pytest.raises(StoreUnavailable, match="cannot read"):
        replay([*encoded(COMMITS), data])


EVENT = Event(id="evt_1", kind="final", type="assistant.speech.final", payload=b'{"text":"Hi."}', at=AT)
PLAIN_EVENT = {
    "id": "evt_1",
    "kind": "final",
    "type": "assistant.speech.final",
    "payload": {"text": "Hi."},
    "at": AT,
}
STATE = Conversation(record_count=7, log=[UserMessage("hello")], log_start=4, outbound={"evt_1": EVENT})
PLAIN_STATE = {
    "record_count": 7,
    "log_start": 4,
    "log": [{"position": 4, "type": "user", "text": "hello"}],
    "outbound": [PLAIN_EVENT],
}
TIME = {"time": "2026-03-01T12:00:00.123Z", "number": 7}
PLAIN: list[tuple[str, Moment, dict[str, Any]]] = [
    (
        "a record",
        Moment(at=AT, state=STATE, record=r.FieldSet("a", "b"), events=[EVENT]),
        {
            **TIME,
            "name": "FieldSet",
            "record": {"type": "FieldSet", "name": "a", "value": "b"},
            "acked": [],
            "events": [PLAIN_EVENT],
        },
    ),
    (
        "an acknowledgement",
        Moment(at=AT, state=STATE, acked=("evt_0",)),
        {**TIME, "name": "Acknowledged", "record": None, "acked": ["evt_0"], "events": []},
    ),
    (
        "a snapshot",
        Moment(at=AT, state=STATE),
        {**TIME, "name": "Snapshot", "record": None, "acked": [], "events": []},
    ),
]


@pytest.mark.parametrize(("moment", "plain"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_a_moment_is_plain_values(moment: Moment, plain: dict[str, Any]) -> None:
    assert plain_moment(moment, with_state=False) == plain
    assert plain_moment(moment) == {**plain, "state": PLAIN_STATE}


def test_a_state_without_messages_has_its_lists() -> None:
    assert plain_state(Conversation(profile=Profile(locale="de"))) == {
        "profile": {"locale": "de"},
        "log": [],
        "outbound": [],
    }
    assert plain_event(EVENT) == PLAIN_EVENT
