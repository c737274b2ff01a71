"""What the tests of a conversation share: virtual time, a slow store, an app at the end of a line.

No test of a session needs a socket or a wait: `run` drives a loop whose time jumps to the next timer whenever
nothing else is left to do, and which fails at once where nothing will ever happen again.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import msgspec

from conductor.conversation.apply import advance
from conductor.conversation.phrases import SpokenFailure
from conductor.conversation.records import Commit, Record, decode
from conductor.conversation.replay import replay
from conductor.conversation.state import Conversation
from conductor.errors import Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest
from conductor.observers.turns import TurnObservers
from conductor.session.clients import ResumeAnswer
from conductor.session.services import Services
from conductor.session.session import Session
from conductor.settings import Limits
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionKey, SessionLog, Stored
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome, succeeded
from tests.app import App as VoiceApp
from tests.links import Pipe
from tests.models import Script, ScriptedProvider
from tests.seeds import seeded
from tests.shapes import Event, shape_of

T = TypeVar("T")

KEY = SessionKey("ann", "s-1")
MAX_TURNS_OF_THE_LOOP = 100_000
SPOKEN = '{"spoken":true}'


# -- virtual time


class Stuck(AssertionError):
    """Something is waited for that nothing will bring about."""


class _Selector(selectors.SelectSelector):
    """Never blocks: where the loop would wait for a timer, the time is moved to it."""

    now = 1_000.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if self.turns > MAX_TURNS_OF_THE_LOOP:
            self.turns = 0  # the remaining tasks must be able to end
            raise Stuck("the loop goes round and round")
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        self.now += timeout
        return super().select(0) if timeout else []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when there is nothing to do; `end` closes what was opened."""

    def __init__(self) -> None:
        self.clock = _Selector()
        self.opened: list[Session | App] = []
        self._reports: list[Mapping[str, Any]] = []
        super().__init__(self.clock)
        self.set_exception_handler(lambda _, context: self._reports.append(context))

    async def end(self) -> None:
        """Close the sessions and apps that are open."""
        for item in self.opened:
            if isinstance(item, App) or not item.is_closed:
                await item.close()

    def close(self) -> None:
        """Close the loop; fails if a task or a callback has raised an error."""
        super().close()
        assert not self._reports, self._reports

    def time(self) -> float:
        return self.clock.now

    @property
    def timers(self) -> int:
        scheduled = getattr(self, "_scheduled")  # noqa: B009 -- no public way leads to it
        return sum(not timer.cancelled() for timer in scheduled)


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def close_later(item: Session | App) -> None:
    """Close a session or an app at the end of the test, if it runs in virtual time."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.opened.append(item)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in virtual time, where a test runs several."""

    async def run_all() -> T:
        result = await scenario
        await virtual_loop().end()
        return result

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run_all())


async def steps(number: int) -> None:
    """Let everything else take a number of steps; no time passes."""
    for _ in range(number):
        await asyncio.sleep(0)


async def later(seconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)


TURN_S = 1.0
"""A turn's time limit where it is to run out."""


def jump(seconds: float) -> None:
    """Let virtual time pass before anything else takes a step."""
    virtual_loop().clock.now += seconds


def at_every_step(scenario: Callable[[int], Coroutine[Any, Any, bool]], stride: int = 1) -> None:
    """Run a scenario with 0, 1, 2 ... steps until it says that there are no more; tell which one failed.

    With a ``stride``, only one number of steps of so many is tried, from a random one on.
    """
    over, after, failures = False, seeded().randrange(stride), []
    while not over:
        try:
            over = run(scenario(after))
        except AssertionError as error:
            failures.append((after, str(error)))
        after += stride
        assert after < 500, failures
    assert not failures, failures
    assert after > 5


# -- histories


def faults(messages: Sequence[Message]) -> list[str]:
    """List the faults of a history, by the rules of the messages' module and of the service."""
    faults_found: list[str] = []
    if messages and not isinstance(messages[0], UserMessage | Note):
        faults_found.append(f"it begins with {messages[0]}")
    expected_ids: deque[str] = deque()
    for number, message in enumerate(messages):
        if isinstance(message, ToolResult):
            if not expected_ids:
                faults_found.append(f"{number}: a result without a call: {message.call_id}")
            elif (expected := expected_ids.popleft()) != message.call_id:
                faults_found.append(f"{number}: {message.call_id} where {expected} is due")
            continue
        if expected_ids:
            faults_found.append(f"{number}: no result for {list(expected_ids)}")
            expected_ids.clear()
        if isinstance(message, AssistantMessage):
            expected_ids.extend(call.call_id for call in message.calls)
    if expected_ids:
        faults_found.append(f"at the end: no result for {list(expected_ids)}")
    return faults_found


