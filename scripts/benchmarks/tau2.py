"""The actions of tau2's tasks, through servers that die, freeze and lose connections."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.balancer import Switch
from benchmarks.chaos import keep_folder, open_store, percentile
from benchmarks.chaos_book import Book, now
from benchmarks.chaos_faults import Injector, Plan, Store
from benchmarks.chaos_nodes import ChaosNode, Parent
from benchmarks.nodes import Process, Running, stand_in_settings
from benchmarks.tau2_callers import DOMAINS, Caller, Options, Phone, World
from benchmarks.tau2_score import FAULTS, GoldModel, Task, score
from tests.models import AnthropicService

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("free", "free", "free", "card", "spoken", "denied", "relaunched")
"""How a task's writes are consented to; a ``relaunched`` app ends in the middle and forgets its calls."""
STEPS = ("call received", "result sent", "transcript sent", "final received")
CONTROLS = ("replay", "memory", "plain")
"""Broken parts that the score must find: a phone that runs a call again after a reconnect, sessions in
memory, the plain loop of examples/proof."""
PLAIN = f"{sys.executable} {ROOT / 'examples' / 'proof' / 'plain.py'}"


class CommandNode(ChaosNode):
    """A node that is another server: a command that reads its settings from the environment.

    It listens on 127.0.0.1 at ``PORT`` as docs/protocol.md says, asks the model at ``ANTHROPIC_BASE_URL``,
    and may keep sessions in ``SESSION_STORE_URL``. It is ready when a plain ``GET /readyz`` is answered by
    200 or 426. It is killed by SIGKILL, frozen by SIGSTOP, and started again with the same environment.
    """

    def __init__(
        self, name: str, parent: Parent, folder: Path, settings: Mapping[str, str], command: str
    ) -> None:
        super().__init__(name, parent, folder, settings, None)
        self._command = shlex.split(command)
        self._environment["PORT"] = str(self.port)

    async def _launch(self) -> Running:
        return await Process._launch(self)


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
        folder = keep_folder(options.logs, options.control, stack)
        phone = await stack.enter_async_context(Phone())
        kits = {domain: await phone.ask("tasks", domain=domain) for domain in options.domains}
        model = GoldModel()
        service = await stack.enter_async_context(AnthropicService(api_keys=None, keep_requests=0))
        service.default = model
        store = open_store(options.store, folder, stack, chance)
        if options.control == "memory":
            store = Store("memory://")
        settings = {
            **stand_in_settings(service.base_url),
            "SESSION_STORE_URL": store.url,
            "MAX_CONNECTIONS_PER_SUBJECT": "10000",
            "MAX_TOOL_ROUNDS": "60",
            "TOOL_TIMEOUT_MS": "30000",
        }
        nodes = [make_node(f"node-{number}", parent, folder, settings, options) for number in range(2)]
        for node in nodes:
            stack.callback(node.send, signal.SIGKILL)
        await asyncio.gather(*(node.start() for node in nodes))
        switch = await stack.enter_async_context(
            Switch(lambda: [node for node in nodes if node.state == "up"])
        )
        injector = Injector(book, nodes, switch, store, chance=chance, every_s=options.every_s)
        switch.on_end = injector.note_loss

        refill = partial(draw_tasks, kits, chance, options.tasks)
        tools = {domain: kit["tools"] for domain, kit in kits.items()}
        world = World(switch.url, phone, model.tasks, injector, tools, refill(), refill, options)
        if options.logs is not None:
            world.log = stack.enter_context((folder / "phones.log").open("w"))
        began = now()
        watching = asyncio.create_task(injector.watch())
        callers = [asyncio.create_task(Caller(f"phone{n}", world).run()) for n in range(options.callers)]
        await injector.run(options.plan.draw(random.Random(options.seed), STEPS))
        world.is_over = True
        await asyncio.gather(*callers)
        watching.cancel()
        await injector.stop()
        return report(options, model, book, now() - began) | {
            "nodes ended": injector.ended,
            "errors": [repr(error) for error in injector.errors],
        }


def make_node(
    name: str, parent: Parent, folder: Path, settings: Mapping[str, str], options: Options
) -> ChaosNode:
    """Make a node of the server that is to be proved, or of a control."""
    command = PLAIN if options.control == "plain" else options.server
    if command is not None:
        return CommandNode(name, parent, folder, settings, command)
    return ChaosNode(name, parent, folder, settings, None)


def report(options: Options, model: GoldModel, book: Book, seconds: float) -> dict[str, Any]:
    """Give the figures of a run."""
    times, faults = sorted(model.call_s), Counter[str]()
    for (kind, _), count in book.faults.items():
        faults[kind] += count
    return {
        "seed": options.seed,
        "store": options.store,
        "control": options.control,
        "seconds": round(seconds),
        "tasks": len(model.tasks),
        "actions": len(model.call_s),
        "writes": sum(task.writes_at(n) for task in model.tasks for n in range(len(task.actions))),
        "ran": sum(task.runs.total() for task in model.tasks),
        "kinds": dict(Counter(task.kind for task in model.tasks)),
        "faults": dict(faults),
        **score(model.tasks),
        "p50_ms": percentile(times, 50),
        "p99_ms": percentile(times, 99),
        "bad": [
            f"{number}: {task.domain} {task.name} {task.kind}: {counts}"
            for number, task in enumerate(model.tasks)
            if (counts := {name: n for name, n in score([task]).items() if n})
        ][:20],
    }


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if one of the `FAULTS` was found, or with a control if none was."""
    parser = argparse.ArgumentParser(prog="scripts/tau2", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="kill -9 of a node (0)")
    parser.add_argument("--freezes", type=int, default=0, help="SIGSTOP of a node for 1 to 3 s (0)")
    parser.add_argument("--cuts", type=int, default=0, help="resets of a phone's connection (0)")
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--tasks", type=int, default=0, help="the number of tasks in a round (all)")
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=DOMAINS)
    parser.add_argument("--every", type=float, default=0.5, help="mean seconds between faults (0.5)")
    parser.add_argument("--control", choices=CONTROLS, help="break a part; the score must find it")
    parser.add_argument("--server", help="the command of another server (examples/proof)")
    parser.add_argument("--logs", type=Path, help="keep the logs of nodes and phones in this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    space = parser.parse_args(arguments)
    options = Options(
        Plan(space.kills, space.freezes, 0, space.cuts),
        space.store,
        space.seed,
        tasks=space.tasks,
        every_s=space.every,
        domains=space.domains,
        control=space.control,
        server=space.server,
        logs=space.logs,
    )
    with Parent() as parent:
        figures = asyncio.run(run(options, parent))
    print(json.dumps(figures, indent=1))
    if space.json is not None:
        space.json.write_text(json.dumps(figures, indent=1) + "\n")
    if figures["nodes ended"] or figures["errors"]:
        return 1
    return int(any(figures[name] for name in FAULTS) == (space.control is None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
