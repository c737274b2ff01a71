"""A client of the Conductor's protocol, for voice apps in Python; see docs/clients/python.md.

The public methods, and the loops that handle events and reconnect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert, to_builtins
from msgspec.json import encode
from msgspec.structs import replace

from conductor.client.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalHandler,
    Approvals,
    allow,
    deny,
    edit,
)
from conductor.client.calls import SPEAK, Calls, SpeakHandler, ToolCancelledError, ToolHandler, ToolRun
from conductor.client.connection import (
    CannotConnect,
    ClientError,
    ClientLimits,
    ConnectionLost,
    GaveUp,
    Lost,
    ReceivedEvent,
    Reconnect,
    Reconnected,
    StartRefused,
    TryFailed,
    UnknownEvent,
    WaitTimeout,
    arguments_of,
    describe_error,
    state_of,
)
from conductor.client.pictures import Shown, wire_pictures
from conductor.client.session import CLOSED, Connections
from conductor.client.turns import Turn, Turns
from conductor.events import client as outbound
from conductor.events import server

__all__ = [
    "Approval",
    "ApprovalDecision",
    "CannotConnect",
    "Client",
    "ClientError",
    "ClientLimits",
    "ConnectionLost",
    "GaveUp",
    "Lost",
    "Reconnect",
    "Reconnected",
    "StartRefused",
    "Shown",
    "ToolCancelledError",
    "ToolRun",
    "TryFailed",
    "Turn",
    "UnknownEvent",
    "WaitTimeout",
    "allow",
    "connect",
    "deny",
    "edit",
]

log = logging.getLogger(__name__)

DEFAULT_CAPABILITIES = (
    "resume",
    "tools",
    "cancel",
    "lease",
    "late",
    "activity",
    "pause",
    "images",
    "turns",
    "context",
    "diagnostics",
)
"""Capabilities that the library implements alone. Without ``tools`` the server would offer its catalog.
``approval`` needs a handler of the app. An app asks for ``segments`` itself, because speeches then run
concurrently with other events."""
_NOT_REPLAYED = (
    server.SpeechPartial
    | server.SessionPing
    | server.SessionStarted
    | server.EventAck
    | server.Diagnostic
    | server.SttHints
    | server.TurnHint
)
_HINTS = {server.SttHints.TYPE, server.TurnHint.TYPE}
_MAX_START_BYTES = 64_512  # without the envelope; the soft limit is 64 KiB


class _Announced(outbound.ToolResultEvent, frozen=True, omit_defaults=True):
    # In `resume` a result is named by its call: the server asks for what it lacks.
    pass


class Client(Connections):
    """A voice app's side of one session. Turns, handlers and unconfirmed events outlive a connection.

    ``session_id`` None makes a new session. ``token`` is sent in the ``Authorization: Bearer`` header.
    ``tools`` are MCP's Tools as JSON objects, ``handlers`` functions by name, and ``speak`` is the voice; the
    default one is silent. ``lang`` is the person's language (BCP 47), in which questions are spoken; the
    default is the ``locale``'s. ``variables`` are the values of the ``{{name}}`` in the system prompt, and
    ``greeting`` is spoken first in a new session. ``capabilities`` None names all that the library
    implements, ``()`` the base protocol. ``hold_unfinished_ms`` is how long half a sentence waits for the
    other half; the default is the operator's. It and callbacks for ``stt.hints`` and ``turn.hint`` name the
    capability ``hints``.
    ``serial`` handles events one at a time, each call to its end; otherwise tools and speech run
    concurrently. ``reconnect`` restores a lost connection.
    """

    def __init__(
        self,
        url: str,
        session_id: str | None = None,
        *,
        token: str | None = None,
        locale: str | None = None,
        lang: str | None = None,
        time_zone: str | None = None,
        instructions: str | None = None,
        variables: Mapping[str, str] | None = None,
        greeting: str | None = None,
        model: str | None = None,
        hold_unfinished_ms: int | None = None,
        capabilities: Sequence[str] | None = None,
        tools: Sequence[Any] = (),
        handlers: Mapping[str, ToolHandler] | None = None,
        speak: SpeakHandler | None = None,
        on_approval: ApprovalHandler | None = None,
        serial: bool = True,
        limits: ClientLimits | None = None,
        reconnect: Reconnect | None = None,
    ) -> None:
        session_id = session_id or f"session-{secrets.token_hex(8)}"
        super().__init__(session_id, limits or ClientLimits(), url, token)
        self.state: str | None = None  # of the last ``convo.setState``
        self._names = DEFAULT_CAPABILITIES if capabilities is None else tuple(capabilities)
        self._serial = serial
        self._policy = reconnect
        self._options = outbound.SessionStart(
            session_id=session_id,
            locale=locale,
            lang=lang,
            time_zone=time_zone,
            instructions=instructions,
            variables=dict(variables) if variables is not None else None,
            greeting=greeting,
            model=model,
            hold_unfinished_ms=hold_unfinished_ms,
        )
        self._turns = Turns(self.discard)
        self._approvals = Approvals(self, on_approval)
        self._calls = Calls(self, tools, speak)
        for name, handler in (handlers or {}).items():
            self.on_tool(name, handler)
        self._callbacks: dict[str, list[Callable[[Any], Any]]] = {}
        self._on_resume: Callable[[], Any] = lambda: None
        self._last_event_id: str | None = None  # of the last handled event
        self._worker: asyncio.Task[None] | None = None
        self._retries = False  # the connection is watched, and restored after a loss
        # The pause before the next try, if it may be cut short.
        self._retry: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def busy(self) -> bool:
        """Whether a speech is running, or a turn that does not wait for the answer to a spoken question."""
        is_active = self._calls.speeches or self.state in ("thinking", "speaking")
        return bool(is_active) or self._turns.are_busy(self.state)

    @property
    def asking(self) -> bool:
        """Whether an approval request is undecided."""
        return self._approvals.asking

    # Connecting

    async def start(self) -> server.SessionStarted:
        """Connect and start the session, or continue it on a new connection; does nothing while connected.

        A failure is not retried, even with ``reconnect``, so that a wrong address fails at once. Raises
        `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        started = await self.open()
        # One worker for all connections, so that events are handled in their order.
        self._worker = self._worker or self.spawn(self._work())
        await self.flush()
        if self._policy is not None and not self._retries and self._closing is None:
            self._retries = True
            self.spawn(self._watch(self._policy))
        return started

    reconnect = start

    def keep_trying(self, error: ClientError) -> None:
        """Retry a `start` that failed with ``error``, as a lost connection is; transcripts wait for it.

        Raises ``error`` if a retry is pointless: a final one, a closed client, or one without ``reconnect``.
        """
        if self._policy is None or error.is_final or self._closing is not None:
            raise error
        if not self._retries:
            self._retries = True
            self.spawn(self._watch(self._policy, error))

    async def close(self) -> None:
        """Close the socket and stop the handlers. Running turns end with `ConnectionLost`."""
        self._retries = False
        self._turns.end(self._turns.open[:], ConnectionLost(CLOSED))
        await super().close()

    def make_start(self) -> outbound.SessionStart:
        # An outdated transcript must not start a turn.
        oldest = asyncio.get_running_loop().time() - self.limits.resend_s
        fresh = [entry.event_id for entry in self.entries if entry.at > oldest]
        self._turns.end([t for t in self._turns.at("waiting") if t.event_id not in fresh], "lost")
        tools, capabilities = self._calls.tools, list(self._names)
        listens = self._options.hold_unfinished_ms is not None or {*self._callbacks} & _HINTS
        for name, is_used in {
            "tools": tools,
            "approval": self._approvals.handler,
            "hints": listens,
        }.items():
            if is_used and name not in capabilities:
                capabilities.append(name)
        start = replace(self._options, capabilities=capabilities, tools=tools or None)
        # A new process reports nothing: it does not remember its calls, and would run them twice.
        if self.started is None or "resume" not in capabilities:
            return start
        results = (e.event for e in self.entries if isinstance(e.event, outbound.ToolResultEvent))
        calls: list[outbound.ToolResultEvent] = [_Announced(result.call_id) for result in results]
        full = replace(start, resume=outbound.Resume(self._last_event_id, calls, list(self._calls.runs)))
        if len(encode(full)) <= _MAX_START_BYTES:
            return full
        return replace(start, resume=outbound.Resume(self._last_event_id))  # the server repeats the calls

    async def _watch(self, policy: Reconnect, error: ClientError | None = None) -> None:
        now = asyncio.get_running_loop().time
        failures = brief = 0  # brief: connections in a row that did not last
        while True:
            while error is not None and not error.is_final and failures != policy.tries:
                failures += 1
                await self._delay(policy, failures, error)
                try:
                    started = await self.start()
                except ClientError as failure:
                    error = failure
                    await self._tell(TryFailed(failures, error))
                else:
                    error = None
                    await self._tell(Reconnected(started))
            if error is not None:
                break
            since = now()
            error = loss = await self.wait_lost()
            failures = brief = 0 if now() - since >= policy.steady_s else brief
            brief += 1
            await self._tell(Lost(loss))
        self._retries = False
        await self._tell(GaveUp(error))
        if not self.connected:
            self._turns.end(self._turns.open[:], ConnectionLost(f"The connection was given up. {error}"))

    async def _delay(self, policy: Reconnect, number: int, error: ClientError) -> None:
        """Wait for the next try: until a transcript is to be sent, unless the server named the time."""
        delay = asyncio.ensure_future(policy.sleep(policy.delay_s(number, error)))
        self._retry = None if isinstance(error, StartRefused) and error.event.retry_after_ms else delay
        try:
            await asyncio.wait([delay])
        finally:
            self._retry = None
            delay.cancel()

    # Sending

    async def say(self, text: str, *, lang: str | None = None, images: Sequence[bytes] = ()) -> Turn:
        """Send a final transcript; await the returned turn for its end.

        ``lang`` is the language that the recogniser heard (BCP 47), ``images`` are what the words are about:
        at most three files of JPEG, PNG or WebP (`Shown`).

        With ``reconnect`` a transcript waits for a connection, which is tried at once. Without a connection
        it raises `ConnectionLost`, as it does if ``ClientLimits.unsent`` transcripts wait or the client has
        given up.
        Raises `ValueError` for a text that exceeds a frame or has lone surrogates, and for an image that the
        server would refuse.
        """
        if not self._retries or len(self._turns.at("waiting")) >= self.limits.unsent:
            self.require()
        entry = self.add(outbound.TranscriptFinal(text, lang, wire_pictures(images)))
        if self._calls.pause is not None:
            self._calls.pause.is_followed = True
        turn = Turn(text, entry.event_id, self.limits.turn_s)
        self._turns.open.append(turn)
        if self._retry is not None:
            self._retry.cancel()
        await self.flush()
        return turn

    async def interrupt(
        self, reason: str = "user", *, spoken_text: str | None = None, played_ms: float | None = None
    ) -> None:
        """Barge in: stop the running and the queued speeches, and notify the server.

        ``played_ms`` is in milliseconds. Raises `ConnectionLost` after the speech has stopped.
        """
        # The server must receive the interruption before the speech's result. The speech's task cannot end
        # before this one has sent the event.
        self._calls.silence()
        await self._stop(outbound.OutputInterrupted(reason, None, spoken_text, played_ms))

    async def pause(self, *, spoken_text: str | None = None, played_ms: float | None = None) -> bool:
        """Announce that the app pauses its voice, because the person begins to speak over it.

        Returns False where nothing is spoken, or the server does not accept it (capability ``pause``): then
        `interrupt`. The voice goes on when ``audio.output.resume`` calls the handler of `on_resume`, or is
        cancelled when the person's words interrupt it.
        """
        speech = self._calls.playing
        if speech is None or "pause" not in self.capabilities:
            return False
        if self._calls.pause is None:
            entry = self.add(outbound.OutputPaused(speech, spoken_text, played_ms))
            self._calls.begin_pause(entry.event_id)
            await self.flush()
        return True

    async def add_context(
        self, text: str, *, key: str | None = None, ttl_s: float | None = None, untrusted: bool = False
    ) -> None:
        """Tell the model a fact from the next turn on, without a turn (capability ``context``).

        A fact with a ``key`` replaces the former one, and an empty text removes it. It ends after ``ttl_s``
        seconds. ``untrusted``: others have written it. With ``reconnect`` it waits for a connection; without
        a connection it raises `ConnectionLost`. Raises `ValueError` for a fact that the server would refuse.
        """
        event = outbound.ContextAdd(text=text, key=key, ttl_s=ttl_s, untrusted=untrusted)
        try:
            convert(to_builtins(event), outbound.ContextAdd)
        except ValidationError as error:
            raise ValueError(str(error)) from None
        if not self._retries:
            self.require()
        self.add(event)
        await self.flush()

    async def renew(self, token: str) -> None:
        """Use a new token of the same person, also for later connections.

        `SessionGoaway` with the reason ``token_expires`` (capability ``goaway``) says that it is time.
        Raises `ConnectionLost` without a connection; the next one uses the token.
        """
        self.token = token
        await self.send(outbound.SessionUpdate(token=token))

    async def cancel_response(self) -> bool:
        """Stop the running turn silently (capability ``cancel``), as a stop button does.

        A speech continues, unless it is paused; `interrupt` stops it. Returns False if the server does not
        accept the event. Raises `ConnectionLost`.
        """
        if is_accepted := "cancel" in self.capabilities:
            await self._stop(outbound.ResponseCancel())
            if self._calls.pause is not None:
                self._calls.silence()  # the server cuts a paused speech
        return is_accepted

    async def _stop(self, event: outbound.ClientEvent) -> None:
        for turn in self._turns.open:
            turn.interrupted = True
        await self.send(event)

    async def declare(self, tools: Sequence[Any]) -> None:
        """Replace the declared tools, also for later connections.

        Raises `ConnectionLost`, and `TypeError` and `ValueError` for tools that are no JSON or too large.
        """
        update = outbound.SessionUpdate(list(tools))
        self.frame("check", update)  # else each later start fails
        self._calls.tools = list(tools)
        await self.send(update)

    # Handlers

    def on_tool(self, name: str, handler: ToolHandler) -> None:
        """Set the handler of a tool or a UI call. Raises `ValueError` for ``tts.speak``: use `on_speak`."""
        if name == SPEAK:
            raise ValueError("tts.speak is handled by on_speak, so that it can be interrupted")
        self._calls.handlers[name] = handler

    def on_speak(self, handler: SpeakHandler) -> None:
        """Replace the voice."""
        self._calls.speak = handler

    def on_resume(self, handler: Callable[[], Any]) -> None:
        """Set the handler that lets the paused voice go on; it may be async."""
        self._on_resume = handler

    def on_approval(self, handler: ApprovalHandler) -> None:
        """Replace the handler of approval requests; later connections name the capability ``approval``."""
        self._approvals.handler = handler

    def on(self, kind: str | type[Any], callback: Callable[[Any], Any]) -> None:
        """Register a callback for a type of event: ``"tool.call"``, `ToolCallEvent`, or ``"*"`` for all.

        The next event waits for an async callback. With ``reconnect``, `Lost`, `TryFailed`, `Reconnected` and
        `GaveUp` describe the connection.
        """
        self._callbacks.setdefault(kind if isinstance(kind, str) else kind.TYPE, []).append(callback)

    async def _tell(
        self, event: ReceivedEvent | Lost | TryFailed | Reconnected | GaveUp, *kinds: str
    ) -> None:
        for callback in [c for kind in (event.TYPE, *kinds) for c in self._callbacks.get(kind, ())]:
            try:
                if inspect.isawaitable(value := callback(event)):
                    await value
            except (Exception, asyncio.CancelledError) as error:
                if self._closing is not None:
                    raise
                log.warning("callback for %s failed: %s", event.TYPE, describe_error(error))

    # Reading

    def on_read(self, event: ReceivedEvent) -> None:  # noqa: C901 -- a branch an event
        match event:
            case server.SessionStarted():
                self._turns.are_named = "turns" in self.capabilities
                # A yes by voice counts only for words after the card.
                self.entries.sort(key=lambda entry: isinstance(entry.event, outbound.ApprovalShown))
                if not event.resumed or "pause" not in self.capabilities:
                    self._resume_voice()
                if not event.resumed:
                    self._turns.end(self._turns.at("recorded", "running", "refused"), "lost")
                    self._approvals.close()
                if event.drop and "resume" in self.capabilities:
                    self._calls.drop(event.drop)
            case server.EventAck(event_ids):
                for turn in self._turns.of(*event_ids):
                    turn.stage = "recorded" if turn.stage == "waiting" else turn.stage
                self.discard(*event_ids)
            case server.ErrorEvent(event_id=str() as event_id):
                if self._turns.of(event_id):
                    self.discard(event_id)
                elif event.code == "store_unavailable":
                    self.spawn(self.retry(event_id))
                elif event.code == "invalid_event":
                    self.discard(event_id)
            case server.ToolCallEvent():
                self._calls.queue(event)
                pause = self._calls.pause
                if pause is not None and pause.is_followed and _is_words_of_person(event):
                    self._calls.silence()  # they have interrupted the paused speech
            case server.OutputResume():
                self._resume_voice()
            case server.ToolCancel(call_id, reason):
                self._calls.cancel(call_id, reason)
            case server.ApprovalRequest():
                self._approvals.ask(event)
            case server.ApprovalResolved():
                self._approvals.resolve(event)
            case server.Diagnostic():
                log.warning("diagnostic %s: %s", event.code, event.message)

    def _resume_voice(self) -> None:
        if (pause := self._calls.end_pause()) is not None:
            self.discard(pause.event_id)
            self.spawn(self._call_on_resume())

    async def _call_on_resume(self) -> None:
        try:
            if inspect.isawaitable(value := self._on_resume()):
                await value
        except Exception as error:
            log.warning("resuming the voice failed: %s", describe_error(error))

    async def _work(self) -> None:
        while True:
            event_id, event = await self.inbox.get()
            try:
                await self._handle(event)
            except Exception as error:
                log.error("event handler failed: %s", describe_error(error))
            # Too high a position loses speeches on a resume; too low a position repeats events.
            if not self._calls.speeches and not isinstance(event, _NOT_REPLAYED):
                self._last_event_id = event_id

    async def _handle(self, event: ReceivedEvent) -> None:
        self.state = state_of(event) or self.state
        self._turns.note(event, self._calls.find(getattr(event, "call_id", None) or ""))
        await self._tell(event, "*")
        if isinstance(event, server.ToolCallEvent):
            is_speech = event.name == SPEAK
            is_serial = self._serial and not (is_speech and "segments" in self.capabilities)
            if is_serial or (server.is_ui_call(event.name) and not is_speech):
                await self._calls.answer(event)
            else:
                self.spawn(self._calls.answer(event))
        # After the handlers: a turn ends when its last call has run, not when its ``idle`` is read.
        self._turns.settle(event)


def _is_words_of_person(call: server.ToolCallEvent) -> bool:
    return call.name == "convo.appendMessage" and (arguments_of(call) or {}).get("role") == "user"


connect = Client  # ``async with`` or `Client.start` connects it
