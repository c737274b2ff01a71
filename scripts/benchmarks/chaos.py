"""Clients that talk while nodes die, freeze and lose their store."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.balancer import Switch
from benchmarks.chaos_app import ChaosApp
from benchmarks.chaos_book import CALL_S, NO_FAULT, Book, Column, Row
from benchmarks.chaos_clients import LibraryClient
from benchmarks.chaos_faults import STEPS, Injector, Plan, Store, World
from benchmarks.chaos_jobs import JobModel, declarations
from benchmarks.chaos_nodes import CONTROLS, SHOWN_BY, ChaosNode, Parent
from benchmarks.nodes import DURABLE, redis_program, stand_in_settings
from tests.models import AnthropicService
from tests.services.postgres_server import PostgresServer
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_sentinel import SentinelServers
from tests.services.redis_server import RedisServer

StoreKind = Literal["redis", "sentinel", "cluster", "sqlite", "postgres"]
TOOL_TIMEOUT_MS = round(CALL_S * 1_000)
END_S = 10.0
"""After the faults, every session must end in this time plus a client's patience."""


@dataclass(frozen=True)
class Options:
    """Options of a run. Times are in seconds.

    ``every_s`` is the mean time between faults, ``pause_s`` the model's between words, ``patience_s`` how
    long a client waits for a sign of life after the last fault. One finding of ``until`` ends it early.
    """

    plan: Plan
    store: StoreKind = "redis"
    apps: int = 16
    libraries: int = 8
    seed: int = 1
    every_s: float = 0.5
    pause_s: float = 0.008
    patience_s: float = 20.0
    control: str | None = None
    segments: bool = False
    steps: Sequence[str] = STEPS
    logs: Path | None = None
    until: tuple[Column, ...] = ()

    @property
    def nodes(self) -> int:
        """The number of nodes; two are enough to share a file."""
        return 2 if self.store == "sqlite" else 3


async def run(options: Options, parent: Parent) -> Report:
    """Run once. The nodes are forks of ``parent``. Raises `DidNotStart`."""
    book = Book(options.until)
    chance = random.Random(options.seed)
    start = asyncio.get_running_loop().time()
    async with AsyncExitStack() as stack:
        folder = keep_folder(options.logs, options.control, stack)
        service = await stack.enter_async_context(AnthropicService(api_keys=None, keep_requests=0))
        service.default = JobModel(book.check_request, options.seed, options.pause_s)
        store = open_store(options.store, folder, stack, chance)
        settings = _settings(service.base_url, folder, store)
        if options.segments:
            settings["SPEAK_SEGMENTS"] = "always"
        nodes = [
            ChaosNode(f"node-{number}", parent, folder, settings, options.control)
            for number in range(options.nodes)
        ]
        for node in nodes:
            stack.callback(node.send, signal.SIGKILL)
        await asyncio.gather(*(node.start() for node in nodes))
        switch = Switch(lambda: [node for node in nodes if node.state == "up"])
        await stack.enter_async_context(switch)
        injector = Injector(book, nodes, switch, store, chance=chance, every_s=options.every_s)
        switch.on_end = injector.note_loss
        book.on_answering = lambda person: injector.at("model asked for the answer", person.name)
        await _talk(options, book, switch, injector)
        book.close()
        seconds = asyncio.get_running_loop().time() - start
        tracebacks = sum(node.tracebacks() for node in nodes)
        failed_events = sum(node.count("event failed") for node in nodes)
        refused = list(service.refused)
        errors = ["".join(traceback.format_exception(error)) for error in injector.errors]
    return Report(options.seed, options.store, book, refused, tracebacks, failed_events, errors, seconds)


def keep_folder(logs: Path | None, control: str | None, stack: AsyncExitStack) -> Path:
    """Make a folder for logs and stores; it stays if the logs are kept."""
    if logs is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conductor-chaos-")))
    logs.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{control or 'run'}-", dir=logs)).resolve()


