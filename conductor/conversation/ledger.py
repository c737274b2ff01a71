"""Stored commits: their replay, at once or step by step; the records of people, and the fields of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import MsgspecError

from conductor.clock import epoch_ms
from conductor.conversation.apply import advance, apply, begin
from conductor.conversation.events import iso_time
from conductor.conversation.records import Commit, FieldSet, Record, decode, encode
from conductor.conversation.state import Conversation, Event
from conductor.errors import Conflict, Fenced, StoreUnavailable, Unreadable
from conductor.stores.base import SessionKey, SessionLog

# Commits, and their bytes, after which the next commit has a snapshot: a claim replays no more than these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024
# Prefix of the tools' fields, so that no tool can overwrite another field.
PREFIX = "tool:"
# The reserved session id of a subject's record; no client may use a "$".
RECORD_ID = "$grants"
# Attempts to write a record that other processes write, too.
_ATTEMPTS = 5


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


# -- the records of people, and the fields of tools


class SubjectRecords:
    """Reads and writes the subjects' records with an id, which begins with a "$"."""

    def __init__(self, store: SessionLog, record_id: str = RECORD_ID) -> None:
        self._store = store
        self._record_id = record_id
        self._fields: dict[str, Mapping[str, str]] = {}
        self._watchers: list[Callable[[str], None]] = []
        self._lock = asyncio.Lock()

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with each subject whose record was read or written here, and differs."""
        self._watchers.append(changed)

    def _keep(self, subject: str, fields: Mapping[str, str]) -> None:
        if fields != self._fields.get(subject):
            self._fields[subject] = fields
            for changed in self._watchers:
                changed(subject)

    def get(self, subject: str, name: str) -> str:
        """Return a field as last read or written here; empty if it is not set, or before `load`."""
        return self._fields.get(subject, {}).get(name, "")

    @property
    def subjects(self) -> Collection[str]:
        """Name the subjects whose records were read."""
        return self._fields.keys()

    def forget(self, subject: str) -> None:
        """Free what was read of a subject who has left."""
        self._fields.pop(subject, None)

    async def load(self, subject: str) -> None:
        """Read a subject's record. Raises `StoreUnavailable`."""
        stored = await self._store.read(SessionKey(subject, self._record_id))
        fields = {} if stored is None else replay(stored.commits(), stored.meta.revision).fields
        self._keep(subject, fields)

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None:
        """Replace a field by the result of ``change``; an empty text deletes it.

        ``change`` is called again if another process has written. Raises `StoreError`, and errors of
        ``change``.
        """
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # The last claim wins: a writer with an earlier one is fenced, and tries again.
                claim = await self._store.claim(SessionKey(subject, self._record_id))
                state = replay(claim.commits, claim.revision)
                value = change(state.fields.get(name, ""))
                size = sum(len(data) for data in claim.commits[1:])
                snapshot = len(claim.commits) >= SNAPSHOT_COMMITS or size >= SNAPSHOT_BYTES
                commit = Commit(
                    claim.token, epoch_ms(), (FieldSet(name, value),), state=state if snapshot else None
                )
                try:
                    await self._store.append(claim, claim.token, encode(commit), snapshot=snapshot)
                except (Fenced, Conflict):
                    if attempt == _ATTEMPTS:
                        raise StoreUnavailable("other processes keep writing this person's record") from None
                    continue
                self._keep(subject, {**state.fields, name: value})
                return


class Fields:
    """The `SessionFields` of one session; ``decide`` commits a decision."""

    def __init__(
        self, state: Conversation, decide: Callable[[Callable[[], list[Record]]], Awaitable[object]]
    ) -> None:
        self._state = state
        self._decide = decide

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._state.fields.get(PREFIX + name)

    async def refresh(self) -> None:
        """Do nothing: this process owns the session."""

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        await self._decide(lambda: [FieldSet(PREFIX + name, change(self.get(name)))])


class PersonFields:
    """The `SessionFields` of a subject's record, which tools keep across the person's sessions."""

    def __init__(self, records: SubjectRecords, subject: str) -> None:
        self._records = records
        self._subject = subject

    def get(self, name: str) -> str | None:
        """Read a field, as of the last load or update in this process."""
        return self._records.get(self._subject, PREFIX + name) or None

    async def refresh(self) -> None:
        """Read the record again. Raises `StoreUnavailable`."""
        await self._records.load(self._subject)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        await self._records.update(self._subject, PREFIX + name, lambda text: change(text or None))


# -- step by step


class Moment(NamedTuple):
    """A record and its effects; ``at`` is in epoch milliseconds.

    Without a ``record`` it is the start of a commit: ``acked`` events are acknowledged, or the ``state`` is
    that of a snapshot, before which no records are stored. The next moment changes ``state``.
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
            yield Moment(commit.at, state)
        begin(state, commit)
        if commit.acked:
            yield Moment(commit.at, state, acked=commit.acked)
        for record in commit.records:
            yield Moment(commit.at, state, record, apply(state, record, commit.at))


def plain_moment(moment: Moment, *, with_state: bool = True) -> dict[str, Any]:
    """Give a moment as JSON values."""
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
    """Give a state as JSON values: messages have their positions, and events their payloads."""
    plain: dict[str, Any] = _plain(state)
    log = plain.get("log", ())
    plain["log"] = [{"position": index, **message} for index, message in enumerate(log, state.log_start)]
    plain["outbound"] = [plain_event(event) for event in state.outbound.values()]
    return plain


def plain_event(event: Event) -> dict[str, Any]:
    """Give an event as JSON values, with its payload."""
    return {**_plain(event), "payload": msgspec.json.decode(event.payload)}


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)
