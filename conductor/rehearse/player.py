"""Play a rehearsal: a scripted person and device, through the client library."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from conductor.client import DEFAULT_CAPABILITIES, Client, connect
from conductor.client.approvals import Approval, ApprovalDecision, allow, deny, edit
from conductor.client.calls import SPEAK
from conductor.client.connection import ClientError, ConnectionLost, Reconnect
from conductor.client.turns import Turn
from conductor.errors import SettingsError
from conductor.events import server
from conductor.rehearse.script import MOMENTS, Answers, Decision, Moment, Person, Rehearsal, Step, Tool

# Seconds to read a card; the server ignores a yes within the first 0.15 s.
READS_S = 0.4
# Seconds between the halves of a sentence, and milliseconds that the server is asked to wait.
BREATH_S, HOLD_MS = 0.4, 10_000
# Longest duration of a cut, in seconds: the server continues without the app.
AWAY_S = 0.1

Usage: TypeAlias = Counter[str]
"""``rounds`` of the model, and its ``input`` and ``output`` tokens."""


@dataclass(frozen=True, slots=True)
class Backstage:
    """Exact figures of the server, which is in this process.

    ``usage`` returns the model's total usage, ``calls`` are the names of the server's tools that have run,
    and ``ledger`` has the entries of the audit log.
    """

    usage: Callable[[], Usage]
    calls: list[str] = field(default_factory=list)
    ledger: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that ran; the arguments of a server's tool are not on the wire."""

    tool: str
    arguments: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Scene:
    """The result of one step; ``problems`` fail it without an expectation.

    ``verdict`` is a model's answer to the question ``judge``. ``is_outcome``: the scene is the result of all
    before it.
    """

    step: Step
    cut: Moment | None = None
    tools: list[ToolUse] = field(default_factory=list)
    speeches: list[str] = field(default_factory=list)
    approvals: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    state: str = ""
    seconds: float = 0.0
    usage: Usage = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    was_cut: bool = False
    was_interrupted: bool = False
    murmured: list[str] = field(default_factory=list)
    resumed: int = 0
    reached: bool = True
    verdict: str | None = None
    is_outcome: bool = False
    turns: list[Turn] = field(default_factory=list)


