"""One session, killed at one commit, and the checks of its app, its tools and its history.

A `World` plays the script of a walk. At a given commit the process dies, before the commit is stored or after
it, and another process goes on; the app comes back with its memory or without it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.conversation.phrases import GREETED
from conductor.errors import Fenced, StoreError, StoreUnavailable
from conductor.events import client
from conductor.messages import AssistantMessage, Message, Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.session.inbound import learn
from conductor.session.session import Session
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome, succeeded
from tests.models import Script, ScriptedProvider
from tests.session.helpers import (
    SPOKEN,
    App,
    Disk,
    Line,
    call,
    faults,
    later,
    loose_ends,
    make_services,
    open_session,
    steps,
    tool,
)
from tests.shapes import Event, arguments_of, shape_of

Kill: TypeAlias = Literal["before", "after", "doubt"]

CATALOG = (
    tool("device.look", effect="read", risk="safe"),
    tool("device.do", effect="write", approval="never"),
    tool("device.stop", effect="write", approval="never", on_interrupt="cancel"),
    tool("device.slow", effect="write", approval="never", timeout_s=5.0),
    tool("device.job", effect="write", approval="never"),
    tool("device.move", effect="write", risk="medium"),
    tool("device.copy", effect="write", risk="medium"),
    tool("device.wipe", effect="irreversible", risk="high"),
)

OWLS = "Owls hunt at night. They hear a mouse under the snow. Some of them hunt by day."
PLANS: Mapping[str, Sequence[Script]] = {
    "look": [[call("device.look")]],
    "do": [[call("device.do", '{"x":1}')]],
    "stop": [[call("device.stop", '{"x":1}')]],
    "talk": [[TextDelta("I look."), call("device.look")]],
    "sum": [[call("local.sum", '{"x":1}')]],
    "keep": [[call("local.keep", '{"x":1}')]],
    "both": [[call("device.look"), call("device.do", '{"x":2}'), call("local.sum", '{"x":3}')]],
    "rounds": [[call("device.look")], [call("device.do", '{"x":4}')], [call("local.keep", '{"x":5}')]],
    "slow": [[call("device.slow", '{"x":1}')]],
    "job": [[call("device.job", '{"x":1}')]],
    "move": [[call("device.move", '{"x":1}')]],
    "two": [[call("device.move", '{"x":1}'), call("device.copy", '{"x":2}')]],
    "wipe": [[call("device.wipe", '{"x":3}')]],
    "mixed": [[call("device.do", '{"x":6}'), call("device.move", '{"x":1}'), call("device.look")]],
    "held": [[call("device.move", '{"x":1}'), call("device.do", '{"x":7}'), call("local.keep", '{"x":8}')]],
    "wrong": [[call("nobody.home"), call("device.do", "{")]],
    "owls": [[TextDelta(OWLS[:25]), 0.5, TextDelta(OWLS[25:60]), 0.5, TextDelta(OWLS[60:])]],
    "dots": [[TextDelta("One"), 1.0, TextDelta(" two"), 1.0, TextDelta(" three.")]],
    "ask": [[TextDelta("There is a table at eight. Shall I book it?")]],
    "tell": [[TextDelta("I will move it."), call("device.move", '{"x":1}')]],
    "hang": [[TextDelta("Let me see"), 900.0]],
}


def brain(request: ModelRequest) -> Script:
    """Follow the plan for the last words; then say so."""
    messages = list(request.messages)
    last = max(n for n, item in enumerate(messages) if isinstance(item, UserMessage | Note))
    rounds = sum(isinstance(item, AssistantMessage) for item in messages[last:])
    words = messages[last]
    if isinstance(words, Note):
        return [TextDelta("So I hear.")]
    assert isinstance(words, UserMessage)
    plan = PLANS.get(words.text, ())
    return plan[rounds] if rounds < len(plan) else [TextDelta(f"Done: {words.text}.")]


class Killing(Disk):
    """A store at whose commit ``at``, counted from 1, the process dies, before or after it; 0 kills nothing.

    With "doubt" the store fails once instead, though it has the commit.
    """

    def __init__(self, at: int, kill: Kill) -> None:
        super().__init__()
        self.at = at
        self.kill = kill
        self.count = 0
        self.killed = asyncio.Event()
        self._never = asyncio.Event()

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        self.count += 1
        if self.count != self.at:
            await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)
            return
        if self.kill in ("after", "doubt"):
            await super().append(replace(claim), commit_id, data, snapshot=snapshot, attachments=attachments)
        self.killed.set()
        if self.kill == "doubt":
            raise StoreUnavailable("away")
        await self._never.wait()


@dataclass
class Tools(Toolset):
    """The server's tools; each takes half a second, and ``starts`` has their calls."""

    starts: list[str] = field(default_factory=list)

    def specs(self) -> Sequence[ToolSpec]:
        return (
            tool("local.sum", source="builtin", effect="read", risk="safe"),
            tool("local.keep", source="builtin", effect="write", approval="never"),
        )

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        self.starts.append(f"{name} {dict(arguments)}")
        await later(0.5)
        return succeeded({"ran": name})


