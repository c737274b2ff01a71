"""One WebSocket: a reader that never waits for a turn, and one writer with a bounded queue."""

from __future__ import annotations

import asyncio
import random
from math import ceil

import structlog
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from conductor.conversation.ids import new_call_id
from conductor.conversation.session import SUPERSEDED, Session
from conductor.conversation.transport import Frame
from conductor.errors import ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound, InvalidFrame, decode_event
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import ErrorEvent, SessionPing, set_state
from conductor.server.hub import Hub
from conductor.server.incoming import Incoming
from conductor.server.pace import Pace
from conductor.server.socket import PING_LEAST, Socket
from conductor.server.writer import Writer
from conductor.settings import Limits
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)

UNBOUND = "unknown"
"""The sessionId of an error about an event that named none."""

DEAR_BYTES = 2_048
"""A frame of this size may take a millisecond, with the tools that it declares."""
DECLARATION = 9.0
"""Nobody waits for tools that are declared later: a tenth of the core is enough for them."""
LATE_S = 0.5
"""An event that had to wait for so long may be that of a client that has gone."""
FIRST_TURN = 8.0
"""A turn is so much dearer than its first step, which is what is seen of it when it begins."""
POLICY_VIOLATION = 1008
REJOIN_S = 0.5
"""Between two tries to bind to a session anew, while the store is away."""

_event_ids = IdSource("evt")


