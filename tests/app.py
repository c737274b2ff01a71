"""A voice app for tests and scripts: the app's half of docs/protocol.md, with the habits of the shipped app.

    async with App("ws://127.0.0.1:8080/ws", tools={"lamp.status": lambda arguments: "off"}) as app:
        events = await app.ask("Is the lamp on?")

`App` keeps a log of the server's events and handles them one after the other. It answers each ``tool.call``:
calls of the interface (``convo.*``, ``tts.*``) at once, calls of tools by a function. It drops events that
it has had before. After a reconnect it resumes its session. With the capability ``resume`` it also reports
its cursor and its results, and sends its unacknowledged events again.

The app talks over a link of `tests.links`: a `WebSocket`, or a `Pipe` to a session of the same process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import msgspec

from tests.links import Link, WebSocket
from tests.shapes import Call, Event, arguments_of, call_of, matches, shape_of

WAIT = 10.0
"""Every wait of a test is bounded by this, in seconds."""
REMEMBERED = 4_096  # ids of handled events
KEPT = (
    "user.audio.transcript.final",
    "tool.result",
    "audio.output.interrupted",
    "audio.output.paused",
    "approval.response",
    "agent.completed",
    "context.add",
)
"""Events that an app with the capability ``resume`` keeps until ``event.ack`` names them."""
NOT_COUNTED = ("assistant.speech.partial", "session.ping", "session.started", "event.ack")
"""Events that a resume cursor (``lastEventId``) does not name."""


@dataclass(frozen=True)
class Shown:
    """A result with images, as the wire has them."""

    text: str | None
    images: Sequence[Mapping[str, str]]


Result: TypeAlias = str | Shown | None
Tool: TypeAlias = Callable[[dict[str, Any]], Result | Awaitable[Result]]

_ids = count(1)


class App:
    """A voice app in one session.

    ``tools``: name -> function of the arguments that gives the result. It may be a coroutine function; the
    next event waits for it. Without a function, or with the result None, the call stays unanswered; an
    exception becomes the ``error``. A ``tts.speak`` among the tools plays a speech. ``answer`` replaces all
    of this and gets every call.

    ``acknowledge``: whether a call of the interface is answered, by its name. ``decide``: gives the decision
    ("allow" or "deny") on the payload of an ``approval.request``; None leaves the card to the test.
    ``start_fields``: fields of ``session.start``. ``copies``: how many times each ``tool.result`` is sent.
    ``wait_s`` bounds every wait.
    ``log``: all events, without repeated ones, which are in ``repeated``. ``runs``: the calls of tools.
    """

    def __init__(
        self,
        url: str = "",
        session_id: str = "s-1",
        *,
        tools: Mapping[str, Tool] | None = None,
        answer: Callable[[Call], Result | Awaitable[Result]] | None = None,
        acknowledge: Callable[[str], bool] = lambda name: True,
        decide: Callable[[dict[str, Any]], str | None] = lambda card: None,
        start_fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        copies: int = 1,
        wait_s: float = WAIT,
    ) -> None:
        self.url = url
        self.session_id = session_id
        self.tools = dict(tools or {})
        self.answer = answer or self.run_call
        self.acknowledge = acknowledge
        self.decide = decide
        self.start_fields = dict(start_fields or {})
        self.headers = dict(headers or {})
        self.copies = copies
        self.wait_s = wait_s
        self.link: Link | None = None
        self.log: list[Event] = []
        self.repeated: list[Event] = []
        self.runs: list[tuple[str, dict[str, Any]]] = []
        self.event_ids: dict[str, None] = {}
        """Ids of events, the latest last."""
        self.outbox: dict[str, Event] = {}
        """Events without an ``event.ack``, by id."""
        self.pending: dict[str, Call] = {}
        """Calls of tools without a result, by id."""
        self.tool_calls: set[str] = set()
        """Ids of the calls of tools."""
        self.dropped: set[str] = set()
        self._last_event_id: str | None = None
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()

    # -- the connection

    async def __aenter__(self) -> App:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, *, start: bool = True) -> None:
        """Connect to ``url``, and start or resume the session unless ``start`` is False."""
        self.attach(await WebSocket(self.receive).open(self.url, self.headers))
        if start:
            mark = len(self.log)
            self.start()
            await self.until("session.started", since=mark)

    def attach(self, link: Link) -> None:
        """Talk over this link from now on."""
        self.link = link
        self._worker = self._worker or asyncio.create_task(self._work())

    def start(self) -> str:
        """Send ``session.start``; with the capability ``resume`` it holds the cursor and the results."""
        payload = {"sessionId": self.session_id, **self.start_fields}
        if self.resumes and self.event_ids:
            results = [
                # The server asks for a result with images in ``resend``.
                {"callId": event["payload"]["callId"]} if "images" in event["payload"] else event["payload"]
                for event in self.outbox.values()
                if event["type"] == "tool.result" and event["payload"]["callId"] in self.tool_calls
            ]
            pending = list(self.pending)
            payload["resume"] = {"lastEventId": self._last_event_id, "done": results, "pending": pending}
        return self.send("session.start", payload)

    @property
    def resumes(self) -> bool:
        return "resume" in self.start_fields.get("capabilities", ())

    @property
    def socket(self) -> WebSocket:
        assert isinstance(self.link, WebSocket)
        return self.link

    @property
    def closed(self) -> asyncio.Event:
        assert self.link is not None
        return self.link.closed

    @property
    def close_code(self) -> int | None:
        return self.link.close_code if self.link is not None else None

    async def close(self) -> None:
        """Close the connection, and end the app's own task."""
        if self.link is not None and self._worker is not None:
            await self.link.hang_up()
            self._worker.cancel()
            self._worker = None

    async def cut(self) -> None:
        """Lose the network: no close frame is sent."""
        assert self.link is not None
        self.link.cut()
        await asyncio.wait_for(self.link.closed.wait(), self.wait_s)

    def relaunch(self) -> None:
        """Forget everything but the session, as an app that was ended and started again."""
        for memory in (self.event_ids, self.outbox, self.pending):
            memory.clear()
        self._last_event_id = None
        self._inbox = asyncio.Queue()
        if self._worker is not None:
            self._worker.cancel()
            self._worker = asyncio.create_task(self._work())

    # -- events of the server

    def receive(self, data: bytes) -> None:
        """Take a frame from the link."""
        event: Event = msgspec.json.decode(data)
        if event["id"] in self.event_ids:
            self.repeated.append(event)
            return
        self.event_ids[event["id"]] = None
        if len(self.event_ids) > REMEMBERED:
            del self.event_ids[next(iter(self.event_ids))]
        if event["type"] == "tool.call" and not call_of(event).is_interface:
            self.pending[event["payload"]["callId"]] = call_of(event)
            self.tool_calls.add(event["payload"]["callId"])
        self._inbox.put_nowait(event)
        self.log.append(event)
        self._arrived.set()  # wakes all who wait now
        self._arrived.clear()

    async def _work(self) -> None:
        while True:
            event = await self._inbox.get()
            await self.handle(event)
            if event["type"] not in NOT_COUNTED:
                self._last_event_id = event["id"]

    async def handle(self, event: Event) -> None:
        """Handle one event; the next one waits for it."""
        payload = event["payload"]
        if event["type"] == "tool.call":
            await self._call(call_of(event))
        elif event["type"] == "approval.request" and (decision := self.decide(payload)) is not None:
            self.send("approval.shown", {"approvalId": payload["approvalId"]})
            self.decide_card(event, decision)
        elif event["type"] == "event.ack":
            for event_id in payload["eventIds"]:
                self.outbox.pop(event_id, None)
        elif event["type"] == "session.started" and self.resumes:
            self._resend(payload.get("resend") or (), payload.get("drop") or ())

    async def _call(self, call: Call) -> None:
        if not call.is_interface:
            if call.call_id in self.dropped:
                return
            self.runs.append((call.name, call.arguments))
        try:
            result = self.answer(call)
            if isinstance(result, Awaitable):
                result = await result
        except Exception as error:
            self.result(call.call_id, None, str(error))
            return
        if result is not None:
            self.result(call.call_id, result)

    def run_call(self, call: Call) -> Result | Awaitable[Result]:
        """Give the result of a call, None for no answer."""
        tool = self.tools.get(call.name)
        if tool is not None:
            return tool(call.arguments)
        if not call.is_interface or not self.acknowledge(call.name):
            return None
        return '{"spoken":true}' if call.name == "tts.speak" else '{"ok":true}'

    def _resend(self, resend: Sequence[str], drop: Sequence[str]) -> None:
        """Send all unacknowledged events again, under the same ids."""
        self.dropped.update(drop)
        for event_id, event in list(self.outbox.items()):
            call_id = event["payload"].get("callId")
            if call_id not in self.tool_calls or call_id in resend:
                self._write(event)
            else:
                del self.outbox[event_id]  # the server has it, or does not want it

    # -- events of the app

    def send(self, event_type: str, payload: Any, **envelope: Any) -> str:
        """Send an event; without a connection it is lost. Returns its id."""
        event = {
            "id": f"app-{next(_ids)}",
            "type": event_type,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": self.session_id,
            "protocolVersion": 1,
            "payload": payload,
            **envelope,
        }
        if self.resumes and event_type in KEPT:
            self.outbox[event["id"]] = event
        self._write(event)
        return str(event["id"])

    def _write(self, event: Event) -> None:
        if self.link is not None:
            self.link.write(msgspec.json.encode(event))

    def say(self, text: str, *, images: Sequence[Mapping[str, str]] = (), **envelope: Any) -> str:
        """Send the person's words."""
        payload = {"text": text, "images": images} if images else {"text": text}
        return self.send("user.audio.transcript.final", payload, **envelope)

    def result(self, call_id: str, result: Any, error: str | None = None) -> None:
        """Answer a call; late, where `tools` gave no answer."""
        self.pending.pop(call_id, None)
        payload = {"callId": call_id, "result": result, "error": error}
        if isinstance(result, Shown):
            payload |= {"result": result.text, "images": result.images}
        for _ in range(self.copies):
            self.send("tool.result", payload)

    def interrupt(self, **fields: Any) -> str:
        """Speak over the speech."""
        return self.send("audio.output.interrupted", {"reason": "user", **fields})

    def pause(self, **fields: Any) -> str:
        """Pause the speech, because the person begins to speak."""
        return self.send("audio.output.paused", fields)

    def decide_card(self, card: Event, decision: str, **fields: Any) -> str:
        """Decide about the call of an ``approval.request``."""
        bound = {name: card["payload"][name] for name in ("approvalId", "argumentsDigest")}
        return self.send("approval.response", {**bound, "decision": decision, **fields})

    # -- what the app has seen

    async def until(
        self, condition: str | Callable[[Event], bool], *, since: int | Event = 0, **payload: Any
    ) -> Event:
        """Wait for an event by its shape (`shape_of`) or type, by fields of its payload, or by a predicate.

        ``since`` is a position of the log, or the event after which the search begins.
        """
        position = self.log.index(since) + 1 if isinstance(since, dict) else since
        first = position
        try:
            async with asyncio.timeout(self.wait_s):
                while True:
                    for event in self.log[position:]:
                        if matches(event, condition, payload):
                            return event
                    position = len(self.log)
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"no {condition} {payload} in {self.shapes(first)}") from None

    async def idle(self, *, since: int = 0) -> None:
        """Wait for the end of a turn: the state ``idle`` while no card is open."""

        def is_end(event: Event) -> bool:
            return shape_of(event) == "state idle" and not self._open_cards(self.log.index(event))

        await self.until(is_end, since=since)

    def _open_cards(self, position: int) -> set[str]:
        """Give the ids of the cards that were open at a position of the log."""
        before = [event for event in self.log[:position] if event["payload"].get("outcome") != "refused"]
        requests, decisions = (
            {event["payload"]["approvalId"] for event in before if event["type"] == event_type}
            for event_type in ("approval.request", "approval.resolved")
        )
        return requests - decisions

    async def ask(self, text: str) -> list[Event]:
        """Say something and wait for the end of the turn; returns the turn's events."""
        since = len(self.log)
        self.say(text)
        # The ``idle`` of a resumed session may still be on its way.
        first = await self.until(lambda event: shape_of(event) != "state idle", since=since)
        await self.idle(since=self.log.index(first))
        return self.log[since:]

    def events(self, condition: str, since: int = 0, **payload: Any) -> list[Event]:
        """Give the events of a shape whose payload has these fields."""
        return [event for event in self.log[since:] if matches(event, condition, payload)]

    def shapes(self, since: int = 0) -> list[str]:
        """Name the events, without partials."""
        return [shape for shape in map(shape_of, self.log[since:]) if shape != "assistant.speech.partial"]

    def finals(self, since: int = 0) -> list[str]:
        return [event["payload"]["text"] for event in self.events("assistant.speech.final", since)]

    def speeches(self, since: int = 0) -> list[str]:
        return [arguments_of(event)["text"] for event in self.events("tts.speak", since)]

    def errors(self, since: int = 0) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events("error", since)]
