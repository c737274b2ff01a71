"""Conversations with a voice model in front, under cuts of both connections and kills of the server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.conftest import ROOT, environment
from tests.seeds import seeded
from tests.stand_ins.openai_live import DONE, FRAGMENT_MS, LiveService, VoiceSession
from tests.system.clients.voices import converse, seconds

sys.path.append(str(ROOT / "scripts"))

from benchmarks.nodes import START_S, Node

pytestmark = pytest.mark.timeout(1500)

SCALE = int(os.environ.get("VOICE_SCALE", "1"))
"""10 plays 300 conversations, with 60 kills."""
CONVERSATIONS, KILLS = 30 * SCALE, 6 * SCALE
PER_KILL = CONVERSATIONS * 4 // 5 // KILLS
QUIET_MS = 300
"""Longer than a machine that starts servers all the time holds up the fragments of an utterance."""
ANSWER_S = 60.0
"""Longer than a server takes to start again."""


@dataclass
class Talk:
    """A person's conversation: what is asked, and what goes wrong meanwhile."""

    draw: random.Random
    numbers: list[int]
    asked: set[int] = field(default_factory=set)
    answered: list[int] = field(default_factory=list)
    name: str = ""
    repeats: list[int] = field(default_factory=list)

    async def play(self, session: VoiceSession) -> None:
        """Go on with the conversation in a voice session."""
        if not self.name:
            await self._small_talk(session)
        while len(self.answered) < len(self.numbers):
            await self._request(session, self.numbers[len(self.answered)])
        await asyncio.sleep(QUIET_MS / 400)

    async def _small_talk(self, session: VoiceSession) -> None:
        self.name = f"Ada{self.numbers[0]}"
        await session.say("person", f" hello, my name is {self.name}", pause_s=self.draw.choice([0, 0, 0.02]))
        await asyncio.sleep(self.draw.uniform(0, 2) * QUIET_MS / 1000)
        await session.say("voice", " Nice to meet you.", at_ms=session.now_ms + 200)
        await asyncio.sleep(2 * QUIET_MS / 1000)

    async def _request(self, session: VoiceSession, number: int) -> None:
        if number not in self.asked:
            try:
                await self._ask(session, number)
            except ConnectionClosed:  # nobody knows how much of it was heard
                self.repeats.append(number)
                raise
            self.asked.add(number)
        if self.draw.random() < 0.2:
            await session.send("info", code="cut_server", message="test")
        if self.draw.random() < 0.1:
            await session.play(self.draw.uniform(0.05, 0.3))
        while number not in self.answered:
            try:
                command = await asyncio.wait_for(session.commentary.get(), ANSWER_S)
            except TimeoutError:
                raise AssertionError(f"no answer to {number} in {session.key}, {session}, {self}") from None
            await self._hear(session, command.content, number)

    async def _ask(self, session: VoiceSession, number: int) -> None:
        session.cuts = {}
        tool = "notes.add" if number % 3 == 0 else "notes.find"
        words, began = f' call {tool} with {{"number": {number}}}', session.now_ms + 1000
        late_ms = self.draw.choice([0, 0, 0, 1000, 2000, 3000])
        if late_ms:
            session.now_ms = began + FRAGMENT_MS * len(words.split())
        else:
            await session.say("person", words, at_ms=began)
        delegates, late_s = self.draw.choice([1, 1, 2, 3]), seconds(late_ms, QUIET_MS)
        for _ in range(delegates):
            await session.delegate()
            if self.draw.random() < 0.5:
                pause_s = self.draw.uniform(0, 2) * QUIET_MS / 1000
                pause_s = min(pause_s, late_s) if late_ms else pause_s
                await asyncio.sleep(pause_s)
                late_s -= pause_s
        if late_ms:
            await asyncio.sleep(late_s)
            await session.say("person", words, at_ms=began)
        # What has not reached the app when a voice session breaks is lost, and a person would say it again.
        await (await session.socket.ping())
        if self.draw.random() < 0.4:
            session.cuts = {session.appends + self.draw.randint(1, 4): self.draw.choice(["before", "after"])}

    async def _hear(self, session: VoiceSession, content: str, number: int) -> None:
        if content.startswith("Ask the person"):
            _, end = await session.say("voice", f" Shall I add number {number}?", at_ms=session.now_ms + 300)
            await session.say("person", " yes", at_ms=end + self.draw.randint(700, 2000))
        elif f"number {number}" in content or content.startswith("This is done"):
            self.answered.append(number)
            if self.draw.random() < 0.8:
                said = self.draw.choice([content, f"It is {number}.", "Done."])
                await session.say("voice", f" {said}", at_ms=session.now_ms + 300)
        elif (
            "say it again" in content or "try again" in content
        ):  # a server that is killed again and again gives up
            self.repeats.append(number)
            await self._ask(session, number)


