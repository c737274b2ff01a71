"""What no session of this process tells: events of sessions whose process has ended, and due reminders."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable

import structlog
from msgspec import DecodeError
from msgspec.structs import replace

from conductor.clock import wall_ms
from conductor.conversation.events import iso_time
from conductor.conversation.replay import replay as replay_commits
from conductor.conversation.state import WebhookEvent
from conductor.errors import StoreError, StoreUnavailable
from conductor.plugins.webhooks.delivery import AT_ONCE, Deliverer
from conductor.plugins.webhooks.processes import Processes
from conductor.server.listener import Listener
from conductor.server.sessions import Visitor
from conductor.session.fields import PREFIX, RECORD_ID, SubjectRecords
from conductor.stores.base import PROCESS, SessionKey, process_of
from conductor.tools.reminders import FIELD, TAKEN_MS, Reminder, read_reminders, write_reminders

log = structlog.get_logger(__name__)

# Seconds between two looks for due reminders, for waiting events, and for sessions that were written.
REMINDER_S, LOOK_S, LIST_S = 5.0, 30.0, 300.0
# Milliseconds after which a due reminder of a person without a connection is announced.
OFFLINE_MS = 5_000
# Keys in a page, seconds for the delivery of a session, and seconds by which clocks may differ.
PAGE, DELIVERY_S, SKEW_S = 10_000, 30.0, 60.0
_TEXTS = PREFIX + FIELD
_NEVER = 2**63
_REFUSED = "The receiver of webhooks accepts no events."


class Pickup:
    """Delivers the events of sessions that no process serves; reading makes no claims.

    The first list has all sessions, later ones those that were written since. Each of them is looked at until
    none of its events waits and its end is reported; a session of a living process, once the process is gone.
    """

    def __init__(self, listener: Listener, deliverer: Deliverer) -> None:
        self._registry = listener.registry
        self._deliverer = deliverer
        self._store = listener.services.store
        self._records = listener.services.subject_records or SubjectRecords(self._store)
        self._announces = "reminder.due_offline" in listener.services.webhooks.events
        self._processes = Processes(self._store, PROCESS)
        # Wall time of the last list, and loop time of the next one.
        self._listed_at = self._list_at = 0.0
        # Session -> its process, as last read; empty before that.
        self._keys: dict[SessionKey, str] = {}
        # When the next reminder of a person is due.
        self._due: dict[str, int] = {}
        if self._announces:
            self._records.watch(self._record_changed)

    async def run(self) -> None:
        """Look for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(self.look, LOOK_S))
            if self._announces:
                group.create_task(_repeat(self._announce_reminders, REMINDER_S))

    async def look(self) -> None:
        """Deliver what no process does, and note when reminders are due. Raises `StoreError`."""
        await self._processes.look()
        if asyncio.get_running_loop().time() >= self._list_at:
            await self._list()
        for key, process in list(self._keys.items()):
            if not self._registry.has(key) and (not process or self._is_gone(process)):
                del self._keys[key]
                self._keys[key] = ""  # the last one of the next look, if it fails now
                if await self._is_settled(key):
                    del self._keys[key]

    async def _list(self) -> None:
        now, after = time.time(), None
        since = min(self._listed_at, now - LIST_S) - SKEW_S  # the wall clock may have been set back
        while page := await self._store.keys(None, None, after, PAGE, since):
            after = page[-1]
            for key in page:
                if self._announces if key.session_id == RECORD_ID else not key.never_expires:
                    self._keys[key] = ""
        self._listed_at, self._list_at = now, asyncio.get_running_loop().time() + LIST_S

    async def _is_settled(self, key: SessionKey) -> bool:
        """Return whether nothing of a session is left to tell; tell it if no process does."""
        if key.session_id == RECORD_ID:
            records = SubjectRecords(self._store)  # not kept: there may be many
            await records.load(key.subject)
            self._note_due(key.subject, records.get(key.subject, _TEXTS))
            return True
        stored = await self._store.read(key)
        if stored is None:
            return True
        state = await asyncio.to_thread(replay_commits, stored.commits(), stored.meta.revision)
        if not (state.webhook_events or state.opened):
            return True
        process = process_of(stored.meta.token)
        if process and not self._is_gone(process):
            self._keys[key] = process
        else:
            visitor = Visitor()
            session, _ = await self._registry.bind(key, visitor)
            await self._deliverer.settle(session, DELIVERY_S)
            # One that was not closed in order has its grace period: its client may return.
            self._registry.unbind(key, visitor, at_once=not session.state.opened)
            if session.state.webhook_events and self._deliverer.problem:
                raise StoreUnavailable(_REFUSED)
        return False

    def _is_gone(self, process: str) -> bool:
        """Return whether a process has left its sessions: another one, or this one without the session."""
        return process == PROCESS or self._processes.is_gone(process)

    # -- reminders of people who are not connected

    async def _announce_reminders(self) -> None:
        now = wall_ms() - OFFLINE_MS
        people = [person for person, due in self._due.items() if due <= now]
        for begin in range(0, len(people), AT_ONCE):
            some = people[begin : begin + AT_ONCE]
            await asyncio.gather(*(self._announce_to(person, now) for person in some))

    async def _announce_to(self, person: str, now: int) -> None:
        """Announce a person's due reminders; one that the receiver refuses holds up no other."""
        try:
            await self._records.load(person)
            for reminder in read_reminders(self._records.get(person, _TEXTS)):
                if _due(reminder) <= now:
                    await self._announce(person, reminder)
        except (StoreError, DecodeError) as error:
            log.warning("reminders not announced; will retry", error=type(error).__name__)
        self._note_due(person, self._records.get(person, _TEXTS))

    def _record_changed(self, person: str) -> None:
        self._note_due(person, self._records.get(person, _TEXTS))

    def _note_due(self, person: str, text: str) -> None:
        self._due.pop(person, None)
        if text and (due := min(map(_due, read_reminders(text)), default=_NEVER)) < _NEVER:
            self._due[person] = due

    async def _announce(self, person: str, reminder: Reminder) -> None:
        digest = hashlib.sha256(f"{person} {reminder.id} {reminder.due_ms}".encode()).hexdigest()
        data = {"reminder": reminder.id, "text": reminder.text, "dueAt": iso_time(reminder.due_ms)}
        event = WebhookEvent(f"msg_{digest[:32]}", "reminder.due_offline", reminder.due_ms, data)
        if not await self._deliverer.deliver(SessionKey(person, ""), event):
            return
        announced = replace(reminder, announced_ms=reminder.due_ms)

        def mark(text: str) -> str:
            items = read_reminders(text)
            return write_reminders((announced if item == reminder else item for item in items), text)

        await self._records.update(person, _TEXTS, mark)


async def _repeat(look: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        try:
            await look()
        except StoreError as error:
            log.warning("webhooks not looked for; will retry", error=type(error).__name__)
        except Exception:
            log.exception("webhooks not looked for; will retry")
        await asyncio.sleep(seconds)


def _due(reminder: Reminder) -> int:
    """Return when a reminder is due for a person who is away: no session has taken it by then."""
    if reminder.announced_ms >= reminder.due_ms:
        return _NEVER
    return reminder.taken_ms + TAKEN_MS if reminder.is_taken(wall_ms()) else reminder.due_ms