class Phone(App):
    """An app that can pause: its speech is not over before it goes on, or the person's words have cut it.

    With the capability it reads on while it speaks, and sends events in their order, as the libraries do.
    """

    def __init__(self, reply: Callable[[str, str], Awaitable[str | None]], store: Disk) -> None:
        super().__init__(reply, store)
        self.plays = asyncio.Event()
        self.plays.set()
        self._has_said = False
        self._is_live = False

    @property
    def _reads_on(self) -> bool:
        return "pause" in self.start_fields["capabilities"]

    def open_line(self, session: Session, *, slow: bool = False) -> Line:
        self._is_live = not self._reads_on
        return super().open_line(session, slow=slow)

    def _write(self, event: Event) -> None:
        if self._is_live:  # else it is sent again after `session.started`, in its order
            super()._write(event)

    async def handle(self, event: Event) -> None:
        if event["type"] != "session.started" or not self._reads_on:
            await super().handle(event)

    def pause(self, **fields: Any) -> str:
        self.plays.clear()
        self._has_said = False
        return super().pause(**fields)

    def say(self, text: str, **envelope: Any) -> str:
        self._has_said = True
        return super().say(text, **envelope)

    def relaunch(self) -> None:
        self.plays.set()
        super().relaunch()

    def receive(self, data: bytes) -> None:
        super().receive(data)
        payload = self.raw[-1]["payload"]
        if self.raw[-1]["type"] == "session.started" and self._reads_on:
            self._is_live = True
            self._resend(payload.get("resend") or (), payload.get("drop") or ())
        is_cut = self._has_said and shape_of(self.raw[-1]) == "append user"
        if is_cut or self.raw[-1]["type"] == "audio.output.resume":
            self.plays.set()


@dataclass(frozen=True)
class Walk:
    """A script of the person and the app; ``exact``: nothing that it says depends on the time of a death.

    ``start`` are more fields of ``session.start``, and ``facts`` the app's facts at the end.

    ``answers`` are words that a pause must not swallow: each is in the history, or its call has run.
    """

    name: str
    script: Callable[[World], Awaitable[None]]
    capabilities: Sequence[str] = ()
    mode: str = "cancel"
    limits: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True
    segments: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[str] = ()


@dataclass(frozen=True)
class Seen:
    """What the app and the tools have seen, and the history."""

    users: list[str]
    finals: list[str]
    runs: Counter[str]
    starts: Counter[str]
    unknown: int


