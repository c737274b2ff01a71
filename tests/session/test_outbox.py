"""The outbox against a simple model of the shipped app, which handles one event after the other."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import pytest

from conductor.conversation.state import Conversation, Event, Pause
from conductor.rate_limit import STILL_S
from conductor.session.outbox import Outbox
from conductor.session.transport import Frame
from tests.conversation.build import view
from tests.session.helpers import jump, later, limits, now_ms, run, virtual_loop

Kind = Literal["call", "final", "message", "state", "speak", "approval", "resume"]
CALL_LIMIT, UI_LIMIT, SPEECH_LIMIT = 30.0, 5.0, 20.0


def make_event(number: int, kind: Kind, *, effect: Any = "write", age_s: float = 0.0) -> Event:
    """Make an event whose payload describes it; ``number`` is its position."""
    call_id = "" if kind in ("final", "resume") else f"c{number}"
    arguments = json.dumps({"state": "idle"})
    call_effect = effect if kind == "call" else ""
    payload = {"kind": kind, "callId": call_id, "n": number, "effect": call_effect, "arguments": arguments}
    at = now_ms() - round(age_s * 1000)
    data = json.dumps(payload).encode()
    return Event(
        id=f"evt_a_{number:x}",
        kind=kind,
        type=kind,
        payload=data,
        at=at,
        call_id=call_id,
        effect=effect,
        limit_ms=round(CALL_LIMIT * 1000),
    )


class Wire:
    """A transport that writes at once, or, where it is ``slow``, when it is let."""

    resumes = False
    segments = False
    is_forwarded = False

    def __init__(self, *, slow: bool = False) -> None:
        self.slow = slow
        self.frames: list[Frame] = []
        self.queue: deque[Frame] = deque()

    def send(self, frame: Frame) -> None:
        self.queue.append(frame)
        if not self.slow:
            self.write(len(self.queue))

    def write(self, number: int) -> None:
        for _ in range(min(number, len(self.queue))):
            frame = self.queue.popleft()
            if not frame.withdrawn:
                frame.is_written = True
                self.frames.append(frame)

    def drop_partials(self) -> None:
        """Do nothing: the tests send no partials to drop."""

    def suspend(self) -> None:
        self.queue.clear()

    def close(self, code: int, reason: str) -> None:
        raise AssertionError("the outbox closes no transport")

    def ownership_lost(self, *, stale: bool) -> None:
        raise AssertionError("the outbox has no session")

    def events(self) -> list[dict[str, Any]]:
        return [described(frame) for frame in self.frames]

    def ids(self) -> list[str]:
        return [event["id"] for event in self.events()]


def described(frame: Frame) -> dict[str, Any]:
    """Read a frame; the id of a durable event is its position."""
    payload: dict[str, Any] = json.loads(frame.data)["payload"]
    return {"id": f"e{payload['n']}", **payload}


class Bench:
    """An outbox with its timer, the events that are not acknowledged, and the calls that expired."""

    def __init__(self, **changed: Any) -> None:
        bounds = {"ui_timeout": UI_LIMIT, "speech_timeout": SPEECH_LIMIT, "speech_seconds_per_char": 0.0}
        self.expired: list[tuple[str, float]] = []
        self.view = view(Conversation(), now=now_ms)
        bound = limits(**{**bounds, "stale_speech": 1e6, **changed})
        self.outbox = Outbox("s-1", "a", self.view, bound, on_expired=self._expire, on_deadline=self._wake_at)
        self.outbound: dict[str, Event] = {}
        self.numbers = 0
        self._timer: asyncio.TimerHandle | None = None

    def _expire(self, event: Event) -> None:
        self.expired.append((event.call_id, asyncio.get_running_loop().time()))

    def _wake_at(self, at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0.001, (at - now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self.outbox.tick()
        self.look()

    def look(self) -> None:
        """Stop the timer if nothing waits."""
        if self.outbox.deadline is None and self._timer is not None:
            self._timer.cancel()

    def put(self, kind: Kind, *, effect: str = "write", age_s: float = 0.0) -> str:
        """Put an event; returns its name, whose call id has a "c" for the "e"."""
        self.numbers += 1
        event = make_event(self.numbers, kind, effect=effect, age_s=age_s)
        self.outbound = {event.id: event for event in self.unacknowledged()}
        self.outbound[event.id] = event
        self.outbox.put([event], self.outbound)
        self.look()
        return f"e{self.numbers}"

    def acknowledge(self, call_id: str) -> bool:
        was_outstanding = self.outbox.acknowledge(call_id)
        self.look()
        return was_outstanding

    def forget(self, call_id: str) -> None:
        """Have the conversation drop a call, a speech or a card."""
        self.outbound = {event.id: event for event in self.unacknowledged() if event.call_id != call_id}
        self.outbox.put([], self.outbound)
        self.look()

    def withdraw(self, call_id: str) -> bool:
        """Drop a call that no socket had; False if a socket had it."""
        if self.view.was_sent(call_id) or not self.outbox.is_outstanding(call_id):
            return False
        self.forget(call_id)
        return True

    def unacknowledged(self) -> list[Event]:
        """List the events that are not acknowledged."""
        return [event for event in self.outbound.values() if event.id not in self.outbox.acked]

    def removed(self) -> set[str]:
        return {f"e{int(event_id.rpartition('_')[2], 16)}" for event_id in self.outbox.acked}

    def attach(self, wire: Wire) -> None:
        """Connect a client that does not report its runs: writes that were sent are withheld from it."""
        if self.outbox.transport is not None:
            self.outbox.detach()
        for event in self.unacknowledged():
            event.withheld = (
                event.kind == "call" and event.effect != "read" and self.view.was_sent(event.call_id)
            )
        self.outbox.attach(wire)
        self.look()

    def detach(self) -> None:
        self.outbox.detach()
        self.look()

    def extend(self, call_id: str) -> None:
        self.outbox.extend(call_id)
        self.look()

    def connect(self, *, slow: bool = False) -> Wire:
        wire = Wire(slow=slow)
        self.attach(wire)
        return wire

    async def quiet(self) -> None:
        while self.outbox.outstanding:
            await later(0.01)

    def rests(self) -> bool:
        """Whether nothing is kept, nothing held, and no clock running."""
        outbox = self.outbox
        waited_for = any(outbox.is_outstanding(f"c{number}") for number in range(1, self.numbers + 1))
        remains = self.unacknowledged() or outbox.outstanding or outbox.speaking or waited_for
        return not remains and not virtual_loop().timers


async def test_an_answer_acknowledges_earlier_events_except_speeches_calls_and_questions() -> None:
    bench = Bench()
    wire = bench.connect(slow=True)
    for kind in ("state", "final", "approval", "speak", "call", "message", "state"):
        bench.put(kind)
    wire.write(5)
    bench.acknowledge("c7")
    assert bench.removed() == {"e1", "e2", "e7"}, "the message was not written"
    assert bench.outbox.speaking
    wire.write(2)
    assert wire.ids()[-2:] == ["e6", "e7"]


async def test_a_second_speech_is_held_with_all_later_events() -> None:
    bench = Bench()
    wire = bench.connect()
    for kind in ("speak", "state", "speak", "state", "call"):
        bench.put(kind)
    bench.outbox.flash("shown", b'{"id":"shown","n":0}')
    bench.outbox.flash("partial", b'{"id":"partial","n":0}', partial=True)  # a later one comes anyway
    assert wire.ids() == ["e1", "e2"]
    bench.acknowledge("c1")
    assert wire.ids() == ["e1", "e2", "e3", "e4", "e5", "shown"]


async def test_an_unanswered_speech_is_over_after_its_limit() -> None:
    bench = Bench()
    wire = bench.connect()
    began_at = asyncio.get_running_loop().time()
    bench.put("speak")
    bench.put("speak")
    await later(SPEECH_LIMIT + 0.1)
    assert wire.ids() == ["e1", "e2"]
    assert bench.expired == [("c1", began_at + SPEECH_LIMIT)]


async def test_the_limit_of_a_call_runs_from_the_answer_to_the_call_before_it() -> None:
    bench = Bench()
    bench.connect()
    loop = asyncio.get_running_loop()
    bench.put("call")
    bench.put("call")
    bench.put("call")
    await later(20)
    bench.acknowledge("c1")
    answered_at = loop.time()
    await later(100)
    assert bench.expired == [("c2", answered_at + CALL_LIMIT), ("c3", answered_at + 2 * CALL_LIMIT)]
    assert bench.rests()


async def test_an_abandoned_call_stays_in_the_queue_until_its_answer() -> None:
    bench = Bench()
    wire = bench.connect()
    bench.put("call")
    bench.put("call")
    bench.forget("c1")
    assert bench.removed() == set()
    await later(CALL_LIMIT - 1)
    assert bench.acknowledge("c1") is not None
    answered_at = asyncio.get_running_loop().time()
    await later(100)
    assert bench.expired == [("c2", answered_at + CALL_LIMIT)]
    assert bench.rests()
    assert wire.ids() == ["e1", "e2"]


async def test_a_replay_has_only_the_latest_state_and_no_stale_speech_and_is_in_order() -> None:
    bench = Bench(stale_speech=10.0)
    for kind in ("state", "message", "final", "message", "state"):
        bench.put(kind)
    bench.put("speak", age_s=11.0)
    bench.put("speak", age_s=1.0)
    bench.put("state")
    bench.put("message")
    assert bench.connect().ids() == ["e2", "e3", "e4", "e7", "e8", "e9"]
    assert bench.removed() == {"e1", "e5", "e6"}


async def test_calls_time_out_without_a_connection() -> None:
    bench = Bench()
    began_at = asyncio.get_running_loop().time()
    bench.put("call")
    bench.put("state")
    await later(100)
    assert bench.expired == [("c1", began_at + CALL_LIMIT)]


async def test_a_client_without_acknowledgements_is_recognised_after_its_first_turn() -> None:
    bench = Bench()
    wire = bench.connect()
    for _ in range(10):
        bench.outbox.expect_no_acknowledgements()
        for kind in ("state", "message", "final", "message", "state", "speak", "state"):
            bench.put(kind)
    assert wire.ids() == [f"e{n}" for n in range(1, 71)]
    began_at = asyncio.get_running_loop().time()
    bench.put("call")
    await later(100)
    assert [call for call in bench.expired if call[0] == "c71"] == [("c71", began_at + CALL_LIMIT)]


async def test_a_speech_with_a_lost_answer_does_not_hold_the_next_one() -> None:
    """The app drops the replayed speech and answers later events: the speech is over."""
    bench = Bench()
    bench.connect()
    bench.put("speak")
    bench.put("state")
    bench.detach()  # its answer is lost: the app sends each only once
    wire = bench.connect()
    assert wire.ids() == ["e1", "e2"]
    for kind in ("state", "message"):
        event_id = bench.put(kind)
        bench.acknowledge(event_id.replace("e", "c"))
    bench.put("speak")
    assert wire.ids()[-1] == "e5"


# -- questions


async def test_a_question_has_no_time_limit_and_holds_no_event() -> None:
    bench = Bench()
    wire = bench.connect()
    bench.put("approval")
    assert not bench.outbox.outstanding
    began_at = asyncio.get_running_loop().time()
    bench.put("call")
    bench.put("approval")
    await later(10_000)
    assert wire.ids() == ["e1", "e2", "e3"]
    assert bench.expired == [("c2", began_at + CALL_LIMIT)]
    assert bench.outbox.is_outstanding("c1") and bench.outbox.is_outstanding("c3")
    assert len(bench.unacknowledged()) == 2


@pytest.mark.parametrize(("silent", "waited_for"), [("approval", True), ("state", False)])
async def test_unanswered_questions_do_not_count_as_missing_acknowledgements(
    silent: Kind, waited_for: bool
) -> None:
    bench = Bench()
    wire = bench.connect()
    for _ in range(4):
        bench.put(silent)
    bench.put("speak")
    bench.outbox.expect_no_acknowledgements()
    bench.put("speak")
    assert (wire.ids()[-1] == "e5") == waited_for


# -- signs of life


async def test_a_sign_of_life_extends_only_its_own_call() -> None:
    bench = Bench()
    bench.connect()
    began_at = asyncio.get_running_loop().time()
    for kind in ("call", "call", "speak", "approval"):
        bench.put(kind)
    await later(10)
    for call_id in ("c2", "c3", "c4", "unknown"):
        bench.extend(call_id)
    await later(200)
    assert bench.expired == [
        ("c1", began_at + CALL_LIMIT),
        ("c2", began_at + 2 * CALL_LIMIT),
        ("c3", began_at + 2 * CALL_LIMIT + SPEECH_LIMIT),
    ]


# -- a process that was suspended


@pytest.mark.parametrize(
    ("seconds", "expires"),
    [
        (20 + STILL_S - 0.1, 30 + STILL_S - 0.1),  # a long piece of work
        (20 + 2.0, 30 + 2.0 + 2.0),
        (20 + 90.0, 30 + 90.0 + CALL_LIMIT),
    ],
)
async def test_a_timer_that_fires_late_gives_its_call_more_time(seconds: float, expires: float) -> None:
    bench = Bench()
    bench.connect()
    start = virtual_loop().time()
    bench.put("call")
    await later(10)
    jump(seconds)
    await bench.quiet()
    assert [time - start for _, time in bench.expired] == pytest.approx([expires])


async def test_calls_expire_in_a_process_that_is_suspended_again_and_again() -> None:
    bench = Bench()
    bench.connect()
    bench.put("call")
    active = 0.0
    while not bench.expired:
        jump(2.0)
        await later(1.0)
        active += 1.0
    assert active <= CALL_LIMIT


# -- the model


@dataclass
class Phone:
    """The shipped app: one event after the other, each id once, an answer to each call, sent once."""

    bench: Bench
    wire: Wire | None = None
    received: int = 0
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    handled_ids: set[str] = field(default_factory=set)
    busy: dict[str, Any] | None = None
    ran: list[str] = field(default_factory=list)

    def take(self) -> None:
        """Receive the written frames."""
        if self.wire is not None:
            events = self.wire.events()
            self.inbox.extend(events[self.received :])
            self.received = len(events)

    def work(self) -> None:
        """Handle events until one takes its time."""
        while self.busy is None and self.inbox:
            event = self.inbox.popleft()
            if event["id"] in self.handled_ids:
                continue
            self.handled_ids.add(event["id"])
            if event["kind"] in ("call", "speak"):
                self.busy = event
                self.ran.append(event["id"])
            elif event["callId"] and event["kind"] != "approval":
                self.answer(event)

    def finish(self) -> None:
        if self.busy is not None:
            event, self.busy = self.busy, None
            self.answer(event)

    def answer(self, event: dict[str, Any]) -> None:
        if self.wire is not None:
            self.bench.acknowledge(event["callId"])


OPERATIONS = (
    "put",
    "write",
    "work",
    "finish",
    "wait",
    "cut",
    "connect",
    "end",
    "withdraw",
    "abandon",
    "show",
)
WEIGHTS = (6, 6, 6, 5, 3, 1, 2, 1, 1, 1, 1)
KINDS: tuple[Kind, ...] = ("state", "message", "final", "speak", "call", "call")


class Walk:
    """A random walk of an outbox and its phone, checked after each step."""

    kinds: tuple[Kind, ...] = KINDS
    operations: Mapping[str, int] = dict(zip(OPERATIONS, WEIGHTS, strict=True))

    def __init__(self, rng: random.Random, *, answers_interrupted: bool) -> None:
        self.rng = rng
        self.answers_interrupted = answers_interrupted
        self.bench = Bench()
        self.phone = Phone(self.bench)
        self.over: set[str] = set()
        self.calls: list[str] = []
        self.frames: list[dict[str, Any]] = []
        self.trail: list[str] = []

    async def step(self) -> None:
        name = self.rng.choices(list(self.operations), list(self.operations.values()))[0]
        self.trail.append(name)
        await getattr(self, name)()
        self.phone.take()
        self.check()

    async def put(self) -> None:
        kind = self.rng.choice(self.kinds)
        effect = self.rng.choice(("read", "write", "irreversible"))
        event_id = self.bench.put(kind, effect=effect, age_s=self.rng.choice((0.0, 0.0, 60.0)))
        self.trail[-1] += f" {event_id} {kind} {effect}"
        if kind in ("call", "approval"):
            self.calls.append(event_id)

    async def show(self) -> None:
        self.bench.numbers += 1
        number = self.bench.numbers
        data = json.dumps({"kind": "shown", "callId": "", "n": number})
        self.bench.outbox.flash("shown", data.encode())

    async def write(self) -> None:
        if self.phone.wire is not None:
            self.phone.wire.write(self.rng.randint(1, 5))

    async def work(self) -> None:
        self.phone.work()

    async def finish(self) -> None:
        self.phone.finish()

    async def wait(self) -> None:
        await later(self.rng.choice((0.1, 3.0, 12.0)))

    def let_go(self) -> None:
        if self.phone.wire is not None:
            self.phone.wire.suspend()
            self.frames += self.phone.wire.events()
        self.phone.wire = None

    async def cut(self) -> None:
        self.let_go()
        self.phone.received = 0
        self.bench.detach()

    async def connect(self) -> None:
        self.let_go()
        self.phone.wire = Wire(slow=True)
        self.phone.received = 0
        self.bench.attach(self.phone.wire)
        replayed = [described(f) for f in self.phone.wire.queue]
        kinds = [event["kind"] for event in replayed]
        alone = [
            kind
            for kind, following in zip_longest(kinds, kinds[1:])
            if kind == "state" and following != "speak"
        ]
        assert len(alone) <= 1, f"replayed {kinds}"

    async def end(self) -> None:
        """Interrupt the phone's speech."""
        if self.phone.busy is not None and self.phone.busy["kind"] == "speak" and self.phone.wire is not None:
            self.over.add(self.phone.busy["id"])
            self.bench.forget(self.phone.busy["callId"])
            if self.answers_interrupted:
                self.phone.finish()

    async def withdraw(self) -> None:
        if self.calls:
            event_id = self.rng.choice(self.calls)
            if self.bench.withdraw(event_id.replace("e", "c")):
                self.over.add(event_id)

    async def abandon(self) -> None:
        if self.calls:
            self.bench.forget(self.rng.choice(self.calls).replace("e", "c"))

    def check(self) -> None:
        outbox, wire = self.bench.outbox, self.phone.wire
        assert bool(virtual_loop().timers) == outbox.outstanding
        assert len({call_id for call_id, _ in self.bench.expired}) == len(self.bench.expired)
        if wire is None:
            return
        queued_events = [described(f) for f in [*wire.frames, *wire.queue]]
        numbers = [event["n"] for event in queued_events]
        assert numbers == sorted(set(numbers)), f"out of order, or twice: {numbers}"
        expired = {call_id for call_id, _ in self.bench.expired}
        ids = {f"e{int(record.id.rpartition('_')[2], 16)}" for record in self.bench.unacknowledged()}
        speaking = [
            event["id"]
            for event in queued_events
            if event["kind"] == "speak"
            and event["id"] in ids
            and event["id"] not in self.over
            and event["callId"] not in expired
        ]
        assert len(speaking) <= 1, f"two speeches: {speaking}"

    async def catch_up(self) -> None:
        """Let the phone receive and handle events."""
        assert self.phone.wire is not None
        self.phone.wire.write(100)
        self.phone.take()
        self.phone.work()
        self.phone.finish()

    async def settle(self) -> None:
        """Let the phone answer everything, and all limits pass."""
        await self.connect()
        for pause in [*[0.5] * 200, 10_000.0, *[0.5] * 100]:
            await self.catch_up()
            await later(pause)
            self.check()
        self.bench.put("message")  # its answer acknowledges the repeated events
        await self.catch_up()
        assert self.bench.rests(), "something is left when all is answered"
        self.let_go()
        assert not self.handed_twice()
        assert len(self.phone.ran) == len(set(self.phone.ran))

    def handed_twice(self) -> set[str]:
        """Tell the calls that may run once only, and were written to two sockets."""
        ids = [e["id"] for e in self.frames if e.get("effect") in ("write", "irreversible")]
        return {event_id for event_id in ids if ids.count(event_id) > 1}


