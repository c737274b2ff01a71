"""The client of one session: the library's public methods, and the loops that read and reconnect."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from conductor.client.approvals import ApprovalHandler, Approvals
from conductor.client.calls import SPEAK, Calls, SpeakHandler, ToolHandler, stay_silent
from conductor.client.connection import (
    ClientError,
    ClientLimits,
    ConnectionLost,
    GaveUp,
    Reconnect,
    Socket,
    Typed,
    call_back,
    describe_error,
    restore,
    state_of,
    wire_type,
)
from conductor.client.state import ClientSession, Received
from conductor.client.turns import Turn, Turns
from conductor.events.client import (
    AgentCompleted,
    ClientEvent,
    OutputInterrupted,
    ResponseCancel,
    SessionStart,
    SessionUpdate,
    TranscriptFinal,
    TranscriptPartial,
)
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    EventAck,
    SessionPing,
    SessionStarted,
    SpeechPartial,
    ToolCallEvent,
    ToolCancel,
)
from conductor.events.ui_calls import is_ui_call

log = logging.getLogger(__name__)

DEFAULT_CAPABILITIES = ("resume", "cancel", "lease", "late", "async", "activity", "turns", "diagnostics")
"""Capabilities that the library implements alone. ``tools`` and ``approval`` need handlers of the app. An app
asks for ``segments`` itself, because speeches then run concurrently with other events."""
_NOT_REPLAYED = (SpeechPartial, SessionPing, SessionStarted, EventAck, Diagnostic)
_CLOSED = "The client was closed."

Callback = Callable[[Any], Any]
"""Takes an event. The next event waits for an async callback."""

T = TypeVar("T", bound=Typed)


class Client:
    """A voice app's side of one session. Turns, handlers and unconfirmed events outlive a connection.

    ``session_id`` None makes a new session. ``token`` is sent only in the ``Authorization: Bearer`` header.
    ``handlers`` are tools by name; `on_tool` adds more, but a resumed session may call tools at once.
    ``speak`` is the voice; the default one is silent. ``model`` selects a model of the server;
    ``Client.started.model`` names the active one. ``on_approval`` handles requests for consent (see
    `Client.on_approval`). ``tools`` are `ToolDeclaration`s as plain JSON objects.

    ``capabilities`` None names all that the library implements, ``()`` the base protocol; ``tools`` and
    ``approval`` are added if there are tools and a handler. ``serial`` handles events one at a time, each
    call to its end, as the shipped app does; otherwise tools and speech run concurrently. ``proxy`` is a URL.
    ``reconnect`` restores a lost connection.
    """

    def __init__(
        self,
        url: str,
        session_id: str | None = None,
        *,
        token: str | None = None,
        locale: str | None = None,
        time_zone: str | None = None,
        instructions: str | None = None,
        model: str | None = None,
        capabilities: Sequence[str] | None = None,
        tools: Sequence[Any] = (),
        handlers: Mapping[str, ToolHandler] | None = None,
        speak: SpeakHandler | None = None,
        on_approval: ApprovalHandler | None = None,
        serial: bool = True,
        limits: ClientLimits | None = None,
        reconnect: Reconnect | None = None,
        proxy: str | None = None,
    ) -> None:
        self._address = url, token, proxy
        self._capabilities = DEFAULT_CAPABILITIES if capabilities is None else tuple(capabilities)
        self._serial = serial
        self._policy = reconnect
        session_id = session_id or f"session-{secrets.token_hex(8)}"
        self._session = ClientSession(session_id, limits or ClientLimits(), self._notice, self._welcome)
        self._start = SessionStart(session_id, None, locale, time_zone, instructions, model=model)
        self._turns = Turns()
        self._calls = Calls(self._session, speak or stay_silent, self._turns.add_result)
        self._calls.tools = list(tools)
        self._approvals = Approvals(self._session)
        self._approvals.handler = on_approval
        for name, handler in (handlers or {}).items():
            self.on_tool(name, handler)
        self._callbacks: dict[str, list[Callback]] = {}
        self._state: str | None = None  # of the last ``convo.setState``
        self._is_blocked = False  # a tool or a speech is running, and events wait
        self._speeches: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._retries = False  # the connection is watched, and restored after a loss
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def state(self) -> str | None:
        return self._state

    @property
    def started(self) -> SessionStarted | None:
        return self._session.started

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        return self._session.capabilities

    @property
    def connected(self) -> bool:
        return self._session.connected

    @property
    def received_ids(self) -> frozenset[str]:
        """The ids of the last 2,000 events."""
        return frozenset(self._session.ids)

    @property
    def busy(self) -> bool:
        """Whether a speech is running, or a turn that does not wait for the answer to a spoken question."""
        is_active = self._calls.speaking or self.state in ("thinking", "speaking")
        return is_active or self._turns.are_busy(self.state)

    @property
    def asking(self) -> bool:
        """Whether an approval request is undecided."""
        return self._approvals.asking

    # Connecting

    async def start(self) -> SessionStarted:
        """Connect and start the session; entering the client does this.

        A failure is not retried, even with ``reconnect``, so that a wrong address fails at once. Raises
        `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        return await self.reconnect()

    async def reconnect(self) -> SessionStarted:
        """Open a new connection for the same session, closing the present one.

        Then unconfirmed events are sent again: tool results (with the capability ``resume`` as part of
        ``session.start``), and transcripts younger than ``ClientLimits.resend_s``. Raises as `start` does;
        it can be called again.
        """
        return await self._connect(replace_socket=True)

    async def close(self) -> None:
        """Close the socket and stop the handlers. Running turns end with `ConnectionLost`."""
        if self._closing is None:
            self._retries = False
            self._turns.close(loss := ConnectionLost(_CLOSED))
            self._closing = asyncio.create_task(self._session.close(loss))
        # Shielded: a handler that closes its client is cancelled.
        await asyncio.shield(self._closing)

    def drop(self) -> None:
        """Cut the socket without a close frame, as a lost mobile network does."""
        self._session.drop()

    async def wait_lost(self, timeout: float | None = None) -> ConnectionLost:
        """Wait until the connection is lost; return the reason. Raises `WaitTimeout`."""
        return await self._session.wait_lost(timeout)

    async def _connect(self, *, replace_socket: bool = False) -> SessionStarted:
        if self._closing is not None:
            raise ConnectionLost(_CLOSED)
        # One worker for all connections, so that events are handled in their order.
        if self._worker is None:
            self._worker = self._session.spawn(self._work())
        self._session.expire(self._turns.is_open)  # an outdated transcript must not start a turn
        self._turns.expire(self._session.has)
        link = partial(Socket.open, *self._address, self._session.limits)
        started = await self._session.open(link, self._start_event, replace=replace_socket)
        await self._session.flush()
        await self._approvals.connected(resumed=started.resumed)
        if self._policy is not None and not self._retries and self._closing is None:
            self._retries = True
            self._session.spawn(self._watch(self._policy))
        return started

    def _start_event(self) -> SessionStart:
        tools = self._calls.tools
        optional = {"tools": bool(tools), "approval": self._approvals.handler is not None}
        extra = [name for name, is_used in optional.items() if is_used and name not in self._capabilities]
        start = replace(self._start, capabilities=[*self._capabilities, *extra], tools=tools or None)
        return self._session.resume(start, self._calls.pending)

    def _welcome(self, started: SessionStarted) -> None:
        # The server forgets recorded transcripts with their session.
        self._turns.are_named = "turns" in self.capabilities
        if not started.resumed:
            self._turns.forget_recorded()
        if "resume" in self.capabilities:
            self._calls.drop(started.drop or ())

    async def _watch(self, policy: Reconnect) -> None:
        try:
            reason = await restore(policy, self.wait_lost, self._connect, self._publish)
        except Exception as error:
            log.error("reconnecting failed: %s", describe_error(error))
            reason = ClientError("The client failed to reconnect.")
        self._retries = False
        await self._publish(GaveUp(reason))
        if not self.connected:
            self._turns.close(ConnectionLost(f"The connection was given up. {reason}"))

    # Sending

    async def say(self, text: str) -> Turn:
        """Send a final transcript; await the returned turn for its end.

        With ``reconnect`` a transcript waits for a connection. Raises `ConnectionLost` if it was not sent (it
        may have arrived), if ``ClientLimits.unsent`` transcripts are waiting, or if the client has given up.
        Raises `ValueError` for a text that exceeds a frame or has lone surrogates.
        """
        session = self._session
        turn = Turn(text, session.new_id(), session.connection, self._session.limits.turn_s)
        session.frame(turn.event_id, TranscriptFinal(text))
        if not self.connected and (not self._retries or session.transcripts >= self._session.limits.unsent):
            raise session.missing()
        # Before it is sent: its answer may arrive during the flush.
        self._turns.open.append(turn)
        session.add(TranscriptFinal(text), turn.event_id)
        if not await session.flush() and not self._retries:
            session.discard(turn.event_id)
            if turn in self._turns.open:
                self._turns.open.remove(turn)
            raise session.missing()
        return turn

    async def partial(self, text: str) -> None:
        """Send an interim transcript while the person speaks. Raises `ConnectionLost`."""
        await self.send(TranscriptPartial(text))

    async def interrupt(
        self,
        reason: str = "user",
        *,
        spoken_text: str | None = None,
        played_ms: float | None = None,
        speech_id: str | None = None,
    ) -> None:
        """Barge in: stop the running and the queued speeches, and notify the server.

        ``played_ms`` is in milliseconds. Raises `ConnectionLost` after the speech has stopped.
        """
        # The server must receive the interruption before the speech's result. The speech's task cannot end
        # before this one has sent the event.
        self._calls.silence()
        self._turns.mark_interrupted()
        await self.send(OutputInterrupted(reason, speech_id, spoken_text, played_ms))

    async def cancel_response(self) -> bool:
        """Stop the running turn silently (capability ``cancel``), as a stop button does.

        A speech continues; `interrupt` stops it. Returns False if the server does not accept the event.
        Raises `ConnectionLost`.
        """
        if "cancel" not in self.capabilities:
            return False
        self._turns.mark_interrupted()
        await self.send(ResponseCancel())
        return True

    async def agent_completed(
        self,
        agent_id: str,
        status: str,
        *,
        summary: str | None = None,
        name: str | None = None,
        prompt: str | None = None,
    ) -> None:
        """Report the end of a coding agent; the server narrates it. Raises `ConnectionLost`."""
        await self.send(AgentCompleted(agent_id, status, summary, name, prompt))

    async def declare(self, tools: Sequence[Any]) -> None:
        """Replace the declared tools, also for later connections. Raises `ConnectionLost`."""
        self._calls.tools = list(tools)
        await self.send(SessionUpdate(list(tools)))

    async def renew(self, token: str) -> None:
        """Use a new token of the same person, also for later connections. Raises `ConnectionLost`.

        A server that checks tokens of an identity provider asks for one by `SessionGoaway` with the reason
        ``token_expires``.
        """
        url, _, proxy = self._address
        self._address = url, token, proxy
        await self.send(SessionUpdate(token=token))

    async def send(self, event: ClientEvent, *, event_id: str | None = None) -> str:
        """Send an event once, under ``event_id`` or a new id; return the id.

        Raises `ConnectionLost`, and `ValueError` for an event that exceeds a frame.
        """
        return await self._session.send(event, event_id)

    # Handlers

    def on_tool(self, name: str, handler: ToolHandler | None = None) -> Callable[..., Any]:
        """Register a tool's handler, by a call or as a decorator. A later handler replaces an earlier one.

        The handler, async or not, takes the arguments as a dict and returns a string or a JSON value. An
        exception becomes the call's error. A second parameter receives a `ToolRun`, except for ``convo.*``.
        Raises `ValueError` for ``tts.speak``: use `on_speak`.
        """
        if name == SPEAK:
            raise ValueError("tts.speak is handled by on_speak, so that it can be interrupted")
        if handler is None:
            return lambda decorated: self.on_tool(name, decorated)
        self._calls.handlers[name] = handler
        return handler

    def on_speak(self, handler: SpeakHandler) -> SpeakHandler:
        """Replace the voice: an async function of the text. Cancellation stops the speech."""
        self._calls.speak = handler
        return handler

    def on_approval(self, handler: ApprovalHandler) -> ApprovalHandler:
        """Replace the handler of approval requests; later connections name the capability ``approval``.

        The handler, async or not, takes an `Approval` and returns `allow`, `deny`, `edit` or None. An
        exception counts as a refusal. It is cancelled when the request is resolved elsewhere. For a second
        parameter see `ApprovalHandler`.
        """
        self._approvals.handler = handler
        return handler

    @overload
    def on(self, kind: str, callback: Callback) -> None: ...
    @overload
    def on(self, kind: type[T], callback: Callable[[T], Any]) -> None: ...
    def on(self, kind: str | type[Typed], callback: Callback) -> None:
        """Register a callback for a type of event: ``"tool.call"``, `ToolCallEvent`, or ``"*"`` for all.

        With ``reconnect``, `Lost`, `TryFailed`, `Reconnected` and `GaveUp` describe the connection.
        """
        self._callbacks.setdefault(kind if isinstance(kind, str) else kind.TYPE, []).append(callback)

    async def _publish(self, event: Typed) -> None:
        await self._call_all(event.TYPE, event)

    async def _call_all(self, kind: str, event: object) -> None:
        for callback in self._callbacks.get(kind, ()):
            await call_back(callback, event, self._session.limits.callback_s)

    # Reading

    def _notice(self, received: Received) -> None:
        # The urgent part of an event, as soon as it is read.
        match received.event:
            case ToolCallEvent() | ToolCancel() as event:
                self._calls.notice(event)
            case ApprovalRequest() | ApprovalResolved() | ErrorEvent() as event:
                self._approvals.notice(event, received.connection)
                # The worker waits for a tool or a speech, and would reach a request too late.
                if self._is_blocked:
                    self._approvals.ask()
            case EventAck() as ack:
                self._turns.mark_recorded(ack.event_ids)
                self._session.acknowledge(ack.event_ids)
            case Diagnostic() as diagnostic:
                log.warning("diagnostic %s: %s", diagnostic.code, diagnostic.message)

    async def _work(self) -> None:
        while True:
            received = await self._session.inbox.get()
            try:
                await self._handle(received)
            except Exception as error:
                log.error("event handler failed: %s", describe_error(error))
            # Too high a position loses speeches on a resume; too low a position repeats events.
            if not self._speeches and not isinstance(received.event, _NOT_REPLAYED):
                self._session.last_event_id = received.id

    async def _handle(self, received: Received) -> None:
        event = received.event
        self._state = state_of(event) or self._state
        if (turn := self._turns.note(event)) is not None:
            self._session.confirm(turn.event_id, is_refused=turn.stage == "refused")
        await self._call_all(wire_type(event), event)
        await self._call_all("*", event)
        if isinstance(event, ApprovalRequest):
            self._approvals.ask()
        elif isinstance(event, ToolCallEvent):
            await self._answer(event, received.number)
        # After the handlers: a turn ends when its last call has run, not when its ``idle`` is read.
        self._turns.settle(event, received.connection, self._session.has)

    async def _answer(self, call: ToolCallEvent, number: int) -> None:
        is_speech = call.name == SPEAK
        running = self._calls.answer(call, number)
        if is_ui_call(call.name) and not is_speech:
            await running
        elif self._serial and not (is_speech and "segments" in self.capabilities):
            self._is_blocked = True
            self._approvals.ask()  # approval requests do not wait for a tool or a speech
            try:
                await running
            finally:
                self._is_blocked = False
        else:
            task = self._session.spawn(running)
            if is_speech:
                self._speeches.add(task)
                task.add_done_callback(self._speeches.discard)


connect = Client
"""Make a client; ``async with`` (or `Client.start`) connects it."""
