"""A stand-in of OpenAI's Live API: a voice model that hears, talks and delegates to the app.

It speaks over real sockets and takes what the types of the package ``openai`` define (``openai_live.json``,
which ``scripts/live_types`` writes); all else is refused by an ``error``. What it sends is checked against
the types, too. A connection with ``?key=`` is the data channel of a session that was started elsewhere; one
without it must begin with ``session.start``. A session ends with its connection, as the types'
``connection_lost`` says.

What the types leave open is decided here: how tokens are counted (`tokens`), and that an unknown delegation
is refused. Fixtures that an app plays are refused, too: the types have them, the stand-in does not.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

import jsonschema_rs
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

TYPES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
MAX_TOKENS = 500
MAX_INPUT = 128
FRAGMENT_MS = 200
APPENDS = ("session.commentary.append", "session.thinking.append", "session.instructions.append")
_ACKNOWLEDGED = {
    "session.update": "session.updated",
    "session.input_audio.mute": "session.input_audio.muted",
    "session.input_audio.unmute": "session.input_audio.unmuted",
}
DONE = 4000
GONE = 4001
"""Codes of a close: the conversation is over, or goes on without a voice."""

Side = Literal["person", "voice"]
_TRANSCRIPTS: dict[Side, str] = {
    "person": "session.input_transcript.delta",
    "voice": "session.output_transcript.delta",
}
_CHECKS = {
    (side, name): jsonschema_rs.validator_for(schema)
    for side in ("client", "server")
    for name, schema in TYPES[side].items()
}


def tokens(text: str) -> int:
    """Estimate the tokens of a text: one for six letters, for three digits, their space, and each other sign.

    The types name no tokenizer. In 85 pieces of English prose this was 6 to 27 % more than o200k counts.
    """
    return sum(_tokens(part) for part in re.findall(r"[A-Za-z]+|\s?\d{1,3}|[^\sA-Za-z\d]", text))


def _tokens(part: str) -> int:
    return (len(part) + 5) // 6 if part[0].isalpha() else 1 + part[0].isspace()


def problem(event: Any) -> str:
    """Return why the types do not allow a client's event; empty if they do."""
    check = _CHECKS.get(("client", event.get("type"))) if isinstance(event, dict) else None
    if check is None:
        return f"there is no client event {event.get('type') if isinstance(event, dict) else event!r}"
    return next((error.message for error in check.iter_errors(event)), "")


def start_problem(event: Any) -> str:
    """Return why a session cannot start with an event; empty if it can."""
    if why := problem(event):
        return why
    if event["type"] != "session.start":
        return "the session has not started"
    history = event["session"].get("input", ())
    if len(history) > MAX_INPUT:
        return f"the input has more than {MAX_INPUT} messages"
    return "" if all(len(message["content"]) == 1 for message in history) else "a message has one text part"


def correlated(event: Any) -> dict[str, str]:
    """Return what an answer has of the command that it answers."""
    return {"client_event_id": event["event_id"]} if event.get("event_id") else {}


@dataclass(frozen=True, slots=True)
class Command:
    """An accepted append. ``is_acknowledged`` is false where the connection broke before."""

    kind: str
    event_id: str | None
    delegation_id: str | None
    content: str
    is_acknowledged: bool = True


