"""Damaged events in great number, at the codec and over real sockets, with the slowest one found."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.nodes import conductor
from conductor.events.codec import InvalidFrame, decode_event
from tests.app import App
from tests.models import AnthropicService, Reply
from tests.unit.events.mutations import Mutator

LIMIT_S = 0.05
"""CPU time that one damaged event may take."""
LARGE_LIMIT_S = 0.15
"""The same for the handmade events, which are as large and expensive as possible, and count as 51 frames."""
LARGE = 1_040_000
APPS = 50
FRAMES_PER_SECOND = 2.0
"""Of one app: with a refused event counted as twenty, below the limit of 50, over which the server closes."""
FRAME_BYTES = 20_480
"""For each of these bytes a frame counts once more against the server's limit."""
ANSWER_S = 30.0


@dataclass
class Slowest:
    """The input that took the most CPU time."""

    seconds: float = 0.0
    data: bytes = b""
    name: str = ""

    def note(self, seconds: float, data: bytes, name: str) -> None:
        """Keep an input if it is slower than the kept one."""
        if seconds > self.seconds:
            self.seconds, self.data, self.name = seconds, data, name

    def __str__(self) -> str:
        return f"{self.seconds * 1000:.1f} ms CPU, {len(self.data)} bytes, {self.name}: {self.data[:120]!r}"