class Connection:
    """A client's connection: decodes what comes, binds it to its session, and sends in order."""

    def __init__(self, socket: Socket, hub: Hub, limits: Limits) -> None:
        self._socket = socket
        self._hub = hub
        self._limits = limits
        self._opened_at = self._now()
        self._incoming = Incoming(socket)
        self._writer = Writer(socket, limits, hub.trust, UNBOUND)
        self._pace = Pace(limits, hub.rush, self._warn_of_flood)
        self._session: Session | None = None
        self._former: Session | None = None
        self._bound_to: str | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._stale = False
        self._dispatching = False
        self._heard = False
        self._resumed = False
        self.resumes = False
        self._ping: asyncio.TimerHandle | None = None
        socket.message_timeout = limits.message_timeout

    # -- the life of a connection

    async def run(self) -> None:
        """Serve the connection until it ends."""
        writer = asyncio.create_task(self._writer.run())
        self._arm_ping(random.uniform(PING_LEAST, 1.0))
        try:
            await self._read()
            await asyncio.wait([writer], timeout=self._limits.send_timeout)
        except ConnectionClosed:
            pass
        except TimeoutError:
            self.close(POLICY_VIOLATION, "no event in time")
            await asyncio.wait([writer], timeout=self._limits.send_timeout)
        finally:
            if self._ping is not None:
                self._ping.cancel()
            self._pace.close()
            writer.cancel()
            if self._rejoining is not None:
                self._rejoining.cancel()
            if self._session is not None:
                self._hub.unbind(self._session.key, self)
            await asyncio.wait([writer], timeout=self._limits.close_timeout)

    async def retire(self, code: int, reason: str) -> None:
        """Close once the session's turn has ended and its client has answered every call."""
        if self._session is not None:
            self._session.drain()
            await self._session.settled()
        self.close(code, reason)

    # -- what a session needs (`Transport`)

    def send(self, frame: Frame) -> None:
        """Queue a frame; a partial takes the place of one that was not written yet."""
        self._writer.send(frame)

    def drop_partials(self) -> None:
        """Forget the partials that were not written yet."""
        self._writer.drop_partials()

    def park(self) -> None:
        """Forget what was not written yet."""
        self._writer.clear()

    def close(self, code: int, reason: str) -> None:
        """Begin to close, after what is queued."""
        self._writer.close(code, reason)

    def abort(self, why: str) -> None:
        """Cut the connection; the session survives."""
        self._writer.abort(why)

    async def is_alive(self) -> bool:
        """Tell whether the client is still there."""
        return await self._incoming.is_alive()

    def lose(self, *, stale: bool) -> None:
        """Know the session no more.

        One that is other in the store than here is bound anew at once. One that another process has is taken
        back by an event that starts a turn, as a parked connection does; a client that resumes is sent away.
        """
        served = self._session is not None and self._session.transport is self
        self._former, self._session = self._session if stale else None, None
        self._stale = stale and served  # a parked one stays that
        if stale and served and not self._dispatching:  # else the event that is dispatched does it
            self._rejoining = asyncio.create_task(self._rejoin())
        elif not stale:
            self.park()
            if self.resumes:
                self.close(SUPERSEDED, "another connection serves the session")

    async def _rejoin(self) -> None:
        try:
            while await self.is_alive():
                try:
                    self._rejoin_alone(await self._bind(self._session_id))
                    return
                except StoreError:
                    await asyncio.sleep(REJOIN_S)
        except Exception:
            log.exception("session not bound again", session=self._session_id)

    def _rejoin_alone(self, session: Session) -> None:
        """Be served again, unless the client has come by another connection meanwhile."""
        if session.transport is None:
            session.rejoin(self)

    def _arm_ping(self, share: float = 1.0) -> None:
        delay = self._limits.ping_interval * share
        self._ping = asyncio.get_running_loop().call_later(delay, self._send_ping)

    def _send_ping(self) -> None:
        self.send(Frame(encode_event(_event_ids(), self._session_id, SessionPing())))
        self._arm_ping()

    # -- reading

    async def _read(self) -> None:
        deadline = self._now() + self._limits.first_event_timeout
        while True:
            async with asyncio.timeout_at(None if self._heard else deadline):
                frame = await self._incoming.next()
            if not await self._pace.admit(len(frame)):
                self.close(POLICY_VIOLATION, "too many events")
                return
            await self._hub.trust.wait()
            if len(frame) >= DEAR_BYTES:
                await self._hub.turnstile.enter()
            await self._take(frame)

    def _warn_of_flood(self, wait: float) -> None:
        log.warning("events too fast", session=self._session_id)
        self._send_error("rate_limited", "Too many events; wait.", None, retry_after_ms=ceil(wait * 1000))

    async def _take(self, data: bytes) -> None:
        try:
            inbound = decode_event(data, self._limits.max_event_bytes)
        except InvalidFrame as error:
            self._send_error(error.code, str(error), error.event_id, error.session_id)
            log.debug("event refused", code=error.code, session=self._session_id)
            if error.event_type in (client.TranscriptFinal.TYPE, None):
                await self._reopen_microphone(error.session_id)
            return
        self._heard = True
        log.debug("event in", type=inbound.type[:64], size=inbound.size, session=inbound.session_id)
        try:
            self._dispatching = True
            await self._dispatch(inbound)
        except StoreError as error:
            self._send_error(
                error.code, "The session store cannot be reached.", inbound.id, inbound.session_id
            )
            if isinstance(inbound.event, client.TranscriptFinal):
                self._say_idle(inbound.session_id)
        except Exception:
            # One event that shows a bug of ours must not cost the client its connection.
            log.exception("event failed", type=inbound.type[:64], session=inbound.session_id)
            self._send_error("internal_error", "The server made a mistake.", inbound.id, inbound.session_id)
        finally:
            self._dispatching = False
            idle = self._rejoining is None or self._rejoining.done()
            if self._stale and self._session is None and idle:
                self._rejoining = asyncio.create_task(self._rejoin())

    async def _dispatch(self, inbound: Inbound) -> None:
        event = inbound.event
        if self._bound_to not in (None, inbound.session_id):
            self._send_error("session_mismatch", "This connection serves another session.", inbound.id)
            if isinstance(event, client.TranscriptFinal):
                await self._reopen_microphone(None)
            return
        if isinstance(event, client.SessionStart) and event.session_id not in (None, inbound.session_id):
            message = "The payload's sessionId is not the envelope's."
            self._send_error("session_mismatch", message, inbound.id, inbound.session_id)
            return
        starts_turn = isinstance(
            event, client.TranscriptFinal | client.AgentCompleted | client.ApprovalResponse
        )
        claims = starts_turn or isinstance(event, client.SessionStart)
        came_at = self._now()
        if self._bound_to is None or (starts_turn and self._is_untried):
            await self._hub.newcomers.enter(FIRST_TURN if starts_turn else 1.0)
        elif isinstance(event, client.SessionUpdate) and inbound.size >= DEAR_BYTES:
            await self._hub.declarations.enter(DECLARATION)
        elif starts_turn:
            await self._hub.turnstile.enter()
        if self._session is None and not await self._may_bind(event, came_at):
            return
        if self._is_lost and not (claims and not self._writer.closing and await self.is_alive()):
            return  # parked: another process serves the session
        delivered = await self._deliver(inbound, starts_turn=starts_turn)
        if not delivered and (self._stale or claims) and await self.is_alive():
            await self._deliver(inbound, starts_turn=starts_turn)

    async def _deliver(self, inbound: Inbound, *, starts_turn: bool) -> bool:
        """Give an event to the session; False if it turned out that this process has it no more."""
        event = inbound.event
        new, stale = self._session is None, self._stale
        session = self._session or await self._bind(inbound.session_id)
        if isinstance(event, client.SessionStart):
            try:
                known = await session.learn(event)
                if not (new or await session.verify()):
                    return False
            except Fenced:
                return False
            session.start(event, self, resumed=self._resumed, known=known)
            await session.flush()
            self._resumed = True
            return True
        served = session.transport is self
        if isinstance(event, client.ToolResultEvent):
            # Before attaching: what it answers need not be replayed.
            if await session.receive(inbound, self) == "expected":
                self._pace.expected(inbound.size)
            if new:
                session.attach(self, resumed=self._resumed)
            return self._session is session
        if not served:
            if not (new or starts_turn):
                return True  # parked: another connection serves the session
            if stale and not starts_turn:
                self._rejoin_alone(session)
            elif new or await self.is_alive():
                session.attach(self, resumed=self._resumed and not starts_turn)
        if await session.receive(inbound, self) == "refused":
            self._pace.refused()
        return self._session is session

    async def _may_bind(self, event: client.ClientEvent | None, came_at: float) -> bool:
        """Whether to take a session for an event: its client may have gone to another process since."""
        if isinstance(event, client.SessionStart) and self._socket.state is not State.OPEN:
            return False  # nobody would hear the answer
        late = self._now() - came_at > LATE_S or self._opened_at < self._hub.thawed_at
        return not late or await self.is_alive()

    @property
    def _is_untried(self) -> bool:
        """Whether its session has had no turn yet."""
        return self._session is not None and not self._session.messages

    @property
    def _is_lost(self) -> bool:
        """Whether it was bound to a session that another process has taken."""
        return self._session is None and self._bound_to is not None and not self._stale

    async def _bind(self, session_id: str) -> Session:
        key = SessionKey(self._socket.subject, session_id)
        self._session, self._resumed = await self._hub.bind(key, self, self._former)
        self._bound_to, self._stale, self._former = session_id, False, None
        self._writer.session_id = session_id
        return self._session

    @property
    def _session_id(self) -> str:
        return self._bound_to or UNBOUND

    async def _reopen_microphone(self, session_id: str | None) -> None:
        """Say ``idle`` after a bad transcript: the app is transcribing until it hears that."""
        if self._is_lost:
            self._say_idle(self._session_id)
        elif self._session is None and session_id is not None:
            try:
                (await self._bind(session_id)).attach(self, resumed=False)
            except StoreError:
                self._say_idle(session_id)
        if self._session is not None:
            if self._session.transport is self:
                await self._session.reopen_microphone()
            else:
                self._say_idle(self._session_id)

    def _say_idle(self, session_id: str) -> None:
        """Say ``idle`` without a session: there is none, since the store is away."""
        self.send(Frame(encode_event(_event_ids(), session_id, set_state(new_call_id(), "idle"))))

    def _send_error(
        self,
        code: ErrorCode,
        message: str,
        event_id: str | None,
        session_id: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        session_id = self._bound_to or session_id
        error = ErrorEvent(code, message, event_id=event_id, retry_after_ms=retry_after_ms)
        self.send(Frame(encode_event(_event_ids(), session_id or UNBOUND, error)))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
