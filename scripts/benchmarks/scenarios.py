"""The scenarios of scripts/bench: each drives a server from outside and returns its figures."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from benchmarks.nodes import Process
from benchmarks.talker import Talker, connected, disconnect
from tests.links import WebSocket
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


class Talking:
    """Talks without a pause, and measures the turns that end inside a window."""

    def __init__(self, talkers: Sequence[Talker]) -> None:
        self._talkers = talkers
        self._stopping = False
        self._stopped = asyncio.Event()
        self.turns: list[float] = []
        self.errors = 0
        self._busy = 0
        self._resting: list[Talker] | None = None
        self._rested = asyncio.Event()

    async def pause(self) -> None:
        """Start no turn, and wait until the running turns have ended."""
        self._resting = []
        self._rested.clear()
        await asyncio.wait_for(self._rested.wait(), 60)

    def resume(self) -> None:
        resting, self._resting = self._resting or [], None
        for talker in resting:
            talker.say("go")

    async def run(self, warm_up: float, seconds: float, server: Process) -> ToolMetrics:
        """Talk; returns CPU per turn, share of a core, turns a second and the time of a turn."""
        loop = asyncio.get_running_loop()
        for talker in self._talkers:
            talker.on_idle, talker.on_error = self._next, self._failed
            self._busy += 1
            talker.say("go")
        await asyncio.sleep(warm_up)
        self.turns.clear()
        start, cpu = loop.time(), server.cpu()
        await asyncio.sleep(seconds)
        elapsed, cpu_s, turns = loop.time() - start, server.cpu() - cpu, list(self.turns)
        self._stopping = True
        await asyncio.wait_for(self._stopped.wait(), 60)
        return {
            "cpu_ms_a_turn": round(cpu_s / max(1, len(turns)) * 1000, 3),
            "load": round(cpu_s / elapsed, 3),
            "turns_a_second": round(len(turns) / elapsed, 1),
            "errors": self.errors,
            **milliseconds(turns),
        }

    def _next(self, talker: Talker) -> None:
        now = asyncio.get_running_loop().time()
        self.turns.append(now - talker.asked_at)
        if self._stopping:
            self._busy -= 1
            talker.on_idle = lambda _: None
            if not self._busy:
                self._stopped.set()
        elif self._resting is not None:
            self._resting.append(talker)
            if len(self._resting) == self._busy:
                self._rested.set()
        else:
            talker.say("go")

    def _failed(self, talker: Talker) -> None:
        self.errors += 1


async def standard_turns(
    server: Process, service: AnthropicService, sessions: int, seconds: float, warm_up: float = 2.0
) -> ToolMetrics:
    """Run turns of three tool rounds on the device and a 40-token answer, without a pause."""
    service.default = BenchPersona(ROUNDS, TOKENS)
    talkers = await connected(server, sessions, f"turns{sessions}")
    figures = await Talking(talkers).run(warm_up, seconds, server)
    disconnect(talkers)
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
    talkers = await connected(server, sessions, "paced")
    for talker in talkers:
        talker.say("go")
    await asyncio.sleep(2)
    loop = asyncio.get_running_loop()
    start, cpu, partials = loop.time(), server.cpu(), sum(talker.partials for talker in talkers)
    await asyncio.sleep(seconds - 1)
    elapsed, cpu_s = loop.time() - start, server.cpu() - cpu
    partials = sum(talker.partials for talker in talkers) - partials
    disconnect(talkers)
    await service.wait_open(0)
    streamed = per_second * elapsed * sessions
    return {
        "cpu_us_a_token": round(cpu_s / streamed * 1e6, 2),
        "load": round(cpu_s / elapsed, 3),
        "partials_a_second_a_session": round(partials / elapsed / sessions, 1),
    }


async def tool_round(server: Process, service: AnthropicService, turns: int) -> ToolMetrics:
    """Time the way from a device's ``tool.result`` to the next request at the model, in one session."""
    sent_at = [0.0]
    times: list[float] = []
    persona = BenchPersona(ROUNDS, 1)

    def reply(request: dict[str, Any]) -> Reply:
        if sent_at[0]:
            times.append(time.perf_counter() - sent_at[0])
            sent_at[0] = 0.0
        return persona(request)

    service.default = reply
    (talker,) = await connected(server, 1, "round")

    def on_result(_: Talker) -> None:
        sent_at[0] = time.perf_counter()

    talker.on_result = on_result
    cpu = server.cpu()
    for _ in range(turns):
        await talker.turn()
    cpu_s = server.cpu() - cpu
    disconnect([talker])
    return {**milliseconds(times), "cpu_ms_a_round": round(cpu_s / (turns * (ROUNDS + 1)) * 1000, 3)}


