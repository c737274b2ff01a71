"""Looks for inputs that hold the event loop: plays them to a real session, and keeps the slowest."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import logging
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from benchmarks.stall_inputs import PATHS, Data, NoInput, Scene, frame_text, mutated
from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.conversation.transport import Frame
from conductor.events import client
from conductor.events.codec import InvalidFrame, decode_event
from conductor.messages import ToolCall
from conductor.models.base import ModelRequest, TextDelta
from conductor.rate_limit import Admission
from conductor.settings import Limits
from conductor.stores.base import SessionKey
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, succeeded
from conductor.tools.builtin import BuiltinToolset
from conductor.tools.declarations import read_declarations
from conductor.tools.redaction import Redactor
from tests.conversation.helpers import VirtualLoop
from tests.models import Script, ScriptedProvider, Step

BOUND_S = 0.05
"""CPU time that one callback of the loop may take (tools, "Nothing blocks the loop")."""
SECRETS = ("a-key-that-nobody-should-see-1", "a-token-that-nobody-should-see-2")
LIMITS = replace(Limits(), turns_per_minute=1e9, calls_per_minute=1e9)
KEY = SessionKey("ann", "s-1")
KEPT = 6
"""Inputs of each path that are mutated further: the slowest."""
FRESH = 0.3
"""The share of inputs that are made and not mutated."""
PATIENCE = 400
"""Seconds of virtual time that a session has to come to rest."""


# -- what a callback takes


@dataclass
class Longest:
    """The callback that took the most CPU time."""

    seconds: float = 0.0
    name: str = ""


@contextmanager
def watched() -> Iterator[Longest]:
    """Time every callback of asyncio's loops but those of tasks named ``client``."""
    longest, run = Longest(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > longest.seconds and (name := _name(handle)) != "client":
            longest.seconds, longest.name = took, name

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment] # asyncio has no hook for it
    try:
        yield longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign] # as it was


