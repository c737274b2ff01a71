"""The client of one session: the library's public methods, and the wiring of its parts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, overload

from conductor.client.approvals import ApprovalHandler, Approvals
from conductor.client.calls import SPEAK, Calls, SpeakHandler, ToolHandler
from conductor.client.connection import Connection
from conductor.client.dispatcher import EventDispatcher
from conductor.client.errors import ConnectionLost, stop
from conductor.client.events import Callback, Listeners, Received, Typed
from conductor.client.options import ClientLimits, ClientOptions
from conductor.client.outbox import Outbox, Sender
from conductor.client.reconnect import ConnectionEvent, GaveUp, Reconnect, Reconnector
from conductor.client.resume import ResumeState
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
from conductor.events.envelope import IdGenerator
from conductor.events.server import SessionStarted

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Typed)

CLOSED = "The client was closed."


class Client:
    """A voice app's side of one session; made by `connect`.

    Turns, handlers, the ids of recent events, and unconfirmed events (see `Outbox`) outlive a connection.
    """

    def __init__(self, options: ClientOptions, speak: SpeakHandler) -> None:
        self._options = options
        self._new_id = IdGenerator("cevt")
        self._connection = Connection(
            options,
            self._new_id,
            lambda received: self._dispatcher.notice(received),
            lambda started: self._resumption.started(started),
        )
        self._outbox = Outbox(self._connection, options.limits)
        self._sender = Sender(options.session_id, self._new_id, self._connection, self._outbox)
        self._turns = Turns()
        self._calls = Calls(options.limits, speak, self._sender, self._turns.add_result, self._is_read_only)
        self._approvals = Approvals(options.limits, self._sender)
        self._listeners = Listeners(options.limits.callback_s)
        self._dispatcher = EventDispatcher(
            self._turns, self._outbox, self._listeners, self._calls, self._approvals, options.serial
        )
        self._resumption = ResumeState(self._outbox, self._calls, self._turns, self._dispatcher.cursor)
        self._worker: asyncio.Task[None] | None = None
        self._reconnector: Reconnector | None = None
        if options.reconnect is not None:
            self._reconnector = Reconnector(options.reconnect, self.wait_lost, self._restore, self._notify)
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session_id(self) -> str:
        """The session's id, which is the same after a reconnect."""
        return self._options.session_id

    @property
    def state(self) -> str | None:
        """The last state set by ``convo.setState``."""
        return self._dispatcher.state

    @property
    def started(self) -> SessionStarted | None:
        """The last ``session.started``."""
        return self._connection.started

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        return self._sender.capabilities

    @property
    def connected(self) -> bool:
        """Whether the server has answered ``session.start`` on the open socket."""
        return self._connection.connected

    @property
    def received(self) -> Sequence[Received]:
        """The last 2,000 events with their ids, including duplicates."""
        return self._connection.received

    @property
    def busy(self) -> bool:
        """Whether a turn or a speech is running."""
        return self._turns.running or self._calls.speaking or self.state in ("thinking", "speaking")

    @property
    def asking(self) -> bool:
        """Whether an approval request is undecided."""
        return self._approvals.asking

    async def start(self) -> SessionStarted:
        """Connect and start the session; entering the client does this.

        It does not retry, even with ``reconnect``, so that a wrong address fails at once. Raises
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
            self._closed = True
            self._closing = asyncio.create_task(self._close())
        # Shielded: a handler that closes its client is cancelled.
        await asyncio.shield(self._closing)

    def drop(self) -> None:
        """Cut the socket without a close frame, as a lost mobile network does."""
        self._connection.drop()

    async def wait_lost(self, timeout: float | None = None) -> ConnectionLost:
        """Wait until the connection is lost; return the reason. Raises `WaitTimeout`."""
        return await self._connection.wait_lost(timeout)

    async def say(self, text: str) -> Turn:
        """Send a final transcript; await the returned turn for its end.

        With ``reconnect`` a transcript waits for a connection. Raises `ConnectionLost` if it was not sent (it
        may have arrived), if ``ClientLimits.unsent`` transcripts are waiting, or if the client has given up.
        Raises `ValueError` for a text that exceeds a frame or has lone surrogates.
        """
        limits = self._options.limits
        turn = Turn(text, self._new_id(), self._connection.connection, limits.turn_s)
        frame = self._sender.frame(turn.event_id, TranscriptFinal(text))
        if not self.connected and (not self._keeps_transcripts or self._outbox.transcripts >= limits.unsent):
            raise self._connection.missing()
        # Before it is sent: its answer may arrive during `put`.
        self._turns.add(turn)
        if not await self._outbox.put(frame, turn) and not self._keeps_transcripts:
            self._outbox.discard(turn)
            self._turns.remove(turn)
            raise self._connection.missing()
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
        self._calls.silence(self._connection.number)
        self._turns.mark_interrupted()
        await self.send(OutputInterrupted(reason, speech_id, spoken_text, played_ms))

    async def cancel_response(self) -> bool:
        """Stop the running turn silently (capability ``cancel``), as a stop button does.

        A speech continues; `interrupt` stops it. Returns False if the server does not accept the event.
        Raises `ConnectionLost`.
        """
        if not self._sender.accepts("cancel"):
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
        self._options = replace(self._options, tools=tuple(tools))
        await self.send(SessionUpdate(list(tools)))

    async def send(self, event: ClientEvent, *, event_id: str | None = None) -> str:
        """Send an event once, under ``event_id`` or a new id; return the id.

        Raises `ConnectionLost`, and `ValueError` for an event that exceeds a frame.
        """
        return await self._sender.once(event, event_id)

    @overload
    def on_tool(self, name: str) -> Callable[[ToolHandler], ToolHandler]: ...
    @overload
    def on_tool(self, name: str, handler: ToolHandler) -> ToolHandler: ...
    def on_tool(
        self, name: str, handler: ToolHandler | None = None
    ) -> ToolHandler | Callable[[ToolHandler], ToolHandler]:
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
        self._listeners.on(kind if isinstance(kind, str) else kind.TYPE, callback)

    def _is_read_only(self, name: str) -> bool:
        return self._options.is_read_only(name)

    async def _restore(self) -> SessionStarted:
        return await self._connect(replace_socket=False)

    async def _connect(self, *, replace_socket: bool) -> SessionStarted:
        if self._closed:
            raise ConnectionLost(CLOSED)
        # One worker for all connections, so that events are handled in their order.
        if self._worker is None:
            self._worker = asyncio.create_task(self._dispatcher.run(self._connection.inbox))
        # An outdated transcript must not start a turn.
        self._outbox.expire()
        started = await self._connection.open(self._start_event, replace_socket=replace_socket)
        await self._outbox.flush()
        await self._approvals.flush(self._connection.connection, resumed=started.resumed)
        if self._reconnector is not None and not self._closed:
            self._reconnector.start()
        return started

    def _start_event(self) -> SessionStart:
        approvals = self._approvals.handler is not None
        return self._resumption.with_resume(self._options.start_event(approvals=approvals))

    async def _close(self) -> None:
        loss = ConnectionLost(CLOSED)
        self._turns.close(loss)
        if self._reconnector is not None:
            await self._reconnector.stop(self._options.limits.close_s)
        await self._connection.close(loss)
        seconds = self._options.limits.close_s
        workers = [] if self._worker is None else [self._worker]
        await stop([*workers, *self._dispatcher.running], seconds)
        await self._approvals.close(seconds)
        await self._calls.close(seconds)

    @property
    def _keeps_transcripts(self) -> bool:
        return self._reconnector is not None and self._reconnector.running

    async def _notify(self, event: ConnectionEvent) -> None:
        await self._listeners.notify(event)
        if isinstance(event, GaveUp) and not self.connected:
            self._turns.close(ConnectionLost(f"The connection was given up. {event.error}"))


async def _silent_voice(_text: str) -> None: ...


def connect(
    url: str,
    session_id: str | None = None,
    *,
    token: str | None = None,
    github_token: str | None = None,
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
) -> Client:
    """Make a client; ``async with`` (or `Client.start`) connects it.

    ``session_id`` None makes a new session. ``handlers`` are tools by name; `Client.on_tool` adds more, but a
    resumed session may call tools at once. ``speak`` is the voice; the default one is silent. ``model``
    selects a model of the server; ``Client.started.model`` names the active one. ``on_approval`` handles
    requests for consent (see `Client.on_approval`).

    ``capabilities`` None names all that the library implements, ``()`` the base protocol; ``tools`` and
    ``approval`` are added if there are tools and a handler. ``serial`` handles events one at a time, each
    call to its end, as the shipped app does; otherwise tools and speech run concurrently. ``proxy`` is a URL.
    ``reconnect`` restores a lost connection.
    """
    options = ClientOptions(
        url=url,
        session_id=session_id or f"session-{secrets.token_hex(8)}",
        token=token,
        github_token=github_token,
        locale=locale,
        time_zone=time_zone,
        instructions=instructions,
        model=model,
        capabilities=None if capabilities is None else tuple(capabilities),
        tools=tuple(tools),
        serial=serial,
        proxy=proxy,
        limits=limits or ClientLimits(),
        reconnect=reconnect,
    )
    client = Client(options, speak or _silent_voice)
    for name, handler in (handlers or {}).items():
        client.on_tool(name, handler)
    if on_approval is not None:
        client.on_approval(on_approval)
    return client
