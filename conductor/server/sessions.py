"""The sessions of this process, and which connections are bound to each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from conductor.conversation.client_profile import read_stored_tools
from conductor.conversation.recovery import takeover_delay
from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.conversation.snapshot import PROFILE
from conductor.conversation.transport import Transport
from conductor.errors import StoreError, StoreUnavailable, TooManySessions
from conductor.rate_limit import ANONYMOUS, STILL_S
from conductor.server.access import Refusals
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)


class SuspendDetector:
    """Calls ``on_resume`` with the seconds that the process was suspended, as soon as it runs again.

    It looks every ``interval`` seconds, in the first pass of the event loop, before the tasks that handle
    what was read in that pass. ``lagged`` is called with how late, in seconds, each look was.
    """

    def __init__(
        self,
        on_resume: Callable[[float], None],
        clock: Callable[[], float] = time.time,
        interval: float = STILL_S / 2,
        lagged: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._lagged = lagged
        self._on_resume = on_resume
        self._clock = clock
        self._interval = interval
        self._arm(clock())

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _tick(self) -> None:
        now = self._clock()
        late = now - self._due
        self._arm(now)
        self._lagged(late)
        if late > STILL_S:
            self._on_resume(late)

    def _arm(self, now: float) -> None:
        self._due = now + self._interval
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)


# Sessions verified in the store at the same time.
VERIFIED_AT_ONCE = 32
# Seconds between two checks whether an expired session's running turn has ended.
BUSY_RECHECK_S = 1.0


class Peer(Transport, Protocol):
    """A connection as the registry sees it."""

    async def is_alive(self) -> bool: ...


@dataclass(slots=True)
class _Place:
    session: asyncio.Task[Session]
    connections: set[Peer] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SessionRegistry:
    """Finds or opens a connection's session, and ends sessions whose grace period is over.

    ``ownership_verified`` is cleared after a suspend (the last one ended at ``resumed_at``, loop time) while
    another process may own the sessions: then no event is handled or sent.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # Both in the order of last use, for eviction: `unbind` moves a session to the end.
        self._places: dict[SessionKey, _Place] = {}
        self._subjects: dict[str, dict[SessionKey, _Place]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.ownership_verified = asyncio.Event()
        self.ownership_verified.set()
        self.resumed_at = 0.0
        self._verifying: asyncio.Task[None] | None = None
        self._suspend_detector = SuspendDetector(self._suspended_for, lagged=services.session_metrics.lagged)
        self._refusals = Refusals()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def sessions(self) -> list[Session]:
        tasks = [place.session for place in self._places.values()]
        return [task.result() for task in tasks if task.done() and task.exception() is None]

    def connected(self, subject: str, session_id: str | None = None) -> Session | None:
        """Find the subject's newest session with a connected client, or the one of that id."""
        for key, place in reversed(self._subjects.get(subject, {}).items()):
            if session_id in (None, key.session_id) and place.session.done():
                session = place.session.result() if place.session.exception() is None else None
                if session is not None and session.transport is not None:
                    return session
        return None

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on."""
        self._services = services
        for session in self.sessions:
            session.reload(services)

    async def bind(
        self, key: SessionKey, connection: Peer, former: Session | None = None
    ) -> tuple[Session, bool]:
        """Bind a connection to its session; the flag tells whether the session existed.

        ``former`` is its session until now, if that was stale. Raises `StoreError`
        if the session cannot be claimed, `TooManySessions` if it is a new one and there are too many.
        """
        session, existed = await self._bind(key, connection, former)
        while existed and not await self._verified(session, key, connection):
            # Another process has owned it since, so the state here is stale: claim it again.
            session, existed = await self._bind(key, connection)
        return session, existed or not session.is_new

    async def _verified(self, session: Session, key: SessionKey, connection: Peer) -> bool:
        try:
            return await session.verify()
        except BaseException:
            self.unbind(key, connection)
            raise

    async def _bind(
        self, key: SessionKey, connection: Peer, former: Session | None = None
    ) -> tuple[Session, bool]:
        place = self._places.get(key)
        existed = place is not None
        if place is None:
            self._make_room(key.subject)
            place = _Place(asyncio.ensure_future(self._open(key, former)))
            self._put(key, place)
        place.connections.add(connection)
        if place.timer is not None:
            place.timer.cancel()
            place.timer = None
        try:
            session = await asyncio.shield(place.session)
        except BaseException:
            self.unbind(key, connection)
            raise
        return session, existed

    def unbind(self, key: SessionKey, connection: Peer) -> None:
        """Note that a connection closed; the last one starts the session's grace period."""
        place = self._places.get(key)
        if place is None or connection not in place.connections:
            return
        place.connections.discard(connection)
        if place.session.done() and place.session.exception() is None:
            place.session.result().detach(connection)
            if not place.connections:
                self._remove(key)
                self._put(key, place)
                self._arm(key, place, self._services.limits.session_grace)
        elif not place.connections:
            self._remove(key)
            place.session.cancel()  # no client waits: a claim now would only fence another process

    def _suspended_for(self, seconds: float) -> None:
        for session in self.sessions:
            session.suspended_for(seconds)
        if self._services.store.is_async:
            self.recheck_ownership()

    def recheck_ownership(self) -> None:
        """Pause all connections until it is known which sessions this process still owns."""
        self.resumed_at = asyncio.get_running_loop().time()
        self.ownership_verified.clear()
        if self._verifying is not None:
            self._verifying.cancel()  # its answers are stale
        for key, place in list(self._places.items()):
            if not place.session.done():  # its claim could fence who has taken the session since
                self._remove(key)
                place.session.cancel()
        self._verifying = asyncio.create_task(self._verify_all())

    async def _verify_all(self) -> None:
        at_once = asyncio.Semaphore(VERIFIED_AT_ONCE)

        async def verify(session: Session) -> None:
            async with at_once:
                try:
                    await session.verify()
                except StoreError as error:  # its next commit fails if the session is lost
                    log.warning("session not verified", error=type(error).__name__)

        sessions = self.sessions
        log.warning("the process stood still", sessions=len(sessions))
        try:
            async with asyncio.timeout(self._services.limits.verify_timeout):
                await asyncio.gather(*(verify(session) for session in sessions), return_exceptions=True)
        except TimeoutError:
            log.warning("sessions not verified in time")
        # A second suspension has started its own verification: that one decides.
        if self._verifying is asyncio.current_task():
            self.ownership_verified.set()

    async def close(self) -> None:
        """End every session."""
        self._suspend_detector.close()
        self._refusals.close()
        if self._verifying is not None:
            self._verifying.cancel()
        places, self._places, self._subjects = self._places, {}, {}
        for place in places.values():
            if place.timer is not None:
                place.timer.cancel()
        await asyncio.gather(*(self._close(place) for place in places.values()))
        if self._closing:
            await asyncio.wait(self._closing)
        self.ownership_verified.set()  # no session is left that could send

    def _put(self, key: SessionKey, place: _Place) -> None:
        self._places[key] = place
        self._subjects.setdefault(key.subject, {})[key] = place

    def _remove(self, key: SessionKey) -> None:
        del self._places[key]
        own = self._subjects[key.subject]
        del own[key]
        if not own:
            del self._subjects[key.subject]

    def _make_room(self, subject: str) -> None:
        limits, own = self._services.limits, self._subjects.get(subject, {})
        # Without tokens all clients share one subject, so only the limit of the whole server holds.
        if subject != ANONYMOUS and len(own) >= limits.max_sessions_per_subject:
            self._evict(own, subject, "This token has too many sessions in use.")
        elif len(self._places) >= limits.max_sessions:
            self._evict(self._places, "all", "The server has too many sessions in use.")

    def _evict(self, places: Mapping[SessionKey, _Place], whose: str, refusal: str) -> None:
        for key, place in places.items():
            if not place.connections and place.session.done() and not place.session.result().busy:
                if place.timer is not None:
                    place.timer.cancel()
                self._refusals.count("too many sessions, so an idle one ended early", whose)
                self._end(key, place)
                return
        self._refusals.count("too many sessions", whose)
        raise TooManySessions(refusal)

    async def _open(self, key: SessionKey, former: Session | None) -> Session:
        if self._services.subject_records is not None:
            await self._services.subject_records.load(key.subject)
        claim = await self._services.store.claim(key)
        wait = takeover_delay(claim.state.fields, self._services.limits)
        if wait:
            log.warning("session claimed again and again", session=key.session_id, wait_s=wait)
            await asyncio.sleep(wait)
            await self._services.store.release(claim)
            await self._wanted(key)
            claim = await self._services.store.claim(
                key
            )  # another process may have claimed it during the wait
        # Reads `self._services` again: it may have been reloaded during the claim.
        readings = await read_stored_tools(claim.state.fields.get(PROFILE), self._services.admission)
        session: Session = Session(
            self._services, claim, lambda stale: self._lost(session, stale), former, readings
        )
        return session

    async def _wanted(self, key: SessionKey) -> None:
        # Claim only for a client that is still connected here: another process may serve it by now.
        place, asked = self._places.get(key), set[Peer]()
        while place is not None and not asked >= place.connections:
            asked = set(place.connections)
            if any(await asyncio.gather(*(connection.is_alive() for connection in asked))):
                return
        raise StoreUnavailable("No client waits for the session.")

    def _lost(self, session: Session, stale: bool) -> None:
        place = self._places.get(session.key)
        if place is None or not place.session.done() or place.session.result() is not session:
            return
        if place.timer is not None:
            place.timer.cancel()
        self._end(session.key, place)
        for connection in place.connections:
            connection.ownership_lost(stale=stale)

    def _arm(self, key: SessionKey, place: _Place, seconds: float) -> None:
        place.timer = asyncio.get_running_loop().call_later(seconds, self._expire, key, place)

    def _expire(self, key: SessionKey, place: _Place) -> None:
        # A running turn goes on without its client, and its final is kept for the next connection
        # (durability, "Faults").
        place.timer = None
        if place.connections or self._places.get(key) is not place:
            return
        if place.session.result().busy:
            self._arm(key, place, BUSY_RECHECK_S)
            return
        self._end(key, place)

    def _end(self, key: SessionKey, place: _Place) -> None:
        self._remove(key)
        task = asyncio.create_task(self._close(place))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, place: _Place) -> None:
        try:
            async with asyncio.timeout(self._services.limits.close_timeout):
                session = await place.session
            await session.close()
        except StoreError as error:
            log.debug("session not opened, or not released", error=type(error).__name__)
        except Exception:
            log.exception("session not closed")