# -- the store


class StoreProxy:
    """A store that passes everything to another one; subclasses change some of it."""

    durable = True

    def __init__(self, inner: SessionLog) -> None:
        self.inner = inner

    async def open(self) -> None:
        await self.inner.open()

    async def claim(self, key: SessionKey) -> Claim:
        return await self.inner.claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        await self.inner.append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)

    async def release(self, claim: Claim) -> None:
        await self.inner.release(claim)

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        return await self.inner.keys(subject, session_id, after, limit, since)

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        return await self.inner.read_attachments(key, names)

    async def read(self, key: SessionKey) -> Stored | None:
        return await self.inner.read(key)

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        return await self.inner.delete(subject, session_id)

    async def warnings(self) -> list[str]:
        return await self.inner.warnings()

    async def aclose(self) -> None:
        await self.inner.aclose()


class SlowStore(StoreProxy):
    """A store whose commits really suspend, and sometimes fail; it knows its commits.

    ``before`` and ``after`` say how many steps a commit takes until it is applied, and until its answer is
    back. ``fail`` may name the error that a commit meets. ``hold``, while it is set to an unset event, keeps
    commits from being applied; ``hold_answer`` keeps their answers. ``commits`` has the applied commits,
    and ``committed_ids`` the ids of their events.
    """

    def __init__(
        self,
        before: Callable[[], int] = lambda: 0,
        after: Callable[[], int] = lambda: 0,
        fail: Callable[[Commit], StoreError | None] = lambda _: None,
    ) -> None:
        super().__init__(MemoryStore())
        self.before = before
        self.after = after
        self.fail = fail
        self.hold: asyncio.Event | None = None
        self.hold_answer: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.committed_ids: set[str] = set()
        self.commits: list[Commit] = []
        self.running: set[str] = set()
        self._states: dict[SessionKey, Conversation] = {}

    @property
    def records(self) -> list[Record]:
        """All records that were applied."""
        return [record for commit in self.commits for record in commit.records]

    def stored(self, key: SessionKey = KEY) -> Conversation:
        """Give the state of the applied commits."""
        return self._states[key]

    async def claim(self, key: SessionKey) -> Claim:
        claim = await self.inner.claim(key)
        self._states[key] = replay(claim.commits)
        return claim

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        assert claim.token not in self.running, "commits of one claim follow each other"
        self.running.add(claim.token)
        commit = decode(data)
        try:
            self.entered.set()
            await steps(self.before())
            if self.hold is not None:
                await self.hold.wait()
            error = self.fail(commit)
            if error is not None:
                raise error
            unanswered = replace(claim)
            await self.inner.append(unanswered, commit_id, data, snapshot=snapshot, attachments=attachments)
            self.commits.append(commit)
            self.committed_ids.update(event.id for event in advance(self._states[claim.key], commit))
            await steps(self.after())
            if self.hold_answer is not None:
                await self.hold_answer.wait()
            claim.revision = unanswered.revision
        finally:
            self.running.discard(claim.token)


class Disk(SlowStore):
    """A store that keeps a session which was let go."""

    async def release(self, claim: Claim) -> None:
        """Keep it."""


def randomly_slow(rng: random.Random, most: int = 4) -> SlowStore:
    """Make a store whose commits take a random number of steps."""
    return SlowStore(lambda: rng.randint(0, most), lambda: rng.randint(0, most))


# -- the services


def tool(name: str, **fields: Any) -> ToolSpec:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    return ToolSpec(name=name, description=f"The tool {name}.", input_schema=schema, **fields)


CATALOG = (
    tool("device.look", effect="read", risk="safe"),
    tool("device.do", effect="write", approval="never"),
    tool("device.pick", effect="read", risk="safe", interactive=True, timeout_s=600.0),
)