def _name(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback")  # noqa: B009 -- no public way leads to it
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return "client" if task.get_name() == "client" else getattr(task.get_coro(), "__qualname__", "a task")
    return getattr(callback, "__qualname__", repr(callback))


# -- a session and its client


class _Local:
    """A tool of the server's own that gives what the scene says, and holds the loop as long as it says."""

    def __init__(self, scene: Scene) -> None:
        self._data, self._busy_s = scene.data, scene.busy_s

    def specs(self) -> Sequence[ToolSpec]:
        """List it."""
        schema = {"type": "object"}
        return (ToolSpec("local.get", "Gets it.", schema, source="builtin", risk="safe", effect="read"),)

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Give it."""
        began = time.thread_time()
        while time.thread_time() - began < self._busy_s:
            pass
        return succeeded(self._data)


class _Client:
    """The other end of a session: says what the scene has it say, and answers calls and questions."""

    resumes = False
    segments = False

    def __init__(self, session: Session, scene: Scene) -> None:
        self._session = session
        self._admission = Admission()
        self._scene = scene
        self._said = list(scene.answers)
        self._edited = False
        self._number = 0
        self._down: asyncio.Queue[bytes] = asyncio.Queue()
        self._up: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks = (asyncio.create_task(self._serve()), asyncio.create_task(self._handle(), name="client"))

    async def play(self) -> None:
        """Start the session, say everything, and wait until it rests."""
        self._say("session.start", self._scene.start)
        for event in self._scene.events:
            if isinstance(event, str):
                self._up.put_nowait(event.encode("utf-8", "surrogateescape"))
            else:
                self._say(*event)
        for _ in range(PATIENCE):
            await asyncio.gather(self._up.join(), self._down.join())
            if not self._session.busy:
                break
            await asyncio.sleep(1)
        await self._session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                task.result()

    # `Transport`

    def send(self, frame: Frame) -> None:
        """Take a frame."""
        self._down.put_nowait(frame.data)

    def drop_partials(self) -> None:
        """Keep them: they are cheap."""

    def suspend(self) -> None:
        """Do nothing: there is no other connection."""

    def close(self, code: int, reason: str) -> None:
        """Do nothing: the scene ends by itself."""

    def ownership_lost(self, *, stale: bool) -> None:
        """Do nothing: no other process has the store."""

    # the server's side

    async def _serve(self) -> None:
        """Take frames as a connection does."""
        while True:
            frame = await self._up.get()
            try:
                inbound = decode_event(frame, LIMITS.max_event_bytes)
                if isinstance(inbound.event, client.SessionStart):
                    readings = await read_declarations(inbound.event.tools or (), self._admission)
                    known = await self._session.learn(inbound.event)
                    self._session.start(inbound.event, self, resumed=False, known=known, readings=readings)
                    await self._session.flush()
                else:
                    await self._session.receive(inbound, self)
            except InvalidFrame:
                pass
            finally:
                self._up.task_done()

    # the client's side

    async def _handle(self) -> None:
        while True:
            event = json.loads(await self._down.get())
            if event["type"] == "tool.call":
                self._answer(event["payload"])
            elif event["type"] == "approval.request":
                self._decide(event["payload"])
            self._down.task_done()

    def _say(self, event_type: str, payload: Mapping[str, Any]) -> None:
        self._number += 1
        event = {"id": f"e-{self._number}", "type": event_type, "timestamp": "t", "sessionId": KEY.session_id}
        self._up.put_nowait(frame_text({**event, "payload": payload}).encode(errors="replace"))

    def _answer(self, call: Mapping[str, Any]) -> None:
        ui = call["name"].startswith(("convo.", "tts."))
        outcome = {"result": '{"ok":true}'} if ui else self._scene.outcome
        self._say("tool.result", {"callId": call["callId"], **outcome})
        if call["name"] == "convo.setState" and '"idle"' in call["arguments"] and self._said:
            self._say("user.audio.transcript.final", {"text": self._said.pop(0)})

    def _decide(self, request: Mapping[str, Any]) -> None:
        of = {"approvalId": request["approvalId"], "argumentsDigest": request["argumentsDigest"]}
        edits = [] if self._edited else self._scene.edits
        if edits:
            self._edited = True
            decisions = [{**of, "decision": "edit", "editedArguments": edit} for edit in edits]
            self._say("approval.response", {"decisions": decisions})
        self._say("approval.response", {**of, "decision": "deny"})


async def _play(scene: Scene) -> None:
    asyncio.current_task().set_name("client")  # type: ignore[union-attr] # there is one
    replies = iter(scene.replies)

    def reply(_: ModelRequest) -> Script:
        return [_step(step) for step in next(replies, ["Done."])]

    services = Services(
        MemoryStore(),
        ScriptedProvider(reply),
        (BuiltinToolset(), _Local(scene)),
        (),
        "Be brief.",
        LIMITS,
        rules=scene.rules,
        redactor=Redactor(SECRETS, paths=True),
    )
    session = Session(services, await services.store.claim(KEY))
    await _Client(session, scene).play()


def _step(step: str | Sequence[str]) -> Step:
    return TextDelta(step) if isinstance(step, str) else ToolCall("model's", step[0], step[1])


def play(path: str, data: Data) -> Longest:
    """Play an input in virtual time; tells which callback took longest. Raises `NoInput`."""
    return play_scene(PATHS[path].scene(data))


def play_scene(scene: Scene) -> Longest:
    """Play a scene in virtual time; tells which callback took longest."""
    gc.collect()
    with watched() as longest, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_play(scene))
    return longest


# -- the search


@dataclass
class Found:
    """What is known of a path: how many inputs it had, and the slowest of them."""

    inputs: int = 0
    spent: float = 0.0
    slowest: list[tuple[float, str, Data]] = field(default_factory=list)

    def note(self, longest: Longest, data: Data) -> None:
        """Keep it if it is among the slowest."""
        self.inputs += 1
        self.slowest.append((longest.seconds, longest.name, data))
        self.slowest.sort(key=lambda each: -each[0])
        del self.slowest[KEPT:]


def search(seconds: float, seed: int, paths: Sequence[str] = tuple(PATHS)) -> dict[str, Found]:
    """Play inputs for so many seconds, at least one for each path; one seed makes the same ones."""
    rngs = {name: random.Random(f"{seed} {name}") for name in paths}
    seeds = {name: iter(PATHS[name].seeds) for name in paths}
    found = {name: Found() for name in paths}
    until = time.monotonic() + seconds
    for name in paths:
        play(name, PATHS[name].seeds[0])  # loads what is loaded when it is needed
    gc.freeze()  # or each play would look through all modules
    try:
        while time.monotonic() < until or not all(known.spent for known in found.values()):
            name = min(paths, key=lambda each: found[each].spent)
            rng, known = rngs[name], found[name]
            data = next(seeds[name], None)
            if data is None and known.slowest and rng.random() > FRESH:
                data = mutated(rng.choice(known.slowest)[2], rng)
            began = time.monotonic()
            data = PATHS[name].make(rng) if data is None else data
            with suppress(NoInput):
                known.note(play(name, data), data)
            known.spent += time.monotonic() - began
    finally:
        gc.unfreeze()
    return found


def confirmed(file: Path) -> float:
    """Play a saved input in new processes, where nothing of it is cached, and give the least that it took."""
    replay = [
        sys.executable,
        str(Path(__file__).resolve().parent.parent / "fuzz"),
        "--stalls",
        "--replay",
        str(file),
    ]
    runs = [subprocess.run(replay, capture_output=True, text=True, check=False).stdout for _ in range(5)]
    return min(float(run.split()[0]) / 1000 for run in runs)


def main(arguments: Sequence[str]) -> int:
    """Search, or replay; 1 if an input holds the loop for longer than `BOUND_S`."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz --stalls", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to look (120)")
    parser.add_argument("--seed", type=int, help="decides the inputs; another one in each run if left out")
    parser.add_argument(
        "--path", action="append", choices=list(PATHS), help="only this path; may be repeated"
    )
    parser.add_argument("--keep", type=Path, help="the folder for the slowest inputs (a temporary one)")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="play one saved input, and tell where its time goes"
    )
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.replay is not None:
        return _replay(options.replay)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    keep = options.keep or Path(tempfile.mkdtemp(prefix="stalls-"))
    keep.mkdir(parents=True, exist_ok=True)
    return _report(search(options.seconds, seed, options.path or list(PATHS)), keep)


