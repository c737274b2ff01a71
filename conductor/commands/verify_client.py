"""``conductor verify-client``: play a server against an app, and say what the app did right."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TextIO, TypeAlias

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from conductor.commands.output import write_table
from conductor.errors import SettingsError
from conductor.events.client import (
    ApprovalResponse,
    ApprovalShown,
    SessionStart,
    ToolCancelled,
    ToolResultEvent,
    TranscriptFinal,
)
from conductor.events.codec import Inbound, InvalidFrame, decode_event
from conductor.events.envelope import SUBPROTOCOL, SUPERSEDED, IdGenerator, Payload, encode_event
from conductor.events.server import (
    CAPABILITIES,
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    EventAck,
    Segment,
    SessionGoaway,
    SessionPing,
    SessionStarted,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    ToolCancel,
    append_message,
    set_state,
    speak,
)
from conductor.tools.rules import arguments_digest

QUESTION = "Please say anything now."
# Seconds in which an app that was superseded must not come back, and the longest break in a stream.
QUIET_S = 2.0
SLOW_S = 0.3


class MissingEventError(Exception):
    """What the app should have sent did not come."""


class _Unknown(msgspec.Struct):
    TYPE: ClassVar[str] = "verify.unknown"


class Play:
    """One app's session, over all its connections."""

    def __init__(self, seed: int, patience_s: float, quiet_s: float = QUIET_S) -> None:
        self.random = random.Random(seed)
        self.quiet_s = quiet_s
        self.starts: list[SessionStart] = []
        self.heard: list[Inbound] = []
        self.invalid: list[str] = []
        self.withhold_acks = False
        self._patience_s = patience_s
        self._connection: ServerConnection | None = None
        self._session_id = ""
        self._new_id = IdGenerator("evt")
        self._new_call = IdGenerator("call")
        self._changed = asyncio.Event()

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one connection: answer ``session.start``, acknowledge, and keep the rest."""
        try:
            async for frame in connection:
                await self._take(connection, frame.encode() if isinstance(frame, str) else frame)
        except ConnectionClosed:
            pass

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait until something holds. Raises `MissingEventError`."""
        try:
            async with asyncio.timeout(self._patience_s):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise MissingEventError from None

    async def send(self, event: Payload, event_id: str | None = None) -> str:
        """Send an event; give its envelope id. Raises `ConnectionClosed`."""
        if self._connection is None:
            raise MissingEventError
        event_id = event_id or self._new_id()
        await self._connection.send(encode_event(event_id, self._session_id, event), text=True)
        return event_id

    def call(self, name: str) -> ToolCallEvent:
        """Make a call of a tool that the app need not have."""
        return ToolCallEvent(self._new_call(), name, "{}")

    def segment(self, text: str, number: int, *, last: bool) -> ToolCallEvent:
        """Make the speech of one segment."""
        return speak(self._new_call(), text, Segment("speech_verify", number, last))

    async def ui(self, make: Callable[..., ToolCallEvent], *arguments: Any) -> None:
        """Make a UI call and wait for its result, and so for all that came before it."""
        call = make(self._new_call(), *arguments)
        await self.send(call)
        await self.until(lambda: self.results(call))

    def results(self, call: ToolCallEvent, kind: type[Any] = ToolResultEvent) -> set[str]:
        """Give the envelope ids of a call's results."""
        return {one.id for one in self.events(kind) if getattr(one.event, "call_id", None) == call.call_id}

    def events(self, kind: type[Any]) -> list[Inbound]:
        """Give what came of one type."""
        return [one for one in self.heard if isinstance(one.event, kind)]

    async def pong(self) -> None:
        """Wait for the answer to a WebSocket ping."""
        if self._connection is None:
            raise MissingEventError
        try:
            async with asyncio.timeout(self._patience_s):
                await (await self._connection.ping())
        except TimeoutError:
            raise MissingEventError from None

    async def cut(self, code: int | None = None) -> None:
        """Cut the socket, or close it with a code, and wait for the next connection, which has acks again."""
        before = len(self.starts)
        await self.leave(code)
        self.withhold_acks = False
        await self.until(lambda: len(self.starts) > before)

    async def leave(self, code: int | None = None) -> None:
        """Cut the socket, or close it with a code."""
        if self._connection is not None:
            if code is None:
                self._connection.transport.abort()
            else:
                await self._connection.close(code)

    async def ask(self) -> Inbound:
        """Ask for a transcript by voice, and wait for it."""
        before = len(self.events(TranscriptFinal))
        await self.ui(append_message, "assistant", QUESTION)
        await self.ui(set_state, "speaking")
        await self.send(speak(self._new_call(), QUESTION))
        await self.send(set_state(self._new_call(), "idle"))
        await self.until(lambda: len(self.events(TranscriptFinal)) > before)
        return self.events(TranscriptFinal)[before]

    async def answer(self, said: str) -> None:
        """Play the plain turn of a transcript."""
        await self.ui(set_state, "thinking")
        await self.ui(append_message, "user", said)
        await self.send(SpeechFinal("Thank you."))
        await self.ui(append_message, "assistant", "Thank you.")
        await self.ui(set_state, "idle")

    async def _take(self, connection: ServerConnection, frame: bytes) -> None:
        try:
            inbound = decode_event(frame)
        except InvalidFrame as error:
            self.invalid.append(str(error))
            self._changed.set()
            return
        if isinstance(inbound.event, SessionStart):
            self._connection, self._session_id = connection, inbound.session_id
            await self._start(inbound.event)
        else:
            self.heard.append(inbound)
            if "resume" in (self.starts[-1].capabilities or () if self.starts else ()):
                if not self.withhold_acks:
                    await self.send(EventAck([inbound.id]))
        self._changed.set()

    async def _start(self, start: SessionStart) -> None:
        named = start.capabilities
        tools = [str(tool["name"]) for tool in start.tools or () if isinstance(tool, dict) and "name" in tool]
        started = SessionStarted(
            session_id=self._session_id,
            resumed=bool(self.starts),
            capabilities=None if named is None else [name for name in named if name in CAPABILITIES],
            accepted_tools=tools or None,
            resend=[] if start.resume else None,
            drop=[] if start.resume else None,
        )
        await self.send(started)
        if self.starts:
            await self.send(set_state(self._new_call(), "idle"))
        self.starts.append(start)