class Player:
    """The person and the device of one rehearsal, connected to the server at ``url``.

    After the steps ``person`` gives its next words from the scenes so far, or None when it has ended.
    A step ends after ``patience_s`` seconds, or its own longer limit.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        url: str,
        chance: random.Random,
        backstage: Backstage,
        *,
        patience_s: float = 60.0,
        person: Callable[[Sequence[Scene]], Awaitable[str | None]] | None = None,
    ) -> None:
        self._rehearsal = rehearsal
        self._person = person
        self._chance = chance
        # Before any delay uses a random number, so that the seed determines the cuts.
        self._scenes = [_staged(step, chance) for step in rehearsal.steps]
        self._scene = self._scenes[0] if self._scenes else Scene(Step(say=""))
        self._patience_s = patience_s
        self._backstage = backstage
        self._answers = Answers()
        self._tasks: set[asyncio.Task[None]] = set()
        # With ``segments`` a turn ends before its speeches.
        self._waiting_speeches = 0
        self._silent = asyncio.Event()
        self._silent.set()
        self._spoken = asyncio.Event()  # a speech has ended
        extra = ("segments",) if rehearsal.segments else ()
        self._client: Client = connect(
            url,
            locale=rehearsal.locale,
            time_zone=rehearsal.time_zone,
            greeting=rehearsal.greeting,
            variables=rehearsal.variables,
            # A step ends at ``idle``, because the next one may answer a spoken question.
            capabilities=[name for name in (*DEFAULT_CAPABILITIES, *extra) if name != "turns"],
            tools=[tool.declaration for tool in rehearsal.tools],
            handlers={tool.name: self._handler(tool) for tool in rehearsal.tools},
            speak=self._speak,
            hold_unfinished_ms=HOLD_MS if any(step.rest for step in rehearsal.steps) else None,
            on_approval=self._decide if rehearsal.cards else None,
            reconnect=Reconnect(AWAY_S, AWAY_S, jitter=1, tries=20, steady_s=0, random=chance.random),
        )
        self._goes_on = asyncio.Event()
        self._client.on_resume(self._goes_on.set)
        self._client.on(server.ToolActivity, self._record_activity)
        self._client.on(server.ToolCallEvent, self._count_speech)
        self._client.on(server.ToolCallEvent, self._hear_half)
        self._client.on(server.SpeechPartial, lambda _: self._reach("answer"))
        self._client.on(server.ApprovalResolved, lambda event: self._scene.approvals.append(event.outcome))
        self._client.on(server.ErrorEvent, lambda event: self._scene.errors.append(event.code))
        self._client.on(server.Diagnostic, lambda event: self._scene.problems.append(event.message))

    async def play(self, begins: Callable[[int], None] = lambda _: None) -> list[Scene]:
        """Play all steps; ``begins`` is called with the number of each, from 1.

        Raises `SettingsError` for a tool that the server rejects.
        """
        async with self._client as client:
            for tool in (client.started and client.started.rejected_tools) or ():
                raise SettingsError(f"the server rejects the tool {tool.name}: {tool.reason}.")
            if self._rehearsal.greeting:
                await self._hear_greeting()
            for number, scene in enumerate(self._scenes, 1):
                self._scene = scene
                begins(number)
                if not await self._perform(scene):
                    for later in self._scenes[number:]:
                        later.reached = False
                    return self._scenes
            if self._person is not None and self._rehearsal.person is not None:
                await self._improvise(self._rehearsal.person, self._person, begins)
        return self._scenes

    async def _hear_greeting(self) -> None:
        first, self._scene = self._scene, Scene(Step(say=""))
        try:
            async with asyncio.timeout(self._patience_s):
                await self._spoken.wait()
        except TimeoutError:
            first.problems.append(f"the greeting was not spoken within {self._patience_s:g} s")
        first.problems += self._scene.problems
        self._scene = first

    async def _improvise(
        self,
        plan: Person,
        person: Callable[[Sequence[Scene]], Awaitable[str | None]],
        begins: Callable[[int], None],
    ) -> None:
        for _ in range(plan.max_turns):
            words = await person(self._scenes)
            if words is None:
                return
            self._scene = _staged(Step(say=words, cut=plan.cut), self._chance)
            self._scenes.append(self._scene)
            begins(len(self._scenes))
            if not await self._perform(self._scene):
                return

    async def _perform(self, scene: Scene) -> bool:
        loop = asyncio.get_running_loop()
        start, usage = loop.time(), self._backstage.usage()
        limit_s = max(self._patience_s, scene.step.limits.seconds or 0)
        ended = True
        try:
            async with asyncio.timeout(limit_s):
                for fact in scene.step.context:
                    await self._client.add_context(**fact.model_dump())
                scene.turns.append(await self._client.say(scene.step.say, images=scene.step.images))
                self._reach("transcript")
                if scene.step.rest is not None:
                    await asyncio.sleep(BREATH_S)
                    scene.turns.append(await self._client.say(scene.step.rest))
                for turn in scene.turns:  # it grows with answers by voice
                    await turn.wait(limit_s)
                await self._silent.wait()
        except TimeoutError:
            scene.problems.append(f"it did not end within {limit_s:g} s")
            ended = False
        except (ClientError, ValueError) as error:  # the latter for a fact that is too long
            scene.problems.append(str(error))
            ended = False
        scene.seconds = loop.time() - start
        scene.state = self._client.state or ""
        if ended:
            self._note_missing(scene)
        scene.tools += [ToolUse(name) for name in self._backstage.calls]
        self._backstage.calls.clear()
        scene.usage = self._backstage.usage() - usage
        return ended

    def _note_missing(self, scene: Scene) -> None:
        step = scene.step
        if step.cut not in (None, "random") and not scene.was_cut:
            scene.problems.append(f"the socket was not cut: there was no {step.cut}")
        if scene.resumed < len(step.murmurs):
            scene.problems.append(f"{len(step.murmurs) - scene.resumed} murmurs did not let the speech go on")
        if step.interrupt is not None and not scene.was_interrupted:
            scene.problems.append("the answer was not interrupted: it ended before")
        if self._client.asking:
            scene.problems.append("an approval request is still open: its answer did not count")
        if scene.decisions:
            scene.problems.append(f"{len(scene.decisions)} of approve were not used")

    def _handler(self, tool: Tool) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        async def run(arguments: dict[str, Any]) -> Any:
            self._scene.tools.append(ToolUse(tool.name, arguments))
            self._reach("call")
            try:
                return await self._answers.give(tool, arguments)
            except LookupError:
                text = msgspec.json.encode(arguments).decode()
                self._scene.problems.append(f"{tool.name} has no answer to {text}")
                raise

        return run

    def _record_activity(self, event: server.ToolActivity) -> None:
        if event.status == "started" and event.source != "device":
            self._reach("call")

    def _reach(self, moment: Moment) -> None:
        if self._scene.cut == moment and not self._scene.was_cut:
            self._scene.was_cut = True
            self._client.drop()

    async def _decide(
        self, approval: Approval, notify_shown: Callable[[], Awaitable[None]]
    ) -> ApprovalDecision | None:
        await notify_shown()
        self._reach("card")
        scene = self._scene
        if not scene.decisions:
            scene.problems.append(f"{approval.name} needs consent, but approve has no further decision")
            return deny()
        decision = scene.decisions.pop(0)
        if decision.by == "voice":
            await asyncio.sleep(READS_S)
            scene.turns.append(await self._client.say(decision.words or "yes"))
            return None
        if decision.by == "deny":
            return deny(decision.words)
        return allow(decision.scope) if decision.edit is None else edit(decision.edit)

    def _count_speech(self, call: server.ToolCallEvent) -> None:
        if call.name == SPEAK and not self._scene.was_interrupted:
            self._set_waiting_speeches(self._waiting_speeches + 1)

    def _hear_half(self, call: server.ToolCallEvent) -> None:
        step = self._scene.step
        if call.name == "convo.appendMessage" and step.rest is not None:
            message = msgspec.json.decode(call.arguments)
            if message["role"] == "user" and message["text"] == step.say:
                self._scene.problems.append("the server did not wait for the rest")

    def _set_waiting_speeches(self, number: int) -> None:
        self._waiting_speeches = max(0, number)
        (self._silent.clear if self._waiting_speeches else self._silent.set)()

    async def _speak(self, text: str) -> None:
        scene, plan = self._scene, self._scene.step.interrupt
        offset = sum(map(len, scene.speeches))
        scene.speeches.append(text)
        self._reach("speech")
        if len(scene.murmured) < len(scene.step.murmurs):
            await self._murmur(scene.step.murmurs[len(scene.murmured)])
        if plan is not None and not scene.was_interrupted:
            if plan.after_ms is not None:
                await asyncio.sleep(plan.after_ms / 1000)
                await self._interrupt(plan.heard, plan.after_ms)
            elif plan.after_characters is not None and offset + len(text) >= plan.after_characters:
                part = text[: plan.after_characters - offset]
                await self._interrupt(part if plan.heard is None else plan.heard)
        self._set_waiting_speeches(self._waiting_speeches - 1)
        self._spoken.set()

    async def _murmur(self, words: str) -> None:
        """Pause the speech, and murmur over it; the words of an interruption cancel the speech."""
        scene = self._scene
        scene.murmured.append(words)
        self._goes_on.clear()
        if not await self._client.pause(spoken_text=""):
            scene.problems.append("the server does not pause a speech")
            return
        await self._client.say(words)
        try:
            await self._goes_on.wait()
        except asyncio.CancelledError:
            self._set_waiting_speeches(0)  # the words have interrupted the speech
            raise
        scene.resumed += 1

    async def _interrupt(self, heard_text: str | None, played_ms: int | None = None) -> None:
        self._scene.was_interrupted = True
        if heard_text is not None:
            self._scene.speeches[-1] = heard_text
        task = asyncio.create_task(self._speak_over(heard_text, played_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.Event().wait()  # until the interruption cancels the speech

    async def _speak_over(self, heard_text: str | None, played_ms: int | None) -> None:
        with contextlib.suppress(ConnectionLost):  # the speech has stopped anyway
            await self._client.interrupt(spoken_text=heard_text, played_ms=played_ms)
        self._set_waiting_speeches(0)


def _staged(step: Step, chance: random.Random) -> Scene:
    moments = [moment for moment in MOMENTS if moment != "card" or step.approve]
    cut = chance.choice(moments) if step.cut == "random" else step.cut
    return Scene(step, cut, decisions=list(step.approve))
