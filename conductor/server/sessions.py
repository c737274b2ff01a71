"""The sessions of this process, and which connections are bound to each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog
from websockets.frames import CloseCode

from conductor.clock import epoch_ms, wall_ms
from conductor.conversation.replay import replay
from conductor.conversation.state import Conversation
from conductor.errors import StoreError, StoreUnavailable, TooManySessions
from conductor.identity import ANONYMOUS
from conductor.rate_limit import STILL_S
from conductor.server.refusals import Refusals
from conductor.session.services import Services
from conductor.session.session import Session
from conductor.session.transport import Transport
from conductor.settings import Limits
from conductor.stores.base import SessionKey
from conductor.tools.declarations import read_declarations

log = structlog.get_logger(__name__)

# Two clients that take a session from each other claim often within this time.
TAKEOVER_WINDOW_MS = 30_000
MAX_TAKEOVER_DELAY_S = 5.0


def takeover_delay_s(state: Conversation, limits: Limits) -> float:
    """Return the pause before a claim that follows many recent ones."""
    now = epoch_ms()
    recent = sum(abs(now - at) < TAKEOVER_WINDOW_MS for at in state.claim_times)
    over = recent - limits.free_takeovers
    return 0.0 if over < 0 else min(MAX_TAKEOVER_DELAY_S, limits.takeover_backoff * 2.0**over)


class SuspendDetector:
    """Calls ``on_wake`` with the seconds by which the event loop was late, as soon as it runs again.

    It runs every ``interval`` seconds, before the tasks that handle input of the same pass of the event loop.
    ``lagged`` gets the seconds by which each run was late. ``clock`` is the wall clock, as the loop's stands
    while the machine sleeps; a step of it is taken for a suspension, which costs one look into the store.
    ``worked_s`` are the seconds since the run before in which the process ran or waited for a core: a
    suspended one does neither.
    """

    def __init__(
        self,
        on_wake: Callable[[float], None],
        clock: Callable[[], float] = time.time,
        interval: float = STILL_S / 2,
        lagged: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._lagged = lagged
        self._on_wake = on_wake
        self._clock = clock
        self._interval = interval
        self._worked = _worked_s()
        self.worked_s = 0.0
        self._arm(clock())

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _tick(self) -> None:
        now, loop, worked = self._clock(), asyncio.get_running_loop(), _worked_s()
        late, lag = now - self._due, loop.time() - self._due_on_loop
        self.worked_s, self._worked = worked - self._worked, worked
        self._arm(now)
        self._lagged(lag)
        if max(late, lag) > STILL_S:
            self._on_wake(max(late, lag))

    def _arm(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        self._due, self._due_on_loop = now + self._interval, loop.time() + self._interval
        self._timer = loop.call_later(self._interval, self._tick)


def _worked_s() -> float:
    waited_ns = 0
    with suppress(OSError):  # Linux tells how long its first thread waited for a core
        waited_ns = int(Path("/proc/self/schedstat").read_bytes().split()[1])
    return time.process_time() + waited_ns / 1e9


# Sessions verified in the store at the same time.
VERIFIED_AT_ONCE = 32
# Seconds between two checks of an expired session's running turn.
BUSY_RECHECK_S = 1.0


class Peer(Transport, Protocol):
    """A connection as the registry sees it."""

    async def is_alive(self) -> bool: ...


class Visitor:
    """A connection to a session that shows nothing: the session's client stays attached."""

    resumes = segments = is_forwarded = False

    def send(self, *_: Any, **__: Any) -> None:
        """Do nothing: nothing is shown, held or closed here, and a loss is seen by the next commit."""

    drop_partials = suspend = close = ownership_lost = send

    async def is_alive(self) -> bool:
        """Wait for the session."""
        return True