Scene: TypeAlias = Callable[[Play], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Step:
    """What the app should do, the sentence of docs/protocol.md that says so, and what tries it."""

    does: str
    reference: str
    play: Scene
    needs: str | None
    outcome: str = "not reached"


STEPS: list[Step] = []


def _step(does: str, reference: str, needs: str | None = None) -> Callable[[Scene], Scene]:
    def register(play: Scene) -> Scene:
        STEPS.append(Step(does, reference, play, needs))
        return play

    return register


@_step(
    "starts its session by its first event",
    "One connection serves one session. Its first event, as a rule `session.start`, says which.",
)
async def _starts(play: Play) -> bool:
    await play.until(lambda: play.starts)
    return not play.heard


@_step(
    "reads a slow answer, answers pings and UI calls",
    'A UI call is answered as soon as it is done, with any result, such as `{"ok":true}`; `tts.speak` '
    "when the speech is over or was stopped.",
)
async def _streams(play: Play) -> bool:
    words = "This answer comes slowly, one word after the other."
    for end in range(4, len(words), 8):
        await play.send(SpeechPartial(words[:end]))
        await asyncio.sleep(play.random.uniform(0, SLOW_S))
    await play.send(SessionPing())
    await play.pong()
    await play.send(SpeechFinal(words))
    await play.ui(append_message, "assistant", words)
    await play.ui(set_state, "idle")
    return True


@_step(
    "answers a call that comes twice once",
    "An event whose id was seen before is not acted upon again, on either side.",
)
async def _twice(play: Play) -> bool:
    call = play.call("verify.twice")
    event_id = await play.send(call)
    if play.random.random() < 0.5:
        await play.until(lambda: play.results(call))
    await play.send(call, event_id)
    await play.until(lambda: play.results(call))
    await play.ui(set_state, "idle")
    return len(play.results(call)) == 1


@_step(
    "passes over an event that it does not know",
    "A type that a receiver does not know is ignored.",
)
async def _unknown(play: Play) -> bool:
    await play.send(_Unknown())
    await play.ui(set_state, "idle")
    return True


@_step(
    "connects again after a restart, for the same session",
    "It closes with code 1012 when it restarts: connect again.",
)
async def _restart(play: Play) -> bool:
    session = play.starts[-1].session_id
    await play.cut(1012)
    await play.ui(set_state, "idle")
    return play.starts[-1].session_id == session


@_step(
    "comes back after it was told to go",
    "The server sends `session.goaway` before it closes the connection on purpose, as it does for a restart, "
    "once the running turn has ended; the app comes back at once after the close.",
    needs="goaway",
)
async def _goaway(play: Play) -> bool:
    await play.send(SessionGoaway(1_000, "service restart"))
    return await _restart(play)


@_step(
    "says the segments of a reply in their order",
    "The app says them one after the other, and answers each when it was said.",
    needs="segments",
)
async def _segments(play: Play) -> bool:
    words = ("Owls hunt at night.", "They hear a mouse under the snow.", "Some of them hunt by day.")
    await play.ui(set_state, "speaking")
    calls = [play.segment(text, number, last=number == 2) for number, text in enumerate(words)]
    for call in calls:
        await play.send(call)
    await play.send(SpeechFinal(" ".join(words)))
    await play.until(lambda: all(play.results(call) for call in calls))
    await play.ui(set_state, "idle")
    answered = [getattr(one.event, "call_id", "") for one in play.events(ToolResultEvent)]
    order = [answered.index(call.call_id) for call in calls]
    return order == sorted(order)


@_step(
    "runs a call once though the socket is cut",
    "So keep the ids of the events that were handled, some thousands of them, and pass over an event "
    "whose id is among them: else a tool would run twice.",
    needs="resume",
)
async def _cut_in_call(play: Play) -> bool:
    call = play.call("verify.cut")
    play.withhold_acks = True
    event_id = await play.send(call)
    if play.random.random() < 0.5:  # else the call, or its result, may be lost
        await play.until(lambda: play.results(call))
    await play.cut()
    if not _done(play, call):
        await play.send(call, event_id)  # as a server does with what is not acknowledged
        await play.until(lambda: play.results(call))
    await play.ui(set_state, "idle")
    return len(play.results(call)) <= 1


@_step(
    "tells a result again that was not acknowledged",
    "With `resume` an app keeps each transcript, `tool.result`, interruption, decision and "
    "`agent.completed` until an `event.ack` has named its id.",
    needs="resume",
)
async def _cut_after_result(play: Play) -> bool:
    call = play.call("verify.keep")
    play.withhold_acks = True
    await play.send(call)
    await play.until(lambda: play.results(call))
    heard = len(play.heard)
    await play.cut()
    if not _done(play, call):
        await play.until(lambda: any(one.id in play.results(call) for one in play.heard[heard:]))
    await play.ui(set_state, "idle")
    return len(play.results(call)) == 1


@_step(
    "hears a spoken question and lets the person answer",
    "Every turn, however it ends, ends with the state `idle`; where another turn follows at once, the "
    "`idle` between them is left out.",
)
async def _question(play: Play) -> bool:
    said = await play.ask()
    await play.answer(_text(said))
    return True


@_step(
    "goes on after a transcript that was refused",
    "A transcript that starts no turn is answered by an `error` and by `idle`.",
)
async def _refused(play: Play) -> bool:
    refused = await play.ask()
    await play.send(ErrorEvent("rate_limited", "Try again.", event_id=refused.id, retry_after_ms=100))
    await play.ui(set_state, "idle")
    said = await play.ask()
    await play.answer(_text(said))
    return said.id != refused.id


@_step(
    "sends a transcript again that was lost, under its id",
    "Transcripts and other events that were not acknowledged are sent again, under the same ids.",
    needs="resume",
)
async def _lost_transcript(play: Play) -> bool:
    play.withhold_acks = True
    lost = await play.ask()
    heard = len(play.heard)
    await play.cut()
    await play.until(lambda: any(one.id == lost.id for one in play.heard[heard:]))
    await play.answer(_text(lost))
    return True


@_step(
    "shows a card and sends its decision",
    "The server sends an `approval.request` for each such call, the client `approval.shown` once a "
    "person can see it, and an `approval.response` with one decision or several;",
    needs="approval",
)
async def _card(play: Play) -> bool:
    arguments = {"title": "Milk"}
    call = play.call("verify.delete")
    request = ApprovalRequest(
        approval_id=f"appr_{call.call_id}",
        batch_id=f"batch_{call.call_id}",
        call_id=call.call_id,
        name=call.name,
        arguments=arguments,
        arguments_digest=arguments_digest(call.name, arguments),
        risk="medium",
        reasons=["It is a test."],
        prompt="May I run verify delete, title Milk? Any answer will do.",
        scopes=["once"],
        expires_at="2100-01-01T00:00:00.000Z",
    )
    event_id = await play.send(request)
    await play.send(request, event_id)
    await play.until(lambda: _about(play, ApprovalShown, request) and _about(play, ApprovalResponse, request))
    decision: ApprovalResponse = _about(play, ApprovalResponse, request)[0]
    await play.send(
        ApprovalResolved(request.approval_id, "denied" if decision.decision == "deny" else "allowed")
    )
    await play.ui(set_state, "idle")
    return decision.arguments_digest == request.arguments_digest


@_step(
    "answers a cancelled call",
    "Answered by `tool.cancelled`, or by the `tool.result` if that was faster.",
    needs="cancel",
)
async def _cancel(play: Play) -> bool:
    call = play.call("verify.slow")
    await play.send(call)
    await play.send(ToolCancel(call.call_id, "timeout"))
    await play.until(lambda: play.results(call, ToolCancelled) or play.results(call))
    return True


@_step(
    "stays away when another client has taken the session",
    "Where the app has the capability `resume`, the older one is closed with code 4409 instead: do not "
    "connect again then.",
    needs="resume",
)
async def _superseded(play: Play) -> bool:
    before = len(play.starts)
    await play.leave(SUPERSEDED)
    await asyncio.sleep(play.quiet_s)
    return len(play.starts) == before


@_step(
    "sends valid events only",
    "A frame that is no valid event, or that is binary, is answered by the error `invalid_event`, and the "
    "connection stays open.",
)
async def _valid(play: Play) -> bool:
    return not play.invalid


def _about(play: Play, kind: type[Any], request: ApprovalRequest) -> list[Any]:
    found: list[Any] = [one.event for one in play.events(kind)]
    found += [decision for event in list(found) for decision in getattr(event, "decisions", None) or ()]
    return [event for event in found if event.approval_id == request.approval_id]


def _done(play: Play, call: ToolCallEvent) -> bool:
    resume = play.starts[-1].resume
    return resume is not None and any(done.call_id == call.call_id for done in resume.done or ())


def _text(transcript: Inbound) -> str:
    return transcript.event.text if isinstance(transcript.event, TranscriptFinal) else ""


async def verify(play: Play) -> list[Step]:
    """Play all steps, those between the first and the last two in the seed's order; give their outcomes."""
    first, *middle, superseded, valid = STEPS
    play.random.shuffle(middle)
    done = [await _try(play, first)]
    for step in (*middle, superseded, valid):
        if done[0].outcome == "right":
            has = step.needs is None or step.needs in (play.starts[-1].capabilities or ())
            step = await _try(play, step) if has else replace(step, outcome=f"skipped: no {step.needs}")
        done.append(step)
    return done


async def _try(play: Play, step: Step) -> Step:
    try:
        right = await step.play(play)
    except (MissingEventError, ConnectionClosed):
        right = False
    play.withhold_acks = False
    return replace(step, outcome="right" if right else "wrong")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="the port to listen on (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="orders the steps and places the cuts")
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the app, and for a person's answer (%(default)g)",
    )


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Play against the app that connects; 0 if it did all right, 1 if not."""
    out = stdout or sys.stdout
    play = Play(options.seed, options.patience)
    try:
        steps = asyncio.run(_run(play, options.host, options.port, out))
    except OSError as error:
        raise SettingsError(f"port {options.port} cannot be listened on: {error.strerror}.") from None
    rows = [(one.outcome, one.does, one.reference if one.outcome == "wrong" else "") for one in steps]
    write_table(out, ("outcome", "the app", "the reference says"), rows)
    for message in play.invalid:
        out.write(f"invalid: {ascii(message)[1:-1]}\n")
    return 0 if all(one.outcome == "right" or one.outcome.startswith("skipped") for one in steps) else 1


async def _run(play: Play, host: str, port: int, out: TextIO) -> list[Step]:
    def choose(_connection: ServerConnection, offered: Any) -> Any:
        return SUBPROTOCOL if SUBPROTOCOL in offered else None

    async with serve(play.handle, host, port, select_subprotocol=choose, close_timeout=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        out.write(f"Connect the app to ws://{host}:{port}/ws, and answer what it says and shows.\n")
        out.flush()
        return await verify(play)
