"""``conductor verify-client``: play a server against an app, and report the app's mistakes."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from conductor.commands.output import escape, write
from conductor.errors import SettingsError
from conductor.events import client, server
from conductor.events.codec import Inbound, InvalidFrame, decode_event
from conductor.events.envelope import SUBPROTOCOL, SUPERSEDED, IdGenerator, Payload, encode_event
from conductor.settings import load_settings
from conductor.tools.rules import arguments_digest

QUESTION = "Please say anything now."
# Seconds for the app and for a person's answer.
PATIENCE_S = 30.0
# Seconds in which a superseded app must not reconnect, and the longest pause in a stream.
QUIET_S = 2.0
SLOW_S = 0.3


class _Unknown(msgspec.Struct):
    TYPE: ClassVar[str] = "verify.unknown"


class Play:
    """One app's session, over all its connections."""

    def __init__(self, seed: int, patience_s: float, quiet_s: float = QUIET_S) -> None:
        self.random = random.Random(seed)
        self.quiet_s = quiet_s
        self.starts: list[client.SessionStart] = []
        self.received: list[Inbound] = []
        self.invalid: list[str] = []
        self.withhold_acks = False
        self.patience_s = patience_s
        self._types: list[str] = []
        self._connection: ServerConnection
        self._session_id = ""
        self._new_id = IdGenerator("evt")
        self._new_call = IdGenerator("call")
        self._changed = asyncio.Event()

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one connection: answer ``session.start``, acknowledge and record other events."""
        with suppress(ConnectionClosed):
            async for frame in connection:
                await self._record(connection, frame.encode() if isinstance(frame, str) else frame)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true. Raises `TimeoutError`."""
        async with asyncio.timeout(self.patience_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def is_connected(self) -> bool:
        """Whether the app has a session and an open connection."""
        return bool(self.starts) and self._connection.state is State.OPEN

    def take_types(self) -> str:
        """Count the events received since the last call, by type."""
        counts, self._types = Counter(self._types), []
        return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"

    async def send(self, event: Payload, event_id: str | None = None) -> str:
        """Send an event; return its envelope id. Raises `ConnectionClosed`."""
        event_id = event_id or self._new_id()
        await self._connection.send(encode_event(event_id, self._session_id, event), text=True)
        return event_id

    def call(self, name: str) -> server.ToolCallEvent:
        """Make a call of a tool, which the app need not have."""
        return server.ToolCallEvent(self._new_call(), name, "{}")

    def speech(self, text: str, segment: server.Segment | None = None) -> server.ToolCallEvent:
        """Make a speech, or one segment of a speech."""
        return server.speak(self._new_call(), text, segment)

    async def ui(self, make: Callable[..., server.ToolCallEvent], *arguments: Any) -> None:
        """Make a UI call and wait for its result, which follows the results of earlier calls."""
        call = make(self._new_call(), *arguments)
        await self.send(call)
        await self.until(lambda: self.results(call))

    def results(self, call: server.ToolCallEvent, kind: type[Any] = client.ToolResultEvent) -> set[str]:
        """Return the envelope ids of a call's results."""
        return {event_id for event_id, event in self.events(kind) if event.call_id == call.call_id}

    def events(self, kind: type[Any]) -> list[tuple[str, Any]]:
        """Return the events of one type with their envelope ids."""
        return [(inbound.id, inbound.event) for inbound in self.received if isinstance(inbound.event, kind)]

    def is_resumed(self, call: server.ToolCallEvent) -> bool:
        """Whether the last ``session.start`` lists a call as done."""
        resume = self.starts[-1].resume
        return resume is not None and any(entry.call_id == call.call_id for entry in resume.done or ())

    async def pong(self) -> None:
        """Wait for the answer to a WebSocket ping. Raises `TimeoutError`."""
        async with asyncio.timeout(self.patience_s):
            await (await self._connection.ping())

    async def cut(self, code: int | None = None) -> None:
        """Close the connection, and wait for the next one. Acknowledge events again."""
        connections = len(self.starts)
        await self.close(code)
        self.withhold_acks = False
        await self.until(lambda: len(self.starts) > connections)

    async def close(self, code: int | None = None) -> None:
        """Close the connection with a code, or without a close frame."""
        if code is None:
            self._connection.transport.abort()
        else:
            await self._connection.close(code)

    async def ask(self) -> tuple[str, str]:
        """Ask a question by voice; return the envelope id and the text of the answer."""
        count = len(self.events(client.TranscriptFinal))
        await self.ui(server.append_message, "assistant", QUESTION)
        await self.ui(server.set_state, "speaking")
        await self.send(self.speech(QUESTION))
        await self.send(server.set_state(self._new_call(), "idle"))
        await self.until(lambda: len(self.events(client.TranscriptFinal)) > count)
        event_id, event = self.events(client.TranscriptFinal)[count]
        return event_id, event.text

    async def answer(self, transcript: str) -> None:
        """Play the turn of a transcript."""
        await self.ui(server.set_state, "thinking")
        await self.ui(server.append_message, "user", transcript)
        await self.send(server.SpeechFinal("Thank you."))
        await self.ui(server.append_message, "assistant", "Thank you.")
        await self.ui(server.set_state, "idle")

    async def _record(self, connection: ServerConnection, frame: bytes) -> None:
        try:
            inbound = decode_event(frame)
        except InvalidFrame as error:
            self.invalid.append(str(error))
            self._types.append("invalid")
        else:
            self._types.append(inbound.type)
            if isinstance(inbound.event, client.SessionStart):
                self._connection, self._session_id = connection, inbound.session_id
                await self._start(inbound.event)
            else:
                self.received.append(inbound)
                if self.has_capability("resume") and not self.withhold_acks:
                    await self.send(server.EventAck([inbound.id]))
        self._changed.set()

    def has_capability(self, name: str) -> bool:
        """Whether the app's last ``session.start`` names a capability."""
        return bool(self.starts) and name in (self.starts[-1].capabilities or ())

    async def _start(self, start: client.SessionStart) -> None:
        names = start.capabilities
        played = server.CAPABILITIES.keys() - {"turns", "inspect"}  # nothing here sends their events
        tools = [str(tool["name"]) for tool in start.tools or () if isinstance(tool, dict) and "name" in tool]
        started = server.SessionStarted(
            session_id=self._session_id,
            resumed=bool(self.starts),
            capabilities=None if names is None else [name for name in names if name in played],
            accepted_tools=tools or None,
            resend=[] if start.resume else None,
            drop=[] if start.resume else None,
        )
        await self.send(started)
        if self.starts:
            await self.send(server.set_state(self._new_call(), "idle"))
        self.starts.append(start)


Scene: TypeAlias = Callable[[Play], Awaitable[str | None]]
"""Plays a step; returns the app's mistake. Raises `TimeoutError` and `ConnectionClosed`."""
SceneOutcome: TypeAlias = Literal["right", "wrong", "skipped", "not tried"]


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """The app's behaviour, a section of docs/protocol-reference.md, and a scene that tests it.

    ``seen`` are the app's events and its mistake, or the reason why the scene was not played.
    """

    does: str
    section: str
    play: Scene
    needs: str | None = None
    outcome: SceneOutcome = "not tried"
    seen: str = ""


def _repeated(count: int) -> str | None:
    return None if count <= 1 else f"{count} results with different ids for one call"


async def _starts(play: Play) -> str | None:
    await play.until(lambda: play.starts)
    return f"{play.received[0].type} came before session.start" if play.received else None


async def _streams(play: Play) -> None:
    text = "This answer comes slowly, one word after the other."
    for end in range(4, len(text), 8):
        await play.send(server.SpeechPartial(text[:end]))
        await asyncio.sleep(play.random.uniform(0, SLOW_S))
    await play.send(server.SessionPing())
    await play.pong()
    await play.send(server.SpeechFinal(text))
    await play.ui(server.append_message, "assistant", text)
    await play.ui(server.set_state, "idle")


async def _repeat(play: Play, *, cut: bool) -> str | None:
    call = play.call("verify.cut" if cut else "verify.twice")
    play.withhold_acks = cut
    event_id = await play.send(call)
    if play.random.random() < 0.5:  # else a cut loses the call, or its result
        await play.until(lambda: play.results(call))
    if cut:
        await play.cut()
    if not (cut and play.is_resumed(call)):
        await play.send(call, event_id)  # as a server does without an acknowledgement
        await play.until(lambda: play.results(call))
    await play.ui(server.set_state, "idle")
    return _repeated(len(play.results(call)))


async def _unknown(play: Play) -> None:
    await play.send(_Unknown())
    await play.ui(server.set_state, "idle")


async def _restart(play: Play) -> str | None:
    session = play.starts[-1].session_id
    await play.cut(1012)
    await play.ui(server.set_state, "idle")
    return None if play.starts[-1].session_id == session else "another session id in session.start"


async def _goaway(play: Play) -> str | None:
    await play.send(server.SessionGoaway(1_000, "service restart"))
    return await _restart(play)


async def _segments(play: Play) -> str | None:
    texts = ("Owls hunt at night.", "They hear a mouse under the snow.", "Some of them hunt by day.")
    await play.ui(server.set_state, "speaking")
    calls = [play.speech(text, server.Segment("speech", n, n == 2)) for n, text in enumerate(texts)]
    for call in calls:
        await play.send(call)
    await play.send(server.SpeechFinal(" ".join(texts)))
    await play.until(lambda: all(play.results(call) for call in calls))
    await play.ui(server.set_state, "idle")
    ids = [event.call_id for _, event in play.events(client.ToolResultEvent)]
    order = [ids.index(call.call_id) for call in calls]
    return None if order == sorted(order) else f"results of the segments in the order {order}"


async def _cut_after_result(play: Play) -> str | None:
    call = play.call("verify.keep")
    play.withhold_acks = True
    await play.send(call)
    await play.until(lambda: play.results(call))
    received = len(play.received)
    await play.cut()
    if not play.is_resumed(call):
        await play.until(lambda: any(event.id in play.results(call) for event in play.received[received:]))
    await play.ui(server.set_state, "idle")
    return _repeated(len(play.results(call)))


async def _question(play: Play) -> None:
    _, transcript = await play.ask()
    await play.answer(transcript)


async def _refused(play: Play) -> str | None:
    refused_id, _ = await play.ask()
    await play.send(
        server.ErrorEvent(code="rate_limited", message="Try again.", event_id=refused_id, retry_after_ms=100)
    )
    await play.ui(server.set_state, "idle")
    event_id, transcript = await play.ask()
    await play.answer(transcript)
    return "the id of the refused transcript on the next one" if event_id == refused_id else None


async def _lost_transcript(play: Play) -> None:
    play.withhold_acks = True
    event_id, transcript = await play.ask()
    received = len(play.received)
    await play.cut()
    await play.until(lambda: any(event.id == event_id for event in play.received[received:]))
    await play.answer(transcript)


async def _card(play: Play) -> str | None:
    arguments = {"title": "Milk"}
    call = play.call("verify.delete")
    request = server.ApprovalRequest(
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

    def decisions(kind: type[Any]) -> list[Any]:
        events = [event for _, event in play.events(kind)]
        events += [decision for event in events for decision in getattr(event, "decisions", None) or ()]
        return [event for event in events if event.approval_id == request.approval_id]

    await play.until(lambda: decisions(client.ApprovalShown) and decisions(client.ApprovalResponse))
    decision = decisions(client.ApprovalResponse)[0]
    outcome: Literal["denied", "allowed"] = "denied" if decision.decision == "deny" else "allowed"
    await play.send(server.ApprovalResolved(request.approval_id, outcome))
    await play.ui(server.set_state, "idle")
    is_same = decision.arguments_digest == request.arguments_digest
    return None if is_same else "another argumentsDigest than the request's"


async def _cancel(play: Play) -> None:
    call = play.call("verify.slow")
    await play.send(call)
    await play.send(server.ToolCancel(call.call_id, "timeout"))
    await play.until(lambda: play.results(call, client.ToolCancelled) or play.results(call))


async def _superseded(play: Play) -> str | None:
    connections = len(play.starts)
    await play.close(SUPERSEDED)
    await asyncio.sleep(play.quiet_s)
    return None if len(play.starts) == connections else "a new connection"


async def _valid(play: Play) -> str | None:
    return "; ".join(play.invalid) or None


STEPS = [
    VerifiedStep("starts its session by its first event", "Connection", _starts),
    VerifiedStep("reads a slow answer, answers pings and UI calls", "Calls", _streams),
    VerifiedStep("runs a repeated call once", "Reconnect", partial(_repeat, cut=False)),
    VerifiedStep("ignores an unknown event", "Envelope", _unknown),
    VerifiedStep("connects again after a restart, for the same session", "Reconnect", _restart),
    VerifiedStep("reconnects after session.goaway", "session.goaway", _goaway, needs="goaway"),
    VerifiedStep("speaks the segments of a reply in order", "Segments", _segments, needs="segments"),
    VerifiedStep(
        "runs a call once despite a cut connection", "Reconnect", partial(_repeat, cut=True), needs="resume"
    ),
    VerifiedStep("sends an unacknowledged result again", "Reconnect", _cut_after_result, needs="resume"),
    VerifiedStep("speaks a question and sends the person's answer", "Turns", _question),
    VerifiedStep("continues after a refused transcript", "Errors", _refused),
    VerifiedStep(
        "sends a lost transcript again, under its id", "Reconnect", _lost_transcript, needs="resume"
    ),
    VerifiedStep("shows a card and sends its decision", "Approvals", _card, needs="approval"),
    VerifiedStep("answers a cancelled call", "tool.cancel", _cancel, needs="cancel"),
    VerifiedStep("stays closed after a session takeover", "Reconnect", _superseded, needs="resume"),
    VerifiedStep("sends valid events only", "Errors", _valid),
]


async def verify(play: Play) -> AsyncIterator[VerifiedStep]:
    """Play all steps; give each as it ends. The seed shuffles all but the first and the last two.

    Without a connection, or without a session, only the first and the last are played.
    """
    first, *middle, superseded, valid = STEPS
    play.random.shuffle(middle)
    yield await _play(play, first)
    for step in (*middle, superseded):
        if step.needs is not None and play.starts and not play.has_capability(step.needs):
            yield replace(step, outcome="skipped", seen=f"no {step.needs} in session.start")
        elif not play.is_connected:
            yield replace(step, seen="the app was not connected")
        else:
            yield await _play(play, step)
    yield await _play(play, valid) if play.starts else replace(valid, seen="the app was not connected")


async def _play(play: Play, step: VerifiedStep) -> VerifiedStep:
    outcome: SceneOutcome = "wrong"
    try:
        mistake = await step.play(play)
        outcome, end = ("wrong", f"; {mistake}") if mistake else ("right", "")
    except TimeoutError:
        end = f" within {play.patience_s:g} s"
    except ConnectionClosed:
        end = ", then the end of the connection"
    play.withhold_acks = False
    return replace(step, outcome=outcome, seen=play.take_types() + end)


def run(options: argparse.Namespace) -> int:
    """Play against the app that connects; returns 1 if a step is wrong or was not tried, else 0."""
    settings = load_settings(host=options.host, port=options.port)
    play = Play(options.seed, options.patience or PATIENCE_S)
    try:
        counts = asyncio.run(_run(play, settings.host, settings.port))
    except OSError as error:
        raise SettingsError(f"cannot listen on port {settings.port}: {error.strerror}.") from None
    write(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["wrong"] or counts["not tried"] else 0


async def _run(play: Play, host: str, port: int) -> Counter[SceneOutcome]:
    def choose(_connection: ServerConnection, offered: Any) -> Any:
        return SUBPROTOCOL if SUBPROTOCOL in offered else None

    counts: Counter[SceneOutcome] = Counter()
    width = max(len(step.does) for step in STEPS)
    async with serve(play.handle, host, port, select_subprotocol=choose, close_timeout=1) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        write(f"Connect the app to ws://{host}:{port}/ws, and answer its questions and cards.")
        async for step in verify(play):
            counts[step.outcome] += 1
            rule = f" (see {step.section} in docs/protocol-reference.md)" if step.outcome == "wrong" else ""
            write(f"{step.outcome:<9}  {step.does:<{width}}  {escape(step.seen)}{rule}")
    return counts
