"""The client of one session: the library's public methods, and the loops that read and reconnect."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from conductor.client.approvals import ApprovalHandler, Approvals
from conductor.client.calls import SPEAK, Calls, SpeakHandler, ToolHandler
from conductor.client.connection import (
    ClientError,
    ClientLimits,
    ConnectionLost,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    TryFailed,
    describe_error,
    state_of,
    wire_type,
)
from conductor.client.session import Received, Session
from conductor.client.turns import Turn, Turns
from conductor.events import client as outbound
from conductor.events import server
from conductor.events.server import is_ui_call

log = logging.getLogger(__name__)

DEFAULT_CAPABILITIES = ("resume", "cancel", "lease", "late", "activity", "turns", "diagnostics")
"""Capabilities that the library implements alone. ``tools`` and ``approval`` need handlers of the app. An app
asks for ``segments`` itself, because speeches then run concurrently with other events."""
_NOT_REPLAYED = (
    server.SpeechPartial | server.SessionPing | server.SessionStarted | server.EventAck | server.Diagnostic
)
_CLOSED = "The client was closed."


class Client(Session):
    """A voice app's side of one session. Turns, handlers and unconfirmed events outlive a connection.

    ``session_id`` None makes a new session. ``token`` is sent in the ``Authorization: Bearer`` header.
    ``tools`` are MCP's Tools as JSON objects, ``handlers`` functions by name, and ``speak`` is the voice; the
    default one is silent. ``capabilities`` None names all that the library implements, ``()`` the base
    protocol. ``serial`` handles events one at a time, each call to its end; otherwise tools and speech run
    concurrently. ``proxy`` is a URL. ``reconnect`` restores a lost connection.
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
        session_id = session_id or f"session-{secrets.token_hex(8)}"
        super().__init__(session_id, limits or ClientLimits(), url, token, proxy)
        self.state: str | None = None  # of the last ``convo.setState``
        self._names = DEFAULT_CAPABILITIES if capabilities is None else tuple(capabilities)
        self._serial = serial
        self._policy = reconnect
        self._options = outbound.SessionStart(session_id, None, locale, time_zone, instructions, model=model)
        self._turns = Turns()
        self._approvals = Approvals(self, on_approval)
        self._calls = Calls(self, self._turns.add_result)
        self._calls.tools, self._calls.speak = list(tools), speak
        for name, handler in (handlers or {}).items():
            self.on_tool(name, handler)
        self._callbacks: dict[str, list[Callable[[Any], Any]]] = {}
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
    def received_ids(self) -> frozenset[str]:
        """The ids of the last 2,000 events."""
        return frozenset(self.ids)

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

    async def start(self) -> server.SessionStarted:
        """Connect and start the session, or continue it on a new connection.

        A failure is not retried, even with ``reconnect``, so that a wrong address fails at once. Raises
        `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        return await self._connect(replaces=True)

    reconnect = start

    async def close(self) -> None:
        """Close the socket and stop the handlers. Running turns end with `ConnectionLost`."""
        if self._closing is None:
            self._retries = False
            self._turns.close(loss := ConnectionLost(_CLOSED))
            self._closing = asyncio.create_task(self.stop(loss))
        # Shielded: a handler that closes its client is cancelled.
        await asyncio.shield(self._closing)

    async def _connect(self, *, replaces: bool) -> server.SessionStarted:
        if self._closing is not None:
            raise ConnectionLost(_CLOSED)
        self.expire(self._turns.is_open)  # an outdated transcript must not start a turn
        self._turns.lose(lambda t: t.stage == "waiting" and not t.is_recorded and not self.has(t.event_id))
        started = await self.open(replaces=replaces)
        # One worker for all connections, so that events are handled in their order.
        if self._worker is None:
            self._worker = self.spawn(self._work())
        await self.flush()
        self._approvals.welcome(resumed=started.resumed)
        if self._policy is not None and not self._retries and self._closing is None:
            self._retries = True
            self.spawn(self._watch(self._policy))
        return started

    def make_start(self) -> outbound.SessionStart:
        tools = self._calls.tools
        optional = {"tools": bool(tools), "approval": self._approvals.handler is not None}
        extra = [name for name, is_used in optional.items() if is_used and name not in self._names]
        start = replace(self._options, capabilities=[*self._names, *extra], tools=tools or None)
        return self.resume(start, self._calls.pending)

    def on_started(self, started: server.SessionStarted) -> None:
        # The server forgets recorded transcripts with their session.
        self._turns.are_named = "turns" in self.capabilities
        if not started.resumed:
            self._turns.lose(lambda turn: turn.is_recorded or turn.stage == "running")
        if "resume" in self.capabilities:
            self._calls.drop(started.drop or ())

    async def _watch(self, policy: Reconnect) -> None:
        now = asyncio.get_running_loop().time
        failures = 0
        error: ClientError | None = None
        while error is None:
            since = now()
            error = loss = await self.wait_lost()
            # Only a connection that lasted resets the backoff.
            failures = 0 if now() - since >= policy.steady_s else failures
            await self._tell(Lost.TYPE, Lost(loss))
            while error is not None and not error.is_final and failures != policy.tries:
                failures += 1
                await policy.sleep(policy.delay_s(failures, error))
                try:
                    started = await self._connect(replaces=False)
                    error = None
                except ClientError as failure:
                    error = failure
                    await self._tell(TryFailed.TYPE, TryFailed(failures, error))
            if error is None:
                await self._tell(Reconnected.TYPE, Reconnected(started))
        self._retries = False
        await self._tell(GaveUp.TYPE, GaveUp(error))
        if not self.connected:
            self._turns.close(ConnectionLost(f"The connection was given up. {error}"))

    # Sending

    async def say(self, text: str) -> Turn:
        """Send a final transcript; await the returned turn for its end.

        With ``reconnect`` a transcript waits for a connection. Raises `ConnectionLost` if it was not sent (it
        may have arrived), if ``ClientLimits.unsent`` transcripts are waiting, or if the client has given up.
        Raises `ValueError` for a text that exceeds a frame or has lone surrogates.
        """
        event = outbound.TranscriptFinal(text)
        turn = Turn(text, self.new_id(), self.limits.turn_s)
        self.frame(turn.event_id, event)
        waiting = sum(isinstance(entry.event, outbound.TranscriptFinal) for entry in self.entries)
        if not self.connected and (not self._retries or waiting >= self.limits.unsent):
            raise self.missing()
        # Before it is sent: its answer may arrive during the flush.
        self._turns.open.append(turn)
        self.add(event, turn.event_id)
        if not await self.flush() and not self._retries:
            self.discard(turn.event_id)
            if turn in self._turns.open:
                self._turns.open.remove(turn)
            raise self.missing()
        return turn

    async def partial(self, text: str) -> None:
        """Send an interim transcript while the person speaks. Raises `ConnectionLost`."""
        await self.send(outbound.TranscriptPartial(text))

    async def interrupt(
        self, reason: str = "user", *, spoken_text: str | None = None, played_ms: float | None = None
    ) -> None:
        """Barge in: stop the running and the queued speeches, and notify the server.

        ``played_ms`` is in milliseconds. Raises `ConnectionLost` after the speech has stopped.
        """
        # The server must receive the interruption before the speech's result. The speech's task cannot end
        # before this one has sent the event.
        self._calls.silence()
        self._turns.mark_interrupted()
        await self.send(outbound.OutputInterrupted(reason, None, spoken_text, played_ms))

    async def cancel_response(self) -> bool:
        """Stop the running turn silently (capability ``cancel``), as a stop button does.

        A speech continues; `interrupt` stops it. Returns False if the server does not accept the event.
        Raises `ConnectionLost`.
        """
        if "cancel" not in self.capabilities:
            return False
        self._turns.mark_interrupted()
        await self.send(outbound.ResponseCancel())
        return True

    async def declare(self, tools: Sequence[Any]) -> None:
        """Replace the declared tools, also for later connections. Raises `ConnectionLost`."""
        self._calls.tools = list(tools)
        await self.send(outbound.SessionUpdate(list(tools)))

    async def renew(self, token: str) -> None:
        """Use a new token of the same person, also for later connections. Raises `ConnectionLost`."""
        self.token = token
        await self.send(outbound.SessionUpdate(token=token))

    # Handlers

    def on_tool(self, name: str, handler: ToolHandler) -> None:
        """Set the handler of a tool or a UI call. Raises `ValueError` for ``tts.speak``: use `on_speak`."""
        if name == SPEAK:
            raise ValueError("tts.speak is handled by on_speak, so that it can be interrupted")
        self._calls.handlers[name] = handler

    def on_speak(self, handler: SpeakHandler) -> None:
        """Replace the voice."""
        self._calls.speak = handler

    def on_approval(self, handler: ApprovalHandler) -> None:
        """Replace the handler of approval requests; later connections name the capability ``approval``."""
        self._approvals.handler = handler

    def on(self, kind: str | type[Any], callback: Callable[[Any], Any]) -> None:
        """Register a callback for a type of event: ``"tool.call"``, `ToolCallEvent`, or ``"*"`` for all.

        The next event waits for an async callback. With ``reconnect``, `Lost`, `TryFailed`, `Reconnected` and
        `GaveUp` describe the connection.
        """
        self._callbacks.setdefault(kind if isinstance(kind, str) else kind.TYPE, []).append(callback)

    async def _tell(self, kind: str, event: object) -> None:
        for callback in self._callbacks.get(kind, ()):
            try:
                if inspect.isawaitable(value := callback(event)):
                    await value
            except (Exception, asyncio.CancelledError) as error:
                if self.is_closed:
                    raise
                log.warning("callback for %s failed: %s", kind, describe_error(error))

    # Reading

    def on_read(self, received: Received) -> None:
        # The urgent part of an event, as soon as it is read.
        match received.event:
            case server.ToolCallEvent() as call:
                self._calls.queue(call)
            case server.ToolCancel(call_id, reason):
                self._calls.cancel(call_id, reason)
            case server.ApprovalRequest() as request:
                self._approvals.ask(request, received.connection)
            case server.ApprovalResolved() as resolved:
                self._approvals.resolve(resolved)
            case server.EventAck(event_ids):
                self._turns.mark_recorded(event_ids)
                self.acknowledge(event_ids)
            case server.ErrorEvent(event_id=str() as event_id) as error:
                if self._turns.is_open(event_id):
                    self.discard(event_id)
                elif error.code == "store_unavailable":
                    self.spawn(self.retry(event_id))
            case server.Diagnostic() as diagnostic:
                log.warning("diagnostic %s: %s", diagnostic.code, diagnostic.message)

    async def _work(self) -> None:
        while True:
            received = await self.inbox.get()
            try:
                await self._handle(received)
            except Exception as error:
                log.error("event handler failed: %s", describe_error(error))
            # Too high a position loses speeches on a resume; too low a position repeats events.
            if not self._speeches and not isinstance(received.event, _NOT_REPLAYED):
                self.last_event_id = received.id

    async def _handle(self, received: Received) -> None:
        event = received.event
        self.state = state_of(event) or self.state
        self._turns.note(event)
        await self._tell(wire_type(event), event)
        await self._tell("*", event)
        if isinstance(event, server.ToolCallEvent):
            is_speech = event.name == SPEAK
            running = self._calls.answer(event, received.number)
            is_serial = self._serial and not (is_speech and "segments" in self.capabilities)
            if is_serial or (is_ui_call(event.name) and not is_speech):
                await running
            else:
                task = self.spawn(running)
                if is_speech:
                    self._speeches.add(task)
                    task.add_done_callback(self._speeches.discard)
        # After the handlers: a turn ends when its last call has run, not when its ``idle`` is read.
        self._turns.settle(event)


connect = Client  # ``async with`` or `Client.start` connects it