def exported(store: str) -> dict[str, Any]:
    """Read the sessions of a store."""
    command = [sys.executable, "-m", "conductor", "sessions", "export"]
    run = subprocess.run(
        command, env=environment(SESSION_STORE_URL=store), capture_output=True, text=True, check=True
    )
    documents = map(json.loads, run.stdout.splitlines())
    return {document["session_id"]: document["state"] for document in documents}


class Trouble:
    """Kills the server in step with the conversations, and starts it again."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kills = 0
        self.finished: set[str] = set()
        self._step = asyncio.Condition()

    async def begin(self, number: int) -> None:
        """Wait until a conversation may begin, so that kills keep step where servers start slowly."""
        async with self._step:
            await self._step.wait_for(lambda: number < CONVERSATIONS / 5 + self.kills * PER_KILL)

    async def finish(self, key: str) -> None:
        """Count a conversation."""
        async with self._step:
            self.finished.add(key)
            self._step.notify_all()

    async def make(self) -> None:
        """Spread the kills over four fifths of the conversations."""
        while self.kills < KILLS:
            async with self._step:
                await self._step.wait_for(lambda: len(self.finished) >= (self.kills + 1) * PER_KILL)
            await self.node.kill()
            await self.node.start()
            async with self._step:
                self.kills += 1
                self._step.notify_all()


def check(
    talk: Talk, sessions: Sequence[VoiceSession], app: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Assert that a conversation was answered once, its small talk is known, and no task was done twice."""
    told = [command for session in sessions for command in session.accepted if command.is_acknowledged]
    spoken = [command.content for command in told if command.kind == "commentary"]
    for number in talk.numbers:
        answers = sum(f"answered: number {number}" in content for content in spoken)
        assert answers <= 1 or number in talk.repeats, spoken
    assert len({command.event_id for command in told}) == len(told), "an append was acknowledged twice"
    once = [number for number in app["runs"] if number not in talk.repeats]
    assert once == [number for number in talk.numbers if number not in talk.repeats]
    asked = [message["text"] for message in state["log"] if message["type"] == "user"]
    assert 0 <= len(asked) - len(talk.numbers) <= len(talk.repeats), asked
    assert any(talk.name in fact["text"] for fact in state["facts"]), state["facts"]
    refusals = {refusal for session in sessions for refusal in session.refused}
    assert refusals <= {"an audio fixture is active"}
    assert {*sessions[-1].delegations} <= {command.delegation_id for command in told}


async def test_requests_are_answered_once_and_small_talk_is_known(tmp_path: Path) -> None:
    talks, seed = {}, seeded().randrange(10**6)
    for number in range(CONVERSATIONS):
        draw = random.Random(seed + number)
        numbers = [1000 + 3 * number + part for part in range(draw.choice([1, 1, 2, 3]))]
        talks[f"v-{number}"] = Talk(draw, numbers)
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    limits = {"SESSION_RATE_LIMIT_PER_MIN": "100000", "SUBJECT_TURNS_PER_MIN": "1000000"}
    node = Node("node-1", tmp_path, "--provider", "demo", settings={"SESSION_STORE_URL": store, **limits})
    trouble = Trouble(node)

    async def play(session: VoiceSession) -> None:
        await trouble.begin(int(session.key[2:]))
        await talks[session.key].play(session)
        await trouble.finish(session.key)
        await session.socket.close(DONE)

    await node.start()
    making = asyncio.create_task(trouble.make())
    try:
        apps = [{"key": key} for key in talks]
        async with LiveService(play) as service:
            seen = await converse({"CONDUCTOR_URL": node.url}, service, apps, QUIET_MS)
        assert service.failures == []
        await asyncio.wait_for(making, START_S)
    finally:
        making.cancel()
        await node.stop()
    states = exported(store)
    cuts = sum(len(service.of(key)) - 1 for key in talks)
    sys.stdout.write(f"{len(talks)} conversations, {trouble.kills} kills, {cuts} cuts of the voice\n")
    for key, talk in talks.items():
        check(talk, service.of(key), seen[key], states[key])