def _report(found: Mapping[str, Found], keep: Path) -> int:
    print(f"{'path':<14}{'inputs':>8}{'slowest':>10}{'bytes':>10}  callback; the input")
    worst = 0.0
    for name, known in found.items():
        seconds, callback, data = known.slowest[0]
        file = keep / f"{name.replace(' ', '-')}.json"
        text = json.dumps({"path": name, "data": data})
        file.write_text(text)
        if seconds > BOUND_S:
            seconds = confirmed(file)
        worst = max(worst, seconds)
        over = "  OVER" if seconds > BOUND_S else ""
        print(
            f"{name:<14}{known.inputs:>8}{seconds * 1000:>7.1f} ms{len(text):>10}  {callback}; {file}{over}"
        )
    return int(worst > BOUND_S)


def _replay(file: Path) -> int:
    try:
        saved = json.loads(file.read_text())
        path, data = saved["path"], saved["data"]
        PATHS[path].scene(data)
    except (OSError, ValueError, KeyError, TypeError, NoInput) as error:
        print(f"{file} is no input that was saved here: {error!r}.", file=sys.stderr)
        return 2
    play(path, PATHS[path].seeds[0])
    longest = play(path, data)
    print(f"{longest.seconds * 1000:.1f} ms in {longest.name}", flush=True)
    if longest.seconds > BOUND_S:
        profile = cProfile.Profile()
        profile.runcall(play, path, data)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(8)
    return int(longest.seconds > BOUND_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
