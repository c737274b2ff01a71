"""Kills two servers and the receiver of their webhooks again and again, while people talk.

The servers share a store, and people go from one to the other. At the end the events that the store has
recorded are compared with those that the receiver got.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from aiohttp import web

from benchmarks.nodes import Node, stand_in_settings
from conductor.client import Reconnect, connect
from conductor.client.connection import ClientError
from conductor.conversation.apply import apply, begin
from conductor.conversation.replay import read_commits
from conductor.conversation.state import Conversation
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.stores.base import SessionKey
from tests.models import AnthropicService, BenchPersona
from tests.server.receiver import Receiver, receiving
from tests.services.ports import free_port

PEOPLE, VISITS, TURNS = 6, 2, 3
"""A session has few commits: a snapshot would hide its first events."""
VISIT_S, SETTLE_S = 8.0, 180.0
MOST_EVENTS, LONGEST_S = 12, 2.0
"""Between two kills: requests at the receiver, and seconds if there are fewer."""
TOOL = "device.look"
TOOLS = [
    {
        "name": TOOL,
        "description": "Looks.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
]
FINDINGS = ("lost", "of another id", "out of order", "tracebacks")


class MortalReceiver(Receiver):
    """Refuses some events, and answers some late; ``by_session`` has the ids that it took, in order."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.by_session: dict[str, list[str]] = {}
        self._chance = chance
        self._port = free_port()
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Listen, at the same port each time."""
        await self._running.enter_async_context(receiving(self._port, self))

    async def kill(self) -> None:
        """Close the port and all connections, some between an event and its answer."""
        await self._running.aclose()

    async def take(self, request: web.Request) -> web.Response:
        self.status = 500 if self._chance.random() < 0.05 else 200
        response = await super().take(request)
        if response.status == 200:
            session = self.events[-1]["data"]["session"]
            self.by_session.setdefault(session, []).append(self.ids[-1])
        await asyncio.sleep(self._chance.choice((0, 0, 0, 0.02, 0.1, 0.3)))
        return response


def facts(commits: Sequence[bytes], revision: int) -> list[str] | None:
    """List the ids of all events of a session, in order; None if a snapshot hides some."""
    state, ids = Conversation(), dict[str, None]()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            return None
        begin(state, commit)
        for record in commit.records:
            apply(state, record, commit.at)
            ids.update(dict.fromkeys(state.webhook_events))
    return list(ids)


async def _talk(
    nodes: Sequence[Node], name: str, chance: random.Random, stop: asyncio.Event, tally: Counter[str]
) -> None:
    visit = 0
    while not stop.is_set():
        session_id, url = f"{name}-{visit // VISITS}", chance.choice(nodes).url
        visit += 1
        with suppress(ClientError, TimeoutError):
            async with (
                asyncio.timeout(VISIT_S),
                connect(
                    url,
                    session_id=session_id,
                    tools=TOOLS,
                    handlers={TOOL: lambda *_: "a heron"},
                    reconnect=Reconnect(first_s=0.05, most_s=0.5),
                ) as client,
            ):
                for _ in range(TURNS):
                    await (await client.say("go"))
                    tally["turns"] += 1
                    await asyncio.sleep(chance.uniform(0.0, 0.5))


async def _kill(kills: int, chance: random.Random, nodes: Sequence[Node], receiver: MortalReceiver) -> None:
    for number in range(kills):
        goal, end = receiver.tries + chance.randint(1, MOST_EVENTS), time.monotonic() + LONGEST_S
        while receiver.tries < goal and time.monotonic() < end:  # noqa: ASYNC110 -- of another process
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0.0, 0.05))
        target = receiver if number % 2 else nodes[number // 2 % len(nodes)]
        await target.kill()
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        await target.start()
        if sys.stderr.isatty() and not number % 10:
            print(f"\r{number} of {kills} kills", end="", file=sys.stderr, flush=True)


async def _compare(folder: Path, receiver: MortalReceiver, tally: Counter[str]) -> None:
    store = SqliteStore(folder / "s.db")
    await store.open()
    keys = [key for key in await store.keys("anonymous", None, None, 1_000_000) if not key.never_expires]
    deadline = time.monotonic() + SETTLE_S
    for key in keys:
        expected = await _facts_of(store, key)
        # Later events of the session may still be on their way.
        while expected and not set(expected) <= set(receiver.by_session.get(key.session_id, ())):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        all_ids = receiver.by_session.get(key.session_id, [])
        got = list(dict.fromkeys(all_ids))
        tally["sessions"] += 1
        tally["repeated"] += len(all_ids) - len(got)
        if expected is None:
            tally["sessions with a snapshot, not compared"] += 1
            continue
        later = await _facts_of(store, key) or expected
        findings = {
            "lost": [event_id for event_id in expected if event_id not in set(got)],
            "of another id": [event_id for event_id in got if event_id not in set(later)],
            "out of order": got if got != [event_id for event_id in later if event_id in set(got)] else [],
        }
        tally["events"] += len(expected)
        for name, event_ids in findings.items():
            tally[name] += len(event_ids)
            if event_ids:
                print(f"{name}: session {key.session_id}: {', '.join(event_ids)}")
    await store.aclose()


async def _facts_of(store: SqliteStore, key: SessionKey) -> list[str] | None:
    stored = await store.read(key)
    return None if stored is None else facts(stored.commits(), stored.meta.revision)


async def _run(kills: int, seed: int, folder: Path) -> Counter[str]:
    chance, tally, stop = random.Random(seed), Counter[str](), asyncio.Event()
    receiver = MortalReceiver(chance)
    async with AnthropicService(api_keys=None, keep_requests=0) as service, AsyncExitStack() as stack:
        service.default = BenchPersona(1, 5, tool="device_look")
        settings = stand_in_settings(service.base_url) | {
            "SESSION_STORE_URL": f"sqlite:///{folder}/s.db",
            "SESSION_GRACE_S": "1",
        }
        await receiver.start()
        stack.push_async_callback(receiver.kill)
        receiver.file(folder)
        pair = [Node(name, folder, settings=settings) for name in ("north", "south")]
        nodes = [await stack.enter_async_context(node) for node in pair]
        talks = [
            asyncio.create_task(_talk(nodes, f"p{number}", chance, stop, tally)) for number in range(PEOPLE)
        ]
        await _kill(kills, chance, nodes, receiver)
        stop.set()
        await asyncio.wait(talks)
        for node in nodes:
            await node.restart()  # it picks up what the killed ones left
        await _compare(folder, receiver, tally)
        tally["tracebacks"] = sum(node.tracebacks() for node in nodes)
    return tally + Counter({"requests": receiver.tries}) + Counter(receiver.types())


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if an event was lost, has another id, or came out of order."""
    parser = argparse.ArgumentParser(prog="scripts/webhooks", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="half of them of a server (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the kills and refusals (default: a random one)")
    options = parser.parse_args(arguments)
    seed = random.randrange(10_000) if options.seed is None else options.seed
    print(f"scripts/webhooks --kills {options.kills} --seed {seed}", flush=True)
    folder, began = Path(tempfile.mkdtemp(prefix="conductor-webhooks-")), time.monotonic()
    tally = asyncio.run(_run(options.kills, seed, folder))
    for name, count in sorted(tally.items()):
        print(f"  {name}: {count}")
    findings = [name for name in FINDINGS if tally[name]]
    if tally["turns"] < options.kills:
        findings.append("too few turns to show anything")
    seconds = round(time.monotonic() - began)
    print(f"FAILED: {', '.join(findings)}, in {seconds} s" if findings else f"passed in {seconds} s")
    if findings:
        print(f"The store and the logs are in {folder}.")
    else:
        shutil.rmtree(folder)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
