"""The state of stored commits, at once or step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import MsgspecError

from conductor.conversation.apply import advance, apply, begin
from conductor.conversation.events import iso_time
from conductor.conversation.records import Commit, Record, decode
from conductor.conversation.state import Conversation, Event
from conductor.errors import Unreadable

# Commits, and their bytes, after which the next commit has a snapshot: a claim replays no more than these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024


def replay(commits: Sequence[bytes], revision: int | None = None) -> Conversation:
    """Make the state of commits, which end at ``revision``.

    Raises `Unreadable` if the first ones are missing, or this version cannot read them.
    """
    state = Conversation()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            state = commit.state
        advance(state, commit)
    return state


def read_commits(commits: Sequence[bytes], revision: int | None = None) -> list[Commit]:
    """Decode commits. Raises `Unreadable`, as `replay` does."""
    try:
        decoded = [decode(data) for data in commits]
    except (MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise Unreadable("The store holds commits that this version cannot read.") from error
    if decoded and decoded[0].state is None and revision not in (None, len(decoded)):
        raise Unreadable("The store has lost a part of a conversation.")
    return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A record and its effects; ``at`` is in epoch milliseconds.

    Without a ``record`` it is the start of a commit: ``acked`` events are acknowledged, or the ``state`` is
    a snapshot, before which no records are stored. The next moment changes ``state``.
    """

    at: int
    state: Conversation
    record: Record | None = None
    events: Sequence[Event] = ()
    acked: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the record."""
        if self.record is not None:
            return type(self.record).__name__
        return "Acknowledged" if self.acked else "Snapshot"

    @property
    def number(self) -> int:
        """The number of the record, or of the last one."""
        return self.state.record_count

    @property
    def time(self) -> str:
        """The time in UTC."""
        return iso_time(self.at)


def moments(commits: Sequence[bytes], revision: int) -> Iterator[Moment]:
    """Step through the commits of a session at ``revision``. Raises `Unreadable`, as `replay` does."""
    state = Conversation()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            state = commit.state
            yield Moment(at=commit.at, state=state)
        begin(state, commit)
        if commit.acked:
            yield Moment(at=commit.at, state=state, acked=commit.acked)
        for record in commit.records:
            yield Moment(at=commit.at, state=state, record=record, events=apply(state, record, commit.at))


def plain_moment(moment: Moment, *, with_state: bool = True) -> dict[str, Any]:
    """Return a moment as JSON values."""
    plain = {
        "time": moment.time,
        "number": moment.number,
        "name": moment.name,
        "record": None if moment.record is None else _plain(moment.record),
        "acked": list(moment.acked),
        "events": [plain_event(event) for event in moment.events],
    }
    return {**plain, "state": plain_state(moment.state)} if with_state else plain


def plain_state(state: Conversation) -> dict[str, Any]:
    """Return a state as JSON values: messages have their positions, and events their payloads."""
    plain: dict[str, Any] = _plain(state)
    log = plain.get("log", ())
    plain["log"] = [{"position": index, **message} for index, message in enumerate(log, state.log_start)]
    plain["outbound"] = [plain_event(event) for event in state.outbound.values()]
    return plain


def plain_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON values, with its payload."""
    return {**_plain(event), "payload": msgspec.json.decode(event.payload)}


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)