class World:
    """Plays one walk, with one death at most."""

    def __init__(self, walk: Walk, at: int = 0, kill: Kill = "after", *, relaunch: bool = False) -> None:
        self.walk = walk
        self.store = Killing(at, kill)
        self.relaunches = relaunch
        self.tools = Tools()
        self.runs: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        limits = {"turn_timeout": 120.0, "turns_per_minute": 1e6, "stale_speech": 600.0, **walk.limits}
        services = make_services(brain, store=self.store, toolsets=[self.tools], mode=walk.mode, **limits)
        self.services = replace(services, catalog=CATALOG, speak_segments=walk.segments)
        self.app = Phone(self._answer, self.store)
        self.app.wait_s = 100.0
        self.app.start_fields = {"capabilities": ["resume", "turns", *walk.capabilities], **walk.start}
        self.words: list[str] = []
        self.session: Session
        self._sessions: list[Session] = []
        self._jobs: list[asyncio.Task[None]] = []

    # -- the device

    async def _answer(self, name: str, call_id: str) -> str | None:
        if name == "tts.speak":
            await later(0.3)
            await self.app.plays.wait()
            return SPOKEN
        if name.startswith("convo."):
            return SPOKEN
        arguments = self.app.pending[call_id].arguments if call_id in self.app.pending else {}
        self.runs[f"{name} {arguments}"] += 1
        self.calls[call_id] += 1
        if name == "device.slow":
            self._jobs.append(asyncio.create_task(self._say_later(8.0, call_id, "slowly")))
            return None
        if name == "device.job":
            self.app.send("tool.accepted", {"callId": call_id, "jobId": "job"})
            self._jobs.append(asyncio.create_task(self._say_later(20.0, call_id, "at last")))
            return None
        if name == "device.stop":
            return None
        await later(0.2)
        return f"{name} is done"

    async def _say_later(self, seconds: float, call_id: str, result: str) -> None:
        await later(seconds)
        self.app.result(call_id, result)

    # -- processes

    async def connect(self) -> None:
        """Open a line, and start or resume the session as the app does."""
        app = self.app
        if app.lines:
            app.line.cut()
        line = app.open_line(self.session)
        fields: dict[str, Any] = dict(app.start_fields)
        if app.event_ids:
            results = [event["payload"] for event in app.outbox.values() if event["type"] == "tool.result"]
            fields["resume"] = {
                "lastEventId": app._last_event_id,
                "done": results,
                "pending": list(app.pending),
            }
        start, clients = msgspec.convert(fields, client.SessionStart), self.session.clients
        try:
            answer = await learn(self.session, start)
            await clients.start(start, line, resumed=len(app.lines) > 1, answer=answer)
        except StoreError:
            pass  # the process died, or the store did not answer: the app opens another line

    async def die(self) -> None:
        """End the process, and go on in another one."""
        self.session.commits.lose(Fenced("The process has died."))
        await self.come_back()

    async def come_back(self) -> None:
        self.app.line.cut()
        if self.relaunches:
            words = [event for event in self.app.outbox.values() if event["type"] != "tool.result"]
            self.app.relaunch()
            self.app.outbox.update({event["id"]: event for event in words})
        await steps(3)
        await self.open()
        await self.connect()

    async def open(self) -> None:
        """Go on with the session in another process."""
        self.session = await open_session(self.services)
        self._sessions.append(self.session)

    async def _survive(self) -> None:
        await self.store.killed.wait()
        if self.store.kill in ("before", "after"):
            await self.die()
            return
        await later(2)
        self.app.line.cut()
        await self.connect()

    # -- the person

    def say(self, text: str) -> None:
        self.words.append(text)
        self.app.say(text)

    @property
    def app_events(self) -> list[Event]:
        """The events of the app, on any of its lines."""
        return [json.loads(data) for line in self.app.lines for data in line.data]

    async def until(self, condition: str | Callable[[Event], bool]) -> None:
        """Wait for an event; a death may have made it needless."""
        try:
            await self.app.until(condition)
        except AssertionError:
            assert self.store.at, f"no {condition}: {self.app.shapes()}"

    async def idle(self) -> None:
        """Wait until nothing runs, and the app has shown it."""
        for _ in range(4_000):
            calm = not self.session.is_closed and not self.session.busy and not self.app.outbox
            if calm and self.app.states()[-1:] == ["idle"] and not loose_ends(self.session, calls=False):
                return
            await later(0.5)
        raise AssertionError(f"no rest: {loose_ends(self.session)}, {self.app.outbox}, {self.app.shapes()}")

    async def speech(self, text: str) -> None:
        """Wait for a speech that contains a text."""
        await self.until(lambda event: shape_of(event) == "tts.speak" and text in arguments_of(event)["text"])

    async def card(self, number: int = 1) -> dict[str, Any]:
        """Wait for a number of cards; give the last one's payload."""
        while len(cards := self.app.events("approval.request")) < number:
            await later(0.1)
        payload: dict[str, Any] = cards[number - 1]["payload"]
        return payload

    def decide(self, card: Mapping[str, Any], decision: str, **fields: Any) -> None:
        bound = {name: card[name] for name in ("approvalId", "argumentsDigest")}
        self.app.send("approval.response", {**bound, "decision": decision, **fields})

    # -- one walk

    async def play(self) -> Seen:
        await self.open()
        survive = asyncio.create_task(self._survive())
        await self.connect()
        try:
            async with asyncio.timeout(5_000):
                await self.walk.script(self)
                await self.idle()
                await later(60)
                await self.idle()
            return self.check()
        finally:
            survive.cancel()
            for job in self._jobs:
                job.cancel()
            for session in reversed(self._sessions):
                await session.close()
            await self.app.close()

    def _check_gifts(self) -> None:
        """Check that each fact stands once, in each request too, and that the greeting was given once."""
        assert [fact.text for fact in self.session.state.facts] == list(self.walk.facts)
        assert isinstance(self.services.provider, ScriptedProvider)
        for request in self.services.provider.requests:
            notes = [item.text for item in request.messages if isinstance(item, Note) and item.passing]
            facts = [line for note in notes for line in note.splitlines() if line.startswith("- ")]
            assert len(notes) <= 1 and len(facts) == len({line.partition(":")[0] for line in facts})
        if greeting := self.walk.start.get("greeting"):
            assert [item for item in self.history() if isinstance(item, Note)] == [Note(GREETED)]
            assert self.app.finals().count(greeting) == 1 or self.relaunches

    def check(self) -> Seen:
        """Check the promises that hold after any death, and give the observations."""
        self._check_gifts()
        state, app = self.session.state, self.app
        assert state.turn is None and not state.queue and not state.questions
        logged = self.history()
        assert faults(logged) == []
        users = [item.text for item in logged if isinstance(item, UserMessage)]
        assert not app.outbox, "an event was never acknowledged"
        assert len(users) == len(set(users)), f"answered twice: {users}"
        writes = [text for text, number in self.calls.items() if number > 1]
        assert not writes or self.relaunches, f"a call ran twice: {writes}"
        resolutions = Counter(event["id"] for event in app.log if event["type"] == "approval.resolved")
        assert all(number == 1 for number in resolutions.values()) or self.relaunches
        cards = {event["payload"]["approvalId"] for event in app.events("approval.request")}
        resolved = {event["payload"]["approvalId"] for event in app.events("approval.resolved")}
        assert cards <= resolved, "a card without an end"
        transcripts = {
            event["id"] for event in self.app_events if event["type"] == "user.audio.transcript.final"
        }
        ends = Counter(event["payload"]["eventId"] for event in app.events("turn.ended"))
        assert transcripts == set(ends), f"a transcript without an end: {transcripts - set(ends)}"
        assert self.relaunches or all(number == 1 for number in ends.values()), f"ended twice: {ends}"
        if "segments" in self.walk.capabilities or self.walk.segments:
            text = " ".join(item.text for item in logged if isinstance(item, AssistantMessage))
            assert self.relaunches or len(app.speeches()) == len(set(app.speeches())), "spoken twice"
            cutting = ("audio.output.interrupted", "audio.output.paused")
            is_cut = any(event["type"] in cutting for event in self.app_events)
            assert is_cut or all(speech in text for speech in app.speeches()), (
                "spoken, and not in the history"
            )
        assert state.pause is None, "a speech is paused for ever"
        assert app.plays.is_set(), "the app waits for ever"
        for words, allowed in self.walk.answers.items():
            may_be_withheld = allowed and self.relaunches  # a relaunched app may have run it
            assert words in users or allowed in self.runs or may_be_withheld, f"{words!r} was swallowed"
        if self.walk.answers and not self.relaunches:
            assert not app.events("audio.output.resume"), "resumed over a question"
        results = [json.loads(item.content) for item in logged if isinstance(item, ToolResult)]
        unknown = sum(item["error_type"] in ("unknown", "cancelled") for item in results)
        return Seen(users, app.finals(), self.runs.copy(), Counter(self.tools.starts), unknown)

    def history(self) -> list[Message]:
        """Give the history that is stored: the one in memory is the same."""
        assert self.session.state.log_start == 0
        return list(self.session.state.log)


def compare(walk: Walk, undisturbed: Seen, actual: Seen, *, answers: bool) -> None:
    """Compare a walk with a death to the one without."""
    # Whether two transcripts are one message depends on the time between them.
    assert " ".join(actual.users) == " ".join(undisturbed.users), f"lost or swapped: {actual.users}"
    for name, number in actual.runs.items():
        reads = name.startswith("device.look")
        assert number <= undisturbed.runs[name] or reads, f"ran more often: {name}"
    for name, number in actual.starts.items():
        assert number <= undisturbed.starts[name] or name.startswith("local.sum"), f"ran again: {name}"
    if walk.exact and answers and actual.unknown == undisturbed.unknown:
        assert actual.finals == undisturbed.finals
        assert set(actual.runs) == set(undisturbed.runs)
        assert set(actual.starts) == set(undisturbed.starts)


__all__ = ["Kill", "Seen", "Walk", "World", "compare"]
