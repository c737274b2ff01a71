"""The client of one session: what an app may do in it, and how each event is handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, overload

from conductor.client.approvals import ApprovalHandler, Approvals
from conductor.client.calls import SPEAK, Calls, SpeakHandler
from conductor.client.errors import ClientError, ConnectionLost
from conductor.client.frames import Received
from conductor.client.handling import Handling
from conductor.client.keeper import Keeper
from conductor.client.listeners import Callback, EventStream, Listeners, Typed
from conductor.client.options import ClientOptions
from conductor.client.outbox import Outbox
from conductor.client.reconnect import ConnectionNews, GaveUp
from conductor.client.resuming import Resumption
from conductor.client.runs import ToolHandler
from conductor.client.sender import Sender
from conductor.client.turn import Turn
from conductor.client.turns import Turns
from conductor.client.uplink import Uplink
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
from conductor.events.envelope import IdSource
from conductor.events.server import SessionStarted

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Typed)

CLOSED = "The client was closed."


class Client:
    """A voice app's side of one session; made by `connect`.

    Sockets come and go; turns, handlers, ids that were seen,
    and transcripts and results that may not have arrived (see `Outbox`) live as long as the client.
    """

    def __init__(self, options: ClientOptions, speak: SpeakHandler) -> None:
        self._options = options
        self._new_id = IdSource("cevt")
        self._uplink = Uplink(
            options,
            self._new_id,
            lambda received: self._handling.notice(received),
            lambda started: self._resumption.started(started),
        )
        self._outbox = Outbox(self._uplink, options.limits)
        self._sender = Sender(options.session_id, self._new_id, self._uplink, self._outbox)
        self._turns = Turns()
        self._calls = Calls(options.limits, speak, self._sender, self._turns.answered, self._reads)
        self._approvals = Approvals(options.limits, self._sender)
        self._listeners = Listeners(options.limits.callback_s)
        self._handling = Handling(
            self._turns,
            self._outbox,
            self._listeners,
            self._calls,
            self._approvals,
            serial=options.serial,
        )
        self._resumption = Resumption(self._outbox, self._calls, self._turns, self._handling.handled)
        self._worker: asyncio.Task[None] | None = None
        self._keeper = Keeper(options.reconnect, self, self._tell) if options.reconnect else None
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
        """The session's id, the same over all reconnects."""
        return self._options.session_id

    @property
    def state(self) -> str | None:
        """What ``convo.setState`` said last."""
        return self._handling.state

    @property
    def started(self) -> SessionStarted | None:
        """The last ``session.started``."""
        return self._uplink.started

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server has accepted, on the last connection."""
        return self._sender.capabilities

    @property
    def connected(self) -> bool:
        """Whether there is a socket and the server has answered ``session.start`` on it."""
        return self._uplink.connected

    @property
    def lost(self) -> ConnectionLost | None:
        """Why the socket went away, while there is none."""
        return self._uplink.lost

    @property
    def received(self) -> Sequence[Received]:
        """The last 2,000 frames as they came, with their ids; duplicates are among them."""
        return self._uplink.received

    @property
    def busy(self) -> bool:
        """Whether a turn is under way, or something is being said."""
        return self._turns.running or self._calls.speaking or self.state in ("thinking", "speaking")

    async def start(self) -> SessionStarted:
        """Connect and start the session; entering the client does this.

        It is tried once, also with ``reconnect``: an app wants to know at once that its address is wrong.
        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        return await self.reconnect()

    async def reconnect(self) -> SessionStarted:
        """Open a new socket for the same session, closing the one there is.

        Then what may not have arrived is sent again: tool results (with the capability ``resume`` they are
        told in ``session.start``), and transcripts that are not too old (``ClientLimits.resend_s``). Raises
        as `start` does; it can be called again then.
        """
        return await self._connect(anew=True)

    async def restore(self) -> SessionStarted:
        """Do as `reconnect`, unless there is a connection already."""
        return await self._connect(anew=False)

    async def close(self) -> None:
        """Close the socket and stop the handlers. Turns under way end by `ConnectionLost`."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.create_task(self._close())
        # A handler may close its client, and is stopped by that itself.
        await asyncio.shield(self._closing)

    def drop(self) -> None:
        """Cut the socket without a close frame, as a phone in a lift does; nothing more is read from it."""
        self._uplink.drop()

    async def wait_lost(self, timeout: float | None = None) -> ConnectionLost:
        """Wait until there is no socket and say why; None waits as long as the client lives.

        Raises `WaitTimeout`.
        """
        return await self._uplink.wait_lost(timeout)

    async def wait_given_up(self, timeout: float | None = None) -> ClientError:
        """Wait until a lost connection will not be opened anew by itself, and say why.

        Without ``reconnect`` that is at once. Raises `WaitTimeout`.
        """
        if self._keeper is None:
            return ConnectionLost("The client does not reconnect.")
        return await self._keeper.wait_over(timeout)

    async def say(self, text: str) -> Turn:
        """Send a final transcript. Await the turn for its end.

        With ``reconnect`` it waits for the next connection where there is none; without, `ConnectionLost` is
        raised if it could not be sent (it may have arrived all the same). That is raised, too, where
        ``ClientLimits.unsent`` transcripts wait, or the client has given up. Raises `ValueError` for a text
        that cannot be sent: too large for a frame, or with lone surrogates.
        """
        limits = self._options.limits
        turn = Turn(text, self._new_id(), self._uplink.connection, limits.turn_s)
        frame = self._sender.frame(turn.event_id, TranscriptFinal(text))
        if not self.connected and (not self._keeps or self._outbox.transcripts >= limits.unsent):
            raise ConnectionLost(str(self.lost or "There is no connection."))
        self._turns.add(turn)
        if not await self._outbox.put(frame, turn) and not self._keeps:
            self._outbox.discard(turn)
            self._turns.remove(turn)
            raise ConnectionLost(str(self.lost or "There is no connection."))
        return turn

    async def partial(self, text: str) -> None:
        """Send what the transcriber has so far: the person is speaking. Raises `ConnectionLost`."""
        await self.send(TranscriptPartial(text))

    async def interrupt(
        self,
        reason: str = "user",
        *,
        spoken_text: str | None = None,
        played_ms: float | None = None,
        speech_id: str | None = None,
    ) -> None:
        """Barge in: stop the speech (one that has come and not begun, too) and tell the server.

        ``played_ms`` is in milliseconds. Raises `ConnectionLost`; the speech has stopped all the same.
        """
        # The speech's task ends only after this one has handed the event to the socket, so that the server
        # hears of the interruption before the speech's result (protocol: "Heard means").
        self._calls.silence(self._uplink.number)
        self._turns.interrupted()
        await self.send(OutputInterrupted(reason, speech_id, spoken_text, played_ms))

    async def cancel_response(self) -> bool:
        """Stop the running turn without a word (capability ``cancel``), as a button does.

        A speech goes on: `interrupt` stops it. False where the server does not take it: nothing was sent
        then. Raises `ConnectionLost`.
        """
        if not self._sender.accepts("cancel"):
            return False
        self._turns.interrupted()
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
        """Report that a coding agent has ended; the server narrates it. Raises `ConnectionLost`."""
        await self.send(AgentCompleted(agent_id, status, summary, name, prompt))

    async def declare(self, tools: Sequence[Any]) -> None:
        """Declare the device's tools anew, for this socket and those to come. Raises `ConnectionLost`."""
        self._options = replace(self._options, tools=tuple(tools))
        await self.send(SessionUpdate(list(tools)))

    async def send(self, event: ClientEvent, *, event_id: str | None = None) -> str:
        """Send any event, under an id of its own or a given one; give the id. It is sent once.

        Raises `ConnectionLost`, and `ValueError` for one that is too large for a frame.
        """
        return await self._sender.once(event, event_id)

    @overload
    def on_tool(self, name: str) -> Callable[[ToolHandler], ToolHandler]: ...
    @overload
    def on_tool(self, name: str, handler: ToolHandler) -> ToolHandler: ...
    def on_tool(
        self, name: str, handler: ToolHandler | None = None
    ) -> ToolHandler | Callable[[ToolHandler], ToolHandler]:
        """Answer calls of a tool; plainly, or as a decorator. A later handler replaces an earlier one.

        The handler takes the arguments as a dict and returns a string or what JSON can hold, async or not;
        what it raises becomes the call's error. One with a second parameter is given a `ToolRun`, too.
        ``convo.*`` may be handled so (without a `ToolRun`); ``tts.speak`` has `on_speak`, and `ValueError` is
        raised for it here.
        """
        if name == SPEAK:
            raise ValueError("tts.speak is handled by on_speak, so that it can be interrupted")
        if handler is None:
            return lambda decorated: self.on_tool(name, decorated)
        self._calls.handlers[name] = handler
        return handler

    def on_speak(self, handler: SpeakHandler) -> SpeakHandler:
        """Replace the voice: an async function of the text, which is cancelled to stop it midway."""
        self._calls.speak = handler
        return handler

    def on_approval(self, handler: ApprovalHandler) -> ApprovalHandler:
        """Replace what asks the person about calls; the next connection names ``approval``.

        It takes an `Approval` and returns `allow`, `deny`, `edit` or None, async or not. What it raises
        counts as a refusal. It is cancelled when the question no longer stands.
        """
        self._approvals.handler = handler
        return handler

    @overload
    def on(self, kind: str, callback: Callback) -> None: ...
    @overload
    def on(self, kind: type[T], callback: Callable[[T], Any]) -> None: ...
    def on(self, kind: str | type[Typed], callback: Callback) -> None:
        """Call back for each event of a type: ``"tool.call"``, `ToolCallEvent`, or ``"*"`` for all.

        `Lost`, `TryFailed`, `Reconnected` and `GaveUp` tell about the connection, with ``reconnect``.
        """
        self._listeners.on(kind if isinstance(kind, str) else kind.TYPE, callback)

    def events(self, limit: int = 1_000) -> EventStream:
        """Iterate over all events from now on, until the client is closed."""
        return self._listeners.stream(limit)

    async def _connect(self, *, anew: bool) -> SessionStarted:
        if self._closed:
            raise ConnectionLost(CLOSED)
        if self._worker is None:
            self._worker = asyncio.create_task(self._handling.run(self._uplink.inbox))
        self._outbox.expire()
        started = await self._uplink.open(self._start_event, anew=anew)
        await self._outbox.flush()
        await self._approvals.flush(self._uplink.connection, resumed=started.resumed)
        if self._keeper is not None and not self._closed:
            self._keeper.start()
        return started

    def _start_event(self) -> SessionStart:
        approvals = self._approvals.handler is not None
        return self._resumption.start(self._options.start_event(approvals=approvals))

    async def _close(self) -> None:
        gone = ConnectionLost(CLOSED)
        self._turns.close(gone)
        self._listeners.close()
        if self._keeper is not None:
            await self._keeper.stop(self._options.limits.close_s)
        await self._uplink.close(gone)
        seconds = self._options.limits.close_s
        tasks = [task for task in (self._worker, *self._handling.answering) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await self._approvals.close(seconds)
        await self._calls.close(seconds)

    @property
    def _keeps(self) -> bool:
        """Whether a lost connection will be opened anew, by itself."""
        return self._keeper is not None and self._keeper.running

    async def _tell(self, news: ConnectionNews) -> None:
        await self._listeners.tell(news)
        if isinstance(news, GaveUp) and not self.connected:
            self._turns.close(ConnectionLost(f"The connection was given up. {news.error}"))

    def _reads(self, name: str) -> bool:
        return self._options.reads(name)
