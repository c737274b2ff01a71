"""One WebSocket: a reader that does not wait for turns, and a writer with a bounded queue."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from math import ceil
from typing import Any
from weakref import proxy

import structlog
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

from conductor.errors import ErrorCode, Fenced, StoreError, StoreUnavailable, TooManySessions
from conductor.events import client
from conductor.events.codec import Inbound, InvalidFrame, decode_event
from conductor.events.envelope import SUPERSEDED, IdGenerator, encode_event, encode_frame, new_call_id
from conductor.events.server import ErrorEvent, SessionPing, set_state
from conductor.prompts import variables_of
from conductor.server.access import Access
from conductor.server.auth import Principal
from conductor.server.expiry import TOKEN_EXPIRES, TokenExpiry
from conductor.server.sessions import SessionRegistry
from conductor.server.websocket import PING_SPREAD, EventRate, Socket, Writer
from conductor.session.inbound import InboundResult, handle, learn
from conductor.session.services import Services
from conductor.session.session import Session
from conductor.session.transport import Frame
from conductor.stores.base import SessionKey

log = structlog.get_logger(__name__)

# The sessionId of an error event about an event without one.
UNBOUND = "unknown"

# Bytes of a frame that waits to be admitted: one with tool declarations may take a millisecond.
LONG_EVENT_BYTES = 2_048
# Seconds that an event may wait before the server pings its client.
LATE_S = 0.5
# WebSocket close code of a client that breaks a limit.
POLICY_VIOLATION = 1008
# The reason of a close after the client's token was removed.
REVOKED = "the token is no longer valid"
# Seconds in which a claim for a request of the backend, without a client, is recorded.
VISIT_S = 0.3
# Tries to deliver an event while another client takes the session over each time.
DELIVERY_ATTEMPTS = 8

_event_ids = IdGenerator("evt")


class _State(Enum):
    UNBOUND = auto()  # no session yet
    BOUND = auto()  # has a session, which sends here, to another connection, or to none
    LOST = auto()  # another process owns the session, or its state became stale while it did not send here
    STALE = auto()  # the session's state in this process became stale while it sent here; binds again


class Connection(Writer):
    """A client's connection: decodes events, binds to their session, and sends in order.

    It is its session's `Transport`.
    """

    def __init__(self, socket: Socket, registry: SessionRegistry, services: Services, access: Access) -> None:
        super().__init__(socket, services.limits, registry.ownership_verified, UNBOUND)
        self._registry = registry
        self._access = access
        self._expiry: TokenExpiry | None = None
        self._admission = services.admission
        self._opened_at = _now()
        weak = proxy(self)  # with a cycle, a closed connection would wait for the garbage collector
        self._rate = EventRate(services.limits, lambda wait: weak._warn_of_flood(wait))
        self._session: Session | None = None
        self._former: Session | None = None
        self._state = _State.UNBOUND
        self._refused_start: Inbound | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._handling = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._resumed = False
        self.resumes = False
        self.segments = False
        self._takes_images = False
        self.is_forwarded = socket.client.is_forwarded
        self._ping: asyncio.TimerHandle | None = None

    # -- the life of a connection

    async def run(self) -> None:
        """Serve the connection until it ends."""
        writer = asyncio.create_task(self.write())
        self._arm_ping(random.uniform(PING_SPREAD, 1.0))
        self._watch_token()
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
            if self._expiry is not None:
                self._expiry.cancel()
            writer.cancel()
            for task in (self._recovering, self._leaving):
                if task is not None:
                    task.cancel()
            if self._session is not None:
                self._registry.unbind(self._session.key, self)
            await asyncio.wait([writer], timeout=self._limits.close_timeout)

    @property
    def principal(self) -> Principal:
        """The client with its person."""
        return self._socket.client

    def _take_images(self, takes: bool) -> None:
        """Read frames with images from now on, or refuse them for their size."""
        self._takes_images = takes
        limit = self._limits.image_event_bytes if takes else self._limits.hard_event_bytes
        self._socket.protocol.max_message_size = limit

    def revoke(self, seconds: float) -> None:
        """Close within ``seconds``, and send and read nothing more: the client's token is not valid."""
        self.suspend()
        self._cut = True
        self.close(POLICY_VIOLATION, REVOKED)
        asyncio.get_running_loop().call_later(seconds, self._socket.transport.abort)

    async def drain(self, code: int, reason: str, seconds: float) -> None:
        """Close once the turn has ended and the client has answered every call, within ``seconds``."""
        if self._session is not None:
            self._session.drain(seconds)
            # A close before the app's acknowledgements would cut off the last speech.
            await self._session.settled()
        if self._session is not None:  # still
            # The process that the app finds next would wait for the end of a speech that has ended.
            await self._session.commits.flush()
        self.close(code, reason)

    async def is_alive(self) -> bool:
        """Return whether the client answers a ping."""
        return await self._socket.is_alive()

    def ownership_lost(self, *, stale: bool) -> None:
        """Unbind from the session.

        If its state in this process was stale, bind again at once. If another process owns it, the next event
        that starts a turn takes it back, and a client that resumes is closed.
        """
        if self._state is not _State.UNBOUND:
            self._state = _State.STALE if stale and self._is_served else _State.LOST
        self._former, self._session = self._session if stale else None, None
        if self._state is _State.STALE:
            self._recover_soon()
        elif not stale:
            self.suspend()
            if self.resumes:
                self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Close the connection: for good, unless the claim that took the session had no client."""
        has_client = True
        with suppress(StoreError):
            await asyncio.sleep(VISIT_S)
            key = SessionKey(self._socket.client.subject, self.session_id)
            has_client = await self._registry.has_client(key)
        if has_client:
            self.close(SUPERSEDED, "another connection serves the session")
        else:
            self.close(CloseCode.SERVICE_RESTART, "a process took the session for a request")

    def _recover_soon(self) -> None:
        if self._recovering is None or self._recovering.done():
            self._recovering = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        """Start or bind again until it succeeds: apps wait, and send no second start on a connection."""
        try:
            while (self._refused_start or self._state is _State.STALE) and await self.is_alive():
                # A second binding at the same time would lose the event that the first one delivers.
                async with self._handling:
                    await self._handle_refused_start()
                    if self._state is _State.STALE:
                        with suppress(StoreError):
                            former, session = self._former, await self._bind(self.session_id)
                            if not self._is_deleted(former, session):
                                await self._rejoin_alone(session)
                await asyncio.sleep(self._limits.store_retry)
        except Exception:
            log.exception("session could not be bound again", session=self.session_id)

    def _is_deleted(self, former: Session | None, session: Session) -> bool:
        """Return whether a stale session was deleted or has expired; then the client has to start again.

        It would be in a session without its tools and capabilities.
        """
        if former is None or former.farewell is None or not session.is_new:
            return False
        for event in former.farewell:
            self.send(Frame(encode_frame(event.id, event.type, self.session_id, event.payload)))
        self.close(CloseCode.SERVICE_RESTART, "the session was deleted")
        return True

    async def _rejoin_alone(self, session: Session) -> None:
        if session.outbox.transport is None:
            await session.clients.attach(self, resumed=True, same_process=True)

    def _arm_ping(self, share: float = 1.0) -> None:
        delay = self._limits.ping_interval * share
        self._ping = asyncio.get_running_loop().call_later(delay, self._send_ping)

    def _send_ping(self) -> None:
        self.send(Frame(encode_event(_event_ids(), self.session_id, SessionPing())))
        self._arm_ping()

    # -- reading

    async def _read(self) -> None:
        deadline: float | None = _now() + self._limits.first_event_timeout
        while True:
            async with asyncio.timeout_at(deadline):
                frame = await self._socket.next_message()
            if self._close is not None and self._close[0] == POLICY_VIOLATION:
                return
            size = len(frame)
            await self._registry.ownership_verified.wait()
            if size >= LONG_EVENT_BYTES:
                await self._admission.enter()
            if await self._take(frame):
                deadline = None  # from now on the WebSocket's pings find dead clients
            del frame  # free up to 1 MiB during the wait
            if not await self._rate.admit(size):
                self.close(POLICY_VIOLATION, "too many events")
                return

    def _watch_token(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        expires = self._socket.client.expires
        if expires is not None:
            close = partial(self.close, POLICY_VIOLATION, "token expired")
            self._expiry = TokenExpiry(expires, self._warn_of_expiry, close)

    def _warn_of_expiry(self, seconds: float) -> None:
        if self._session is not None and self._is_served:
            self._session.clients.say_goodbye(seconds, TOKEN_EXPIRES)

    async def _renew(self, token: str, event_id: str) -> None:
        try:
            client = await self._access.renew(self._socket.client, token)
        except Exception as error:  # of a plugin; its text may contain the token
            log.error("token not renewed", error=type(error).__name__, session=self.session_id)
            client = None
        if client is None:
            self._rate.refuse()
            self._send_error("unauthorized", "The token is not valid for this connection.", event_id)
        else:
            self._socket.client = client
            self._watch_token()

    def _warn_of_flood(self, wait: float) -> None:
        log.warning("client exceeds the event rate", session=self.session_id)
        self._send_error("rate_limited", "Too many events; wait.", None, retry_after_ms=ceil(wait * 1000))

    async def _take(self, data: bytes) -> bool:
        try:
            inbound = decode_event(data, self._limits.max_event_bytes, takes_images=self._takes_images)
        except InvalidFrame as error:
            self._rate.refuse()
            self._send_error(error.code, str(error), error.event_id, error.session_id)
            log.debug("event refused", code=error.code, session=self.session_id)
            # The app transcribes until it gets ``idle``.
            if error.event_type in (client.TranscriptFinal.TYPE, None):
                await self._reopen_microphone(error.session_id)
            return False
        log.debug("event in", type=inbound.type[:64], size=inbound.size, session=inbound.session_id)
        if isinstance(inbound.event, client.SessionUpdate) and inbound.event.token is not None:
            await self._renew(inbound.event.token, inbound.id)
            if inbound.event.tools is None:
                return True
        async with self._handling:
            if isinstance(inbound.event, client.SessionStart):
                self._refused_start = None
                self._take_images("images" in inbound.event.capabilities)
            elif self._refused_start is not None:
                await self._handle_refused_start()
            await self._handle(inbound)
        return True

    async def _handle_refused_start(self) -> None:
        refused, self._refused_start = self._refused_start, None
        if refused is not None:
            await self._handle(refused, is_retry=True)

    async def _handle(self, inbound: Inbound, *, is_retry: bool = False) -> None:
        try:
            await self._dispatch(inbound)
        except StoreError as error:
            if isinstance(inbound.event, client.SessionStart) and isinstance(error, StoreUnavailable):
                self._refused_start = inbound
                self._recover_soon()
            if is_retry:
                return
            message, retry_after_ms = "The session store cannot be reached.", None
            if isinstance(error, TooManySessions):
                message, retry_after_ms = str(error), ceil(error.RETRY_S * 1000)
            self._send_error(error.code, message, inbound.id, inbound.session_id, retry_after_ms)
            if isinstance(inbound.event, client.TranscriptFinal):
                self._say_idle(inbound.session_id)
        except Exception:
            # A bug in the server must not cost the client its connection, or words and results: it keeps them
            # for another try.
            log.exception("event failed", type=inbound.type[:64], session=inbound.session_id)
            code: ErrorCode = "internal_error"
            if isinstance(inbound.event, client.TranscriptFinal | client.ToolResultEvent):
                code = "store_unavailable"
            self._send_error(code, "The server made a mistake.", inbound.id, inbound.session_id)
            if isinstance(inbound.event, client.TranscriptFinal):
                self._say_idle(inbound.session_id)

    async def _dispatch(self, inbound: Inbound) -> None:
        event = inbound.event
        if self._known_session not in (None, inbound.session_id):
            self._send_error("session_mismatch", "This connection serves another session.", inbound.id)
            if isinstance(event, client.TranscriptFinal):
                await self._reopen_microphone(None)
            return
        if self._socket.client.session not in (None, inbound.session_id):
            message = "This token is for another session."
            self._send_error("session_mismatch", message, inbound.id, inbound.session_id)
            return
        if isinstance(event, client.SessionStart) and event.session_id not in (None, inbound.session_id):
            message = "The payload's sessionId is not the envelope's."
            self._send_error("session_mismatch", message, inbound.id, inbound.session_id)
            return
        claims = event is not None and event.CLAIMS
        starts_turn = claims and not isinstance(event, client.SessionStart)
        received_at = _now()
        first_turn = starts_turn and self._session is not None and not self._session.state.log
        if first_turn or self._state is _State.UNBOUND:
            await self._admission.enter()  # a crowd of new clients must not slow running turns
        if self._session is None and not await self._may_bind(received_at):
            return
        may_claim = claims and self._close is None and self._leaving is None
        if self._state is _State.LOST and not (may_claim and await self.is_alive()):
            return
        # A claim may be lost between binding and the commit: bind again, and deliver the same event.
        for _ in range(DELIVERY_ATTEMPTS):
            if await self._deliver(inbound, starts_turn=starts_turn):
                return
            if self._leaving is not None:
                return
            if not ((claims or self._state is _State.STALE) and await self.is_alive()):
                return
        raise StoreUnavailable("Other connections keep taking the session.")

    async def _deliver(self, inbound: Inbound, *, starts_turn: bool) -> bool:
        event = inbound.event
        former_state, was_served = self._state, self._is_served
        new, former = self._session is None, self._former
        session = self._session or await self._bind(inbound.session_id)
        if isinstance(event, client.SessionStart):
            return await self._start(inbound.id, event, session, new=new)
        if new and self._is_deleted(former, session):
            if isinstance(event, client.TranscriptFinal) and not self.resumes:  # else it is sent again
                raise StoreUnavailable("The session was deleted.")
            return True
        if isinstance(event, client.ToolResultEvent):
            # Before attaching, so that its call is not replayed.
            result = await handle(session, inbound, self)
            self._rate.settle(result)
            if new:  # an expected result shows that the app was not relaunched
                same_process = result in (InboundResult.EXPECTED, InboundResult.LATER)
                await session.clients.attach(self, resumed=self._resumed, same_process=same_process)
            return self._session is session
        match former_state:
            case _State.BOUND if was_served:
                pass
            case _State.BOUND if not starts_turn:
                return True
            case _State.STALE if not starts_turn:
                await self._rejoin_alone(session)
            case _ if new or await self.is_alive():
                resumed = self._resumed and not starts_turn
                same_process = former_state is _State.STALE
                await session.clients.attach(self, resumed=resumed, same_process=same_process)
        self._rate.settle(await handle(session, inbound, self))
        return self._session is session

    async def _start(self, event_id: str, event: client.SessionStart, session: Session, *, new: bool) -> bool:
        # The operator may change the prompt while a session runs, which comes back as it began.
        if event.variables not in (None, session.state.profile.variables):
            unknown = sorted((event.variables or {}).keys() - variables_of(session.services.system_prompt))
            if unknown:
                problem = f"The system prompt has no variable {unknown[0]!r}."
                self._send_error("invalid_event", problem, event_id, session.key.session_id)
                return True
        tools = event.tools if "tools" in event.capabilities else None
        readings = await session.gate.read(tools or [])
        try:
            answer = await learn(session, event)
            if not (new or await session.commits.verify()):
                return False
        except Fenced:
            return False
        await session.clients.start(event, self, resumed=self._resumed, answer=answer, readings=readings)
        self._resumed = True
        self._watch_token()  # again: only now the client can be told
        return True

    async def _may_bind(self, received_at: float) -> bool:
        # A claim for a dead client would fence the process that serves its new connection.
        if self._socket.state is not State.OPEN:
            return False
        # A dead client's events must not take the session from the process that serves it now.
        late = _now() - received_at > LATE_S or self._opened_at < self._registry.woke_at
        return not late or await self.is_alive()

    @property
    def _is_served(self) -> bool:
        """Whether the session sends here, and to no other connection."""
        return self._session is not None and self._session.outbox.transport is self

    @property
    def _known_session(self) -> str | None:
        return None if self._state is _State.UNBOUND else self.session_id

    async def _bind(self, session_id: str) -> Session:
        key = SessionKey(self._socket.client.subject, session_id)
        binding = asyncio.ensure_future(self._registry.bind(key, self, self._former))
        waits: set[asyncio.Future[Any]] = {binding, self._socket.connection_lost_waiter}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not binding.done():  # another process may serve the client when the store answers
                binding.cancel()
                await asyncio.wait([binding])
        if binding.cancelled():
            raise StoreUnavailable("No client waits for the session.")
        self._session, self._resumed = binding.result()
        self._state, self._former, self.session_id = _State.BOUND, None, session_id
        return self._session

    async def _reopen_microphone(self, session_id: str | None) -> None:
        if self._session is not None and self._is_served:
            await self._session.reopen_microphone()
        elif (target := self._known_session or session_id) is not None:
            self._say_idle(target)

    def _say_idle(self, session_id: str) -> None:
        self.send(Frame(encode_event(_event_ids(), session_id, set_state(new_call_id(), "idle"))))

    def _send_error(
        self,
        code: ErrorCode,
        message: str,
        event_id: str | None,
        session_id: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        session_id = self._known_session or session_id
        error = ErrorEvent(code=code, message=message, event_id=event_id, retry_after_ms=retry_after_ms)
        self.send(Frame(encode_event(_event_ids(), session_id or UNBOUND, error)))


def _now() -> float:
    return asyncio.get_running_loop().time()
