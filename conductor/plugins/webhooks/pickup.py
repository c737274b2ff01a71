"""What no session of this process tells: events of sessions whose process has ended, and due reminders."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import time
from collections.abc import Awaitable, Callable

import structlog
from msgspec.structs import replace

from conductor.conversation.core import epoch_ms
from conductor.conversation.events import iso_time
from conductor.conversation.ledger import PREFIX, RECORD_ID, SubjectRecords
from conductor.conversation.ledger import replay as replay_commits
from conductor.conversation.state import WebhookEvent
from conductor.errors import StoreError, StoreUnavailable
from conductor.plugins.webhooks.delivery import MAX_RETRY_S, Deliverer
from conductor.server.listener import Listener
from conductor.server.sessions import Visitor
from conductor.stores.base import SessionKey
from conductor.tools.reminders import FIELD, TAKEN_MS, Reminder, read_reminders, write_reminders

log = structlog.get_logger(__name__)

# Seconds between two looks for due reminders, and between two scans.
LOOK_S, SCAN_S = 5.0, 300.0
# Milliseconds after which a due reminder of a person without a connection is announced.
OFFLINE_MS = 5_000
# Keys in a page, seconds for the delivery of a session, and seconds by which clocks may differ.
PAGE, DELIVERY_S, SKEW_S = 1_000, 30.0, 60.0
_NODE, _PID = platform.node() or "node", str(os.getpid())
_TEXTS = PREFIX + FIELD
_NEVER = 2**63


class Pickup:
    """Scans the store at the start and at an interval; reading makes no claims.

    A scan replays only sessions that were written since the last one, or had events then.
    """

    def __init__(self, listener: Listener, deliverer: Deliverer) -> None:
        self._registry = listener.registry
        self._deliverer = deliverer
        self._store = listener.services.store
        self._records = listener.services.subject_records or SubjectRecords(self._store)
        self._announces = "reminder.due_offline" in listener.services.webhooks.events
        self._scanned_at = 0.0
        self._waiting: set[SessionKey] = set()
        # When the next reminder of a person is due.
        self._due: dict[str, int] = {}

    async def run(self) -> None:
        """Look for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(self.scan, SCAN_S))
            if self._announces:
                group.create_task(_repeat(self._announce_reminders, LOOK_S))

    async def scan(self) -> None:
        """Pick up the sessions of no process, and note when reminders are due. Raises `StoreError`."""
        since, self._scanned_at = self._scanned_at - SKEW_S, time.time()
        former, self._waiting, after = self._waiting, set[SessionKey](), None
        while keys := await self._store.keys(None, None, after, PAGE):
            for after in keys:
                if after.session_id == RECORD_ID and self._announces:
                    records = SubjectRecords(self._store)  # not kept: there may be many
                    await records.load(after.subject)
                    self._note_due(after.subject, records.get(after.subject, _TEXTS))
                elif not (after.never_expires or self._registry.has(after)):
                    await self._look_at(after, since if after not in former else 0.0)

    async def _look_at(self, key: SessionKey, since: float) -> None:
        stored = await self._store.read(key)
        if stored is None or stored.meta.updated < since:
            return
        state = await asyncio.to_thread(replay_commits, stored.commits(), stored.meta.revision)
        if not state.webhook_events:
            return
        self._waiting.add(key)
        oldest = min(event.at for event in state.webhook_events.values())
        if self._is_orphan(stored.meta.token, (epoch_ms() - oldest) / 1000):
            visitor = Visitor()
            session, _ = await self._registry.bind(key, visitor)
            await self._deliverer.settle(session, DELIVERY_S)
            # One that was not closed in order has its grace period: its client may return.
            self._registry.unbind(key, visitor, at_once=not session.state.opened)

    def _is_orphan(self, token: str, waiting_s: float) -> bool:
        """Tell whether no process delivers a session's events. If it errs, the client joins again."""
        node, _, pid = token.rpartition(":")[0].rpartition("-")
        if not token or (node == _NODE and (pid == _PID or not _runs(int(pid)))):
            return True
        # Its process would have retried by now, and the receiver accepts events.
        return waiting_s > 3 * MAX_RETRY_S and not self._deliverer.problem

    # -- reminders of people who are not connected

    async def _announce_reminders(self) -> None:
        for person in self._records.subjects:
            self._note_due(person, self._records.get(person, _TEXTS))
        now = epoch_ms() - OFFLINE_MS
        for person in [person for person, due in self._due.items() if due <= now]:
            await self._records.load(person)
            for reminder in read_reminders(self._records.get(person, _TEXTS)):
                if _due(reminder) <= now:
                    await self._announce(person, reminder)
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
            raise StoreUnavailable("The receiver of webhooks accepts no events.")
        announced = replace(reminder, announced_ms=reminder.due_ms)

        def mark(text: str) -> str:
            items = read_reminders(text)
            return write_reminders(tuple(announced if item == reminder else item for item in items))

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
    """Give when a reminder is due for a person who is away: no session has taken it by then."""
    if reminder.announced_ms >= reminder.due_ms:
        return _NEVER
    return max(reminder.due_ms, reminder.taken_ms + TAKEN_MS if reminder.session else 0)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # else of another user
    return True