@dataclass(slots=True)
class _Binding:
    session: asyncio.Task[Session]
    connections: set[Peer] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SessionRegistry:
    """Finds or opens a connection's session, and ends sessions whose grace period is over.

    After a suspend, which ended at ``woke_at`` (loop time), another process may own the sessions. No event
    is handled or sent until ``ownership_verified`` is set again.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # Both in the order of last use, for eviction: `unbind` moves a session to the end.
        self._bindings: dict[SessionKey, _Binding] = {}
        self._subjects: dict[str, dict[SessionKey, _Binding]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.ownership_verified = asyncio.Event()
        self.ownership_verified.set()
        self.woke_at = 0.0
        self._verifying: asyncio.Task[None] | None = None
        self._suspend_detector = SuspendDetector(self._woke_after, lagged=services.observers.lagged)
        self._refusals = Refusals()
        if services.subject_records is not None:
            services.subject_records.watch(self._record_changed)

    def _record_changed(self, subject: str) -> None:
        """Let the sessions of a person look at the reminders."""
        for binding in self._subjects.get(subject, {}).values():
            if binding.session.done() and not binding.session.cancelled() and not binding.session.exception():
                binding.session.result().changed()

    def __len__(self) -> int:
        return len(self._bindings)

    @property
    def sessions(self) -> list[Session]:
        tasks = [binding.session for binding in self._bindings.values()]
        return [task.result() for task in tasks if task.done() and task.exception() is None]

    def has(self, key: SessionKey) -> bool:
        """Return whether this process has a session."""
        return key in self._bindings

    async def has_client(self, key: SessionKey) -> bool:
        """Return whether the owner of a session, in any process, serves a client. Raises `StoreError`."""
        stored = await self._services.store.read(key)
        if stored is None or not stored.meta.token:
            return False
        state = replay(stored.commits(), stored.meta.revision)
        return not (state.visits and state.claim == stored.meta.token)

    async def owns(self, key: SessionKey) -> bool:
        """Return whether this process has a session, and the store agrees. Raises `StoreError`."""
        binding = self._bindings.get(key)
        if binding is None or not binding.session.done() or binding.session.exception() is not None:
            return False
        return await binding.session.result().commits.verify()

    def connected(self, subject: str, session_id: str | None = None) -> Session | None:
        """Find the subject's newest session with a connected client, or the one of that id."""
        for key, binding in reversed(self._subjects.get(subject, {}).items()):
            if session_id in (None, key.session_id) and binding.session.done():
                session = binding.session.result() if binding.session.exception() is None else None
                if session is not None and session.outbox.transport is not None:
                    return session
        return None

    def reload(self, services: Services) -> None:
        """Use other services from now on, in existing sessions as well."""
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
            # Another process has owned it since, so its state is stale: claim it again.
            session, existed = await self._bind(key, connection)
        return session, existed or not session.is_new

    async def _verified(self, session: Session, key: SessionKey, connection: Peer) -> bool:
        try:
            return await session.commits.verify()
        except BaseException:
            self.unbind(key, connection)
            raise

    async def _bind(
        self, key: SessionKey, connection: Peer, former: Session | None = None
    ) -> tuple[Session, bool]:
        binding = self._bindings.get(key)
        existed = binding is not None
        if binding is None:
            self._make_room(key.subject)
            binding = _Binding(asyncio.ensure_future(self._open(key, former)))
            # Its clients may have left before it fails.
            binding.session.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
            self._put(key, binding)
        binding.connections.add(connection)
        if binding.timer is not None:
            binding.timer.cancel()
            binding.timer = None
        try:
            session = await asyncio.shield(binding.session)
        except BaseException as error:
            self.unbind(key, connection)
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling():
                raise StoreUnavailable("The claim was given up: the process was suspended.") from None
            raise
        return session, existed

    def unbind(self, key: SessionKey, connection: Peer, *, at_once: bool = False) -> None:
        """Record that a connection closed; the last one starts the session's grace period.

        ``at_once``: without a grace period; the session is released once it is settled.
        """
        binding = self._bindings.get(key)
        if binding is None or connection not in binding.connections:
            return
        binding.connections.discard(connection)
        if binding.session.done() and binding.session.exception() is None:
            binding.session.result().clients.detach(connection)
            if not binding.connections:
                self._bindings[key] = self._bindings.pop(key)
                own = self._subjects[key.subject]
                own[key] = own.pop(key)
                if at_once:
                    session = binding.session.result()
                    session.spawn(self._release(key, binding, session))
                else:
                    self._arm(key, binding, self._services.limits.session_grace)
        elif not binding.connections:
            self._remove(key)
            binding.session.cancel()  # no client waits: a claim now would only fence another process

    async def _release(self, key: SessionKey, binding: _Binding, session: Session) -> None:
        await session.settled()
        if self._bindings.get(key) is binding and not binding.connections:
            self._end(key, binding)

    async def end(self, subject: str, session_id: str | None = None) -> None:
        """End a session of a subject, or all of them, and close their connections."""
        for key, binding in list(self._subjects.get(subject, {}).items()):
            if session_id in (None, key.session_id):
                if binding.timer is not None:
                    binding.timer.cancel()
                self._end(key, binding)
                for connection in binding.connections:
                    connection.close(CloseCode.NORMAL_CLOSURE, "the session was ended")
        if self._closing:
            await asyncio.wait(self._closing)

    def _woke_after(self, seconds: float) -> None:
        if self._services.store.durable:
            was_suspended = seconds - self._suspend_detector.worked_s > STILL_S
            self.recheck_ownership("process was suspended" if was_suspended else "event loop was late")

    def recheck_ownership(self, reason: str = "process was suspended") -> None:
        """Pause all connections until the store has confirmed which sessions this process owns."""
        self.woke_at = asyncio.get_running_loop().time()
        self.ownership_verified.clear()
        if self._verifying is not None:
            self._verifying.cancel()  # its answers are stale
        for key, binding in list(self._bindings.items()):
            if not binding.session.done():  # its claim could fence the process that owns the session now
                self._remove(key)
                binding.session.cancel()
        self._verifying = asyncio.create_task(self._verify_all(reason))

    def store_rolled_back(self) -> None:
        """Let all sessions write again what the store has lost, those at rest as well."""
        if self._verifying is None or self._verifying.done():
            self._verifying = asyncio.create_task(self._verify_all("session store lost commits"))

    async def _verify_all(self, reason: str) -> None:
        at_once = asyncio.Semaphore(VERIFIED_AT_ONCE)

        async def verify(session: Session) -> None:
            async with at_once:
                try:
                    await session.commits.verify()
                except StoreError as error:  # its next commit fails if the session is lost
                    log.warning("session could not be verified", error=type(error).__name__)

        sessions = self.sessions
        if sessions:
            log.warning(f"{reason}; verifying sessions", sessions=len(sessions))
        try:
            async with asyncio.timeout(self._services.limits.verify_timeout):
                await asyncio.gather(*(verify(session) for session in sessions), return_exceptions=True)
        except TimeoutError:
            log.warning("sessions not verified in time")
        # A second suspend has started another verification, which decides.
        if self._verifying is asyncio.current_task():
            self.ownership_verified.set()

    async def close(self) -> None:
        """End every session."""
        self._suspend_detector.close()
        self._refusals.close()
        if self._verifying is not None:
            self._verifying.cancel()
        bindings, self._bindings, self._subjects = self._bindings, {}, {}
        for binding in bindings.values():
            if binding.timer is not None:
                binding.timer.cancel()
        await asyncio.gather(*(self._close(binding, ends=False) for binding in bindings.values()))
        if self._closing:
            await asyncio.wait(self._closing)
        self.ownership_verified.set()  # no session remains that could send

    def _put(self, key: SessionKey, binding: _Binding) -> None:
        self._bindings[key] = binding
        self._subjects.setdefault(key.subject, {})[key] = binding

    def _remove(self, key: SessionKey) -> None:
        del self._bindings[key]
        own = self._subjects[key.subject]
        del own[key]
        if not own:
            del self._subjects[key.subject]
            if self._services.subject_records is not None:
                self._services.subject_records.forget(key.subject)

    def _make_room(self, subject: str) -> None:
        limits, own = self._services.limits, self._subjects.get(subject, {})
        # Without tokens, all clients share one subject, so only the server's limit applies.
        if subject != ANONYMOUS and len(own) >= limits.max_sessions_per_subject:
            self._evict(own, subject, "This person has too many sessions in use.")
        elif len(self._bindings) >= limits.max_sessions:
            self._evict(self._bindings, "all", "The server has too many sessions in use.")

    def _evict(self, bindings: Mapping[SessionKey, _Binding], source: str, refusal: str) -> None:
        for key, binding in bindings.items():
            if not binding.connections and binding.session.done() and not binding.session.result().busy:
                if binding.timer is not None:
                    binding.timer.cancel()
                self._refusals.count("too many sessions; an idle one ended early", source)
                self._end(key, binding)
                return
        self._refusals.count("too many sessions", source)
        raise TooManySessions(refusal)

    async def _open(self, key: SessionKey, former: Session | None) -> Session:
        if self._services.subject_records is not None:
            await self._services.subject_records.load(key.subject)
        claim = await self._services.store.claim(key)
        state = replay(claim.commits, claim.revision)
        wait = takeover_delay_s(state, self._services.limits)
        if wait:
            log.warning("session changes owner often; claim delayed", session=key.session_id, wait_s=wait)
            await asyncio.sleep(wait)
            await self._services.store.release(claim)
            await self._check_client_waits(key)
            claim = await self._services.store.claim(key)
            state = replay(claim.commits, claim.revision)
        # Reads `self._services` again: it may have been reloaded during the claim.
        tools, admission = state.profile.tools, self._services.admission
        readings = await read_declarations(tools, admission) if tools is not None else None
        services = self._services
        binding = self._bindings.get(key)
        return Session(
            services,
            services.store,
            claim,
            state,
            home=self,
            former=former,
            readings=readings,
            visits=binding is not None and all(isinstance(peer, Visitor) for peer in binding.connections),
            wall=wall_ms,
        )

    async def _check_client_waits(self, key: SessionKey) -> None:
        # Claim only for a client that is still connected: another process may serve it now.
        binding, pinged = self._bindings.get(key), set[Peer]()
        while binding is not None and not pinged >= binding.connections:
            pinged = set(binding.connections)
            if any(await asyncio.gather(*(connection.is_alive() for connection in pinged))):
                return
        raise StoreUnavailable("No client waits for the session.")

    def session_lost(self, session: Session, *, stale: bool) -> None:
        """Unbind the connections of a session that another process owns, or that is only ``stale`` here."""
        binding = self._bindings.get(session.key)
        if binding is None or not binding.session.done() or binding.session.result() is not session:
            return
        if binding.timer is not None:
            binding.timer.cancel()
        self._end(session.key, binding)
        for connection in binding.connections:
            connection.ownership_lost(stale=stale)

    def _arm(self, key: SessionKey, binding: _Binding, seconds: float) -> None:
        binding.timer = asyncio.get_running_loop().call_later(seconds, self._expire, key, binding)

    def _expire(self, key: SessionKey, binding: _Binding) -> None:
        # A running turn continues without its client, and its final is kept for the next connection.
        binding.timer = None
        if binding.connections or self._bindings.get(key) is not binding:
            return
        if binding.session.result().busy:
            self._arm(key, binding, BUSY_RECHECK_S)
            return
        self._end(key, binding)

    def _end(self, key: SessionKey, binding: _Binding) -> None:
        self._remove(key)
        task = asyncio.create_task(self._close(binding))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, binding: _Binding, *, ends: bool = True) -> None:
        try:
            async with asyncio.timeout(self._services.limits.close_timeout):
                session = await binding.session
            await session.close(ends=ends)
        except StoreError as error:
            log.debug("session not opened or not released", error=type(error).__name__)
        except Exception:
            log.exception("session could not be closed")
