"""The actions of tau2's tasks, through servers that die, freeze and lose connections."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.balancer import Switch
from benchmarks.chaos import StoreKind, open_store, percentile
from benchmarks.chaos_book import Book, Person, now
from benchmarks.chaos_faults import Injector, Plan, Store
from benchmarks.chaos_nodes import ChaosNode, Parent
from benchmarks.nodes import stand_in_settings
from conductor.client import Approval, Client, ClientError, ClientLimits, Reconnect, allow, connect, deny
from conductor.events.server import SpeechFinal, ToolCallEvent
from tests.models import AnthropicService, Call, JsonObject, Reply

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "tau2" / "bin" / "python"
DOMAINS = ("airline", "retail", "telecom")
KINDS = ("free", "free", "free", "card", "spoken", "denied", "relaunched")
"""How a task's writes are consented to; a ``relaunched`` app ends in the middle and forgets its calls."""
STEPS = ("call received", "result sent", "transcript sent", "final received")
_LIMITS = ClientLimits(connect_s=3.0, start_s=5.0, close_s=0.5, resend_s=120.0)
_TASK = re.compile(r"Task (\d+)\.")
_UNSURE = re.compile(r"error_type\W+(unknown|cancelled|permission_denied|approval_timeout)\b")
"""How a call ends that did not run, or may have run."""
_END = "The task is over."


class Phone:
    """The process that runs a domain's tools, for all phones of a run."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Phone:
        self._process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            "-P",  # without this folder, whose tau2.py is not the package
            str(Path(__file__).with_name("tau2_phone.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2**26,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request of `tau2_phone` and give its answer."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        async with self._lock:
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            await self._process.stdin.drain()
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


@dataclass(eq=False)
class Task:
    """One task of a run: its actions as (tool, arguments), and the writes that the phone ran."""

    domain: str
    name: str
    kind: str
    actions: Sequence[tuple[str, dict[str, Any]]]
    writes: frozenset[str]
    """The tools that write."""
    runs: Counter[str] = field(default_factory=Counter)
    unknown: set[str] = field(default_factory=set)
    """The ids of writes with an unknown outcome."""
    cancelled: set[str] = field(default_factory=set)
    """The ids of writes that did not run, as the model was told: denied, or spoken over."""
    asked: dict[int, float] = field(default_factory=dict)
    """The times of the model's calls without a result."""
    is_stuck: bool = False
    hash: str = ""
    gold: str = ""

    @property
    def expected(self) -> Counter[str]:
        """Count the writes that must run."""
        if self.kind == "denied":
            return Counter()
        return Counter(key(name, values) for name, values in self.actions if name in self.writes)


def key(name: str, arguments: Mapping[str, Any]) -> str:
    """Name a call by its tool and arguments."""
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def score(tasks: Sequence[Task]) -> dict[str, int]:
    """Count what went wrong. A write that the model was told about, as unknown or not run, is not lost."""
    bad = Counter[str]()
    for task in tasks:
        missing = (task.expected - task.runs).total()
        bad["doubles"] += (task.runs - task.expected).total()
        bad["unknown"] += len(task.unknown)
        bad["cancelled"] += 0 if task.kind == "denied" else len(task.cancelled)
        bad["stuck"] += task.is_stuck
        if not task.is_stuck:
            bad["lost"] += max(0, missing - len(task.unknown | task.cancelled))
            bad["wrong hashes"] += task.hash != task.gold and not missing
    return {name: bad[name] for name in ("wrong hashes", "doubles", "lost", "stuck", "unknown", "cancelled")}


class GoldModel:
    """The script of the stand-in: the next action of the task that the person named, one a request."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        """By number."""
        self.call_s: list[float] = []
        """The seconds from the model's call to the result in its next request."""

    def __call__(self, request: JsonObject) -> Reply:
        task, results = None, 0
        for message in request["messages"]:
            content = message["content"]
            for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if block["type"] == "tool_result":
                    results += 1
                    found = _UNSURE.search(json.dumps(block["content"]))
                    if task is not None and found and task.actions[results - 1][0] in task.writes:
                        (task.unknown if found[1] == "unknown" else task.cancelled).add(block["tool_use_id"])
                elif block["type"] == "text" and message["role"] == "user":
                    if match := _TASK.search(block["text"]):
                        task, results = self.tasks[int(match[1])], 0
        if task is None:
            return Reply(text=_END)
        if (asked_at := task.asked.pop(results - 1, None)) is not None:
            self.call_s.append(now() - asked_at)
        if results >= len(task.actions):
            return Reply(text=_END)
        task.asked.setdefault(results, now())
        name, arguments = task.actions[results]
        return Reply("", (Call(name.replace(".", "_"), arguments),))


