"""The scenarios: each drives a server from outside and returns its figures."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from benchmarks.client import Frames, Phone
from benchmarks.nodes import Process
from tests.models import AnthropicService, BenchPersona, Reply

ToolMetrics: TypeAlias = dict[str, float]

TOKENS = 40
ROUNDS = 3


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value below which ``share`` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def milliseconds(seconds: Sequence[float]) -> ToolMetrics:
    """Sum up times, in milliseconds."""
    return {
        "p50_ms": round(percentile(seconds, 0.5) * 1000, 3),
        "p99_ms": round(percentile(seconds, 0.99) * 1000, 3),
    }


async def connected(server: Process, count: int, prefix: str) -> list[Phone]:
    """Connect phones and start their sessions."""
    phones = [Phone(f"{prefix}-{number}") for number in range(count)]
    for start in range(0, count, 50):
        await asyncio.gather(
            *(phone.connect(server.host, server.port) for phone in phones[start : start + 50])
        )
    for phone in phones:
        phone.start()
    return phones


class Talking:
    """Phones that talk without a pause; measures the turns that end inside a window."""

    def __init__(self, phones: Sequence[Phone]) -> None:
        self._phones = phones
        self._stopping = False
        self._stopped = asyncio.Event()
        self.turns: list[float] = []
        self.errors = 0
        self._busy = 0
        self._resting: list[Phone] | None = None
        self._rested = asyncio.Event()

    async def rest(self) -> None:
        """Let no turn begin, and wait until those that run have ended."""
        self._resting = []
        self._rested.clear()
        await asyncio.wait_for(self._rested.wait(), 60)

    def go_on(self) -> None:
        resting, self._resting = self._resting or [], None
        for phone in resting:
            phone.say("go")

    async def run(self, warm_up: float, seconds: float, server: Process) -> ToolMetrics:
        """Talk; returns CPU per turn, share of a core, turns a second and the time of a turn."""
        loop = asyncio.get_running_loop()
        for phone in self._phones:
            phone.on_idle, phone.on_error = self._next, self._failed
            self._busy += 1
            phone.say("go")
        await asyncio.sleep(warm_up)
        self.turns.clear()
        began, cpu = loop.time(), server.cpu()
        await asyncio.sleep(seconds)
        took, used, turns = loop.time() - began, server.cpu() - cpu, list(self.turns)
        self._stopping = True
        await asyncio.wait_for(self._stopped.wait(), 60)
        return {
            "cpu_ms_a_turn": round(used / max(1, len(turns)) * 1000, 3),
            "load": round(used / took, 3),
            "turns_a_second": round(len(turns) / took, 1),
            "errors": self.errors,
            **milliseconds(turns),
        }

    def _next(self, phone: Phone) -> None:
        now = asyncio.get_running_loop().time()
        self.turns.append(now - phone.said_at)
        if self._stopping:
            self._busy -= 1
            phone.on_idle = lambda _: None
            if not self._busy:
                self._stopped.set()
        elif self._resting is not None:
            self._resting.append(phone)
            if len(self._resting) == self._busy:
                self._rested.set()
        else:
            phone.say("go")

    def _failed(self, phone: Phone) -> None:
        self.errors += 1


async def standard_turns(
    server: Process, service: AnthropicService, sessions: int, seconds: float, warm_up: float = 2.0
) -> ToolMetrics:
    """Run turns of three tool rounds on the device and a 40-token answer, without a pause."""
    service.default = BenchPersona(ROUNDS, TOKENS)
    phones = await connected(server, sessions, f"turns{sessions}")
    figures = await Talking(phones).run(warm_up, seconds, server)
    for phone in phones:
        phone.abort()
    return figures


async def paced_stream(
    server: Process, service: AnthropicService, sessions: int, per_second: int, seconds: float
) -> ToolMetrics:
    """Stream ``per_second`` tokens a second in all sessions: the CPU time of a token, socket to socket."""
    tokens = int(per_second * (seconds + 3))
    chunks = [f"word{number} " for number in range(tokens)]
    first = asyncio.Event()

    def reply(_: dict[str, Any]) -> Reply:
        first.set()
        return Reply(text="".join(chunks), chunks=chunks, delay_s=1 / per_second)

    service.default = reply
    phones = await connected(server, sessions, "paced")
    for phone in phones:
        phone.say("go")
    await asyncio.sleep(2)
    loop = asyncio.get_running_loop()
    began, cpu, partials = loop.time(), server.cpu(), sum(phone.partials for phone in phones)
    await asyncio.sleep(seconds - 1)
    took, used = loop.time() - began, server.cpu() - cpu
    partials = sum(phone.partials for phone in phones) - partials
    for phone in phones:
        phone.abort()
    await service.wait_open(0, 30)
    streamed = per_second * took * sessions
    return {
        "cpu_us_a_token": round(used / streamed * 1e6, 2),
        "load": round(used / took, 3),
        "partials_a_second_a_session": round(partials / took / sessions, 1),
    }


async def tool_round(server: Process, service: AnthropicService, turns: int) -> ToolMetrics:
    """Time the way from a device's ``tool.result`` to the next request at the model, in one session."""
    sent = [0.0]
    times: list[float] = []
    persona = BenchPersona(ROUNDS, 1)

    def reply(request: dict[str, Any]) -> Reply:
        if sent[0]:
            times.append(time.perf_counter() - sent[0])
            sent[0] = 0.0
        return persona(request)

    service.default = reply
    (phone,) = await connected(server, 1, "round")

    def on_result(_: Phone) -> None:
        sent[0] = time.perf_counter()

    phone.on_result = on_result
    cpu = server.cpu()
    for _ in range(turns):
        await one_turn(phone)
    used = server.cpu() - cpu
    phone.abort()
    return {**milliseconds(times), "cpu_ms_a_round": round(used / (turns * (ROUNDS + 1)) * 1000, 3)}


