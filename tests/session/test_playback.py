"""The moments of a session are its records, with the same events and states as when they were committed."""

from __future__ import annotations

from copy import deepcopy

import pytest

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.replay import moments, replay
from conductor.conversation.state import Conversation, Event
from conductor.errors import StoreUnavailable
from conductor.messages import AssistantMessage

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