class ApprovalPrompt(Walk):
    """A walk with questions, which are given up one day, and calls that show that they live."""

    kinds = (*KINDS, "approval", "approval")
    operations: Mapping[str, int] = {**Walk.operations, "extend": 2}

    async def extend(self) -> None:
        if self.calls:
            self.bench.extend(self.rng.choice(self.calls).replace("e", "c"))

    def check(self) -> None:
        super().check()
        outbox = self.bench.outbox
        assert not {call_id for call_id, _ in self.bench.expired} & self.questions(), "a question expired"
        if self.phone.wire is not None and not outbox.speaking:  # a speech holds later events
            queued = [*self.phone.wire.frames, *self.phone.wire.queue]
            card_ids = {described(frame)["callId"] for frame in queued if not frame.withdrawn}
            assert self.questions() <= card_ids, "a question is not shown"

    def questions(self) -> set[str]:
        """Name the questions that stand."""
        records = self.bench.unacknowledged()
        return {record.call_id for record in records if record.kind == "approval"}

    async def settle(self) -> None:
        for call_id in self.questions():
            if not self.bench.withdraw(call_id):
                self.bench.forget(call_id)
        await super().settle()


def check_walk(seed: int, number: int, *, answers_interrupted: bool = True, kind: type[Walk] = Walk) -> None:
    async def scenario() -> None:
        walk = kind(random.Random(seed), answers_interrupted=answers_interrupted)
        try:
            for _ in range(number):
                await walk.step()
            await walk.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; {walk.trail}") from error

    run(scenario())


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 50), marks=pytest.mark.extended)], ids=str)
def test_no_walk_breaks_the_rules(seeds: range) -> None:
    for seed in seeds:
        check_walk(seed, 60)


