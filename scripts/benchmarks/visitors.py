"""Requests of the app's backend at random processes, while phones talk to others and processes are killed.

Counts phones that were cut off for good, allowed calls that did not run once, and words that were not spoken
once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.chaos_jobs import ORDER, READ, WRITE, JobModel, declarations, transcript
from benchmarks.nodes import Node, stand_in_settings
from conductor.client import Approval, Client, ClientError, Reconnect, connect
from conductor.client.connection import Lost
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import SpeechFinal
from tests.models import AnthropicService

KEY = "visitors-benchmark-key"
PLANS = (("ask",), ("read", "ask"), ("write",), ("read",), ())
FINDINGS = ("closed with 4409", "calls run twice", "allowed calls not run", "spoken twice", "not spoken")
WORKERS = 2
TURN_S, SETTLE_S = 60.0, 60.0


class Backend:
    """Sends requests to random nodes, under one key each, until one is answered."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random, tally: Counter[str]) -> None:
        self._nodes, self._chance, self._tally = nodes, chance, tally
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=aiohttp.ClientTimeout(total=20),
            connector=aiohttp.TCPConnector(force_close=True),
        )

    async def close(self) -> None:
        await self._http.close()

    async def post(self, path: str, body: Any, number: str) -> int:
        """Return the status, which is below 500."""
        while True:
            url = f"http://127.0.0.1:{self._chance.choice(self._nodes).port}/v1/sessions/{path}"
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._http.post(url, json=body, headers={"Idempotency-Key": number}) as answer:
                    if answer.status < 500:
                        self._tally[f"answers {answer.status}"] += 1
                        return answer.status
            self._tally["requests sent again"] += 1
            await asyncio.sleep(0.2)


class Phone:
    """A person with a device: ``spoken`` are the texts it has heard, ``runs`` the calls by number.

    ``shown`` are the final texts: a speech that is older than 10 s when the phone returns is only shown.
    """

    def __init__(self, name: str, backend: Backend, chance: random.Random, tally: Counter[str]) -> None:
        self.name = name
        self.spoken: list[str] = []
        self.shown: set[str] = set()
        self.runs: Counter[int] = Counter()
        self.allowed: set[int] = set()
        self._asking: list[asyncio.Task[None]] = []
        self._backend, self._chance, self._tally = backend, chance, tally

    def connect(self, url: str) -> Client:
        client = connect(
            url,
            self.name,
            tools=declarations(),
            handlers=dict.fromkeys((READ, WRITE, ORDER), self._run),
            speak=self._speak,
            on_approval=self._approve,
            reconnect=Reconnect(first_s=0.05, most_s=0.5, steady_s=0.0),
        )
        client.on(Lost, self._lost)
        client.on(SpeechFinal, lambda event: self.shown.add(event.text))
        return client

    async def talk(self, client: Client, numbers: Any, stop: asyncio.Event) -> None:
        """Ask for jobs until the end."""
        while not stop.is_set():
            with suppress(ClientError, TimeoutError):
                turn = await client.say(transcript(next(numbers), self._chance.choice(PLANS)))
                await turn.wait(TURN_S)
                self._tally["turns"] += 1
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    def _run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.runs[arguments["n"]] += 1
        return {"done": arguments["n"]}

    async def _speak(self, text: str) -> None:
        self.spoken.append(text)
        await asyncio.sleep(0.01)

    async def _approve(self, approval: Approval) -> None:
        # In a task: the outcome, which may come before the answer, ends this handler.
        self._asking.append(asyncio.create_task(self._ask(approval)))

    async def _ask(self, approval: Approval) -> None:
        body = {"decision": "allow", "argumentsDigest": approval.arguments_digest}
        path = f"{self.name}/approvals/{approval.approval_id}"
        if await self._backend.post(path, body, approval.approval_id) == 200:
            self.allowed.add(approval.arguments["n"])

    def _lost(self, event: Lost) -> None:
        self._tally["connections lost"] += 1
        self._tally["closed with 4409"] += event.error.close_code == SUPERSEDED


async def _visit(
    phones: Sequence[Phone], backend: Backend, requests: int, chance: random.Random
) -> dict[str, list[str]]:
    """Send words and facts; return the words by phone."""
    words: dict[str, list[str]] = {}

    async def one(number: int) -> None:
        phone = chance.choice(phones)
        is_spoken = number % 2 == 0
        text = f"Parcel number {number} is here." if is_spoken else f"Fact number {number}."
        path = f"{phone.name}/{'say' if is_spoken else 'context'}"
        while (status := await backend.post(path, {"text": text}, f"request-{number}")) == 429:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        if is_spoken and status == 200:
            words.setdefault(phone.name, []).append(text)

    tasks = []
    for number in range(requests):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(chance.uniform(0.0, 0.2))
    await asyncio.gather(*tasks)
    return words


