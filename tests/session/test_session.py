"""A session from its first event to its end: every way that a turn can end, at every step it can end at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from conductor.conversation.phrases import FAILURES
from conductor.conversation.records import CallFinished, ReplyLogged, TurnEnded, TurnStarted
from conductor.errors import ModelError
from conductor.events import client
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session import programs
from conductor.settings import Limits
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    TURN_S,
    LocalTools,
    SlowStore,
    Stage,
    at_every_step,
    call,
    faults,
    jump,
    later,
    loose_ends,
    make_services,
    open_stage,
    randomly_slow,
    run,
    steps,
)
from tests.shapes import PLAIN_TURN

SEEDS = [11, 23]


def opened_calls(store: SlowStore) -> list[str]:
    """List the calls of all replies."""
    replies = [record for record in store.records if isinstance(record, ReplyLogged)]
    return [item.call_id for reply in replies for item in reply.message.calls]


def finished_calls(store: SlowStore) -> list[str]:
    """List the calls that were given a result after their reply."""
    finished: list[str] = []
    for record in store.records:
        if isinstance(record, CallFinished):
            finished.append(record.result.call_id)
        elif isinstance(record, TurnEnded):
            finished += [item.result.call_id for item in record.results]
    return finished


def check_rest(stage: Stage, *, calls: bool = True) -> None:
    """Check the promises of a session at rest whose app has answered everything."""
    assert not stage.session.busy
    assert stage.app.states()[-1] == "idle"
    assert faults(stage.session.state.log) == []
    assert loose_ends(stage.session, calls=calls) == {}


# -- anything at all

WORDS = ("alpha ", "bravo ", "charlie ", "delta ")
SENTENCES = (
    "Alpha is the first of all letters. ",
    "Bravo, ",
    "said Charlie to his friend. ",
    "Delta.\n\n- A river ",
)


NAMES = ("device.look", "device.do", "device.pick", "local.sum", "local.wait", "nobody.home")


def random_reply(rng: random.Random, request: ModelRequest, words: Sequence[str] = WORDS) -> Script:
    """Say something, call something, fail, or take time; end after some rounds."""
    rounds = 0
    for message in reversed(request.messages):
        if isinstance(message, UserMessage | Note):
            break
        rounds += isinstance(message, AssistantMessage)
    script: list[Any] = []
    for _ in range(rng.randint(0, 3)):
        script += [TextDelta(rng.choice(words)), rng.choice((0.0, 0.0, 0.1, 3.0))]
    if rng.random() < 0.1:
        return [*script, ModelError("overloaded", "busy")]
    if rounds < 3 and rng.random() < 0.5:
        script += [
            call(rng.choice(NAMES), rng.choice(("{}", '{"x":1}', "{"))) for _ in range(rng.randint(1, 4))
        ]
    return script


class Chaos:
    """A session whose app, store, model and person all do as they like."""

    ACTIONS: ClassVar[Mapping[str, int]] = {
        "say": 4,
        "interrupt": 3,
        "agent": 2,
        "partial": 1,
        "cut": 1,
        "steps": 8,
        "wait": 6,
        "twice": 1,
        "request": 1,
    }

    def __init__(self, rng: random.Random, stage: Stage, store: SlowStore) -> None:
        self.rng = rng
        self.stage = stage
        self.store = store
        self.trail: list[str] = []
        self.requests: list[asyncio.Future[ToolResult]] = []

    async def step(self) -> None:
        action = self.rng.choices(list(self.ACTIONS), list(self.ACTIONS.values()))[0]
        self.trail.append(action)
        app, line = self.stage.app, self.stage.app.line
        if action == "say":
            app.say(f"say {len(self.trail)}")
        elif action == "interrupt":
            app.interrupt(**self.rng.choice(({}, {"spokenText": "al"}, {"playedMs": 100.0})))
        elif action == "agent":
            app.agent_done(f"a-{self.rng.randint(0, 9)}")
        elif action == "partial":
            line.say(client.TranscriptPartial("hm"))
        elif action == "cut":
            line.cut()
            await later(self.rng.choice((0.0, 1.0, 20.0)))
            await app.connect(self.stage.session)
        elif action == "twice":
            await app.connect(self.stage.session)  # a second line, while the first one is still there
        elif action == "request":
            name = self.rng.choice(("device.do", "local.wait", "nobody.home"))
            self.requests.append(asyncio.ensure_future(programs.request(self.stage.session, name, "{}")))
            if self.rng.random() < 0.3:
                self.rng.choice(self.requests).cancel()
        elif action == "steps":
            await steps(self.rng.randint(1, 12))
        elif action == "wait":
            await later(self.rng.choice((0.01, 0.2, 4.0, 40.0)))

    def check(self) -> None:
        stage = self.stage
        check_rest(stage, calls=False)
        assert "internal_error" not in stage.app.error_codes()
        texts = [m.text for m in stage.session.state.log if isinstance(m, UserMessage)]
        assert len(texts) == len(set(texts)), f"answered twice: {texts}"
        records = self.store.records
        assert [record.text for record in records if isinstance(record, TurnStarted) and record.text] == texts
        opened = opened_calls(self.store)
        results = [m.call_id for m in stage.session.state.log if isinstance(m, ToolResult)]
        assert sorted(opened) == sorted(results)
        finished = finished_calls(self.store)
        assert len(finished) == len(set(finished))
        assert all(request.done() for request in self.requests)


def random_device(rng: random.Random) -> Callable[[str, str], str | None | Awaitable[str | None]]:
    """Answer as a device may: at once, after some time, or never."""

    async def slowly(seconds: float) -> str:
        await later(seconds)
        return SPOKEN

    def answer(name: str, call_id: str) -> str | None | Awaitable[str | None]:
        if name == "tts.speak":
            return slowly(rng.choice((0.0, 0.5, 3.0)))
        if name.startswith("convo."):
            return SPOKEN
        seconds = rng.choice((0.0, 0.3, 35.0, None))
        return None if seconds is None else slowly(seconds)

    return answer


async def chaos(seed: int, mode: str, stale_speech: float = -1.0, segments: str = "no") -> None:
    """Do forty things at random, let time pass, and check that nothing is left.

    With a ``stale_speech`` below 0 no speech is ever replayed.
    """
    rng = random.Random(seed)
    store = randomly_slow(rng)
    local = LocalTools()
    local.go.set()
    words = WORDS if segments == "no" else SENTENCES
    services = make_services(
        lambda request: random_reply(rng, request, words=words),
        store=store,
        toolsets=[local],
        mode=mode,
        max_turns=1000,
        stale_speech=stale_speech,
    )
    services = replace(services, speak_segments=segments == "always")
    stage = await open_stage(services, random_device(rng))
    if segments == "capable":
        stage.app.capabilities = ["segments"]
        start = client.SessionStart(capabilities=["segments"])
        await stage.session.clients.start(start, stage.app.line, resumed=False)
    world = Chaos(rng, stage, store)
    try:
        for _ in range(40):
            await world.step()
        await later(2_000)
        await stage.quiet()
        await stage.app.connect(stage.session)  # what was lost with a line is made good by the next one
        await later(100)
        await stage.quiet()
        world.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}; {world.trail}; {stage.app.shapes()[-30:]}") from error


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.extended)], ids=str
)
@pytest.mark.parametrize("mode", ["cancel", "queue"])
def test_nothing_that_can_happen_breaks_a_session(mode: str, seeds: range) -> None:
    for seed in seeds:
        run(chaos(seed, mode))


A_TENTH = pytest.mark.parametrize(
    "seeds", [range(140, 142), pytest.param(range(142, 160), marks=pytest.mark.extended)], ids=str
)


@A_TENTH
def test_nothing_that_can_happen_breaks_a_session_whose_speeches_are_replayed(seeds: range) -> None:
    for seed in seeds:
        run(chaos(seed, "cancel", stale_speech=10.0))


@A_TENTH
@pytest.mark.parametrize("segments", ["always", "capable"])
def test_nothing_that_can_happen_breaks_a_session_that_speaks_in_segments(
    segments: str, seeds: range
) -> None:
    for seed in seeds:
        run(chaos(seed, "cancel", stale_speech=10.0, segments=segments))


def check_one_idle(stage: Stage, since: int = 0) -> None:
    states = stage.app.states(since)
    assert states.count("idle") == 1, states
    assert states[-1] == "idle"


# -- two connections


async def test_the_end_of_a_connection_that_was_replaced_leaves_the_new_one_served() -> None:
    stage = await open_stage(make_services([[TextDelta("Hello.")]]))
    replaced = stage.app.line
    assert replaced is not None
    await stage.app.connect(stage.session)
    replaced.cut()
    await stage.ask("hi")
    assert stage.app.finals() == ["Hello."]


# -- how turns end


@pytest.mark.parametrize("seed", [None, *SEEDS])
async def test_a_plain_turn_has_the_shape_of_the_protocol(seed: int | None) -> None:
    store = randomly_slow(random.Random(seed)) if seed is not None else SlowStore()
    stage = await open_stage(make_services([[TextDelta("Hello "), TextDelta("there.")]], store=store))
    since = len(stage.app.log)
    await stage.ask("hi")
    assert stage.app.shapes(since) == PLAIN_TURN
    assert stage.session.state.log == [
        UserMessage("hi"),
        AssistantMessage(text="Hello there.", provider="scripted"),
    ]
    check_rest(stage)
    since = len(stage.app.log)
    await stage.app.connect(stage.session)
    await stage.quiet()
    assert stage.app.shapes(since) == ["session.started", "state idle"], "nothing is replayed"


@pytest.mark.parametrize("seed", [None, *SEEDS])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([ModelError("overloaded", "busy")], "model_provider_failed"),
        ([TextDelta("Let me see"), ModelError("connection", "cut")], "model_provider_failed"),
        ([TextDelta("x"), 500.0], "turn_timeout"),
    ],
)
@pytest.mark.parametrize("speaks", [True, False])
async def test_a_turn_that_fails_says_so_once_and_ends_idle(
    script: Script, code: str, speaks: bool, seed: int | None
) -> None:
    store = randomly_slow(random.Random(seed)) if seed is not None else SlowStore()
    stage = await open_stage(make_services([script], store=store, failures=FAILURES if speaks else {}))
    since = len(stage.app.log)
    stage.app.say("hi")
    await stage.app.until("state idle", since=since)
    await stage.quiet()
    assert stage.app.error_codes() == [code]
    assert len(stage.app.speeches()) == int(speaks)
    check_one_idle(stage, since)
    check_rest(stage)


LONG: list[Script] = [
    [TextDelta("Let me "), 0.0, TextDelta("look."), 0.0, call("local.sum", '{"x": 1}')],
    [
        TextDelta("Now both."),
        0.0,
        call("device.look"),
        call("device.do"),
        call("local.wait"),
        call("nobody.home"),
    ],
    [0.0, TextDelta("All "), 0.0, TextDelta("done.")],
]


def long_answer(request: ModelRequest) -> Script:
    """Answer "stop" at once, and anything else in three rounds."""
    if request.messages[-1] == UserMessage("stop"):
        return [TextDelta("Second.")]
    if isinstance(request.messages[-1], Note):
        return [TextDelta("So I hear.")]
    return LONG[sum(isinstance(m, AssistantMessage) for m in request.messages)]


def turn_timeout(how: str) -> float:
    return TURN_S if how == "time out" else Limits().turn_timeout


async def end_it(stage: Stage, how: str) -> None:
    if how == "interrupt":
        stage.app.interrupt()
    elif how == "say":
        stage.app.say("stop")
    elif how == "hang up":
        stage.app.line.cut()
        await steps(5)
        await stage.app.connect(stage.session)
    else:
        jump(TURN_S)
    await stage.app.line.drained()


def live(stage: Stage, since: int) -> set[str]:
    """Give the words that were shown as a reply, live or whole."""
    return {
        e["payload"]["text"] for e in stage.app.log[since:] if str(e["type"]).startswith("assistant.speech")
    }


async def come_to_rest(stage: Stage) -> None:
    await later(1000)
    await stage.quiet()


@pytest.mark.parametrize("stride", [10, pytest.param(1, marks=pytest.mark.extended)], ids=["tenth", "all"])
@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize("how", ["interrupt", "say", "time out", "hang up"])
def test_a_turn_may_be_stopped_at_any_step(how: str, delay: int, stride: int) -> None:
    """Stop a turn of three rounds after 0, 1, 2 ... steps of the loop, until it is over before that."""

    async def scenario(after: int) -> bool:
        store = SlowStore(lambda: delay, lambda: delay)
        local = LocalTools()
        local.go.set()
        services = make_services(
            long_answer, store=store, toolsets=[local], partial_interval=0.0, turn_timeout=turn_timeout(how)
        )
        stage = await open_stage(services)
        since = len(stage.app.log)
        stage.app.say("go")
        await steps(after)
        at = len(stage.app.log)
        over = "state idle" in stage.app.shapes(since)
        await end_it(stage, how)
        position = len(stage.app.log)
        await come_to_rest(stage)
        if delay == 0 and how in ("interrupt", "say"):
            assert live(stage, position) <= {"Second.", "So I hear."}, (
                "some of an interrupted answer was shown"
            )
        states = stage.app.states(since)
        assert ("idle", "idle") not in zip(states, states[1:], strict=False) or how == "hang up", states
        if how == "say" and "All done." not in stage.app.finals(since):
            idles = 1 + stage.app.finals(at).count("So I hear.")  # a result that came after its turn
            assert stage.app.states(at).count("idle") == idles, "another turn followed at once"
        check_rest(stage, calls=False)  # their Futures have a test of their own
        if how == "say":
            assert "Second." in stage.app.finals(at), stage.app.shapes(since)
        return over

    at_every_step(scenario, stride)


def test_a_session_may_be_closed_at_any_step() -> None:
    async def scenario(after: int) -> bool:
        local = LocalTools()
        local.go.set()
        stage = await open_stage(make_services(long_answer, toolsets=[local], partial_interval=0.0))
        since = len(stage.app.log)
        stage.app.say("go")
        await stage.app.until("append user", since=since)  # closing before that has a test of its own
        await steps(after)
        over = "state idle" in stage.app.shapes(since)
        await stage.session.close()
        count = len(stage.app.log)
        await later(1000)
        assert len(stage.app.log) == count, "a closed session is silent"
        assert faults(stage.session.state.log) == []
        assert loose_ends(stage.session, calls=False).keys() <= {"open calls"}  # the store has let go of them
        return over

    at_every_step(scenario)
