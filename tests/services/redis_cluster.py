"""Runs a Redis Cluster on loopback for tests: three primaries, with or without replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis.crc import key_slot

from tests.services.ports import free_port
from tests.services.redis_server import RedisServer

SLOTS = 16384


class RedisCluster:
    """Three primaries, with ``replicas`` one replica of each; any may be killed and frozen."""

    def __init__(self, folder: Path, *options: str, replicas: bool = False) -> None:
        patience = "1500" if replicas else "2000"  # milliseconds, until a node counts as dead
        common = ["--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", patience]
        common += ["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0", *options]
        names = [f"primary-{number}" for number in range(3)]
        names += [f"replica-{number}" for number in range(3 * replicas)]
        # What the nodes say to each other, usually 10,000 ports higher, which may be no port.
        buses = [free_port() for _ in names]
        self._servers = [
            RedisServer(folder / name, *common, "--cluster-port", str(bus))
            for name, bus in zip(names, buses, strict=True)
        ]
        self._addresses = [(str(node.port), str(bus)) for node, bus in zip(self._servers, buses, strict=True)]
        self.primaries, self.replicas = self._servers[:3], self._servers[3:]

    @property
    def url(self) -> str:
        """The addresses of two of its nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.primaries[:2])

    @contextmanager
    def running(self) -> Iterator[RedisCluster]:
        """Run it; begins when all nodes agree."""
        servers = self._servers
        with ExitStack() as stack:
            for node in servers:
                stack.enter_context(node.running())
            for number, node in enumerate(self.primaries):
                first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
                node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
                node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            for number, node in enumerate(servers):
                for address in self._addresses[:number]:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", *address)
            self._wait(servers, "cluster_known_nodes", str(len(servers)))
            for primary, replica in zip(self.primaries, self.replicas, strict=False):
                replica.ask("CLUSTER", "REPLICATE", self.id_of(primary))
            self._wait(servers, "cluster_slots_ok", str(SLOTS))
            self._wait(servers, "cluster_state", "ok")
            for replica in self.replicas:
                while "connected" not in replica.ask("ROLE").splitlines():
                    pass  # each question takes a few milliseconds
            yield self

    def owner(self, slot: int) -> RedisServer:
        """Find the primary that had a slot at the start."""
        return self.primaries[self._number(slot)]

    def fail_over(self, key: str) -> None:
        """Kill the primary that has a key, and wait until its replica has taken its place."""
        number = self._number(key_slot(key.encode()))
        primary, replica = self.primaries[number], self.replicas[number]
        primary.kill()
        while not replica.is_primary():
            pass  # each question takes a few milliseconds
        self.primaries[number], self.replicas[number] = replica, primary

    def restore(self) -> None:
        """Start killed nodes again, as replicas."""
        for node in self.replicas:
            if not node.is_running:
                node.start()
            while "connected" not in node.ask("ROLE").splitlines():
                pass  # each question takes a few milliseconds

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Prepare both nodes for the move of a slot."""
        target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", self.id_of(source))
        source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", self.id_of(target))

    def end_move(self, slot: int, target: RedisServer) -> None:
        """Tell all nodes the slot's new owner."""
        for node in (target, *(node for node in self.primaries if node is not target)):
            node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", self.id_of(target))

    def _number(self, slot: int) -> int:
        return next(number for number in range(3) if slot < SLOTS * (number + 1) // 3)

    def id_of(self, server: RedisServer) -> str:
        """Name a node as the others do."""
        return server.ask("CLUSTER", "MYID")

    @staticmethod
    def _wait(servers: list[RedisServer], name: str, value: str) -> None:
        while any(f"{name}:{value}" not in node.ask("CLUSTER", "INFO").split() for node in servers):
            pass  # each question takes a few milliseconds