@dataclass
class LocalTools(Toolset):
    """Tools that run in the server: ``local.sum`` at once, ``local.wait`` and ``local.write`` when let."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ran: list[str] = field(default_factory=list)

    def specs(self) -> Sequence[ToolSpec]:
        return (
            tool("local.sum", source="builtin", effect="read", risk="safe"),
            tool("local.wait", source="builtin", effect="read", risk="safe"),
            tool("local.write", source="builtin", effect="write", approval="never"),
        )

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.started.set()
        if name != "local.sum":
            await self.go.wait()
        self.ran.append(name)
        return succeeded({"ran": name, "x": arguments.get("x")})


def limits(**fields: Any) -> Limits:
    return replace(Limits(), **fields)


def make_services(
    replies: Iterable[Script] | Callable[[ModelRequest], Script] | ScriptedProvider = (),
    *,
    store: SessionLog | None = None,
    toolsets: Sequence[Toolset] = (),
    mode: str = "cancel",
    failures: Mapping[SpokenFailure, str] | None = None,
    **changed: Any,
) -> Services:
    """Make the services of a session; the other keyword arguments are fields of `Limits`."""
    changed.setdefault("open_microphone", 0.0)
    provider = replies if isinstance(replies, ScriptedProvider) else ScriptedProvider(replies)
    services = Services(
        store=store if store is not None else MemoryStore(),
        provider=provider,
        toolsets=toolsets,
        catalog=CATALOG,
        system_prompt="Be brief.",
        limits=limits(**changed),
        interruption_mode="cancel" if mode == "cancel" else "queue",
        observers=TurnObservers(),
    )
    return services if failures is None else replace(services, failures=failures)


EPOCH_MS = 1_780_000_000_000


def now_ms() -> int:
    """Give the virtual time in epoch milliseconds."""
    return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)


async def open_session(services: Services, key: SessionKey = KEY) -> Session:
    """Claim the session and go on with it, as a process does."""
    claim = await services.store.claim(key)
    state = replay(claim.commits)
    session = Session(services, services.store, claim, state, now=now_ms)
    close_later(session)
    return session


# -- an app at the end of a line

_ids = count(1)


def inbound(event: client.ClientEvent | None, event_id: str | None = None) -> Inbound:
    name = "unknown" if event is None else event.TYPE
    return Inbound(
        id=event_id or f"app-{next(_ids)}", type=name, session_id=KEY.session_id, size=0, event=event
    )


class Line(Pipe):
    """A pipe to a session, which also takes events as structs; ``sent_ids`` name the app's events."""

    def __init__(self, app: App, session: Session, *, slow: bool = False) -> None:
        super().__init__(app.receive, session, slow=slow)
        self.sent_ids: list[str] = []
        self.data: list[bytes] = []

    def say(self, event: client.ClientEvent, event_id: str | None = None) -> None:
        """Send an event to the session, behind the earlier ones."""
        envelope = {
            "id": event_id or f"line-{next(_ids)}",
            "type": event.TYPE,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": KEY.session_id,
            "protocolVersion": 1,
            "payload": event,
        }
        self.write(msgspec.json.encode(envelope))

    def write(self, data: bytes) -> None:
        if data:  # `cut` writes nothing, to wake the reader
            self.sent_ids.append(msgspec.json.decode(data)["id"])
            self.data.append(data)
        super().write(data)


