"""One WebSocket: a reader that never waits for a turn, and one writer with a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from math import ceil
from typing import Any

import structlog
from websockets.exceptions import ConnectionClosed

from conductor.bounds import TokenBucket
from conductor.conversation.session import SUPERSEDED, Session
from conductor.conversation.transport import Frame
from conductor.errors import ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound, InvalidFrame, decode_event
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import ErrorEvent, SessionPing, set_state
from conductor.server.hub import Hub
from conductor.server.socket import Socket
from conductor.settings import Limits
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)

UNBOUND = "unknown"
"""The sessionId of an error about an event that named none."""

MAX_BATCH = 64
"""Frames in one write: more would only make the last of them late."""
FRAME_BYTES = 20_480
"""A frame counts once more against the rate for each so many bytes."""
DEAR_BYTES = 2_048
"""A frame of this size may take a millisecond, with the tools that it declares."""
IN_A_ROW = 5
"""So many events of a burst are taken in a row; between any more all others have their turn."""
AT_ONCE = 40
"""So many are taken as they come, more than a phone that reconnects says; the rest share `Hub.rush`."""
REFUSED_COST = 20
"""A transcript that is refused counts for so many events: it is answered by two, one of them recorded."""
POLICY_VIOLATION = 1008
ALIVE_S = 3.0
"""How long a client may take to answer a ping before it may take its session back."""
REJOIN_S = 0.5
"""Between two tries to bind to a session anew, while the store is away."""
READ_AHEAD = 64
"""Frames that may stand before its answer."""

_event_ids = IdSource("evt")
_call_ids = IdSource("call")


class Connection:
    """A client's connection: decodes what comes, binds it to its session, and sends in order."""

    def __init__(self, socket: Socket, hub: Hub, limits: Limits) -> None:
        self._socket = socket
        self._hub = hub
        self._limits = limits
        self._session: Session | None = None
        self._bound_to: str | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._stale = False
        self._dispatching = False
        self._heard = False
        self._ahead: deque[bytes] = deque()
        self._resumed = False
        self.resumes = False
        self._queue: deque[Frame] = deque()
        self._wake = asyncio.Event()
        self._close: tuple[int, str] | None = None
        self._cut = False
        self._ping: asyncio.TimerHandle | None = None
        self._bucket = TokenBucket(limits.frames_per_second, limits.frames_burst, self._now())
        socket.message_timeout = limits.message_timeout
        self._flooding_since: float | None = None

    # -- the life of a connection

    async def run(self) -> None:
        """Serve the connection until it ends."""
        writer = asyncio.create_task(self._write())
        self._arm_ping()
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
        queue = self._queue
        if self._cut:
            return
        if frame.partial and queue and queue[-1].partial:
            queue[-1] = frame
        elif len(queue) >= self._limits.max_send_queue:
            self.abort("send queue full")
        else:
            queue.append(frame)
        self._wake.set()

    def drop_partials(self) -> None:
        """Forget the partials that were not written yet."""
        for frame in self._queue:
            if frame.partial:
                frame.withdrawn = True

    def park(self) -> None:
        """Forget what was not written yet."""
        self._queue.clear()

    def close(self, code: int, reason: str) -> None:
        """Begin to close, after what is queued."""
        self._close = (code, reason)
        self._wake.set()

    def lose(self, *, stale: bool) -> None:
        """Know the session no more.

        One that is other in the store than here is bound anew at once. One that another process has is taken
        back by an event that starts a turn, as a parked connection does; a client that resumes is sent away.
        """
        served = self._session is not None and self._session.transport is self
        self._session, self._stale = None, stale and served  # a parked one stays that
        if stale and served and not self._dispatching:  # else the event that is dispatched does it
            self._rejoining = asyncio.create_task(self._rejoin())
        elif not stale:
            self.park()
            if self.resumes:
                self.close(SUPERSEDED, "another connection serves the session")

    async def _rejoin(self) -> None:
        try:
            while await self._answers_ping():
                try:
                    (await self._bind(self._session_id)).rejoin(self)
                    return
                except StoreError:
                    await asyncio.sleep(REJOIN_S)
        except Exception:
            log.exception("session not bound again", session=self._session_id)

    def abort(self, why: str) -> None:
        """Cut the connection; the session survives."""
        log.warning("connection cut", why=why, session=self._session_id)
        self._cut = True
        self._queue.clear()
        self._socket.transport.abort()

    # -- writing

    async def _write(self) -> None:
        """Write what is queued, each frame in its time: a peer that never reads must not hold anything."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._write_queue()
                if self._close is not None:
                    await self._socket.close(*self._close)
                    return
        except TimeoutError:
            self.abort("peer does not read")
        except ConnectionClosed:
            pass

    async def _write_queue(self) -> None:
        queue = self._queue
        while queue:
            frames = [queue.popleft() for _ in range(min(len(queue), MAX_BATCH))]
            frames = [frame for frame in frames if not frame.withdrawn]
            for frame in frames:
                frame.written = True
            await self._socket.send_texts([frame.data for frame in frames], self._limits.send_timeout)

    def _arm_ping(self) -> None:
        self._ping = asyncio.get_running_loop().call_later(self._limits.ping_interval, self._send_ping)

    def _send_ping(self) -> None:
        self.send(Frame(encode_event(_event_ids(), self._session_id, SessionPing())))
        self._arm_ping()

    # -- reading

    async def _read(self) -> None:
        deadline = self._now() + self._limits.first_event_timeout
        while True:
            async with asyncio.timeout_at(None if self._heard else deadline):
                frame = self._ahead.popleft() if self._ahead else await self._socket.recv(decode=False)
            cost = self._cost(len(frame))
            if not await self._in_turn(cost):
                return
            if len(frame) >= DEAR_BYTES:
                await self._hub.turnstile.enter()
            await self._take(frame)

    async def _in_turn(self, cost: float) -> bool:
        """Wait until an event may be taken, so that none is lost; False if this client only ever floods."""
        now = self._now()
        used = self._bucket.used(now)
        wait = self._bucket.take(now, cost)
        if wait:
            self._bucket.spend(now, cost)
        elif used > AT_ONCE:
            wait = self._hub.rush.reserve(now, cost)
        elif used <= IN_A_ROW:
            self._flooding_since = None
            return True
        if wait and not self._may_wait(now, wait):
            return False
        await asyncio.sleep(wait)
        return True

    def _may_wait(self, now: float, wait: float) -> bool:
        if self._flooding_since is None:
            self._flooding_since = now
            log.warning("events too fast", session=self._session_id)
            self._send_error("rate_limited", "Too many events; wait.", None, retry_after_ms=ceil(wait * 1000))
        elif now - self._flooding_since > self._limits.flood_timeout:
            self.close(POLICY_VIOLATION, "too many events")
            return False
        return True

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
        if starts_turn or self._bound_to is None:
            await self._hub.turnstile.enter()
        claims = starts_turn or isinstance(event, client.SessionStart)
        if self._is_lost and not (claims and self._close is None and await self._is_alive()):
            return  # parked: another process serves the session
        delivered = await self._deliver(inbound, starts_turn=starts_turn)
        if not delivered and (self._stale or claims) and await self._is_alive():
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
                self._bucket.give_back(self._cost(inbound.size))  # the server asked for it
            if new:
                session.attach(self, resumed=self._resumed)
            return self._session is session
        if not served:
            if not (new or starts_turn):
                return True  # parked: another connection serves the session
            if stale and not starts_turn:
                session.rejoin(self)
            elif new or await self._is_alive():
                session.attach(self, resumed=self._resumed and not starts_turn)
        if await session.receive(inbound, self) == "refused":
            self._bucket.spend(self._now(), REFUSED_COST)
        return self._session is session

    @property
    def _is_lost(self) -> bool:
        """Whether it was bound to a session that another process has taken."""
        return self._session is None and self._bound_to is not None and not self._stale

    async def _is_alive(self) -> bool:
        """Tell whether the client is still there.

        What a dead client had said may be read long after it has gone to another process, and must not take
        the session back from there.
        """
        try:
            async with asyncio.timeout(ALIVE_S):
                pong = asyncio.ensure_future(await self._socket.ping())
                while not pong.done() and len(self._ahead) < READ_AHEAD:
                    await self._read_ahead(pong)
                await pong
        except (TimeoutError, ConnectionClosed):
            return False
        return True

    async def _answers_ping(self) -> bool:
        """Tell whether the client is there, while events are read elsewhere."""
        try:
            async with asyncio.timeout(ALIVE_S):
                await (await self._socket.ping())
        except (TimeoutError, ConnectionClosed):
            return False
        return True

    async def _read_ahead(self, pong: asyncio.Future[float]) -> None:
        """Take frames that stand before the pong: while too many wait, nothing is read."""
        frame = asyncio.ensure_future(self._socket.recv(decode=False))
        try:
            waits: set[asyncio.Future[Any]] = {pong, frame}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            frame.cancel()
            await asyncio.wait([frame])  # two may not read at once
            if not frame.cancelled() and frame.exception() is None:
                self._ahead.append(frame.result())

    async def _bind(self, session_id: str) -> Session:
        key = SessionKey(self._socket.subject, session_id)
        self._session, self._resumed = await self._hub.bind(key, self)
        self._bound_to, self._stale = session_id, False
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
        self.send(Frame(encode_event(_event_ids(), session_id, set_state(_call_ids(), "idle"))))

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
    def _cost(size: int) -> int:
        """Say how much a frame of so many bytes counts against the rate."""
        return 1 + size // FRAME_BYTES

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
