"""A voice app for the tests, close to the wire: it can behave as the shipped one does, or badly."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WAIT = 15.0
"""Every wait of a test is bounded by this, in seconds."""

Event = dict[str, Any]
_ids = itertools.count(1)


@dataclass
class Phone:
    """One app process: ``seen`` are the ids of the events that it has had, over all of its connections.

    ``tools`` answers the model's calls: name -> function of the arguments giving a result string, None for
    no answer, or an exception for an error. ``acknowledge`` says which UI calls are answered.
    """

    url: str
    session_id: str = "s-1"
    tools: dict[str, Callable[[dict[str, Any]], str | None]] = field(default_factory=dict)
    acknowledge: Callable[[str], bool] = lambda name: True
    start_fields: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    duplicates: list[Event] = field(default_factory=list)
    runs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    close_code: int | None = None

    def __post_init__(self) -> None:
        self.seen: set[str] = set()
        self._changed = asyncio.Condition()
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Phone:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- connection

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    async def open(self, *, start: bool = True) -> None:
        self._socket = await connect(
            self.url, compression=None, max_size=None, additional_headers=self.headers, proxy=None
        )
        self.closed.clear()
        self._reader = asyncio.create_task(self._read(self._socket))
        if start:
            mark = len(self.log)
            await self.start()
            await self.until(lambda e: e["type"] == "session.started", since=mark)

    async def start(self) -> str:
        payload = {"sessionId": self.session_id, **self.start_fields}
        return await self.send("session.start", payload)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        await self._stop_reading()

    async def cut(self) -> None:
        """Lose the network: no close frame, nothing."""
        self.socket.transport.abort()
        await self._stop_reading()

    async def _stop_reading(self) -> None:
        if self._reader is not None:
            await asyncio.wait_for(self._reader, WAIT)

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for data in socket:
                event = json.loads(data)
                if event["id"] in self.seen:
                    self.duplicates.append(event)
                    continue
                self.seen.add(event["id"])
                async with self._changed:
                    self.log.append(event)
                    self._changed.notify_all()
                if event["type"] == "tool.call":
                    await self._handle(event["payload"])
        except ConnectionClosed:
            pass
        finally:
            self.close_code = socket.close_code
            self.closed.set()

    async def _handle(self, payload: dict[str, Any]) -> None:
        name, arguments = payload["name"], json.loads(payload["arguments"])
        if name.startswith(("convo.", "tts.")):
            if self.acknowledge(name):
                spoken = '{"spoken":true}' if name == "tts.speak" else '{"ok":true}'
                await self.result(payload["callId"], spoken)
            return
        self.runs.append((name, arguments))
        tool = self.tools.get(name)
        if tool is None:
            return
        try:
            answer = tool(arguments)
        except Exception as error:
            await self.result(payload["callId"], None, str(error))
            return
        if answer is not None:
            await self.result(payload["callId"], answer)

    # -- sending

    async def send(self, event_type: str, payload: Any, **fields: Any) -> str:
        event_id = fields.pop("id", f"phone-{next(_ids)}")
        event = {
            "id": event_id,
            "type": event_type,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": self.session_id,
            "protocolVersion": 1,
            "payload": payload,
            **fields,
        }
        await self.send_raw(json.dumps(event))
        return str(event_id)

    async def send_raw(self, data: str | bytes, *, text: bool | None = None) -> None:
        await self.socket.send(data, text=text)

    async def say(self, text: str, **fields: Any) -> str:
        return await self.send("user.audio.transcript.final", {"text": text}, **fields)

    async def result(self, call_id: str, result: str | None, error: str | None = None) -> None:
        try:
            await self.send("tool.result", {"callId": call_id, "result": result, "error": error})
        except ConnectionClosed:
            pass

    async def interrupt(self, **fields: Any) -> None:
        await self.send("audio.output.interrupted", {"reason": "user", **fields})

    # -- waiting and looking

    async def until(self, wanted: Callable[[Event], bool], *, since: int = 0) -> Event:
        """Wait for an event, looking from the log's position ``since`` on."""
        position = since

        def found() -> bool:
            nonlocal position
            while position < len(self.log):
                if wanted(self.log[position]):
                    return True
                position += 1
            return False

        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(found), WAIT)
            except TimeoutError:
                raise AssertionError(f"did not come; there was: {self.shape(since)}") from None
        return self.log[position]

    async def idle(self, *, since: int = 0) -> None:
        """Wait for an ``idle`` that stands beside no card: those open the microphone for an answer."""

        def alone(event: Event) -> bool:
            if not is_state("idle")(event):
                return False
            cards: set[str] = set()
            for one in self.log[: self.log.index(event)]:
                if one["type"] == "approval.request":
                    cards.add(one["payload"]["approvalId"])
                elif one["type"] == "approval.resolved" and one["payload"]["outcome"] != "refused":
                    cards.discard(one["payload"]["approvalId"])
            return not cards

        await self.until(alone, since=since)

    async def ask(self, text: str) -> list[Event]:
        """Say something and wait for the turn's end; returns the turn's events."""
        since = len(self.log)
        await self.say(text)
        # A resumed session's own ``idle`` may still be on its way.
        begun = await self.until(lambda event: not is_state("idle")(event), since=since)
        await self.idle(since=self.log.index(begun))
        return self.log[since:]

    def shape(self, since: int = 0) -> list[str]:
        """Name the events since a position, partials left out."""
        return [shape_of(e) for e in self.log[since:] if e["type"] != "assistant.speech.partial"]

    def finals(self, since: int = 0) -> list[str]:
        return [e["payload"]["text"] for e in self.log[since:] if e["type"] == "assistant.speech.final"]

    def errors(self, since: int = 0) -> list[dict[str, Any]]:
        return [e["payload"] for e in self.log[since:] if e["type"] == "error"]

    def spoken(self, since: int = 0) -> list[str]:
        return [arguments(e)["text"] for e in self.log[since:] if is_call("tts.speak")(e)]


def arguments(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event["payload"]["arguments"])
    return found


def is_call(name: str) -> Callable[[Event], bool]:
    return lambda event: bool(event["type"] == "tool.call" and event["payload"]["name"] == name)


def is_state(state: str) -> Callable[[Event], bool]:
    return lambda event: is_call("convo.setState")(event) and arguments(event)["state"] == state


def shape_of(event: Event) -> str:
    """Name an event: its type, or the call it is, with a state's or a message's particulars."""
    if event["type"] != "tool.call":
        return str(event["type"])
    name = event["payload"]["name"]
    if name == "convo.setState":
        return f"state {arguments(event)['state']}"
    if name == "convo.appendMessage":
        return f"append {arguments(event)['role']}"
    return str(name)


PLAIN_TURN = [
    "state thinking",
    "append user",
    "assistant.speech.final",
    "append assistant",
    "state speaking",
    "tts.speak",
    "state idle",
]
"""The shape of a plain turn (protocol, "Base: server to client")."""