async def one_turn(phone: Phone, text: str = "go", seconds: float = 30) -> None:
    """Say something and wait for the microphone."""
    idle = asyncio.Event()
    phone.on_idle = lambda _: idle.set()
    phone.say(text)
    async with asyncio.timeout(seconds):
        await idle.wait()


async def first_words(server: Process, service: AnthropicService, sessions: int) -> ToolMetrics:
    """Let clients connect and speak at once, two standard turns each; a wait is until the second final.

    What other processes took of the server's core does not count.
    """
    service.default = BenchPersona(ROUNDS, TOKENS)
    loop = asyncio.get_running_loop()
    phones = [Phone(f"burst-{number}") for number in range(sessions)]
    began, worked, waited = loop.time(), server.worked(), server.waited()

    async def talk(phone: Phone) -> float:
        await phone.connect(server.host, server.port)
        phone.start()
        for _ in range(2):
            await one_turn(phone, seconds=60)
        return loop.time() - began

    waits = await asyncio.gather(*map(talk, phones))
    worked, waited, longest = server.worked() - worked, server.waited() - waited, max(waits)
    for phone in phones:
        phone.abort()
    return {
        "longest_s": round(longest, 2),
        "cpu_s": round(worked, 2),
        "core_taken_s": round(waited, 2),
        "longest_over_cpu": round((longest - waited) / worked, 2),
        "longest_over_median": round(longest / percentile(waits, 0.5), 2),
    }


async def first_partial(
    server: Process, service: AnthropicService, sessions: int, per_second: float, seconds: float
) -> ToolMetrics:
    """Time the way from the model's first token to the first partial at the phone."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    tokens: dict[str, float] = {}

    def reply(request: dict[str, Any]) -> Reply:
        content = request["messages"][-1]["content"]
        name = content if isinstance(content, str) else content[-1]["text"]
        tokens[name] = time.perf_counter()
        return Reply(text="one two three four five six seven eight nine ten")

    def on_partial(phone: Phone) -> None:
        token = tokens.pop(phone.session_id, None)
        if token is not None:
            times.append(time.perf_counter() - token)

    service.default = reply
    phones = await connected(server, sessions, "first")
    pause = sessions / per_second
    for phone in phones:
        phone.on_partial = on_partial
    until = loop.time() + seconds

    async def talk(phone: Phone, after: float) -> None:
        await asyncio.sleep(after)
        while loop.time() < until:
            await one_turn(phone, phone.session_id)
            await asyncio.sleep(pause)

    await asyncio.gather(*(talk(phone, number / per_second) for number, phone in enumerate(phones)))
    for phone in phones:
        phone.abort()
    return {**milliseconds(times), "turns": len(times)}


class Passed(asyncio.Event):
    """A hold of a reply that holds nothing, and notes when the reply has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0

    async def wait(self) -> Literal[True]:
        """Note the time."""
        self.at = time.perf_counter()
        return True


