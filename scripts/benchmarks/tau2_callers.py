"""The people and phones of scripts/tau2: they do one task after the other through the client library."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from benchmarks.chaos import StoreKind
from benchmarks.chaos_book import Person, now
from benchmarks.chaos_faults import Injector, Plan
from benchmarks.tau2_score import END, Task, key
from conductor.client import (
    Approval,
    Client,
    ClientError,
    ClientLimits,
    Reconnect,
    ToolRun,
    allow,
    connect,
    deny,
)
from conductor.events.server import SessionStarted, SpeechFinal, ToolCallEvent
from tests.models import JsonObject

PYTHON = Path(__file__).resolve().parents[2] / "build" / "tau2" / "bin" / "python"
DOMAINS = ("airline", "retail", "telecom")
QUESTION = "May I "
BREATH_S = 0.3
"""A person answers so long after a question. A question that is repeated at once is heard again first: a yes
to the one before it would not count."""
_LIMITS = ClientLimits(connect_s=3.0, start_s=5.0, close_s=0.5, resend_s=120.0)


class Phone:
    """The process that runs a domain's tools, for all phones of a run."""

    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

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
        self._reading = asyncio.create_task(self._read(self._process.stdout))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request of `tau2_phone` and give its answer; a caller that is cancelled has sent it."""
        assert self._process is not None and self._process.stdin is not None
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._process.stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        return await answer

    async def _read(self, lines: asyncio.StreamReader | None) -> None:
        assert lines is not None
        while line := await lines.readline():
            answer = json.loads(line)
            if not (future := self._answers.pop(answer["id"])).done():
                future.set_result(answer)
        for future in self._answers.values():
            future.set_exception(EOFError("the process of the phones has ended"))


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    plan: Plan
    store: StoreKind
    seed: int
    callers: int = 8
    tasks: int = 0
    every_s: float = 0.5
    patience_s: float = 90.0
    domains: Sequence[str] = DOMAINS
    control: str | None = None
    server: str | None = None
    """The command of another server."""
    logs: Path | None = None


@dataclass
class World:
    """What the callers of a run share."""

    url: str
    phone: Phone
    tasks: list[Task]
    injector: Injector
    tools: Mapping[str, Sequence[JsonObject]]
    waiting: list[Task]
    refill: Callable[[], list[Task]]
    options: Options
    is_over: bool = False
    """Whether all faults were made."""
    rounds: int = 0
    """How often all tasks were taken."""
    log: IO[str] | None = None

    def trace(self, name: str, text: str) -> None:
        """Write a line about a phone into the log, if one is kept."""
        if self.log is not None:
            print(f"{now():.3f} {name} {text}", file=self.log, flush=True)

    def take(self) -> Task | None:
        """Take the next task; None after the last fault, once each task of a round was taken."""
        if not self.waiting:
            self.rounds += 1
            self.waiting = self.refill()
        return None if self.is_over and self.rounds else self.waiting.pop()


class Caller:
    """A person with a phone: does one task after the other, each in a new session."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._chance = random.Random(f"{world.options.seed}-{name}")
        self._relaunch = asyncio.Event()
        self._idle = asyncio.Event()
        """A question was heard to its end, and nothing followed: the person answers."""
        self._silence = asyncio.timeout(None)
        """A task is stuck when no call has come for so long."""
        self._is_asked = False
        self._breath: asyncio.TimerHandle | None = None
        self._last: tuple[str, dict[str, Any], str] | None = None
        """The write that ran last."""

    async def run(self) -> None:
        """Do tasks until none is left."""
        while (task := self._world.take()) is not None:
            self._world.tasks.append(task)
            self._last = None
            await self._world.phone.ask("begin", key=self.name, domain=task.domain, task=task.name)
            try:
                async with asyncio.timeout(self._world.options.patience_s) as self._silence:
                    await self._do(task)
            except TimeoutError:
                task.is_stuck = True
                self._world.trace(self.name, "stuck")
            answer = await self._world.phone.ask("end", key=self.name, effects=task.effects)
            task.hash, task.gold = answer["hash"], answer["gold"]

    async def _do(self, task: Task) -> None:
        world = self._world
        session_id = f"{self.name}-{len(world.tasks)}-{world.options.seed}"
        world.trace(self.name, f"begins {session_id}, {task.kind}, {task.domain} {task.name}")
        world.injector.persons[self.name] = Person(self.name, session_id)
        self._relaunch.clear()
        self._listen(is_asked=False)
        ended = asyncio.Event()
        client = await self._launch(task, session_id, ended)
        words = f"Task {world.tasks.index(task)}."
        relaunches = task.kind == "relaunched"
        try:
            while not ended.is_set():
                try:
                    self._idle.clear()
                    world.trace(self.name, f"-> {words}")
                    turn = await client.say(words)
                    world.injector.soon("transcript sent", self.name)
                    ends = (turn.wait(), ended.wait(), self._idle.wait())
                    waits = [asyncio.ensure_future(end) for end in ends]
                    if relaunches:
                        waits.append(asyncio.ensure_future(self._relaunch.wait()))
                    await first_of(waits)
                    if relaunches and self._relaunch.is_set() and not ended.is_set():
                        relaunches = False
                        await client.close()
                        client = await self._launch(task, session_id, ended)
                except ClientError:
                    await asyncio.sleep(0.1)
                words = "Yes." if self._idle.is_set() else "Go on."
        finally:
            await client.close()

    async def _launch(self, task: Task, session_id: str, ended: asyncio.Event) -> Client:
        world = self._world
        consents = task.kind in ("card", "denied")
        approval = "ask" if consents or task.kind == "spoken" else "never"
        tools = [declaration(tool, approval) for tool in world.tools[task.domain]]

        def decide(_: Approval) -> Any:
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
            if END in event.text:
                world.injector.at("final received", self.name)
                ended.set()

        async def resume(event: SessionStarted) -> None:
            world.trace(self.name, f"<- started {event.resumed} {event.resend} {event.drop}")
            if event.resumed and self._last is not None and world.options.control == "replay":
                await self._write(task, *self._last)

        client.on(SpeechFinal, look)
        client.on(ToolCallEvent, self._notice)
        client.on(SessionStarted, resume)
        while True:
            try:
                await client.start()
                return client
            except ClientError:
                await asyncio.sleep(self._chance.uniform(0.05, 0.2))

    def _notice(self, event: ToolCallEvent) -> None:
        self._world.trace(self.name, f"<- {event.call_id} {event.name} {event.arguments[:120]}")
        now_s = asyncio.get_running_loop().time()
        if not self._silence.expired():
            self._silence.reschedule(now_s + self._world.options.patience_s)
        if event.name == "tts.speak":  # of a repeated write that may have happened, each kind is asked
            self._listen(is_asked=QUESTION in event.arguments)
        elif event.name == "convo.setState" and '"thinking"' in event.arguments:
            self._listen(is_asked=False)
        elif event.name == "convo.setState" and '"idle"' in event.arguments and self._is_asked:
            self._breath = asyncio.get_running_loop().call_later(BREATH_S, self._answer)

    def _listen(self, *, is_asked: bool) -> None:
        self._is_asked = is_asked
        if self._breath is not None:
            self._breath.cancel()

    def _answer(self) -> None:
        self._is_asked = False
        self._idle.set()

    def _tool(self, task: Task, name: str) -> Any:
        async def run(arguments: dict[str, Any], call: ToolRun) -> Any:
            world = self._world
            world.injector.at("call received", self.name)
            answer = await self._write(task, name, arguments, call.call_id)
            if task.kind == "relaunched" and self._chance.random() < 0.3:
                self._relaunch.set()
            world.injector.soon("result sent", self.name)
            if "error" in answer:
                raise ValueError(answer["error"])
            return {"result": answer["result"]}

        return run

    async def _write(self, task: Task, name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
        if name in task.writes:
            task.runs[call_id] += 1
            task.keys[call_id] = key(name, arguments)
            self._last = name, arguments, call_id
        self._world.trace(self.name, f"runs {call_id} {name}")
        return await self._world.phone.ask("call", key=self.name, name=name, arguments=arguments)


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
