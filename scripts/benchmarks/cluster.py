"""A cluster on this machine: several nodes, the Redis that holds their sessions, and a balancer in front."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks.balancer import Balancer
from benchmarks.nodes import DidNotStart, Node, redis_program
from conductor.commands.banner import python_command
from tests.services.redis_server import RedisServer

DURABLE = ("--appendonly", "yes", "--save", "")
"""Options of a Redis that writes each command to its folder before it answers."""


class Cluster:
    """``count`` nodes behind a balancer on ``port`` (0: any); data and logs are in ``folder``.

    ``arguments`` and ``settings`` (environment variables) are every node's, which runs in ``cwd``, or in
    ``folder``. Ctrl-C does not reach the processes; leaving the block ends them in order.
    """

    def __init__(
        self,
        count: int,
        folder: Path,
        *arguments: str,
        port: int = 0,
        cwd: Path | None = None,
        settings: Mapping[str, str],
    ) -> None:
        self.redis = RedisServer(folder / "redis", *DURABLE)
        self.nodes = [
            Node(
                f"node-{number}",
                folder,
                *arguments,
                folder=cwd,
                apart=True,
                settings={**settings, "SESSION_STORE_URL": self.redis.url},
            )
            for number in range(1, count + 1)
        ]
        self.balancer = Balancer([node.address for node in self.nodes], port)

    async def __aenter__(self) -> Self:
        """Start all of it. Raises `DidNotStart`, or OSError if the port is taken."""
        await self.balancer.start()
        try:
            await asyncio.to_thread(self.redis.start)
            results = await asyncio.gather(*(node.start() for node in self.nodes), return_exceptions=True)
            for failed in results:
                if isinstance(failed, BaseException):
                    raise failed
            await self.balancer.wait_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the nodes, which drain while the store is there, then the store."""
        await asyncio.gather(*(node.stop() for node in self.nodes), return_exceptions=True)
        await asyncio.to_thread(self.redis.kill)
        await self.balancer.stop()


def main(arguments: Sequence[str]) -> int:
    """Run until Ctrl-C or SIGTERM. A user's mistake prints one sentence and returns 2."""
    parser = argparse.ArgumentParser(
        prog="scripts/cluster",
        description=__doc__,
        epilog="Other settings come from the environment and .env, for all nodes alike; see .env.example.",
    )
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=8080, help="port of the balancer; 0 chooses a free one (%(default)s)"
    )
    parser.add_argument("--provider", help="model provider (MODEL_PROVIDER)")
    options = parser.parse_args(arguments)
    if not 1 <= options.nodes <= 32:
        return _mistake("--nodes takes 1 to 32.")
    if not 0 <= options.port <= 65_535:
        return _mistake("--port takes 0 to 65535.")
    if redis_program() is None:
        return _mistake("redis-server or valkey-server is needed, and neither was found; install one first.")
    try:
        asyncio.run(_run(options))
    except DidNotStart as error:
        text = str(error).strip()
        return _mistake(
            text.removeprefix("conductor: "), exit_code=2 if text.startswith("conductor: ") else 1
        )
    except OSError as error:
        return _mistake(f"Cannot listen on 127.0.0.1:{options.port}: {error.strerror}.")
    return 0


def _mistake(sentence: str, exit_code: int = 2) -> int:
    print(f"cluster: {sentence}", file=sys.stderr)
    return exit_code


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    provider = ["--provider", options.provider] if options.provider else []
    # A process is not given these otherwise; here they are the user's settings.
    settings = {name: value for name, value in os.environ.items() if name.startswith("ANTHROPIC_")}
    with tempfile.TemporaryDirectory(prefix="conductor-cluster-") as folder:
        cluster = Cluster(
            options.nodes, Path(folder), *provider, port=options.port, cwd=Path.cwd(), settings=settings
        )
        async with cluster:
            print("\n".join(_announcement(cluster)), flush=True)
            await stop.wait()
            print("Stopping: the nodes drain ...", flush=True)


def _announcement(cluster: Cluster) -> list[str]:
    """Write the addresses and a command to try."""
    return [
        f"Conductor cluster of {len(cluster.nodes)} nodes",
        f"  connect  {cluster.balancer.url}",
        f"  try      {python_command()} -m conductor talk --url {cluster.balancer.url}",
        f"  store    {cluster.redis.url}, process {cluster.redis.pid}",
        *(f"  {node.name:<8} {node.url}, process {node.pid}, log {node.log}" for node in cluster.nodes),
        "Ctrl-C ends all of it.",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