async def first_words(server: Process, service: AnthropicService, sessions: int) -> ToolMetrics:
    """Let clients connect and speak at once, two standard turns each; a wait is until the second final.

    Time that other processes used on the server's core does not count.
    """
    service.default = BenchPersona(ROUNDS, TOKENS)
    loop = asyncio.get_running_loop()
    talkers = [Talker(server.url, f"burst-{number}") for number in range(sessions)]
    start, worked, queued = loop.time(), server.worked(), server.queued()

    async def talk(talker: Talker) -> float:
        await talker.connect()
        for _ in range(2):
            await talker.turn(seconds=60)
        return loop.time() - start

    waits = await asyncio.gather(*map(talk, talkers))
    worked, queued, longest = server.worked() - worked, server.queued() - queued, max(waits)
    disconnect(talkers)
    return {
        "longest_s": round(longest, 2),
        "cpu_s": round(worked, 2),
        "core_taken_s": round(queued, 2),
        "longest_over_cpu": round((longest - queued) / worked, 2),
        "longest_over_median": round(longest / percentile(waits, 0.5), 2),
    }


async def first_partial(
    server: Process, service: AnthropicService, sessions: int, per_second: float, seconds: float
) -> ToolMetrics:
    """Time the way from the model's first token to the first partial at the app."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    tokens: dict[str, float] = {}

    def reply(request: dict[str, Any]) -> Reply:
        content = request["messages"][-1]["content"]
        name = content if isinstance(content, str) else content[-1]["text"]
        tokens[name] = time.perf_counter()
        return Reply(text="one two three four five six seven eight nine ten")

    def on_partial(talker: Talker) -> None:
        token = tokens.pop(talker.session_id, None)
        if token is not None:
            times.append(time.perf_counter() - token)

    service.default = reply
    talkers = await connected(server, sessions, "first")
    pause = sessions / per_second
    for talker in talkers:
        talker.on_partial = on_partial
    until = loop.time() + seconds

    async def talk(talker: Talker, after: float) -> None:
        await asyncio.sleep(after)
        while loop.time() < until:
            await talker.turn(talker.session_id)
            await asyncio.sleep(pause)

    await asyncio.gather(*(talk(talker, number / per_second) for number, talker in enumerate(talkers)))
    disconnect(talkers)
    return {**milliseconds(times), "turns": len(times)}


async def whole_sentences(
    server: Process, service: AnthropicService, sessions: int, turns: int
) -> ToolMetrics:
    """Time the way from a whole sentence to the first partial, where half sentences wait and where not.

    Both kinds talk to one server at the same time, in turn.
    """
    service.default = lambda _: Reply(text="It is on.")
    plain = {"capabilities": ["tools", "hints"], "holdUnfinishedMs": 0}
    times: dict[str, list[float]] = {"without": [], "waiting": []}
    talkers = {
        "without": await connected(server, sessions, "plain", **plain),
        "waiting": await connected(server, sessions, "waiting", **plain | {"holdUnfinishedMs": 1_200}),
    }
    for _ in range(turns):
        for kind, several in talkers.items():
            for talker in several:
                began = time.perf_counter()
                times[kind].append(await _first_partial_of(talker) - began)
    for several in talkers.values():
        disconnect(several)
    figures = {f"{kind}_{name}": ms for kind in times for name, ms in milliseconds(times[kind]).items()}
    ratio = figures["waiting_p50_ms"] / figures["without_p50_ms"]
    return {**figures, "waiting_over_without": round(ratio, 2), "turns": len(times["waiting"])}


async def _first_partial_of(talker: Talker) -> float:
    at = 0.0

    def on_partial(_: Talker) -> None:
        nonlocal at
        at = at or time.perf_counter()

    talker.on_partial = on_partial
    await talker.turn("Turn on the lights in the kitchen, please.")
    return at


class Passed(asyncio.Event):
    """A hold of a reply that does not wait, and notes the time."""

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

    def on_speech(talker: Talker) -> None:
        end = ends.pop(talker.session_id, None)
        if end is not None:
            times.append(time.perf_counter() - end.at)

    service.default = reply
    talkers = await connected(server, sessions, "speech")

    async def talk(talker: Talker) -> None:
        talker.on_speech = on_speech
        for _ in range(turns):
            await talker.turn(talker.session_id)

    await asyncio.gather(*map(talk, talkers))
    disconnect(talkers)
    return {**milliseconds(times), "turns": len(times)}


async def barge_in(server: Process, service: AnthropicService, times: int) -> ToolMetrics:
    """Time the way from an interruption at the app to the closed request at the model."""
    chunks = ["word "] * 5_000
    service.default = lambda _: Reply(text="".join(chunks), chunks=chunks, delay_s=0.01)
    (talker,) = await connected(server, 1, "barge")
    elapsed: list[float] = []
    for _ in range(times):
        elapsed.append(await _one_barge_in(talker, service))
    disconnect([talker])
    return {**milliseconds(elapsed), "max_ms": round(max(elapsed) * 1000, 3)}


async def _one_barge_in(talker: Talker, service: AnthropicService) -> float:
    partial, idle = asyncio.Event(), asyncio.Event()
    talker.on_partial = lambda _: partial.set()
    talker.on_idle = lambda _: idle.set()
    before = len(service.disconnects)
    talker.say("go")
    await asyncio.wait_for(partial.wait(), 10)
    start = asyncio.get_running_loop().time()
    talker.interrupt()
    await service.wait_disconnects(before + 1)
    await asyncio.wait_for(idle.wait(), 10)
    return service.disconnects[before] - start


_STORY = ["Here is one more sentence of the story that is told. "] * 400
_ONSET_S = 0.02
"""From the first sound to the person's words."""