async def _talk(options: Options, book: Book, switch: Switch[ChaosNode], injector: Injector) -> None:
    """Let the clients talk while the faults fall, and end when they are over."""
    world = World(book, switch, injector, options.patience_s)
    clients: list[ChaosApp | LibraryClient] = [
        ChaosApp(f"app{n}", world, f"{options.seed}-app{n}") for n in range(options.apps)
    ]
    clients += [LibraryClient(f"lib{n}", world, f"{options.seed}-lib{n}") for n in range(options.libraries)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    faults = asyncio.create_task(injector.run(options.plan.draw(random.Random(options.seed), options.steps)))
    finding: asyncio.Task[Any] = asyncio.create_task(book.finding.wait())
    try:
        await asyncio.wait([finding, faults, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # a client that ends by itself has a bug
        if finding.done():
            return
        faults.result()
        for client in clients:
            client.over = True
        _, pending = await asyncio.wait(tasks, timeout=END_S + options.patience_s)
        for client, task in zip(clients, tasks, strict=True):
            if task in pending:
                book.blame(client.person, "stuck", "the session did not come to its end")
            elif task.exception() is not None:
                task.result()
    finally:
        for task in [finding, faults, *tasks]:
            task.cancel()
        await asyncio.wait([finding, faults, *tasks], timeout=10)
        await injector.stop()


def open_store(kind: StoreKind, folder: Path, stack: AsyncExitStack, chance: random.Random) -> Store:
    """Start a store of this kind, until ``stack`` ends; its files are in ``folder``."""
    if kind == "sqlite":
        return Store(f"sqlite:///{folder / 'sessions.db'}")
    if kind == "redis":
        # Acknowledged writes are in the file, as the store requires.
        server = RedisServer(folder / "redis", *DURABLE, "--appendfsync", "always")
        server.start()
        stack.callback(server.kill)
        return Store(server.url, server.kill, server.start)
    if kind == "postgres":
        postgres = PostgresServer()
        postgres.start()
        stack.callback(postgres.stop)
        end_connection = partial(postgres.end_connections, 1)
        return Store(
            postgres.url,
            postgres.kill,
            postgres.start,
            restart=postgres.restart,
            end_connection=end_connection,
        )
    servers: SentinelServers | RedisCluster
    if kind == "sentinel":
        servers = SentinelServers(folder / "redis", down_ms=1_500)
    else:
        servers = RedisCluster(folder / "redis", replicas=True)
    stack.enter_context(servers.running())

    def fail_over() -> None:
        servers.fail_over(str(chance.random()))  # the primary of any key

    return Store(servers.url, fail_over, servers.restore, replicas=1)


def _settings(base_url: str, folder: Path, store: Store) -> dict[str, str]:
    catalog = folder / "catalog.json"
    catalog.write_text(json.dumps({"tools": declarations()}))
    return {
        **stand_in_settings(base_url),
        "DEVICE_TOOLS_FILE": str(catalog),
        "SESSION_STORE_URL": store.url,
        # A dead server loses everything that no replica has.
        "SESSION_STORE_REPLICAS": str(store.replicas),
        "TOOL_TIMEOUT_MS": str(TOOL_TIMEOUT_MS),
        "MAX_CONNECTIONS_PER_SUBJECT": "10000",
    }


# -- the report


COLUMNS: tuple[Column, ...] = get_args(Column)


@dataclass(frozen=True)
class Report:
    """One run.

    ``refused`` are the histories that the model's service did not accept, ``failed_events`` events of clients
    that met an unexpected error, and ``errors`` the harness's own.
    """

    seed: int
    store: str
    book: Book
    refused: Sequence[str]
    tracebacks: int
    failed_events: int
    errors: Sequence[str]
    seconds: float

    def total(self, column: Column) -> int:
        """Count the findings of one column, at all steps."""
        return sum(count for (_, kind), count in self.book.bad.items() if kind == column)

    def failures(self) -> list[str]:
        """Name the figures that must be zero and are not."""
        names = [f"{self.total(column)} {column}" for column in COLUMNS if self.total(column)]
        if self.refused:
            names.append(f"{len(self.refused)} invalid histories")
        if self.tracebacks:
            names.append(f"{self.tracebacks} tracebacks")
        if self.failed_events:
            names.append(f"{self.failed_events} failed events")
        if internal := self.book.figures["error internal_error"]:
            names.append(f"{internal} internal errors")
        return names + [f"the harness failed: {error}" for error in self.errors]

    def rows(self) -> list[Row]:
        """List the faults of the run, steps first."""
        rows: list[Row] = [("kill", step) for step in STEPS if self.book.faults["kill", step]]
        affected = {row for row, _ in self.book.bad} | set(self.book.faults)
        return rows + sorted(affected - set(rows) - {NO_FAULT}) + ([NO_FAULT] if NO_FAULT in affected else [])

    def figures(self) -> dict[str, Any]:
        book = self.book
        resumes = book.resume_times()
        return {
            "seed": self.seed,
            "store": self.store,
            "seconds": round(self.seconds, 1),
            "faults": {f"{kind}: {step}": count for (kind, step), count in sorted(book.faults.items())},
            "bad": {column: self.total(column) for column in COLUMNS},
            "bad_by_step": {f"{kind}: {step}: {fault}": n for ((kind, step), fault), n in book.bad.items()},
            "invalid": len(self.refused),
            "refused": list(self.refused)[:10],
            "tracebacks": self.tracebacks,
            "failed_events": self.failed_events,
            "unknown": dict(book.unknown),
            "figures": dict(sorted(book.figures.items())),
            "resume_ms": {
                "count": len(resumes),
                "p50": percentile(resumes, 50),
                "p99": percentile(resumes, 99),
                "waited for a call": len(book.resumes) - len(resumes),
                "delayed claims": len(book.delayed),
            },
            "stories": book.traces,
            "failures": self.failures(),
        }


def summary(report: Report) -> str:
    """Describe the failures, with some of their stories."""
    lines = [f"seed {report.seed}: {', '.join(report.failures())}"]
    lines += [f"  {story}" for story in report.book.stories[:20]]
    return "\n".join(lines + [f"  invalid: {refusal}" for refusal in report.refused[:5]])


def print_report(report: Report, control: str | None) -> None:
    """Print the table and the totals."""
    book, figures = report.book, report.figures()
    title = f"control: {control}" if control else "chaos"
    print(f"\n{title}, seed {report.seed}, {report.store}, {report.seconds:.0f} s")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
    _print_table(report)
    resume = figures["resume_ms"]
    print(
        f"\ninvalid histories {figures['invalid']}; write calls unknown, by cause: {figures['unknown']}"
        f"\nresume p50 {resume['p50']} ms, p99 {resume['p99']} ms of {resume['count']}; "
        f"{resume['waited for a call']} waited for a call, {resume['delayed claims']} delayed claims"
        f"\n{dict(sorted(book.figures.items()))}"
        f"\nfailed events {report.failed_events}, internal errors {book.figures['error internal_error']}"
    )
    print(f"FAILED {summary(report)}" if report.failures() else "nothing lost, nothing done twice")


def _print_table(report: Report) -> None:
    widths = [max(7, len(column)) for column in COLUMNS]
    head = " | ".join(f"{column:>{width}}" for column, width in zip(COLUMNS, widths, strict=True))
    print(f"| {'fault':<36} | {'count':>5} | {head} |")
    print(f"|{'-' * 38}|{'-' * 7}|{'|'.join('-' * (width + 2) for width in widths)}|")
    for row in report.rows():
        bad = (report.book.bad[row, column] for column in COLUMNS)
        cells = " | ".join(f"{count:>{width}}" for count, width in zip(bad, widths, strict=True))
        print(f"| {': '.join(row):<36} | {report.book.faults[row]:>5} | {cells} |")


def percentile(values: Sequence[float], percent: int) -> float:
    """Give a percentile of sorted seconds, in milliseconds."""
    if not values:
        return 0.0
    return round(values[min(len(values) - 1, len(values) * percent // 100)] * 1000, 1)


# -- the command


def parser_of_options() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000, help="kill -9 of a node (1000)")
    parser.add_argument("--freezes", type=int, default=50, help="SIGSTOP of a node for 1 to 3 s (50)")
    parser.add_argument("--store-kills", type=int, default=20, help="kill -9 of Redis or PostgreSQL (20)")
    parser.add_argument(
        "--terminations", type=int, default=0, help="pg_terminate_backend of a connection to PostgreSQL (0)"
    )
    parser.add_argument("--store-restarts", type=int, default=0, help="fast restarts of PostgreSQL (0)")
    parser.add_argument("--cuts", type=int, default=500, help="resets of a client's connection (500)")
    parser.add_argument("--stops", type=int, default=20, help="SIGTERM of a node, as a deploy does (20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--clients", type=int, default=24, help="number of clients, a third of them library clients (24)"
    )
    parser.add_argument("--store", choices=get_args(StoreKind), default="redis")
    parser.add_argument("--every", type=float, default=0.5, help="mean seconds between faults (0.5)")
    parser.add_argument("--segments", action="store_true", help="speak each reply in segments")
    parser.add_argument("--step", choices=STEPS, action="append", help="kill nodes only at this step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--logs", type=Path, help="keep the nodes' logs in this folder")
    parser.add_argument(
        "--controls", action="store_true", help="break the servers on purpose; each fault must be detected"
    )
    parser.add_argument("--control", choices=sorted(CONTROLS), help="run only this control")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if a figure that must be zero is not."""
    namespace = parser_of_options().parse_args(arguments)
    if namespace.store not in ("sqlite", "postgres") and redis_program() is None:
        print("chaos: redis-server or valkey-server is needed; --store sqlite does without", file=sys.stderr)
        return 2
    plan = Plan(
        namespace.kills,
        namespace.freezes,
        namespace.store_kills if namespace.store != "sqlite" else 0,
        namespace.cuts,
        namespace.stops,
        namespace.terminations,
        namespace.store_restarts,
    )
    libraries = namespace.clients // 3
    options = Options(
        plan,
        namespace.store,
        namespace.clients - libraries,
        libraries,
        namespace.seed,
        namespace.every,
        segments=namespace.segments,
        steps=namespace.step or STEPS,
        logs=namespace.logs,
    )
    controls = (
        [namespace.control] if namespace.control else sorted(CONTROLS) if namespace.controls else [None]
    )
    with Parent() as parent:
        reports = [asyncio.run(run(broken(options, control), parent)) for control in controls]
    for control, report in zip(controls, reports, strict=True):
        print_report(report, control)
    if namespace.json is not None:
        namespace.json.write_text(json.dumps([report.figures() for report in reports], indent=1) + "\n")
    if controls == [None]:
        return int(bool(reports[0].failures()))
    blind = [name for name, report in zip(controls, reports, strict=True) if not was_found(report, name)]
    print(f"BLIND to {', '.join(map(str, blind))}" if blind else "every control was found out")
    return int(bool(blind))


def broken(options: Options, control: str | None) -> Options:
    """Give the options of a control, which ends when its fault is found."""
    return replace(options, control=control, until=tuple(SHOWN_BY[control]) if control else ())


def was_found(report: Report, control: str | None) -> bool:
    """Whether a run against broken servers shows their fault."""
    return any(report.total(column) for column in SHOWN_BY[control or ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
