"""Delivers a person's reminders when they are due, each as a notice in one session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog

from conductor.conversation.commit import Committer
from conductor.conversation.outbox import Outbox
from conductor.conversation.pending_inputs import MAX_NOTICES, PendingInputs, ServerNotice
from conductor.conversation.phrases import reminder_notice
from conductor.conversation.snapshot import WAITING
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.stores.base import RememberInbound
from conductor.tools.base import SessionFields
from conductor.tools.builtin.schedule import FIELD, Reminder, read_reminders, write_reminders

log = structlog.get_logger(__name__)

# Seconds between two checks of the clock: it may be set, and the process may be suspended.
_LOOK_S = 60.0
# Seconds until the next try after the store failed, or while too many notices wait.
_RETRY_S = 2.0
# Milliseconds until a reminder that a session claimed may be claimed by another one.
_TAKEN_MS = 10 * 60 * 1000
# Seconds: an older reminder starts no turn of its own; it joins the next one.
_NOTICE_S = 600.0


def wall_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Reminders:
    """Delivers the reminders of a person while a client of this session is connected.

    The first session of the person delivers it, in three writes: it is claimed in the person's fields,
    recorded as a notice with its id, and dropped from the person's fields. A session that was killed in
    between continues when it is restored. After ten minutes another session delivers the reminder, perhaps
    again.
    """

    def __init__(
        self,
        person: SessionFields,
        committer: Committer,
        waiting: PendingInputs,
        outbox: Outbox,
        tasks: Tasks,
        deliver: Callable[[], None],
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._person = person
        self._session = committer.key.session_id
        self._committer = committer
        self._waiting = waiting
        self._outbox = outbox
        self._tasks = tasks
        self._deliver = deliver
        self._now_ms = now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._delivering = False
        self._not_before = 0.0
        self._closed = False

    def close(self) -> None:
        """Stop delivering."""
        self._closed = True
        self._cancel()

    def look(self) -> None:
        """Deliver due reminders, and look again when the next one is due. Called when the session is idle."""
        self._cancel()
        text = self._person.get(FIELD)
        if self._closed or self._delivering or not text or self._outbox.transport is None:
            return
        loop, reminders, now = asyncio.get_running_loop(), read_reminders(text), self._now_ms()
        if any(self._may_take(reminder, now) for reminder in reminders):
            if loop.time() >= self._not_before:
                self._delivering = True
                self._tasks.spawn(self._deliver_due())
            else:
                self._timer = loop.call_at(self._not_before, self.look)
        else:
            waits = [(reminder.due_ms - now) / 1000 for reminder in reminders if reminder.due_ms > now]
            self._timer = loop.call_later(min([*waits, _LOOK_S]), self.look)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _may_take(self, reminder: Reminder, now: int) -> bool:
        is_taken = reminder.session not in ("", self._session) and now - reminder.taken_ms < _TAKEN_MS
        return reminder.due_ms <= now and not is_taken

    async def _deliver_due(self) -> None:
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        try:
            reminders = await self._take(MAX_NOTICES - len(self._waiting.notices()))
            for reminder in reminders:
                await self._record(reminder)
            if reminders:
                await self._drop(reminders)
                self._not_before = 0.0
        except Fenced:
            self.close()
        except StoreError as error:
            log.warning("reminders not delivered", session=self._session, error=type(error).__name__)
        finally:
            self._delivering = False
        self._deliver()

    async def _take(self, limit: int) -> list[Reminder]:
        claimed: dict[str, Reminder] = {}

        def take(text: str | None) -> str:
            reminders, now = read_reminders(text), self._now_ms()
            due = [reminder for reminder in reminders if self._may_take(reminder, now)][:limit]
            claimed.clear()
            claimed.update(
                (reminder.id, msgspec.structs.replace(reminder, session=self._session, taken_ms=now))
                for reminder in due
            )
            return write_reminders(tuple(claimed.get(reminder.id, reminder) for reminder in reminders))

        await self._person.update(FIELD, take)
        return list(claimed.values())

    async def _record(self, reminder: Reminder) -> None:
        late = self._now_ms() - reminder.due_ms > _LOOK_S * 1000
        expires = asyncio.get_running_loop().time() + _NOTICE_S
        notice = ServerNotice(reminder_notice(reminder.text, reminder.local, late=late), expires)
        self._waiting.add_notice(notice)
        event = RememberInbound(f"{reminder.id}@{reminder.due_ms}")
        try:
            await self._committer.commit([event], snapshots={WAITING: self._waiting.dump})
        except Duplicate:
            self._waiting.drop_notices([notice])  # it was delivered before this session was restored
        except StoreError:
            self._waiting.drop_notices([notice])
            raise

    async def _drop(self, delivered: list[Reminder]) -> None:
        due = {reminder.id: reminder.due_ms for reminder in delivered}

        def drop(text: str | None) -> str:
            now = self._now_ms()
            repetitions = (
                reminder.next(now) if due.get(reminder.id) == reminder.due_ms else reminder
                for reminder in read_reminders(text)
            )
            return write_reminders(tuple(reminder for reminder in repetitions if reminder is not None))

        await self._person.update(FIELD, drop)