def main(arguments: Sequence[str]) -> int:
    """Run both parts; 1 if an input gave neither an event nor a refusal, or took too long."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="damaged events at the codec (100000)")
    parser.add_argument("--seed", type=int, help="random seed; default: a new one for each run")
    parser.add_argument("--seconds", type=float, default=120.0, help="bound for each of the two parts (120)")
    parser.add_argument(
        "--sockets", type=int, help="damaged events over sockets (a fifth of --count; 0 skips them)"
    )
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    failed = _codec(options.count, seed, options.seconds)
    sockets = options.count // 5 if options.sockets is None else options.sockets
    if sockets:
        failed += asyncio.run(_over_sockets(sockets, seed, options.seconds))
    return min(1, failed)


# -- at the codec


def outcome(data: bytes) -> str:
    """Decode a frame; returns the outcome in a word."""
    try:
        inbound = decode_event(data)
    except InvalidFrame as error:
        return str(error).partition(":")[0]
    return "unknown type" if inbound.event is None else "accepted"


def _codec(count: int, seed: int, seconds: float) -> int:
    mutator = Mutator(seed)
    outcomes: Counter[str] = Counter()
    slowest = Slowest()
    failures = size = number = 0
    until = time.monotonic() + seconds
    for number in range(1, count + 1):
        data = mutator.next()
        size += len(data)
        began = time.thread_time()
        try:
            outcomes[outcome(data)] += 1
        except Exception as error:  # the codec may raise InvalidFrame only
            failures += 1
            print(f"FAILED mutant {number}: {type(error).__name__}: {error}: {data[:500]!r}")
        slowest.note(time.thread_time() - began, data, f"mutant {number}")
        if time.monotonic() > until:
            break
    print(f"codec: {number} mutants, {size / 1e6:.0f} MB, {failures} failures")
    print("  " + ", ".join(f"{name} {times}" for name, times in outcomes.most_common()))
    print(f"  slowest: {slowest}")
    return failures + (slowest.seconds > LIMIT_S) + _handmade()


def _handmade() -> int:
    """Time the most expensive known events, each three times; the best time counts."""
    slowest = Slowest()
    for name, payload in costly_payloads().items():
        data = (
            f'{{"id":"e","type":"tool.result","timestamp":"t","sessionId":"s","payload":{payload}}}'.encode()
        )
        times = []
        for _ in range(3):
            began = time.thread_time()
            outcome(data)
            times.append(time.thread_time() - began)
        slowest.note(min(times), data, name)
    print(f"  slowest of the handmade: {slowest}")
    return int(slowest.seconds > LARGE_LIMIT_S)


def costly_payloads(size: int = LARGE) -> dict[str, str]:
    """Write payloads of about ``size`` bytes that are expensive to parse, as JSON."""

    def many(item: str, most: int = 4_900) -> str:
        return '{"callId":"c","x":[' + ",".join([item] * min(most, size // (len(item) + 1))) + "]}"

    return {
        "floats near the largest": many("1e308", size),
        "floats near the smallest": many("5e-324", size),
        "empty arrays": many("[]", size),
        "empty objects": many("{}", size),
        "depth": '{"callId":"c","x":' + "[" * (size // 2) + "]" * (size // 2) + "}",
        "one key, often": '{"callId":"c","x":{' + ",".join(['"k":0'] * (size // 6)) + "}}",
        "many keys": '{"callId":"c","x":{' + ",".join(f'"k{n}":0' for n in range(size // 12)) + "}}",
        "floats half between two doubles": many("2." + "4703282292062327208" * 10 + "e-324"),
        "long small floats": many("1." + "9" * 200 + "e-320"),
        "one long float": '{"callId":"c","x":0.' + "3" * size + "}",
        "long integers": many("1" * 4_300),
        "escapes": '{"callId":"c","result":"' + "\\u00e9" * (size // 6) + '"}',
        "pairs of surrogates": '{"callId":"c","result":"' + "\\ud83c\\udf89" * (size // 12) + '"}',
        "spaces": '{"callId":"c"' + " " * size + "}",
    }


# -- over sockets


@dataclass
class _Tally:
    mutants: int = 0
    unanswered: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)


async def _over_sockets(count: int, seed: int, seconds: float) -> int:
    tally, share = _Tally(), -(-count // APPS)
    async with AnthropicService(api_keys=None, keep_requests=0, default=_echo) as service:
        async with conductor(service.base_url, pinned=False) as server:
            start = time.monotonic()
            apps = [App(server.url, f"fuzz-{number}", wait_s=ANSWER_S) for number in range(APPS)]
            await asyncio.gather(
                *(
                    _damage(
                        app,
                        Mutator(seed + number, largest=70_000, session_id=app.session_id),
                        tally,
                        share,
                        seconds,
                    )
                    for number, app in enumerate(apps)
                )
            )
            await asyncio.gather(*(_ask(app, tally) for app in apps))
            elapsed, tracebacks, rss = time.monotonic() - start, server.tracebacks(), server.rss() / 1024
            errors = sum(len(app.errors()) for app in apps)
            for app in apps:
                app.socket.cut()
    print(
        f"sockets: {tally.mutants} mutants over {APPS} in {elapsed:.0f} s, {errors} answered by an error, "
        f"{len(tally.dead)} dead sockets, {len(tally.unanswered)} sessions that do not answer, "
        f"{tracebacks} tracebacks, {rss:.0f} MB; the model's stand-in refused {len(service.refused)} requests"
    )
    for name in (*tally.dead, *tally.unanswered):
        print(f"FAILED {name}")
    return len(tally.dead) + len(tally.unanswered) + tracebacks


def _echo(request: dict[str, Any]) -> Reply:
    """Answer with the last word of the request."""
    content = request["messages"][-1]["content"]
    text = content if isinstance(content, str) else str(content[-1].get("text", ""))
    return Reply(text=text.split()[-1][:100] if text.split() else "nothing")


async def _damage(app: App, mutator: Mutator, tally: _Tally, count: int, seconds: float) -> None:
    """Send damaged events at a rate that the server allows."""
    loop = asyncio.get_running_loop()
    await app.open()
    due = start = loop.time()
    for number in range(count):
        if app.closed.is_set():
            tally.dead.append(f"{app.session_id}: closed after its mutant {number}")
            return
        data = mutator.next()
        app.socket.write(data)
        tally.mutants += 1
        due += (1 + len(data) // FRAME_BYTES) / FRAMES_PER_SECOND
        if due - loop.time() > 0.05:
            await asyncio.sleep(due - loop.time())
        if loop.time() - start > seconds:
            return


async def _ask(app: App, tally: _Tally) -> None:
    """Check that the session still answers."""
    if app.closed.is_set():
        return
    words = f"still-there-{app.session_id}"
    app.start()
    app.say(f"are you {words}")
    try:
        await app.until(lambda event: event["type"] == "assistant.speech.final" and words in str(event))
    except AssertionError:
        tally.unanswered.append(f"{app.session_id}: no answer within {ANSWER_S:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
