"""The shipped app's connection: events are read one at a time, and what is lost is opened anew.

Ids of events are remembered while the app lives; what was sent is not. Sometimes the app is relaunched when
it has lost its connection, and then has forgotten everything but its session.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import Any, Protocol

import msgspec

from benchmarks.chaos_book import Person
from benchmarks.chaos_faults import World
from benchmarks.client import TIMESTAMP, Frames

SEEN = 2_000
_RELAUNCHED = 0.1
"""So many of the lost connections are those of an app that was ended."""
_CONNECT_S = 3.0
_WAITS_S = (0.02, 0.3)


class Handler(Protocol):
    """Takes the events of a line."""

    async def handle(self, kind: str, payload: dict[str, Any]) -> None:
        """Take one; the next comes when this has returned. It is cancelled if the app is relaunched."""
        ...

    def relaunched(self) -> None:
        """Hear that the app was relaunched."""
        ...


class _Socket(Frames):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self._line = line

    def text(self, data: bytes) -> None:
        """Hand an event on."""
        self._line.received(self, msgspec.json.decode(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        super().connection_lost(exc)
        self.lost.set()


class Line:
    """One app's connections. ``changed`` is set by whatever happens; ``connections`` counts the session's."""

    def __init__(self, name: str, world: World, chance: random.Random, handler: Handler) -> None:
        self.name = name
        self.changed = asyncio.Event()
        self.connections = 0
        self.person = Person(name, name)
        self._book, self._switch, self._injector = world.book, world.switch, world.injector
        self._chance = chance
        self._handler = handler
        self._count = 0
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._ids: set[str] = set()
        self._resuming: float | None = None
        self._socket: _Socket | None = None
        self._reconnector: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    @property
    def connected(self) -> bool:
        """Whether there is a socket, as far as the app knows."""
        return self._socket is not None

    @property
    def socket(self) -> object:
        """What stands for the present socket."""
        return self._socket

    def start(self) -> None:
        """Connect, and keep connected until `close`."""
        self._reconnector = asyncio.create_task(self._keep())
        self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """End."""
        tasks = [task for task in (self._reconnector, self._worker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        if self._socket is not None:
            self._socket.abort()

    def renew(self) -> None:
        """Begin a new session, on a new connection."""
        if self._socket is not None:
            self._socket.abort()
            self._socket = None
        self._count += 1
        self._ids = ids = set[str]()
        self.person = Person(self.name, f"{self.name}-{self._count}", known=lambda: ids)
        self._injector.persons[self.name] = self.person
        self._seen.clear()
        self.connections = 0
        self._resuming = None

    def send(self, kind: str, payload: dict[str, Any]) -> bool:
        """Send an event once; False where there is no connection, and it is lost."""
        if self._socket is None or self._socket.closed:
            return False
        self._count += 1
        event = {
            "id": f"{self.name}-e{self._count}",
            "type": kind,
            "timestamp": TIMESTAMP,
            "sessionId": self.person.session_id,
            "protocolVersion": 1,
            "payload": payload,
        }
        self._socket.send(msgspec.json.encode(event))
        self.person.note(f"-> {kind} {payload.get('text') or payload.get('callId') or ''}")
        return True

    async def change(self, until: float) -> None:
        """Wait until something happens, at most a second and until a time of the loop."""
        self.changed.clear()
        left = until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.02, min(left, 1.0))):
                await self.changed.wait()
        except TimeoutError:
            pass

    async def _keep(self) -> None:
        wait = _WAITS_S[0]
        while True:
            socket = _Socket(self)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await socket.connect("127.0.0.1", self._switch.port, f"/ws?client={self.name}")
            except (OSError, TimeoutError):
                socket.abort()
                await asyncio.sleep(wait)
                wait = min(wait * 2, _WAITS_S[1])
                continue
            wait = _WAITS_S[0]
            self._begin(socket)
            await socket.lost.wait()
            self._lose()
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))

    def _begin(self, socket: _Socket) -> None:
        self._socket = socket
        self.connections += 1
        node = self._switch.node_of(self.name)
        self.person.note(f"connected to {node.name if node else 'nobody'}")
        self._resuming = asyncio.get_running_loop().time()
        self.person.claims.append(self._resuming)
        self.send("session.start", {"sessionId": self.person.session_id})
        self.changed.set()

    def _lose(self) -> None:
        self._socket = None
        self.person.note("connection lost")
        while not self._inbox.empty():
            self._inbox.get_nowait()
        if self._chance.random() < _RELAUNCHED:
            self._relaunch()
        self.changed.set()

    def _relaunch(self) -> None:
        self.person.note("relaunched")
        self._book.relaunched(self.person)
        self._seen.clear()
        if self._worker is not None:
            self._worker.cancel()
        self._handler.relaunched()
        self._worker = asyncio.create_task(self._work())

    def received(self, socket: object, event: dict[str, Any]) -> None:
        """Take an event from a socket, unless that is an old one."""
        if socket is not self._socket:
            return
        self._ids.add(event["id"])
        if self._resuming is not None and event["type"] not in ("session.started", "session.ping"):
            self._book.resumed(self.person, self._resuming, self.connections)
            self._resuming = None
        self._inbox.put_nowait(event)

    async def _work(self) -> None:
        while True:
            event = await self._inbox.get()
            if event["id"] in self._seen:
                self._book.figures["repeats left out"] += 1
                continue
            self._seen[event["id"]] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            if event["type"] != "assistant.speech.partial":
                values = " ".join(str(value)[:70] for value in event["payload"].values())
                self.person.note(f"<- {event['type']} {values}")
            await self._handler.handle(event["type"], event["payload"])
            self.changed.set()