@dataclass(eq=False)
class VoiceSession:
    """One voice session. Times are of its own clock, which talk moves on."""

    socket: ServerConnection
    key: str = ""
    id: str = ""
    config: dict[str, Any] = field(default_factory=lambda: {"model": "gpt-live-1"})
    now_ms: int = 0
    delegations: list[str] = field(default_factory=list)
    accepted: list[Command] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    commentary: asyncio.Queue[Command] = field(default_factory=asyncio.Queue)
    fixture: bool = False
    cuts: dict[int, Literal["before", "after"]] = field(default_factory=dict)
    """Breaks the connection at an append, by its number: before it is accepted, or before that is told."""
    appends: int = 0
    max_tokens: int = MAX_TOKENS
    is_cut: bool = False
    is_ended: bool = False
    """Whether the app has ended it by ``session.close``."""
    _events: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def send(self, event_type: str, **fields: Any) -> None:
        """Send an event; raises AssertionError if the types do not allow it."""
        event = {"type": event_type, "event_id": f"event_{next(self._events)}", **fields}
        errors = [error.message for error in _CHECKS["server", event_type].iter_errors(event)]
        assert not errors, errors
        await self.socket.send(json.dumps(event))

    def resource(self) -> dict[str, Any]:
        """Return the session as the service describes it."""
        return {**self.config, "id": self.id, "expires_at": 2_000_000_000, "status": "active"}

    async def say(
        self, side: Side, text: str, *, at_ms: int | None = None, size: int = 0, pause_s: float = 0
    ) -> tuple[int, int]:
        """Send what a side says, by word or in fragments of ``size`` characters; returns begin and end."""
        began = now = self.now_ms if at_ms is None else at_ms
        for part in re.findall(rf".{{1,{size}}}" if size else r"\s*\S+", text, re.DOTALL):
            await self.send(_TRANSCRIPTS[side], delta=part, start_ms=now, end_ms=now + FRAGMENT_MS)
            now += FRAGMENT_MS
            if pause_s:
                await asyncio.sleep(pause_s)
        self.now_ms = max(self.now_ms, now)
        return began, now

    async def delegate(self) -> str:
        """Hand the work over to the app; returns the delegation's id."""
        delegation_id = f"dlg_{self.id}_{len(self.delegations)}"
        self.delegations.append(delegation_id)
        delegation = {"id": delegation_id, "target": "client", "type": "delegation"}
        await self.send("session.delegation.created", delegation=delegation, offset_ms=self.now_ms)
        return delegation_id

    async def play(self, seconds: float) -> None:
        """Play an audio fixture; appends are refused meanwhile."""
        self.fixture = True
        await self.send("session.output_audio.fixture.playing")
        await asyncio.sleep(seconds)
        self.fixture = False
        await self.send("session.output_audio.fixture.played")

    def cut(self) -> None:
        """Break the connection behind what was sent, so that an acknowledgement that was sent has arrived."""
        self.is_cut = True
        self.socket.transport.close()

    async def refuse(self, event: Any, why: str) -> None:
        """Answer a command with an error."""
        self.refused.append(why)
        event_id = event.get("event_id") if isinstance(event, dict) else None
        error = {"type": "invalid_request_error", "code": "invalid_command", "message": why}
        await self.send("error", error={**error, "client_event_id": event_id})

    async def take(self, event: Any) -> None:
        """Handle a command of the client."""
        if why := problem(event):
            await self.refuse(event, why)
            return
        match event["type"]:
            case "session.start":
                await self.refuse(event, "the session has started")
            case "session.input_audio.append":
                if self.key:
                    await self.refuse(event, "the audio of this session is on its media transport")
            case "session.output_audio.fixture.play":
                await self.refuse(event, "the stand-in plays no fixture of an app")
            case "session.close":
                self.is_ended = True
                usage = {"seconds": self.now_ms // 1000}
                closed = {"reason": "close_requested", "session": self.resource(), "usage": usage}
                await self.send("session.closed", **closed, **correlated(event))
                await self.socket.close()
            case kind if kind in APPENDS:
                await self._append(event)
            case kind:
                self.config |= event.get("session", {})
                resource = {"session": self.resource()} if kind == "session.update" else {}
                await self.send(_ACKNOWLEDGED[kind], **resource, **correlated(event))

    async def _append(self, event: dict[str, Any]) -> None:
        self.appends += 1
        cut = self.cuts.get(self.appends)
        if cut == "before":
            self.cut()
            return
        if self.fixture:
            await self.refuse(event, "an audio fixture is active")
        elif tokens(event["content"]) > self.max_tokens:
            await self.refuse(event, f"the content has more than {self.max_tokens} tokens")
        elif event["delegation_id"] is not None and event["delegation_id"] not in self.delegations:
            await self.refuse(event, f"there is no delegation {event['delegation_id']}")
        else:
            kind = event["type"].split(".")[1]
            command = Command(
                kind, event.get("event_id"), event["delegation_id"], event["content"], cut != "after"
            )
            self.accepted.append(command)
            if cut == "after":
                self.cut()
                return
            times = {"start_ms": self.now_ms, "end_ms": self.now_ms}
            await self.send(f"session.{kind}.appended", **times, **correlated(event))
            if kind == "commentary":
                self.commentary.put_nowait(command)


class LiveService:
    """Serves voice sessions on a loopback port. ``play`` is the person and the voice of each session."""

    def __init__(self, play: Callable[[VoiceSession], Awaitable[None]]) -> None:
        self.sessions: list[VoiceSession] = []
        self.failures: list[BaseException] = []
        self._play = play
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(self._handle, "127.0.0.1", 0, close_timeout=1)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        assert self._server is not None
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/v1/live/sessions"

    def of(self, key: str) -> list[VoiceSession]:
        """List the sessions of a conversation, oldest first."""
        return [session for session in self.sessions if session.key == key]

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        keys = parse_qs(urlsplit(socket.request.path).query).get("key", [])
        session = VoiceSession(socket, key="".join(keys), id=f"{len(self.sessions):x}")
        playing: asyncio.Task[None] | None = None
        try:
            start = {} if keys else await self._start(session)
            if start is None:
                return
            self.sessions.append(session)
            await session.send("session.started", session=session.resource(), **correlated(start))
            playing = asyncio.create_task(self._played(session))
            async for message in socket:
                if session.is_cut:  # what was read before the break has no answer
                    break
                await session.take(json.loads(message))
        except ConnectionClosed:
            pass
        finally:
            if playing is not None:
                playing.cancel()
                await asyncio.wait([playing])

    async def _start(self, session: VoiceSession) -> dict[str, Any] | None:
        """Take the command that starts a session; None if it was refused."""
        event: dict[str, Any] = json.loads(await session.socket.recv())
        if why := start_problem(event):
            await session.refuse(event, why)
            return None
        session.config = event["session"]
        return event

    async def _played(self, session: VoiceSession) -> None:
        try:
            await self._play(session)
        except ConnectionClosed:
            pass
        except (AssertionError, TimeoutError) as error:
            self.failures.append(error)
            await session.socket.close(DONE)