async def paused_barge_in(server: Process, service: AnthropicService, times: int) -> ToolMetrics:
    """Time an interruption of a reply in segments, and one after a pause, in turn.

    ``speech`` is from the first sound to the last ``tts.speak`` of the reply that still arrives, ``words``
    from the person's words to their turn.
    """
    service.default = lambda _: Reply(text="".join(_STORY), chunks=_STORY, delay_s=0.005)
    talkers = await connected(server, 2, "pause")
    elapsed: dict[str, list[float]] = defaultdict(list)
    for talker in talkers:
        talker.send("session.start", {"capabilities": ["segments", "pause"]})
        talker.answers_speech = False
    for _ in range(times):
        for talker, name in zip(talkers, ("interrupted", "paused"), strict=True):
            await _one_paused_barge_in(talker, service, name, elapsed)
    disconnect(talkers)
    return {
        f"{name}_{figure}": value
        for name, seconds in sorted(elapsed.items())
        for figure, value in milliseconds(seconds).items()
    }


async def _one_paused_barge_in(
    talker: Talker, service: AnthropicService, name: str, elapsed: Mapping[str, list[float]]
) -> None:
    now = asyncio.get_running_loop().time
    speeches = 0
    last_at, taken, spoken = 0.0, asyncio.Event(), asyncio.Event()

    def on_speech(_: Talker) -> None:
        nonlocal speeches, last_at
        speeches, last_at = speeches + 1, now()
        if speeches == 3:
            spoken.set()

    talker.on_speech, talker.on_user = on_speech, lambda _: None
    before = len(service.disconnects)
    talker.say("go")
    await asyncio.wait_for(spoken.wait(), 10)
    talker.on_user = lambda _: taken.set()
    first_sound = now()
    if name == "paused":
        talker.pause(spokenText="Here is")
    else:
        talker.interrupt(spokenText="Here is")
    await asyncio.sleep(_ONSET_S)
    said_at = now()
    talker.on_speech = lambda _: None
    elapsed[f"{name}_speech"].append(max(0.0, last_at - first_sound))
    talker.say("stop")
    await asyncio.wait_for(taken.wait(), 10)
    elapsed[f"{name}_words"].append(now() - said_at)
    await service.wait_disconnects(before + 1)
    writes = asyncio.Event()
    talker.on_partial = lambda _: writes.set()
    await asyncio.wait_for(writes.wait(), 10)
    talker.interrupt()
    await service.wait_disconnects(before + 2)
    talker.on_partial = lambda _: None
    for call_id in talker.unanswered:
        talker.result(call_id, "{}")
    talker.unanswered.clear()
    await asyncio.sleep(0.02)


async def idle_memory(server: Process, service: AnthropicService, counts: Sequence[int]) -> ToolMetrics:
    """Measure resident memory with idle sessions, in total and for each."""
    figures: ToolMetrics = {"base_mb": round(server.rss() / 1024, 1)}
    talkers: list[Talker] = []
    base = 0.0
    for count in counts:
        talkers += await connected(server, count - len(talkers), f"idle{count}")
        await asyncio.sleep(1)
        rss = server.rss()
        if base:
            figures[f"kb_a_session_at_{count}"] = round((rss - base) / (count - counts[0]), 1)
        else:
            base = rss  # the first ones fill pools and free lists
        figures[f"rss_mb_at_{count}"] = round(rss / 1024, 1)
    disconnect(talkers)
    return figures


async def echo_messages(server: Process, connections: int, seconds: float) -> ToolMetrics:
    """Measure a bare echo on the same library: the least CPU time of a message in and out."""
    count = 0

    async def echo() -> WebSocket:
        def send_again(data: bytes) -> None:
            nonlocal count
            count += 1
            socket.write(data)

        socket = WebSocket(send_again)
        await socket.open(f"ws://{server.host}:{server.port}/")
        socket.write(b"x" * 200)
        return socket

    sockets = [await echo() for _ in range(connections)]
    await asyncio.sleep(0.5)
    cpu, before = server.cpu(), count
    await asyncio.sleep(seconds)
    cpu_s, messages = server.cpu() - cpu, count - before
    for socket in sockets:
        socket.cut()
    return {
        "cpu_us_a_message": round(cpu_s / messages * 1e6, 2),
        "messages_a_second": round(messages / seconds),
    }