class App(VoiceApp):
    """The voice app over lines to sessions of this process.

    ``reply`` gives the result of a call by its name and id, or None; it may be awaited. Durable events must
    be in the ``store``, if there is one, before they arrive. ``raw`` has all events, also repeated ones.
    """

    def __init__(
        self,
        reply: Callable[[str, str], str | None | Awaitable[str | None]] | None = None,
        store: SlowStore | None = None,
    ) -> None:
        super().__init__(answer=lambda call: self.reply(call.name, call.call_id), wait_s=10_000)
        self.reply = reply or (lambda name, call_id: SPOKEN)
        self.store = store
        self.capabilities: Sequence[str] = ()
        self.lines: list[Line] = []
        self.raw: list[Event] = []

    @property
    def line(self) -> Line:
        return self.lines[-1]

    def open_line(self, session: Session, *, slow: bool = False) -> Line:
        """Open a line without a start."""
        line = Line(self, session, slow=slow)
        if not self.lines:
            close_later(self)
        self.lines.append(line)
        self.attach(line)
        return line

    async def connect(
        self,
        session: Session,
        *,
        resumed: bool | None = None,
        slow: bool = False,
        answer: ResumeAnswer | None = None,
    ) -> Line:
        """Open a line, and start or resume the session on it; ``answer`` is from `learn`."""
        is_reconnect = bool(self.lines) if resumed is None else resumed
        line = self.open_line(session, slow=slow)
        start = client.SessionStart(capabilities=list(self.capabilities))
        await session.clients.start(start, line, resumed=is_reconnect, answer=answer)
        return line

    async def close(self) -> None:
        """Close all lines, and end the app's own task."""
        for line in self.lines:
            line.cut()
        await super().close()
        await steps(20)

    def receive(self, data: bytes) -> None:
        event: Event = json.loads(data)
        self.raw.append(event)
        durable = event["type"] in ("tool.call", "assistant.speech.final")
        durable = durable and shape_of(event) != "state idle"  # it opens the microphone even without a store
        if durable and self.store is not None:
            assert event["id"] in self.store.committed_ids, f"sent, and not committed: {shape_of(event)}"
        super().receive(data)

    def agent_done(self, agent_id: str, **envelope: Any) -> None:
        self.send("agent.completed", {"agentId": agent_id, "status": "FINISHED"}, **envelope)

    def states(self, since: int = 0) -> list[str]:
        return [s.removeprefix("state ") for s in self.shapes(since) if s.startswith("state ")]

    def partials(self, since: int = 0) -> list[str]:
        return [event["payload"]["text"] for event in self.events("assistant.speech.partial", since)]

    def error_codes(self, since: int = 0) -> list[str]:
        return [error["code"] for error in self.errors(since)]


# -- a session and its app, together


class Stage:
    """A session with an app on the line."""

    def __init__(self, session: Session, app: App, services: Services) -> None:
        self.session = session
        self.app = app
        self.services = services

    @property
    def provider(self) -> ScriptedProvider:
        provider = self.services.provider
        assert isinstance(provider, ScriptedProvider)
        return provider

    async def ask(self, text: str) -> None:
        """Say something, and wait for the end of everything."""
        self.app.say(text)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until nothing is on its way, no turn runs, and no limit of the device is running."""
        for _ in range(6_000):
            if not self.app.line.closed.is_set():
                await self.app.line.drained()
            if not self.session.busy and not loose_ends(self.session, calls=False):
                return
            await later(0.5)
        raise Stuck(f"busy: {self.session.busy}, {loose_ends(self.session)}")

    async def settled(self) -> None:
        """Wait until no turn runs; the device may still owe results."""
        calm = 0
        for _ in range(10_000):
            await asyncio.sleep(0)
            calm = 0 if self.session.busy else calm + 1
            if calm == 20:
                return
        raise Stuck("the turn does not end")


async def open_stage(
    services: Services,
    answer: Callable[[str, str], str | None | Awaitable[str | None]] | None = None,
    *,
    slow: bool = False,
    say: str = "",
) -> Stage:
    """Open a session and connect an app to it, whose person then says something."""
    session = await open_session(services)
    store = services.store if isinstance(services.store, SlowStore) else None
    app = App(answer, store)
    await app.connect(session, slow=slow)
    if say:
        app.say(say)
    return Stage(session, app, services)


def loose_ends(session: Session, *, calls: bool = True) -> dict[str, int]:
    """Count the objects that a session at rest must not hold.

    Without ``calls`` it leaves the Futures out that calls wait on: they hold nothing up.
    """
    counts = {
        "waiting calls": len(session.pending) if calls else 0,
        "tasks": len(session.tasks),
        "open calls": sum(call.is_open for call in session.state.calls),
        "events that wait": int(session.outbox.outstanding),
        "transcripts": len(session.state.queue),
    }
    return {name: number for name, number in counts.items() if number}


def die(session: Session, app: App) -> None:
    """End a session as the death of its process does: nothing more is recorded, sent or waited for."""
    session.commits.lose(Fenced("The process has died."))
    app.line.cut()


async def at_rest(session: Session) -> None:
    """Wait until no turn runs and nothing is owed."""
    for _ in range(6_000):
        if not session.busy and not loose_ends(session, calls=False):
            return
        await later(0.5)
    raise AssertionError(f"busy: {session.busy}, {loose_ends(session)}")


def call(name: str, arguments: str = "{}") -> ToolCall:
    """Make a call as a model makes it; the session gives it an id of its own."""
    return ToolCall("model's", name, arguments)
