"""The faults of a run, their times and their targets."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from benchmarks.balancer import Link, Switch
from benchmarks.chaos_book import BYSTANDER, Book, Person, Row
from benchmarks.chaos_nodes import ChaosNode
from benchmarks.nodes import START_S, STOP_S

STEPS = (
    "half sent",
    "transcript sent",
    "transcript committed",
    "mid model stream",
    "call received",
    "result sent",
    "one of several answered",
    "model asked for the answer",
    "final received",
    "speech outstanding",
    "approval asked",
    "approval answered",
    "barge-in sent",
    "pause sent",
    "words in a pause sent",
)
"""The steps of a turn at which a node is killed."""
_WANTS = {"one of several answered": "pair", "approval asked": "ask", "approval answered": "ask"}
_LATER_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
"""The delays between an event and the death of its node: before, at or after its arrival."""
_NOTHING_TO_BELIEVE = ("session.ping", "event.ack", "tool.activity")
_EVENT = re.compile(rb'{"id":"([\w-]+)","type":"([a-z.]+)"')
_CALLED = re.compile(rb'"callId":"([\w-]+)","name":"([\w.]+)"')
_ARMED = 6
_ZOMBIE_S = 1.0
_NOT_TAKEN_S = 60.0


@dataclass(frozen=True)
class Plan:
    """The number of faults of each kind."""

    kills: int
    freezes: int
    store_kills: int
    cuts: int
    stops: int = 0
    terminations: int = 0
    store_restarts: int = 0

    def draw(self, chance: random.Random, steps: Sequence[str] = STEPS) -> list[Row]:
        """Draw an order; each of the steps is killed equally often."""
        faults: list[Row] = [("kill", steps[number % len(steps)]) for number in range(self.kills)]
        faults += [("freeze", "anywhere")] * self.freezes
        faults += [("store kill", "anywhere")] * self.store_kills
        faults += [("cut", "anywhere")] * self.cuts
        faults += [("stop", "anywhere")] * self.stops
        faults += [("termination", "anywhere")] * self.terminations
        faults += [("store restart", "anywhere")] * self.store_restarts
        chance.shuffle(faults)
        return faults


_ONLY_TOLD = ("assistant.speech.partial", "approval.resolved", "error")
"""Events that a frozen node may still send: they have no effect and are true."""


@dataclass(frozen=True)
class Store:
    """The session store. Its functions block; None: it cannot be killed alone, or has no such fault.

    A killed replicated server is replaced by its replica, and comes back as the replica. ``end_connection``
    ends one of a node, in the middle of its work.
    """

    url: str
    kill: Callable[[], None] | None = None
    restore: Callable[[], None] | None = None
    replicas: int = 0
    restart: Callable[[], None] | None = None
    end_connection: Callable[[], None] | None = None


class Injector:
    """Injects the faults. Clients report their steps (`at`, `soon`); a fault may fall there.

    ``persons`` are the clients by name, with the session that each has now.
    """

    def __init__(
        self,
        book: Book,
        nodes: Sequence[ChaosNode],
        switch: Switch[ChaosNode],
        store: Store,
        *,
        chance: random.Random,
        every_s: float,
    ) -> None:
        self.persons: dict[str, Person] = {}
        self._book = book
        self._nodes = nodes
        self._switch = switch
        self._store = store
        self._chance = chance
        self._every_s = every_s
        self._armed: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()
        self._restarts: set[asyncio.Future[None]] = set()
        self._store_down = asyncio.Lock()
        self.errors: list[BaseException] = []
        self.ended: list[str] = []
        """The last lines of nodes that have ended by themselves."""

    @property
    def store_is_down(self) -> bool:
        """Whether the store is killed, or has been back for less than a second."""
        return self._store_down.locked()

    def note_loss(self, name: str) -> None:
        """Note that a client's connection has ended."""
        if name in self.persons:
            self.persons[name].losses.append(asyncio.get_running_loop().time())

    # -- reports of clients

    def wants(self) -> str | None:
        """Name a round that the next job should have, for the armed steps."""
        rounds = [_WANTS[step] for step in self._armed if step in _WANTS]
        return self._chance.choice(rounds) if rounds and self._chance.random() < 0.7 else None

    def wants_barge_in(self) -> bool:
        return self._armed["barge-in sent"] > 0 and self._chance.random() < 0.5

    def wants_pause(self) -> bool:
        steps = ("pause sent", "words in a pause sent")
        return any(self._armed[step] > 0 for step in steps) and self._chance.random() < 0.5

    def at(self, step: str, name: str) -> None:
        """Report that a client's turn is at a step; its node may be dead on return."""
        if self._take(step, name):
            self._strike(step, name)

    def soon(self, step: str, name: str) -> None:
        """Report that a client has just sent an event; its node may die about its arrival."""
        if self._take(step, name):
            later = self._chance.choice(_LATER_S)
            asyncio.get_running_loop().call_later(later, self._strike, step, name)

    def _take(self, step: str, name: str) -> bool:
        if not self._armed[step] or not self._may_kill(self._switch.node_of(name)):
            return False
        if self._chance.random() < 0.4:
            return False
        self._armed[step] -= 1
        return True

    def _may_kill(self, node: ChaosNode | None) -> bool:
        if node is None or node.state != "up":
            return False
        up = sum(candidate.state == "up" for candidate in self._nodes)
        return up > 1 or self._chance.random() < 0.02

    def _strike(self, step: str, name: str) -> None:
        node = self._switch.node_of(name)
        if node is None or node.state != "up":
            self._armed[step] += 1  # the node has died of another fault
            return
        node.send(signal.SIGKILL)
        self._note(("kill", step), node, name)
        self._armed += Counter()
        self._changed.set()
        self._restart(node)

    def _restart(self, node: ChaosNode) -> None:
        restart = self._spawn(node.start())
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    def _note(self, row: Row, node: ChaosNode, name: str | None) -> None:
        self._book.faults[row] += 1
        for link in self._switch.links_of(node):
            person = self.persons.get(link.name)
            if person is not None:
                self._book.note_fault(
                    person, row if link.name == name or name is None else (row[0], BYSTANDER)
                )

    # -- the run

    async def run(self, faults: Sequence[Row]) -> None:
        """Inject all faults, a few at a time. A step that no client reaches in a minute is left out."""
        actions: dict[str, Callable[[], Awaitable[None]]] = {
            "freeze": self._freeze,
            "store kill": self._kill_store,
            "cut": self._cut,
            "stop": self._stop,
            "termination": self._end_connection,
            "store restart": self._restart_store,
        }
        for kind, step in faults:
            await asyncio.sleep(self._chance.uniform(0, 2 * self._every_s))
            if kind != "kill":
                self._spawn(actions[kind]())
                continue
            await self._room(_ARMED - 1)
            self._armed[step] += 1
        await self._room(0)
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def watch(self) -> None:
        """Start nodes again that end by themselves, and note it."""
        while True:  # other processes: there is nothing to wait on
            for node in self._nodes:
                if node.state == "up" and not node.runs:
                    node.state = "down"
                    self.ended.append(
                        f"{node.name} ended: {node.text().strip().rpartition(chr(10))[2][:200]}"
                    )
                    self._restart(node)
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """End all faults; nodes that are starting are up then."""
        if self._restarts:
            await asyncio.wait(list(self._restarts), timeout=START_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)

    async def _room(self, most: int) -> None:
        while self._armed.total() > most:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _NOT_TAKEN_S)
            except TimeoutError:
                self._armed.clear()

    def _spawn(self, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(task.exception() or RuntimeError())

    # -- faults that fall anywhere

    async def _cut(self) -> None:
        links = sorted((link for link in self._switch.links if link.name), key=lambda link: link.name)
        if links:
            link = self._chance.choice(links)
            link.cut_after(self._chance.randint(1, 4_000))
            self._book.faults["cut", "anywhere"] += 1
            if link.name in self.persons:
                self._book.note_fault(self.persons[link.name], ("cut", "anywhere"))

    async def _kill_store(self) -> None:
        if self._store.kill is None or self._store.restore is None:
            return
        async with self._store_down:
            self._book.note_store_fault()
            await asyncio.to_thread(self._store.kill)
            self._note_all(("store kill", "anywhere"))
            await asyncio.sleep(self._chance.uniform(0, 0.3))
            await asyncio.to_thread(self._store.restore)
            self._book.note_store_fault()
            await asyncio.sleep(1.0)

    async def _restart_store(self) -> None:
        if self._store.restart is None:
            return
        async with self._store_down:
            self._book.note_store_fault()
            await asyncio.to_thread(self._store.restart)
            self._book.note_store_fault()
            self._note_all(("store restart", "anywhere"))
            await asyncio.sleep(1.0)

    async def _end_connection(self) -> None:
        """End a connection to the store, which costs nobody anything: it is no fault of the store."""
        if self._store.end_connection is None:
            return
        async with self._store_down:
            await asyncio.to_thread(self._store.end_connection)
            self._note_all(("termination", "anywhere"))

    def _note_all(self, row: Row) -> None:
        self._book.faults[row] += 1
        for person in self.persons.values():
            self._book.note_fault(person, row)

    async def _stop(self) -> None:
        node = await self._one_of_several()
        self._note(("stop", "anywhere"), node, None)
        node.send(signal.SIGTERM)
        await asyncio.wait_for(node.wait(), STOP_S)
        await node.start()

    async def _one_of_several(self) -> ChaosNode:
        """Choose a node with clients, while another node is up."""
        while True:
            up = [node for node in self._nodes if node.state == "up"]
            busy = [node for node in up if self._switch.links_of(node)]
            if len(up) > 1 and busy:
                return self._chance.choice(busy)
            await asyncio.sleep(0.05)

    async def _freeze(self) -> None:
        node = await self._one_of_several()
        node.freeze()
        self._note(("freeze", "anywhere"), node, None)
        if self._store.kill is None:
            self._book.note_store_fault()  # the node may hold the lock of the file
        await asyncio.sleep(0.01)  # its written bytes come through
        links = sorted(self._switch.links_of(node), key=lambda link: link.name)
        leaving = [link for number, link in enumerate(links) if number == 0 or self._chance.random() < 0.6]
        owners = {link: self.persons.get(link.name) for link in leaving}  # they may move to another session
        for link in leaving:
            link.leave()
        try:
            await asyncio.sleep(self._chance.uniform(1, 3))
            watched = [link for link in leaving if self._is_taken_over(link)]
            for link in watched:
                link.listen()
            self._book.figures["zombies watched"] += len(watched)
            node.thaw()
            for link in leaving:
                if not link.served:  # the node reads its `session.start` now, and claims the session
                    self.note_loss(link.name)
            await asyncio.sleep(_ZOMBIE_S)
            for link in watched:
                self._judge_zombie(link, owners[link])
        finally:
            for link in leaving:
                link.cut()

    def _is_taken_over(self, link: Link[ChaosNode]) -> bool:
        latest = self._switch.latest.get(link.name)
        return latest is not None and latest is not link and latest.served

    def _judge_zombie(self, link: Link[ChaosNode], person: Person | None) -> None:
        frames = bytes(link.after or b"")
        if person is None or b'"type":"session.started"' in frames:
            # It read the client's ``session.start`` after the freeze only: a claim like any other.
            self._book.figures["late claims"] += person is not None
            return
        known_ids = person.received_ids()
        events = list(_EVENT.finditer(frames))
        for event, following in zip_longest(events, events[1:]):
            event_id, kind = event[1].decode(), event[2].decode()
            # The next owner sends an event that was recorded before the freeze under the same id.
            if kind in _NOTHING_TO_BELIEVE or event_id in known_ids:
                continue
            call_match = _CALLED.search(frames, event.end(), following.start() if following else len(frames))
            call_id, name = (call_match[1].decode(), call_match[2].decode()) if call_match else ("", "")
            if kind in _ONLY_TOLD or name == "convo.setState":
                self._book.figures[f"zombie {name or 'partials'}"] += 1
            else:
                self._book.note_zombie(
                    person, f"{kind} {name}", call_id if name.startswith("device.") else ""
                )


@dataclass(frozen=True)
class World:
    """The clients' surroundings; a client without an event for ``patience_s`` seconds is stuck."""

    book: Book
    switch: Switch[ChaosNode]
    injector: Injector
    patience_s: float