@dataclass
class World:
    """What the callers of a run share."""

    url: str
    seed: int
    phone: Phone
    tasks: list[Task]
    injector: Injector
    tools: Mapping[str, Sequence[JsonObject]]
    waiting: list[Task]
    refill: Callable[[], list[Task]]
    patience_s: float
    is_over: bool = False
    """Whether no task begins beside the waiting ones."""

    def take(self) -> Task | None:
        """Take the next task; None at the end of the run."""
        if not self.waiting and not self.is_over:
            self.waiting = self.refill()
        return self.waiting.pop() if self.waiting else None


class Caller:
    """A person with a phone: does one task after the other, each in a session of its own."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._chance = random.Random(f"{world.seed}-{name}")
        self._relaunch = asyncio.Event()
        self._idle = asyncio.Event()
        """The microphone is open: a spoken question waits for its answer, or the turn is over."""

    async def run(self) -> None:
        """Do tasks until none is left."""
        while (task := self._world.take()) is not None:
            self._world.tasks.append(task)
            await self._world.phone.ask("begin", key=self.name, domain=task.domain, task=task.name)
            try:
                async with asyncio.timeout(self._world.patience_s):
                    await self._do(task)
            except TimeoutError:
                task.is_stuck = True
            answer = await self._world.phone.ask("end", key=self.name, denied=task.kind == "denied")
            task.hash, task.gold = answer["hash"], answer["gold"]

    async def _do(self, task: Task) -> None:
        session_id = f"{self.name}-{len(self._world.tasks)}-{self._world.seed}"
        self._world.injector.persons[self.name] = Person(self.name, session_id)
        self._relaunch.clear()
        ended = asyncio.Event()
        client = await self._launch(task, session_id, ended)
        words = f"Task {self._world.tasks.index(task)}."
        relaunches = task.kind == "relaunched"
        try:
            while not ended.is_set():
                try:
                    self._idle.clear()
                    turn = await client.say(words)
                    self._world.injector.soon("transcript sent", self.name)
                    waits = [asyncio.ensure_future(wait) for wait in (turn.wait(), ended.wait())]
                    if relaunches:
                        waits.append(asyncio.ensure_future(self._relaunch.wait()))
                    if task.kind == "spoken":
                        waits.append(asyncio.ensure_future(self._idle.wait()))
                    await first_of(waits)
                    if relaunches and self._relaunch.is_set() and not ended.is_set():
                        relaunches = False
                        await client.close()
                        client = await self._launch(task, session_id, ended)
                except ClientError:
                    await asyncio.sleep(0.1)
                words = "Yes." if task.kind == "spoken" else "Go on."
        finally:
            await client.close()

    async def _launch(self, task: Task, session_id: str, ended: asyncio.Event) -> Client:
        world = self._world
        consents = task.kind in ("card", "denied")
        approval = "ask" if consents or task.kind == "spoken" else "never"
        tools = [declaration(tool, approval) for tool in world.tools[task.domain]]

        def decide(asked: Approval) -> Any:
            return deny() if task.kind == "denied" else allow()

        client = connect(
            f"{world.url}?client={self.name}",
            session_id,
            tools=tools,
            handlers={tool["name"]: self._tool(task, tool["name"]) for tool in tools},
            on_approval=decide if consents else None,
            limits=_LIMITS,
            reconnect=Reconnect(first_s=0.03, most_s=0.3, steady_s=0.0, random=self._chance.random),
        )

        def look(event: SpeechFinal) -> None:
            if _END in event.text:
                world.injector.at("final received", self.name)
                ended.set()

        def notice(event: ToolCallEvent) -> None:
            if event.name == "convo.setState" and '"idle"' in event.arguments:
                self._idle.set()

        client.on(SpeechFinal, look)
        client.on(ToolCallEvent, notice)
        while True:
            try:
                await client.start()
                return client
            except ClientError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.2))

    def _tool(self, task: Task, name: str) -> Any:
        async def run(arguments: dict[str, Any]) -> Any:
            world = self._world
            world.injector.at("call received", self.name)
            if name in task.writes:
                task.runs[key(name, arguments)] += 1
            answer = await world.phone.ask("call", key=self.name, name=name, arguments=arguments)
            if task.kind == "relaunched" and self._chance.random() < 0.3:
                self._relaunch.set()
            world.injector.soon("result sent", self.name)
            if "error" in answer:
                raise ValueError(answer["error"])
            return {"result": answer["result"]}

        return run


async def first_of(waits: Sequence[asyncio.Future[Any]]) -> None:
    """Wait for the first of them, and cancel the others."""
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def declaration(tool: Mapping[str, Any], approval: str) -> JsonObject:
    """Declare a tool of the phone."""
    return {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True} if tool["reads"] else {},
        "_meta": {} if tool["reads"] or approval == "ask" else {"conductor": {"approval": "never"}},
    }


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    plan: Plan
    store: StoreKind | Literal["memory"]
    seed: int
    callers: int = 8
    tasks: int = 0
    every_s: float = 0.5
    patience_s: float = 90.0
    domains: Sequence[str] = DOMAINS


def draw_tasks(kits: Mapping[str, Any], chance: random.Random, count: int) -> list[Task]:
    """Give the tasks of all domains in a random order, ``count`` of them; 0 is all."""
    tasks = [
        Task(
            domain,
            name,
            chance.choice(KINDS),
            calls,
            frozenset(tool["name"] for tool in kit["tools"] if not tool["reads"]),
        )
        for domain, kit in kits.items()
        for name, calls in kit["tasks"].items()
        if calls
    ]
    chance.shuffle(tasks)
    return tasks[: count or None]


async def run(options: Options, parent: Parent) -> dict[str, Any]:
    """Run once; returns the report. Raises `DidNotStart`."""
    chance, book = random.Random(options.seed), Book()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conductor-tau2-")))
        phone = await stack.enter_async_context(Phone())
        kits = {domain: await phone.ask("tasks", domain=domain) for domain in options.domains}
        model = GoldModel()
        service = await stack.enter_async_context(AnthropicService(api_keys=None, keep_requests=0))
        service.default = model
        store = (
            Store("memory://")
            if options.store == "memory"
            else open_store(options.store, folder, stack, chance)
        )
        settings = {
            **stand_in_settings(service.base_url),
            "SESSION_STORE_URL": store.url,
            "MAX_CONNECTIONS_PER_SUBJECT": "10000",
            "MAX_TOOL_ROUNDS": "60",
            "TOOL_TIMEOUT_MS": "30000",
        }
        nodes = [ChaosNode(f"node-{number}", parent, folder, settings, None) for number in range(2)]
        for node in nodes:
            stack.callback(node.send, signal.SIGKILL)
        await asyncio.gather(*(node.start() for node in nodes))
        switch = await stack.enter_async_context(
            Switch(lambda: [node for node in nodes if node.state == "up"])
        )
        injector = Injector(book, nodes, switch, store, chance, options.every_s)
        switch.on_end = injector.note_loss

        refill = partial(draw_tasks, kits, chance, options.tasks)
        tools = {domain: kit["tools"] for domain, kit in kits.items()}
        world = World(
            switch.url,
            options.seed,
            phone,
            model.tasks,
            injector,
            tools,
            refill(),
            refill,
            options.patience_s,
        )
        began = now()
        callers = [asyncio.create_task(Caller(f"phone{n}", world).run()) for n in range(options.callers)]
        await injector.run(options.plan.draw(random.Random(options.seed), STEPS))
        world.is_over = True
        await asyncio.gather(*callers)
        await injector.stop()
        return report(options, model, book, now() - began)


def report(options: Options, model: GoldModel, book: Book, seconds: float) -> dict[str, Any]:
    """Give the figures of a run."""
    times, faults = sorted(model.call_s), Counter[str]()
    for (kind, _), count in book.faults.items():
        faults[kind] += count
    return {
        "seed": options.seed,
        "store": options.store,
        "seconds": round(seconds),
        "tasks": len(model.tasks),
        "actions": len(model.call_s),
        "writes": sum(task.expected.total() for task in model.tasks),
        "kinds": dict(Counter(task.kind for task in model.tasks)),
        "faults": dict(faults),
        **score(model.tasks),
        "p50_ms": percentile(times, 50),
        "p99_ms": percentile(times, 99),
        "bad": [
            f"{task.domain} {task.name} {task.kind}: {score([task])}"
            for task in model.tasks
            if any(score([task]).values())
        ][:20],
    }


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if an action was lost or doubled, or a database is wrong."""
    parser = argparse.ArgumentParser(prog="scripts/tau2", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="kill -9 of a node (0)")
    parser.add_argument("--freezes", type=int, default=0, help="SIGSTOP of a node for 1 to 3 s (0)")
    parser.add_argument("--cuts", type=int, default=0, help="resets of a phone's connection (0)")
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis", "memory"), default="sqlite")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--tasks", type=int, default=0, help="the number of tasks in a round (all)")
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=DOMAINS)
    parser.add_argument("--every", type=float, default=0.5, help="mean seconds between faults (0.5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    space = parser.parse_args(arguments)
    plan = Plan(space.kills, space.freezes, 0, space.cuts)
    options = Options(
        plan,
        space.store,
        space.seed,
        tasks=space.tasks,
        every_s=space.every,
        domains=space.domains,
    )
    with Parent() as parent:
        figures = asyncio.run(run(options, parent))
    print(json.dumps(figures, indent=1))
    if space.json is not None:
        space.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(figures[name] for name in ("wrong hashes", "doubles", "lost", "stuck")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