@pytest.mark.parametrize(
    "seeds", [range(1000, 1003), pytest.param(range(1003, 1030), marks=pytest.mark.extended)], ids=str
)
def test_no_walk_with_interrupted_speeches_that_are_never_answered_breaks_the_rules(seeds: range) -> None:
    for seed in seeds:
        check_walk(seed, 20 + seed % 130, answers_interrupted=False)


@pytest.mark.parametrize(
    "seeds", [range(2000, 2003), pytest.param(range(2003, 2030), marks=pytest.mark.extended)], ids=str
)
def test_no_walk_with_questions_breaks_the_rules(seeds: range) -> None:
    for seed in seeds:
        check_walk(seed, 20 + seed % 90, answers_interrupted=seed % 2 == 0, kind=ApprovalPrompt)


async def test_events_that_a_client_has_handled_are_acknowledged() -> None:
    bench = Bench()
    bench.connect()
    for kind in ("state", "message", "speak", "state"):
        bench.put(kind)
    bench.acknowledge("c4")  # acknowledges the earlier events except the speech
    assert [event.call_id for event in bench.unacknowledged()] == ["c3"]
    bench.outbox.handled("evt_b_9", reads_on=False)
    assert bench.outbox.outstanding
    bench.outbox.handled("evt_a_4", reads_on=False)  # it is gone, and still says how far the client is
    assert bench.unacknowledged() == [] and not bench.outbox.outstanding


