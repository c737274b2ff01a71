"""A person's reminders: each becomes a notice in one session when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from conductor.conversation.apply import MAX_NOTICES
from conductor.conversation.phrases import reminder_notice
from conductor.conversation.records import NoticeTaken, Record
from conductor.conversation.state import Notice
from conductor.errors import Fenced, StoreError
from conductor.tools.base import SessionFields
from conductor.tools.reminders import FIELD, Reminder, read_reminders, write_reminders

if TYPE_CHECKING:
    from conductor.conversation.session import Session

log = structlog.get_logger(__name__)

# Seconds between two looks at the clock: it may be set, and the process may be suspended.
_LOOK_S = 60.0
# Seconds until the next try after the store failed, or while too many notices wait.
_RETRY_S = 2.0
# Milliseconds: a session that took a reminder and has not told it since is gone.
_TAKEN_MS = 10 * 60 * 1000


class Reminders:
    """Tells the reminders of a person while a client of this session is connected.

    Each is told once, by whichever session of the person comes first. Three writes: it is taken in the
    person's fields, recorded as a notice with its id, and dropped from the person's fields. If the session
    is gone for ten minutes in between, another one tells the reminder, which may then be told twice.
    """

    def __init__(self, session: Session, person: SessionFields) -> None:
        self._session = session
        self._person = person
        self._now: Callable[[], int] = session.view.now
        self._timer: asyncio.TimerHandle | None = None
        self._is_telling = False
        self._not_before = 0.0
        self._is_closed = False

    def close(self) -> None:
        """Tell no more."""
        self._is_closed = True
        self._cancel()

    def look(self) -> None:
        """Tell the due reminders, and look again when the next one is due."""
        self._cancel()
        session, text = self._session, self._person.get(FIELD)
        if self._is_closed or self._is_telling or not text or not session.is_connected:
            return
        if session.busy or session.view.draining:
            return
        loop, reminders, now = asyncio.get_running_loop(), read_reminders(text), self._now()
        if any(self._may_take(reminder, now) for reminder in reminders):
            if loop.time() >= self._not_before:
                self._is_telling = True
                session.spawn(self._tell())
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
        own = self._session.key.session_id
        is_taken = reminder.session not in ("", own) and now - reminder.taken_ms < _TAKEN_MS
        return reminder.due_ms <= now and not is_taken

    async def _tell(self) -> None:
        session = self._session
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        try:
            reminders = await self._take(MAX_NOTICES - len(session.state.notices))
            for reminder in reminders:
                await self._record(reminder)
            if reminders:
                await self._drop(reminders)
                self._not_before = 0.0
        except Fenced:
            self.close()
        except StoreError as error:
            log.warning("reminders not told", session=session.key.session_id, error=type(error).__name__)
        finally:
            self._is_telling = False
        session.changed()

    async def _take(self, room: int) -> list[Reminder]:
        updates: dict[str, Reminder] = {}

        def take(text: str | None) -> str:
            reminders, now = read_reminders(text), self._now()
            due = [reminder for reminder in reminders if self._may_take(reminder, now)][:room]
            updates.clear()
            for reminder in due:
                updates[reminder.id] = msgspec.structs.replace(
                    reminder, session=self._session.key.session_id, taken_ms=now
                )
            return write_reminders(tuple(updates.get(reminder.id, reminder) for reminder in reminders))

        await self._person.update(FIELD, take)
        return list(updates.values())

    async def _record(self, reminder: Reminder) -> None:
        session = self._session
        event_id = f"{reminder.id}@{reminder.due_ms}"
        is_late = self._now() - reminder.due_ms > _LOOK_S * 1000
        text = reminder_notice(reminder.text, reminder.local, late=is_late)
        notice = Notice(text, self._now() + session.rules.notice_ms)

        def decision() -> list[Record]:
            # It may have been told before this session was restored.
            return [] if event_id in session.state.handled_ids else [NoticeTaken(event_id, notice)]

        await session.ledger.decide(decision)

    async def _drop(self, reminders: list[Reminder]) -> None:
        due = {reminder.id: reminder.due_ms for reminder in reminders}

        def drop(text: str | None) -> str:
            now = self._now()
            remaining = (
                reminder.next(now) if due.get(reminder.id) == reminder.due_ms else reminder
                for reminder in read_reminders(text)
            )
            return write_reminders(tuple(reminder for reminder in remaining if reminder is not None))

        await self._person.update(FIELD, drop)
