"""The sessions of this process, and which connections are bound to each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from conductor.conversation.duel import delay_s
from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.conversation.transport import Transport
from conductor.errors import StoreError, StoreUnavailable
from conductor.server.pace import Rush
from conductor.server.thaw import Thaw
from conductor.server.turnstile import Turnstile
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)

BUSY_RECHECK_S = 1.0
"""How long a session whose grace is over waits for its running turn before it is asked again."""
VERIFIED_AT_ONCE = 32
VERIFY_S = 3.0
"""How long nothing is said after the process stood still, at most: a store may be away."""


class Peer(Transport, Protocol):
    """A connection as the hub knows it."""

    async def is_alive(self) -> bool:
        """Tell whether the client is still there."""
        ...


@dataclass(slots=True)
class _Place:
    """A session, the connections bound to it, and the timer that ends it once there are none."""

    session: asyncio.Task[Session]
    connections: set[Peer] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Hub:
    """Finds or makes the session that a connection is for, and ends those that nobody comes back to.

    ``trust`` is cleared while it is not known whether the sessions are still this process's: it stood still,
    last at ``thawed_at``, in the loop's time. Nothing is to be taken or said then. ``turnstile`` is for what
    starts work, ``newcomers`` for what clients say who were not here before, ``declarations`` for tools
    that are declared later.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._places: dict[SessionKey, _Place] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.trust = asyncio.Event()
        self.trust.set()
        self.thawed_at = 0.0
        self._verifying: asyncio.Task[None] | None = None
        self._thaw = Thaw(self._stood_still)
        self.turnstile = Turnstile()
        self.newcomers = Turnstile(rests=True)
        self.declarations = Turnstile(rests=True)
        self.rush = Rush()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are there."""
        tasks = [place.session for place in self._places.values()]
        return [task.result() for task in tasks if task.done() and task.exception() is None]

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog from now on."""
        self._services = services
        for session in self.sessions:
            session.reload(services)

    async def bind(
        self, key: SessionKey, connection: Peer, former: Session | None = None
    ) -> tuple[Session, bool]:
        """Bind a connection to its session; the flag says whether the session was there before.

        ``former`` is what it was bound to, if that turned out to be other in the store. Raises `StoreError`
        if the session cannot be claimed, or if there are too many.
        """
        session, existed = await self._bind(key, connection, former)
        while existed and not await self._verified(session, key, connection):
            # Another process has had it since; what this one knows of it is old.
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
            self._make_room()
            place = _Place(asyncio.ensure_future(self._open(key, former)))
            self._places[key] = place
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
        """Note that a connection is gone; the last one starts the session's grace."""
        place = self._places.get(key)
        if place is None or connection not in place.connections:
            return
        place.connections.discard(connection)
        if place.session.done() and place.session.exception() is None:
            place.session.result().detach(connection)
            if not place.connections:
                self._arm(key, place, self._services.limits.session_grace)
        elif not place.connections:
            del self._places[key]
            place.session.cancel()  # a claim that nobody waits for would only fence others

    def _stood_still(self, seconds: float) -> None:
        for session in self.sessions:
            session.stood_still(seconds)
        if self._services.store.suspends:
            self.mistrust()

    def mistrust(self) -> None:
        """Say and take nothing until it is known which sessions are still this process's."""
        self.thawed_at = asyncio.get_running_loop().time()
        self.trust.clear()
        if self._verifying is not None:
            self._verifying.cancel()  # what it has found out is old
        self._verifying = asyncio.create_task(self._verify_all())

    async def _verify_all(self) -> None:
        at_once = asyncio.Semaphore(VERIFIED_AT_ONCE)

        async def verify(session: Session) -> None:
            async with at_once:
                try:
                    await session.verify()
                except StoreError as error:  # what it records next will tell
                    log.warning("session not verified", error=type(error).__name__)

        sessions = self.sessions
        log.warning("the process stood still", sessions=len(sessions))
        try:
            async with asyncio.timeout(VERIFY_S):
                await asyncio.gather(*(verify(session) for session in sessions), return_exceptions=True)
        except TimeoutError:
            log.warning("sessions not verified in time")
        if self._verifying is asyncio.current_task():
            self.trust.set()

    async def close(self) -> None:
        """End every session."""
        self._thaw.close()
        if self._verifying is not None:
            self._verifying.cancel()
        places, self._places = self._places, {}
        for place in places.values():
            if place.timer is not None:
                place.timer.cancel()
        await asyncio.gather(*(self._close(place) for place in places.values()))
        if self._closing:
            await asyncio.wait(self._closing)
        self.trust.set()  # no session is left to say anything

    def _make_room(self) -> None:
        """End the oldest session that nobody is connected to, if there are too many."""
        if len(self._places) < self._services.limits.max_sessions:
            return
        for key, place in self._places.items():
            if not place.connections and place.session.done() and not place.session.result().busy:
                if place.timer is not None:
                    place.timer.cancel()
                log.warning("session ended early: there are too many")
                self._end(key, place)
                return
        raise StoreUnavailable("too many sessions")

    async def _open(self, key: SessionKey, former: Session | None) -> Session:
        if self._services.lasting_grants is not None:
            await self._services.lasting_grants.load(key.subject)
        claim = await self._services.store.claim(key)
        wait = delay_s(claim.state.fields)
        if wait:
            log.warning("session claimed again and again", session=key.session_id, wait_s=wait)
            await asyncio.sleep(wait)
            await self._services.store.release(claim)
            await self._wanted(key)
            claim = await self._services.store.claim(key)  # another may have come meanwhile
        # The services of now: they may have been reloaded meanwhile.
        session: Session = Session(self._services, claim, lambda stale: self._lost(session, stale), former)
        return session

    async def _wanted(self, key: SessionKey) -> None:
        """Look whether a client still waits for a session: one that has gone elsewhere has it there.

        Raises `StoreUnavailable` if there is none.
        """
        place, asked = self._places.get(key), set[Peer]()
        while place is not None and not asked >= place.connections:
            asked = set(place.connections)
            if any(await asyncio.gather(*(connection.is_alive() for connection in asked))):
                return
        raise StoreUnavailable("Nobody waits for the session any more.")

    def _lost(self, session: Session, stale: bool) -> None:
        """Forget a session that is not this process's any more; ``stale``: take it from the store again."""
        place = self._places.get(session.key)
        if place is None or not place.session.done() or place.session.result() is not session:
            return
        if place.timer is not None:
            place.timer.cancel()
        self._end(session.key, place)
        for connection in place.connections:
            connection.lose(stale=stale)

    def _arm(self, key: SessionKey, place: _Place, seconds: float) -> None:
        place.timer = asyncio.get_running_loop().call_later(seconds, self._expire, key, place)

    def _expire(self, key: SessionKey, place: _Place) -> None:
        place.timer = None
        if place.connections or self._places.get(key) is not place:
            return
        if place.session.result().busy:
            self._arm(key, place, BUSY_RECHECK_S)
            return
        self._end(key, place)

    def _end(self, key: SessionKey, place: _Place) -> None:
        del self._places[key]
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