async def test_an_event_that_overtook_others_does_not_acknowledge_them() -> None:
    bench = Bench()
    wire = bench.connect()
    for kind in ("message", "speak", "speak"):
        bench.put(kind)
    bench.outbox.flash("event.ack", b'{"n":0}')
    assert wire.ids() == ["e1", "e2"], "the flash is held with the second speech"
    # Another process takes the session, and does not know the sent events.
    restored = Bench()
    for event in bench.unacknowledged():
        restored.outbound[event.id] = event
        restored.outbox.restore(event, is_sent=True)
    restored.outbox.handled("evt_a_2.1", reads_on=False)
    assert [event.call_id for event in restored.unacknowledged()] == ["c3"]


async def test_the_end_of_a_pause_acknowledges_only_itself() -> None:
    bench = Bench()
    for kind in ("speak", "speak", "final", "resume"):
        bench.put(kind)
    wire = bench.connect()
    assert wire.ids() == ["e1", "e4"], "the rest is held behind the second speech"
    # Another process takes the session, and does not know the sent events.
    restored = Bench()
    for event in bench.unacknowledged():
        restored.outbound[event.id] = event
        restored.outbox.restore(event, is_sent=True)
    restored.outbox.handled("evt_a_4", reads_on=True)
    assert restored.removed() == {"e4"}


async def test_in_a_pause_all_but_speeches_and_states_pass_what_is_held() -> None:
    bench = Bench()
    wire = bench.connect()
    for kind in ("speak", "speak", "state", "final", "message"):
        bench.put(kind)
    assert wire.ids() == ["e1"]
    bench.view.state.pause = Pause(speech_id="c1", name="c1", at=now_ms())
    bench.put("message")
    assert wire.ids() == ["e1", "e4", "e5", "e6"]
    bench.view.state.pause = None
    bench.acknowledge("c1")
    assert wire.ids() == ["e1", "e4", "e5", "e6", "e2", "e3"]
