"""The reminders of a person, while a client of the session is connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from conductor.conversation.phrases import reminder_notice
from conductor.conversation.records import NoticeTaken, Record
from conductor.conversation.state import MAX_NOTICES, Notice
from conductor.errors import StoreError
from conductor.identity import ANONYMOUS
from conductor.session.fields import PREFIX
from conductor.tools.reminders import FIELD, Reminder, read_reminders, write_reminders

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

log = structlog.get_logger(__name__)

# Milliseconds between two looks at the clock: it may be set, and the process may be suspended.
_LOOK_MS = 60_000
# Milliseconds until the next try after the store failed, or while too many notices wait.
_RETRY_MS = 2_000


def may_have_reminders(session: Session) -> bool:
    """Return whether reminders may be due, without a look at them."""
    records, subject = session.services.subject_records, session.key.subject
    if records is None or subject == ANONYMOUS:
        return PREFIX + FIELD in session.state.fields
    # In a store that outlives this process another one may set them.
    return session.commits.durable or bool(records.get(subject, PREFIX + FIELD))


class Reminders:
    """Tells the reminders of a person while a client of this session is connected.

    Each is told once, by whichever session of the person comes first. Three writes: it is taken in the
    person's fields, recorded as a notice with its id, and dropped from the person's fields. If the session
    is gone for ten minutes in between, another one tells the reminder, which may then be told twice.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now: Callable[[], int] = session.view.now
        self._wall = session.wall
        self._is_telling = False
        self._not_before = 0
        self._read_at = self._now() + _LOOK_MS

    def look(self) -> int | None:
        """Report the due reminders; returns when to look again."""
        session, now, wall = self._session, self._now(), self._wall()
        if self._is_telling or session.view.live.stop.draining or not session.is_connected:
            return None
        if now >= self._read_at:
            self._read_at = now + _LOOK_MS
            session.spawn(self._read())
        reminders = read_reminders(self._session.person_fields.get(FIELD))
        if not any(self._may_take(reminder, wall) for reminder in reminders):
            return now + min([_LOOK_MS, *(item.due_ms - wall for item in reminders if item.due_ms > wall)])
        if now < self._not_before:
            return self._not_before
        self._is_telling = True
        session.spawn(self._tell())
        return None

    def _may_take(self, reminder: Reminder, wall: int) -> bool:
        is_other = reminder.session not in ("", self._session.key.session_id)
        return reminder.due_ms <= wall and not (is_other and reminder.is_taken(wall))

    async def _read(self) -> None:
        """Read what other processes have set."""
        try:
            await self._session.person_fields.refresh()
        except StoreError as error:
            log.debug("reminders not read", session=self._session.key.session_id, error=type(error).__name__)
        self._session.changed()

    async def _tell(self) -> None:
        session = self._session
        self._not_before = self._now() + _RETRY_MS
        try:
            reminders = await self._take(MAX_NOTICES - len(session.state.notices))
            for reminder in reminders:
                await self._record(reminder)
            if reminders:
                await self._drop(reminders)
                self._not_before = 0
        except (StoreError, msgspec.DecodeError) as error:
            log.warning("reminders not told", session=session.key.session_id, error=type(error).__name__)
        finally:
            self._is_telling = False
        session.changed()

    async def _take(self, room: int) -> list[Reminder]:
        updates: dict[str, Reminder] = {}

        def take(text: str | None) -> str:
            reminders, wall = read_reminders(text), self._wall()
            due = [reminder for reminder in reminders if self._may_take(reminder, wall)][:room]
            updates.clear()
            for reminder in due:
                updates[reminder.id] = msgspec.structs.replace(
                    reminder, session=self._session.key.session_id, taken_ms=wall
                )
            return write_reminders((updates.get(reminder.id, reminder) for reminder in reminders), text)

        await self._session.person_fields.update(FIELD, take)
        return list(updates.values())

    async def _record(self, reminder: Reminder) -> None:
        session = self._session
        event_id = f"{reminder.id}@{reminder.due_ms}"
        is_late = self._wall() - reminder.due_ms > _LOOK_MS
        text = reminder_notice(reminder.text, reminder.local, late=is_late)
        notice = Notice(
            text=text, expires_at=self._now() + session.conduct.notice_ms, untrusted=reminder.untrusted
        )

        def decision() -> list[Record]:
            # It may have been told before this session was restored.
            return [] if session.state.has_handled(event_id) else [NoticeTaken(event_id, notice)]

        await session.commits.decide(decision)

    async def _drop(self, reminders: list[Reminder]) -> None:
        due = {reminder.id: reminder.due_ms for reminder in reminders}

        def drop(text: str | None) -> str:
            wall = self._wall()
            remaining = (
                reminder.next(wall) if due.get(reminder.id) == reminder.due_ms else reminder
                for reminder in read_reminders(text)
            )
            return write_reminders(filter(None, remaining), text)

        await self._session.person_fields.update(FIELD, drop)