async def first_speech(server: Process, service: AnthropicService, sessions: int, turns: int) -> ToolMetrics:
    """Time the way from the end of the model's first sentence to the first ``tts.speak``.

    The model writes 50 words a second: the next word, which shows that the sentence is over, takes 20 ms.
    """
    times: list[float] = []
    ends: dict[str, Passed] = {}

    def reply(request: dict[str, Any]) -> Reply:
        content = request["messages"][-1]["content"]
        end = ends[content if isinstance(content, str) else content[-1]["text"]] = Passed()
        text = (
            "Owls hunt at night. They hear a mouse under the snow, and some of them hunt by day. That is all."
        )
        chunks = re.findall(r"\s*\S+", text)
        return Reply(text=text, chunks=chunks, delay_s=0.02, hold=end, hold_at=4)

    def on_speech(phone: Phone) -> None:
        end = ends.pop(phone.session_id, None)
        if end is not None:
            times.append(time.perf_counter() - end.at)

    service.default = reply
    phones = await connected(server, sessions, "speech")

    async def talk(phone: Phone) -> None:
        phone.on_speech = on_speech
        for _ in range(turns):
            await one_turn(phone, phone.session_id)

    await asyncio.gather(*map(talk, phones))
    for phone in phones:
        phone.abort()
    return {**milliseconds(times), "turns": len(times)}


async def barge_in(server: Process, service: AnthropicService, times: int) -> ToolMetrics:
    """Time the way from an interruption at the phone to the closed request at the model."""
    chunks = ["word "] * 5_000
    service.default = lambda _: Reply(text="".join(chunks), chunks=chunks, delay_s=0.01)
    (phone,) = await connected(server, 1, "barge")
    took: list[float] = []
    for _ in range(times):
        took.append(await _one_barge_in(phone, service))
    phone.abort()
    return {**milliseconds(took), "max_ms": round(max(took) * 1000, 3)}


async def _one_barge_in(phone: Phone, service: AnthropicService) -> float:
    partial, idle = asyncio.Event(), asyncio.Event()
    phone.on_partial = lambda _: partial.set()
    phone.on_idle = lambda _: idle.set()
    gone = len(service.disconnects)
    phone.say("go")
    await asyncio.wait_for(partial.wait(), 10)
    began = asyncio.get_running_loop().time()
    phone.interrupt()
    await service.wait_disconnects(gone + 1)
    await asyncio.wait_for(idle.wait(), 10)
    return service.disconnects[gone] - began


async def idle_memory(server: Process, service: AnthropicService, counts: Sequence[int]) -> ToolMetrics:
    """Resident memory with so many idle sessions, and what one of them takes."""
    figures: ToolMetrics = {"base_mb": round(server.rss() / 1024, 1)}
    phones: list[Phone] = []
    base = 0.0
    for count in counts:
        phones += await connected(server, count - len(phones), f"idle{count}")
        await asyncio.sleep(1)
        rss = server.rss()
        if base:
            figures[f"kb_a_session_at_{count}"] = round((rss - base) / (count - counts[0]), 1)
        else:
            base = rss  # the first ones fill pools and free lists
        figures[f"rss_mb_at_{count}"] = round(rss / 1024, 1)
    for phone in phones:
        phone.abort()
    return figures


async def echo_messages(server: Process, connections: int, seconds: float) -> ToolMetrics:
    """CPU time of a bare echo on the same library: what a message in and out costs at the least."""
    count = [0]

    class Echo(Frames):
        def text(self, data: bytes) -> None:
            count[0] += 1
            self.send(data)

    sockets = [Echo() for _ in range(connections)]
    for one in sockets:
        await one.connect(server.host, server.port, "/")
    payload = b"x" * 200
    for one in sockets:
        one.send(payload)
    await asyncio.sleep(0.5)
    cpu, before = server.cpu(), count[0]
    await asyncio.sleep(seconds)
    used, messages = server.cpu() - cpu, count[0] - before
    for one in sockets:
        one.abort()
    return {
        "cpu_us_a_message": round(used / messages * 1e6, 2),
        "messages_a_second": round(messages / seconds),
    }
