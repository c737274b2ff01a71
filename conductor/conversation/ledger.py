"""The commits of a session: decide, record, apply, send; the doubt about a failed commit; their replay.

A decision is made about the state as of now, and its records are in the store before any of them is applied
or sent. A commit that failed may be recorded: until the store tells, nothing else is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from msgspec import MsgspecError
from msgspec.structs import replace

from conductor.conversation.apply import advance, walk
from conductor.conversation.approvals import Reply, Response
from conductor.conversation.events import probe_call_id
from conductor.conversation.records import Claimed, Commit, Record, closed_calls, decode, encode
from conductor.conversation.state import Conversation, Event
from conductor.errors import Conflict, Fenced, Rollback, StoreError, StoreUnavailable
from conductor.stores.base import Claim, SessionLog

if TYPE_CHECKING:
    from conductor.conversation.session import Session


log = structlog.get_logger(__name__)

# Commits, and their bytes, after which the next commit has a snapshot: a claim replays no more than these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024


def replay(commits: Sequence[bytes], revision: int | None = None) -> Conversation:
    """Make the state of commits, which end at ``revision``.

    Raises `StoreUnavailable` if the first ones are missing, or this version cannot read them.
    """
    state = Conversation()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            state = commit.state
        advance(state, commit)
    return state


def read_commits(commits: Sequence[bytes], revision: int | None = None) -> list[Commit]:
    """Decode commits. Raises `StoreUnavailable`, as `replay` does."""
    try:
        decoded = [decode(data) for data in commits]
    except (MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise StoreUnavailable("The store holds commits that this version cannot read.") from error
    if decoded and decoded[0].state is None and revision not in (None, len(decoded)):
        raise StoreUnavailable("The store has lost a part of a conversation.")
    return decoded


class Ledger:
    """Commits the decisions of a session under its claim.

    ``doubtful`` is the commit that failed and may be recorded; ``preface`` are the records that precede those
    of the first decision.
    """

    def __init__(self, session: Session, store: SessionLog, claim: Claim) -> None:
        self.durable = store.durable
        self.token = claim.token
        self.doubtful: Commit | None = None
        self.preface: list[Record] = [Claimed(claim.token)]
        self._session = session
        self._store = store
        self._claim = claim
        self._fenced: Fenced | None = None
        self._lock = asyncio.Lock()
        self._running = 0
        self._commits = len(claim.commits)
        self._bytes = sum(len(data) for data in claim.commits[1:])
        claim.commits = ()  # they are in the state
        self._is_behind = False

    @property
    def epoch(self) -> int:
        """How often the session was claimed."""
        return self._claim.epoch

    def probe_call_id(self, number: int) -> str:
        """Name the call of a `StateShown` that is the ``number``th record of the present decision."""
        return probe_call_id(self._session.state, self.token, number + len(self.preface))

    @property
    def busy(self) -> bool:
        """Whether a decision is being recorded."""
        return bool(self._running)

    # -- decisions

    async def decide(self, decision: Callable[[], Response]) -> Response:
        """Commit a decision about the state as of now; the state does not change in between.

        Raises `StoreError`. A cancelled caller does not cancel the commit.
        """
        if not self.durable:
            return await self._decide(decision)
        self._running += 1
        task = self._session.spawn(self._decide(decision))
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._fenced is not None and task.cancelled():
                raise self._fenced from None  # the session's end cancelled the commit, not the caller
            task.add_done_callback(_retrieve)
            raise

    async def _decide(self, decision: Callable[[], Response]) -> Response:
        outbox = self._session.outbox
        async with self._lock:
            if self._fenced is not None:
                raise self._fenced
            outbox.deciding = self.durable
            try:
                await self._settle()
                response = decision()
                records = response.records if isinstance(response, Reply) else response
                if isinstance(records, list) and (records or self.preface):
                    await self._record([*self.preface, *records])
                    self.preface = []
            except Fenced as error:
                self.lose(error)
                raise
            finally:
                if self.durable:
                    outbox.deciding = self.doubtful is not None
                    outbox.settle()
        self._session.changed()
        return response

    def _ended(self, _: asyncio.Task[Response]) -> None:
        self._running -= 1

    async def verify(self) -> None:
        """Record an empty commit. Raises `StoreError`: `Fenced` if another process owns the session."""
        await self.decide(list)
        try:
            async with self._lock:
                if not await self._settle():
                    await self._record([])
        except Fenced as error:
            self.lose(error)
            raise

    async def flush(self) -> None:
        """Record the acknowledged events; if the store is away, a later commit does."""
        if self._session.outbox.acked and self.durable:
            try:
                async with self._lock:
                    if self.doubtful is None:
                        await self._record([])
            except StoreError:
                log.debug("not flushed", session=self._claim.key.session_id)

    def lose(self, error: Fenced) -> None:
        """Record nothing more: another process owns the session."""
        if self._fenced is None:
            self._fenced = error
            self._session.lose(error)

    async def release(self) -> None:
        """Release the claim. Raises `StoreError`."""
        await self._store.release(self._claim)

    # -- commits

    async def _record(self, records: Sequence[Record]) -> None:
        session, outbox = self._session, self._session.outbox
        acked, outbox.acked = outbox.acked, []
        commit = self._commit(session.view.now(), tuple(records), tuple(acked))
        if self.durable:
            outbox.withhold(closed_calls(records))
        assert self.doubtful is None
        self.doubtful = commit
        try:
            await self._append(commit, "commit")
        except StoreError:
            outbox.acked[:0] = acked
            raise
        self.doubtful = None
        session.apply(commit)

    def _commit(self, at: int, records: tuple[Record, ...] = (), acked: tuple[str, ...] = ()) -> Commit:
        return Commit("" if self._session.state.claim == self.token else self.token, at, records, acked)

    async def _settle(self) -> bool:
        """Find out about the commit in doubt, and apply it if it is recorded; False without one.

        Else an empty commit takes its place. Raises `StoreError` while the store does not tell.
        """
        commit = self.doubtful
        if commit is None:
            return False
        filler = self._commit(commit.at)
        try:
            await self._append(filler, "filler")
            commit = filler
        except Conflict as conflict:
            # Only this claim writes under its token: the one commit too many is the doubtful one.
            if conflict.revision != self._claim.revision + 1:
                raise Fenced("The session has to be loaded from the store again.", gone=True) from conflict
            self._claim.revision += 1
            self._count(encode(commit), snapshot=False)
        self.doubtful = None
        self._session.apply(commit)
        if self._session.state.claim == self.token:
            self.preface = []  # it was in that commit
        return True

    async def _append(self, commit: Commit, kind: str) -> None:
        try:
            await self._write(commit, kind)
        except Rollback:
            log.warning("session store lost commits", session=self._claim.key.session_id)
            self._is_behind = True
            await self._write(commit, kind)

    async def _write(self, commit: Commit, kind: str) -> None:
        state = self._session.state
        if self._is_behind:
            # A failover lost the log's last commits: the state, which has them, is written again.
            claim = await self._store.claim(self._claim.key)
            if not state.continues(replay(claim.commits, claim.revision)):
                raise Fenced("Another claim came between.", gone=True)
            self._claim, self._commits, self._is_behind = claim, SNAPSHOT_COMMITS, False
            self.token = claim.token
        snapshot = self._commits >= SNAPSHOT_COMMITS or self._bytes >= SNAPSHOT_BYTES
        data = encode(replace(commit, state=state) if snapshot else commit)
        # A repetition has the same id: the store then records nothing.
        commit_id = f"{self.token}/{self._claim.revision}/{kind}"
        await self._store.append(self._claim, commit_id, data, snapshot=snapshot)
        self._count(data, snapshot=snapshot)

    def _count(self, data: bytes, *, snapshot: bool) -> None:
        self._commits = 1 if snapshot else self._commits + 1
        # The snapshot itself does not count, or a long history would have one in each commit.
        self._bytes = 0 if snapshot else self._bytes + len(data)


def _retrieve(task: asyncio.Task[Response]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("not recorded", error=type(task.exception()).__name__)


# -- the records of a stored session one by one


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
        moment = datetime.fromtimestamp(self.at / 1000, UTC).isoformat(timespec="milliseconds")
        return moment.replace("+00:00", "Z")


def moments(commits: Sequence[bytes], revision: int) -> Iterator[Moment]:
    """Step through the commits of a session at ``revision``. Raises `StoreUnavailable`, as `replay` does."""
    state = Conversation()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            state = commit.state
            yield Moment(commit.at, state)
        records = walk(state, commit)
        if commit.acked:
            yield Moment(commit.at, state, acked=commit.acked)
        for record, events in records:
            yield Moment(commit.at, state, record, events)


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
