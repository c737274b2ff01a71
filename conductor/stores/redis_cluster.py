"""Where sessions are spread over the nodes of a Redis Cluster, each with those of its slots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from redis import exceptions
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from conductor.stores.redis_batch import Answer, Batcher, ConnectionLost, Copies, Refused, checked, pack
from conductor.stores.redis_nodes import connection_to
from conductor.stores.redis_scripts import Reply, text
from conductor.stores.redis_url import RedisAddress

Node: TypeAlias = tuple[str, int]

_ASKING = pack("ASKING")
_SLOTS = pack("CLUSTER", "SLOTS")


class Cluster:
    """Knows the primaries and their slots, and follows them when they change.

    The library's own cluster client holds the loop for 12 ms to read who has which slots, and may send ASKING
    over another connection than the command that it is about.
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
                # Not followed here: the retry goes by the new map, and counts against the time limit.
                raise ConnectionLost("the slot has moved")
            case exceptions.AskError():
                other = self._batcher((answer.host or owner[0], answer.port))
                # They leave together, on one connection: the first is about the one that follows it.
                _, answer = await asyncio.gather(other.ask(_ASKING), other.ask(command, writes=writes))
            case exceptions.ClusterDownError():
                await self._look()
        return answer

    async def batchers(self) -> list[Batcher]:
        """Give one for each primary that there is now. Raises `ConnectionLost` or `Refused`."""
        await self._look()
        return [self._batcher(each) for each in self._primaries]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for each in self._batchers.values():
            await each.aclose()

    def _batcher(self, node: Node) -> Batcher:
        batcher = self._batchers.get(node)
        if batcher is None:
            connection = connection_to(*node, self._address, self._timeout)
            batcher = self._batchers[node] = Batcher(connection, self._timeout, self._copies)
        return batcher

    async def _look(self) -> None:
        # Learn who has which slots; all who want to know at the same time share the answer.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read_map())
        # Shielded: the one who gives up must not cancel the look-up of the others.
        why = await asyncio.shield(self._looking)
        if why is not None:
            raise type(why)(*why.args)

    async def _read_map(self) -> ConnectionLost | Refused | None:
        why: ConnectionLost | Refused | None = None
        # Known primaries first; the configured addresses may be of nodes that are long gone.
        for nodes in (self._primaries, self._address.hosts):
            # The first map counts, so that a node that hangs holds nothing up.
            for found in asyncio.as_completed([self._map_of(each) for each in nodes]):
                match await found:
                    case list() as rows:
                        await self._take(rows)
                        return None
                    case error:
                        why = error
        return why

    async def _map_of(self, node: Node) -> list[tuple[int, int, Node]] | ConnectionLost | Refused:
        # Ask a node for the first slot, the last slot and the primary of each range.
        try:
            answer = await self._batcher(node).ask(_SLOTS)
            if isinstance(answer, exceptions.ResponseError) and answer.status_code == "ERR":
                raise Refused("it is not part of a cluster")
            rows = checked(answer)
            return [_range(each, node) for each in rows] if isinstance(rows, list) else []
        except (ConnectionLost, Refused) as error:
            return error

    async def _take(self, rows: list[tuple[int, int, Node]]) -> None:
        owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, node in rows:
            owners[first : last + 1] = [node] * (last - first + 1)
        self._owners = owners
        self._primaries = list(dict.fromkeys(node for _, _, node in rows))
        # A node that left keeps its socket open otherwise, for as long as the process lives.
        for gone in self._batchers.keys() - set(self._primaries):
            await self._batchers.pop(gone).aclose()


def _range(row: Reply, asked: Node) -> tuple[int, int, Node]:
    match row:
        case [int() as first, int() as last, [host, int() as port, *_], *_]:
            return first, last, (text(host) or asked[0], port)  # without a host it is the one that was asked
    raise Refused("its map of slots is of a kind that this version cannot read")
