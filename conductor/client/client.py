"""The client of one session: what an app may do in it, and how each event is handled."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, overload

import msgspec

from conductor.client.calls import SPEAK, Calls, SpeakHandler, ToolHandler, fit, speaking_for
from conductor.client.errors import ConnectionLost
from conductor.client.frames import Received, state_of
from conductor.client.listeners import Callback, EventStream, Listeners
from conductor.client.options import ClientLimits, ClientOptions
from conductor.client.outbox import Outbox
from conductor.client.tasks import where
from conductor.client.turn import Turn
from conductor.client.turns import Turns
from conductor.client.uplink import Uplink
from conductor.events.client import (
    AgentCompleted,
    ClientEvent,
    OutputInterrupted,
    SessionUpdate,
    TranscriptFinal,
    TranscriptPartial,
)
from conductor.events.envelope import IdSource, encode_event
from conductor.events.server import SessionStarted, ToolCallEvent, is_ui_call

log = logging.getLogger(__name__)

CLOSED = "The client was closed."


class Client:
    """A voice app's side of one session; made by `connect`.

    ``started`` is the last ``session.started``, ``state`` what ``convo.setState`` said last. Sockets come
    and go; turns, handlers, ids that were seen and results not sent yet live as long as the client.
    """

    def __init__(self, options: ClientOptions, speak: SpeakHandler) -> None:
        self.started: SessionStarted | None = None
        self.state: str | None = None
        self._options = options
        self._new_id = IdSource("cevt")
        self._uplink = Uplink(options, self._new_id)
        self._outbox = Outbox(self._uplink.send)
        self._calls = Calls(options.limits, speak)
        self._turns = Turns()
        self._listeners = Listeners(options.limits.tool_s)
        self._answering: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

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

        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        return await self.reconnect()

    async def reconnect(self) -> SessionStarted:
        """Open a new socket for the same session, closing the one there is; then send what waited.

        Raises as `start` does; it can be called again then.
        """
        if self._closed:
            raise ConnectionLost(CLOSED)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        started = await self._uplink.open(self._options.start_event())
        self.started = started
        await self._outbox.flush()
        return started

    async def close(self) -> None:
        """Close the socket and stop the handlers. Turns under way end by `ConnectionLost`."""
        self._closed = True
        gone = ConnectionLost(CLOSED)
        await self._uplink.close(gone)
        tasks = [task for task in (self._worker, *self._answering) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._options.limits.close_s)
        self._turns.close(gone)
        self._listeners.close()

    def drop(self) -> None:
        """Cut the socket without a close frame, as a phone in a lift does; nothing more is read from it."""
        self._uplink.drop()

    async def wait_lost(self, timeout: float | None = None) -> ConnectionLost:
        """Wait until there is no socket and say why; None waits as long as the client lives.

        Raises `WaitTimeout`.
        """
        return await self._uplink.wait_lost(timeout)

    async def say(self, text: str) -> Turn:
        """Send a final transcript. Await the turn for its end.

        Raises `ConnectionLost` if it could not be sent (it may have arrived all the same), and
        `UnicodeEncodeError` for a text that is none.
        """
        turn = Turn(text, self._new_id(), self._uplink.connection, self._options.limits.turn_s)
        self._turns.add(turn)
        try:
            await self.send(TranscriptFinal(text), event_id=turn.event_id)
        except (ConnectionLost, ValueError):
            self._turns.remove(turn)
            raise
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
        """Send any event, under an id of its own or a given one; give the id. Raises `ConnectionLost`."""
        event_id = event_id or self._new_id()
        await self._uplink.send(encode_event(event_id, self.session_id, event))
        return event_id

    @overload
    def on_tool(self, name: str) -> Callable[[ToolHandler], ToolHandler]: ...
    @overload
    def on_tool(self, name: str, handler: ToolHandler) -> ToolHandler: ...
    def on_tool(
        self, name: str, handler: ToolHandler | None = None
    ) -> ToolHandler | Callable[[ToolHandler], ToolHandler]:
        """Answer calls of a tool; plainly, or as a decorator. A later handler replaces an earlier one.

        The handler takes the arguments as a dict and returns a string or what JSON can hold, async or not;
        what it raises becomes the call's error. ``convo.*`` may be handled so too; ``tts.speak`` has
        `on_speak`, and `ValueError` is raised for it here.
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

    def on(self, kind: str | type[msgspec.Struct], callback: Callback) -> None:
        """Call back for each event of a type: ``"tool.call"``, `ToolCallEvent`, or ``"*"`` for all."""
        self._listeners.on(kind if isinstance(kind, str) else str(kind.TYPE), callback)  # type: ignore[attr-defined]  # every event struct has one

    def events(self, limit: int = 1_000) -> EventStream:
        """Iterate over all events from now on, until the client is closed."""
        return self._listeners.stream(limit)

    async def _work(self) -> None:
        """Handle the events in their order, as long as the client lives."""
        while True:
            received = await self._uplink.inbox.get()
            try:
                await self._handle(received)
            except Exception as error:
                log.error("an event could not be handled: %s", where(error))

    async def _handle(self, received: Received) -> None:
        event = received.event
        self.state = state_of(event) or self.state
        self._turns.note(event)
        await self._listeners.publish(event)
        if isinstance(event, ToolCallEvent):
            answering = self._answer(event, received.number)
            if self._options.serial or (is_ui_call(event.name) and event.name != SPEAK):
                await answering
            else:
                task = asyncio.create_task(answering)
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
        self._turns.settle(event, received.connection)

    async def _answer(self, call: ToolCallEvent, number: int) -> None:
        result = await self._calls.answer(call, number)
        if result is not None:
            self._turns.answered(result)
            await self._outbox.put(encode_event(self._new_id(), self.session_id, fit(result)))


def connect(
    url: str,
    session_id: str | None = None,
    *,
    token: str | None = None,
    github_token: str | None = None,
    locale: str | None = None,
    time_zone: str | None = None,
    instructions: str | None = None,
    capabilities: Sequence[str] = (),
    tools: Sequence[Any] = (),
    handlers: Mapping[str, ToolHandler] | None = None,
    speak: SpeakHandler | None = None,
    speaking_s: float = 0.0,
    serial: bool = True,
    limits: ClientLimits | None = None,
    proxy: str | None = None,
) -> Client:
    """Make a client; ``async with`` (or `Client.start`) connects it.

    ``handlers`` are tools by name, for those who resume a session and may be called at once; `Client.on_tool`
    adds more. ``speak`` is the voice; the one that stands in for it takes ``speaking_s`` seconds a speech.
    ``serial`` handles inbound events one at a time, each call to its end, as the shipped app does; without,
    tools and speech run beside each other. A ``session_id`` is made up if none is given. ``proxy`` is a URL.
    """
    options = ClientOptions(
        url=url,
        session_id=session_id or f"session-{secrets.token_hex(8)}",
        token=token,
        github_token=github_token,
        locale=locale,
        time_zone=time_zone,
        instructions=instructions,
        capabilities=tuple(capabilities),
        tools=tuple(tools),
        serial=serial,
        proxy=proxy,
        limits=limits or ClientLimits(),
    )
    client = Client(options, speak or speaking_for(speaking_s))
    for name, handler in (handlers or {}).items():
        client.on_tool(name, handler)
    return client
