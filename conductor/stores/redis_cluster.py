"""A Redis Cluster: finds the node of each session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from conductor.stores.addresses import RedisAddress
from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, checked, pack
from conductor.stores.redis_nodes import connection_to
from conductor.stores.redis_scripts import Reply, text

Node: TypeAlias = tuple[str, int]

_ASKING = pack("ASKING")
_SLOTS = pack("CLUSTER", "SLOTS")


class Cluster:
    """Maps slots to primaries, and follows changes.

    The library's cluster client blocks the loop for 12 ms to read the map, and may send ASKING and its
    command over two connections.
    """

    def __init__(self, address: RedisAddress, timeout: float, copies: Copies) -> None:
        self._address = address
        self._timeout = timeout
        self._copies = copies
        self._batchers: dict[Node, Batcher] = {}
        self._primaries: Sequence[Node] = ()
        self._owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._looking: asyncio.Task[ConnectionLost | Refused | None] | None = None

    async def ask(self, command: bytes, key: str, *, writes: bool = False) -> Answer:
        """Send a packed command to the node that has ``key``. Raises `ConnectionLost` or `Refused`."""
        slot = key_slot(key.encode("utf-8", "replace"))
        owner = self._owners[slot]
        try:
            if owner is None:
                raise ConnectionLost("no node of the cluster has the slot")
            answer = await self._batcher(owner).ask(command, writes=writes)
        except ConnectionLost:
            await self._look()
            raise
        match answer:
            case exceptions.MovedError():
                self._owners[slot] = (answer.host or owner[0], answer.port)
                # The retry follows the new map within the time limit.
                raise ConnectionLost("the slot has moved")
            case exceptions.AskError():
                target = self._batcher((answer.host or owner[0], answer.port))
                # Both leave on one connection in this order.
                _, answer = await asyncio.gather(target.ask(_ASKING), target.ask(command, writes=writes))
            case exceptions.ClusterDownError():
                await self._look()
        return answer

    async def batchers(self) -> list[Batcher]:
        """Give a batcher for each primary. Raises `ConnectionLost` or `Refused`."""
        await self._look()
        return [self._batcher(node) for node in self._primaries]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for batcher in self._batchers.values():
            await batcher.aclose()

    def _batcher(self, node: Node) -> Batcher:
        batcher = self._batchers.get(node)
        if batcher is None:
            connection = connection_to(*node, self._address, self._timeout)
            batcher = self._batchers[node] = Batcher(connection, self._timeout, self._copies)
        return batcher

    async def _look(self) -> None:
        # Callers at the same time share one answer.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read_map())
        # Shielded: one cancelled caller must not cancel the others.
        failure = await asyncio.shield(self._looking)
        if failure is not None:
            raise type(failure)(*failure.args)

    async def _read_map(self) -> ConnectionLost | Refused | None:
        failure: ConnectionLost | Refused | None = None
        # The configured addresses may be out of date.
        for nodes in (self._primaries, self._address.hosts):
            # The first map counts; a node that hangs causes no delay.
            for answer in asyncio.as_completed([self._map_of(node) for node in nodes]):
                match await answer:
                    case list() as rows:
                        await self._take(rows)
                        return None
                    case error:
                        failure = error
        return failure

    async def _map_of(self, node: Node) -> list[tuple[int, int, Node]] | ConnectionLost | Refused:
        # The first slot, the last slot and the primary of each range.
        try:
            answer = await self._batcher(node).ask(_SLOTS)
            if isinstance(answer, exceptions.ResponseError) and answer.status_code == "ERR":
                raise Refused("it is not part of a cluster")
            rows = checked(answer)
            return [_range(row, node) for row in rows] if isinstance(rows, list) else []
        except (ConnectionLost, Refused) as error:
            return error

    async def _take(self, rows: list[tuple[int, int, Node]]) -> None:
        owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node in rows:
            owners[first : last + 1] = [node] * (last - first + 1)
        self._owners = owners
        self._primaries = list(dict.fromkeys(node for _, _, node in rows))
        for departed in self._batchers.keys() - set(self._primaries):
            await self._batchers.pop(departed).aclose()


def _range(row: Reply, sender: Node) -> tuple[int, int, Node]:
    match row:
        case [int() as first, int() as last, [host, int() as port, *_], *_]:
            return first, last, (text(host) or sender[0], port)  # no host: the sender itself
    raise Refused("its map of slots has an unknown form")