async def _kill(nodes: Sequence[Node], kills: int, every_s: float, chance: random.Random) -> None:
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.5, 1.5) * every_s)
        node = chance.choice(nodes)
        while node.count("worker ready") - node.count("worker ended") < WORKERS:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.1)  # a server whose worker dies at its start ends
        with suppress(ProcessLookupError):
            os.kill(chance.choice(node._tree()[1:]), signal.SIGKILL)  # its supervisor starts another


async def _run(options: argparse.Namespace, folder: Path) -> Counter[str]:
    chance, tally, stop = random.Random(options.seed), Counter[str](), asyncio.Event()
    async with AnthropicService(api_keys=None, keep_requests=0) as service, AsyncExitStack() as stack:
        service.default = JobModel(lambda request, last: None, options.seed, 0.005)
        settings = stand_in_settings(service.base_url) | {
            "SESSION_STORE_URL": f"sqlite:///{folder}/s.db",
            "API_KEYS": f"backend:{KEY}:say+approve+read",
            "WORKERS": str(WORKERS),
            "NEWS_AFTER_S": "0",  # people who talk all the time would never be told the words
        }
        pair = [Node(name, folder, settings=settings) for name in ("north", "south")]
        nodes = [await stack.enter_async_context(node) for node in pair]
        backend = Backend(nodes, chance, tally)
        stack.push_async_callback(backend.close)
        phones = [Phone(f"p{number}", backend, chance, tally) for number in range(options.phones)]
        for node in nodes:
            while node.count("worker ready") < WORKERS:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.1)
        clients = [await stack.enter_async_context(p.connect(chance.choice(nodes).url)) for p in phones]
        numbers = iter(range(1001, 10**9))
        talks = [
            asyncio.create_task(phone.talk(client, numbers, stop))
            for phone, client in zip(phones, clients, strict=True)
        ]
        killing = asyncio.create_task(_kill(nodes, options.kills, options.every, chance))
        words = await _visit(phones, backend, options.requests, chance)
        await killing
        stop.set()
        await asyncio.wait(talks)
        await _settle(phones, words)
        _judge(phones, words, tally)
        tally["tracebacks"] = sum(node.tracebacks() for node in nodes)
    return tally


async def _settle(phones: Sequence[Phone], words: dict[str, list[str]]) -> None:
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and any(  # noqa: ASYNC110 -- of other processes
        set(words.get(phone.name, ())) - {*phone.spoken, *phone.shown} for phone in phones
    ):
        await asyncio.sleep(0.2)
    await asyncio.sleep(2.0)  # a second time may follow


def _judge(phones: Sequence[Phone], words: dict[str, list[str]], tally: Counter[str]) -> None:
    for phone in phones:
        spoken = Counter(phone.spoken)
        for text in words.get(phone.name, ()):
            tally["words"] += 1
            tally["spoken twice"] += spoken[text] > 1
            tally["shown, as the phone was away"] += text in phone.shown and not spoken[text]
            tally["not spoken"] += not spoken[text] and text not in phone.shown
        tally["allowed calls"] += len(phone.allowed)
        tally["allowed calls not run"] += sum(not phone.runs[number] for number in phone.allowed)
        tally["calls run twice"] += sum(phone.runs[number] > 1 for number in phone.allowed)


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if a figure that must be zero is not."""
    parser = argparse.ArgumentParser(prog="scripts/visitors", description=__doc__)
    parser.add_argument("--phones", type=int, default=50)
    parser.add_argument("--requests", type=int, default=500, help="half are words, half are facts (500)")
    parser.add_argument("--kills", type=int, default=10, help="kill -9 of a worker (10)")
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between kills (4)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    folder, began = Path(tempfile.mkdtemp(prefix="conductor-visitors-")), time.monotonic()
    tally = asyncio.run(_run(options, folder))
    for name, count in sorted(tally.items()):
        print(f"  {name}: {count}")
    findings = [f"{tally[name]} {name}" for name in FINDINGS if tally[name]]
    print(f"{'FAILED: ' + ', '.join(findings) if findings else 'passed'} in {time.monotonic() - began:.0f} s")
    if findings:
        print(f"The store and the logs are in {folder}.")
    else:
        shutil.rmtree(folder)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
