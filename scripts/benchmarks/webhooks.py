"""Kills a server and the receiver of its webhooks again and again, while people talk."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from standardwebhooks.webhooks import Webhook

from benchmarks.nodes import Node, stand_in_settings
from conductor.client import Reconnect, connect
from conductor.client.connection import ClientError
from conductor.conversation.apply import walk
from conductor.conversation.ledger import read_commits
from conductor.conversation.state import Conversation
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.stores.base import SessionKey
from tests.models import AnthropicService, BenchPersona
from tests.server.receiver import SECRET
from tests.services.redis_server import free_port

PEOPLE, TURNS = 6, 3
TURN_S, SETTLE_S = 6.0, 180.0
TOOL = "device.look"
TOOLS = [{"name": TOOL, "description": "Looks.", "inputSchema": {}, "annotations": {"readOnlyHint": True}}]


class Receiver:
    """Takes events at a port; the ids that it got are by session, in order."""

    def __init__(self, chance: random.Random) -> None:
        self.port = free_port()
        self.ids: dict[str, list[str]] = {}
        self.requests = 0
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def kill(self) -> None:
        """Close the port and cut all connections, some between an event and its answer."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                event: dict[str, Any] = Webhook(SECRET).verify(body, headers)
                self.requests += 1
                refused = self._chance.random() < 0.05
                if not refused:
                    self.ids.setdefault(event["data"]["session"], []).append(headers["webhook-id"])
                await asyncio.sleep(self._chance.choice((0, 0, 0, 0.02, 0.1)))
                status = b"500 Error" if refused else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        self._writers.discard(writer)
        writer.close()


def facts(commits: Sequence[bytes], revision: int) -> list[str] | None:
    """List the ids of all events of a session, in order; None if a snapshot hides some."""
    state, ids = Conversation(), dict[str, None]()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            return None
        for _ in walk(state, commit):
            ids.update(dict.fromkeys(state.webhook_events))
    return list(ids)


async def _talk(url: str, name: str, stop: asyncio.Event, tally: Counter[str]) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        with suppress(ClientError, TimeoutError):
            async with (
                asyncio.timeout(TURN_S),
                connect(
                    url,
                    session_id=f"{name}-{number}",
                    tools=TOOLS,
                    reconnect=Reconnect(first_s=0.05, most_s=0.5),
                ) as client,
            ):
                client.on_tool(TOOL, lambda *_: "a heron")
                for _ in range(TURNS):
                    await (await client.say("go"))
                    tally["turns"] += 1


async def _kill(options: argparse.Namespace, chance: random.Random, node: Node, receiver: Receiver) -> None:
    for number in range(options.kills):
        await asyncio.sleep(chance.uniform(0.0, options.every))
        target: Node | Receiver = node if number % 2 else receiver
        await target.kill()
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        await target.start()


async def _compare(folder: Path, receiver: Receiver, tally: Counter[str]) -> None:
    store = SqliteStore(folder / "s.db")
    await store.open()
    keys = [key for key in await store.keys("anonymous", None, None, 1_000_000) if not key.never_expires]
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    for key in keys:
        expected = await _facts_of(store, key)
        # Later events of the session may still be on their way.
        while expected and not set(expected) <= set(receiver.ids.get(key.session_id, ())):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.2)
        got = list(dict.fromkeys(receiver.ids.get(key.session_id, ())))
        tally["sessions"] += 1
        tally["repeated"] += len(receiver.ids.get(key.session_id, ())) - len(got)
        if expected is None:
            tally["sessions with a snapshot, not compared"] += 1
            continue
        tally["events"] += len(expected)
        tally["lost"] += len(set(expected) - set(got))
        later = await _facts_of(store, key) or expected
        tally["of another id"] += len(set(got) - set(later))
        tally["out of order"] += got != [event_id for event_id in later if event_id in set(got)]
    await store.aclose()


async def _facts_of(store: SqliteStore, key: SessionKey) -> list[str] | None:
    stored = await store.read(key)
    return None if stored is None else facts(stored.commits(), stored.meta.revision)


async def _run(options: argparse.Namespace) -> Counter[str]:
    chance, tally, stop = random.Random(options.seed), Counter[str](), asyncio.Event()
    receiver = Receiver(chance)
    with tempfile.TemporaryDirectory(prefix="conductor-webhooks-") as name:
        folder = Path(name)
        url = f"http://127.0.0.1:{receiver.port}/hook"
        (folder / "webhooks.toml").write_text(f'url = "{url}"\nsecret = "{SECRET}"\n')
        async with AnthropicService(api_keys=None, keep_requests=0) as service:
            service.default = BenchPersona(1, 5, tool="device_look")
            settings = stand_in_settings(service.base_url) | {
                "SESSION_STORE_URL": f"sqlite:///{folder}/s.db",
                "SESSION_GRACE_S": "1",
            }
            await receiver.start()
            async with Node("server", folder, settings=settings) as node:
                talks = [asyncio.create_task(_talk(node.url, f"p{n}", stop, tally)) for n in range(PEOPLE)]
                await _kill(options, chance, node, receiver)
                stop.set()
                await asyncio.wait(talks)
                await node.restart()  # it picks up what the killed ones left
                await _compare(folder, receiver, tally)
                tally["tracebacks"] = node.tracebacks()
    tally["requests"] = receiver.requests
    return tally


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if an event was lost, has another id, or came out of order."""
    parser = argparse.ArgumentParser(prog="scripts/webhooks", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="half of the server (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--every", type=float, default=0.4, help="longest pause in seconds (%(default)s)")
    options = parser.parse_args(arguments)
    tally = asyncio.run(_run(options))
    print(json.dumps({"kills": options.kills, "seed": options.seed, **dict(tally)}, indent=1))
    failed = tally["lost"] + tally["of another id"] + tally["out of order"] + tally["tracebacks"]
    return 1 if failed or not tally["events"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
