"""Random moves, cuts and lost replies: no transcript is lost and no write is repeated."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from typing import Any

from conductor.client import Client, ClientLimits, ConnectionLost, Reconnect, Turn, connect
from conductor.conversation.phrases import FAILURES
from conductor.events.server import SpeechFinal
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from tests.models import Script
from tests.server.door import Door
from tests.server.nodes import KEY, LosesReplies, Node, Shelf, node, stored, words
from tests.server.wires import until
from tests.session.helpers import faults

STEPS = 40
LIMIT_S = 60.0
APOLOGY = FAILURES["model_provider_failed"]
WAITING = 3
"""The most unanswered transcripts of a client."""
TOOL: dict[str, Any] = {
    "name": "notes.add",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    "_meta": {"conductor": {"approval": "never"}},
}


def note(request: ModelRequest) -> Script:
    """Record the last text, and answer."""
    text = words(request)[-1]
    if isinstance(request.messages[-1], ToolResult):
        return [TextDelta(f"Noted {text}.")]
    return [ToolCall("c-1", "notes.add", json.dumps({"text": text}))]


class Walk:
    """A client that talks during faults; ``trail`` lists the faults."""

    def __init__(self, seed: int, door: Door, nodes: list[Node], stores: list[LosesReplies]) -> None:
        self.rng = random.Random(seed)
        self.door = door
        self.nodes = nodes
        self.stores = stores
        self.trail: list[str] = []
        self.turns: list[Turn] = []
        self.ran: list[str] = []
        self.events: list[Any] = []

    def write(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments["text"])
        return "written"

    async def step(self, client: Client) -> None:
        """Cause one fault, now or soon; an app without a connection opens a new one."""
        try:
            await self._step(client)
        except ConnectionLost:
            self.trail.append("reconnect")
            await client.reconnect()

    async def finish(self, client: Client) -> None:
        """Stop the faults, and send a transcript that is answered last."""
        self.door.calm()
        for store in self.stores:
            store.loses = lambda _: False
        for number in itertools.count():
            try:
                await self.has_waiting(0)
                self.turns.append(await client.say(f"last-{number}"))
                assert (await self.turns[-1].wait(LIMIT_S)).text == f"Noted last-{number}."
                return
            except ConnectionLost:
                await client.reconnect()

    async def _step(self, client: Client) -> None:
        step = self.rng.choices(["say", "move", "cut", "lose", "answered"], [5, 2, 2, 2, 2])[0]
        self.trail.append(step)
        match step:
            case "say":
                await self.has_waiting(WAITING - 1)
                self.turns.append(await client.say(f"note-{len(self.turns)}"))
            case "move":
                self.door.to = self.rng.choice(self.nodes)
                self.door.cut_after(self.rng.randint(1, 30))
            case "cut":
                self.door.cut_after(self.rng.randint(1, 30))
            case "lose":
                self.rng.choice(self.stores).lose(self.rng.randint(0, 8))
            case "answered":
                await self.has_waiting(0)

    async def has_waiting(self, most: int) -> None:
        """Wait until at most this number of turns is under way."""
        open_turns = [turn for turn in self.turns if not turn.is_done]
        for turn in open_turns[: len(open_turns) - most]:
            await turn.wait(LIMIT_S)


# A phone that moved so often would be slowed down.
LIMITS = {"free_takeovers": 1_000, "failed_turn_retry": 0.02}


async def test_random_faults_lose_no_transcript_and_repeat_no_write(
    file_shelf: Shelf,
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    await play(file_shelf, seed)


async def play(shelf: Shelf, seed: int) -> None:
    """Take a walk and check the stored session."""
    stores = [LosesReplies(shelf.make()), LosesReplies(shelf.make())]
    async with (
        asyncio.timeout(LIMIT_S),
        node(stores[0], note, mode="queue", **LIMITS) as a,
        node(stores[1], note, mode="queue", **LIMITS) as b,
    ):
        door = Door(a)
        walk = Walk(seed, door, [a, b], stores)
        async with door.open() as url:
            reconnect = Reconnect(first_s=0.001, most_s=0.01, steady_s=0.0)
            limits = ClientLimits(turn_s=LIMIT_S)
            handlers = {"notes.add": walk.write}
            client = connect(
                url, KEY.session_id, tools=[TOOL], handlers=handlers, reconnect=reconnect, limits=limits
            )
            client.on("*", walk.events.append)
            async with client:
                try:
                    for _ in range(STEPS):
                        await walk.step(client)
                    await walk.finish(client)
                    await check(walk)
                    await until(lambda: client.state == "idle" and not client.busy)
                except (AssertionError, TimeoutError) as error:
                    raise AssertionError(f"seed {seed}: {error!r}; {walk.trail}") from error
    state = await stored(shelf)
    assert faults(state.log) == [], (seed, walk.trail)
    assert state.turn is None and not state.queue, (seed, walk.trail)
    results = [json.loads(message.content) for message in state.log if isinstance(message, ToolResult)]
    assert {message["error_type"] for message in results} == {"none"}, (seed, walk.trail)


async def check(walk: Walk) -> None:
    """Compare the transcripts with the actions and the answers.

    A refused transcript, or one that was dropped with its connection, needs no answer. A transcript whose
    model request was restarted twice has an apology.
    """
    finals = Counter(event.text for event in walk.events if isinstance(event, SpeechFinal))
    apologies = finals.pop(APOLOGY, 0)
    ran = Counter(walk.ran)
    assert set(finals.values()) <= {1} and set(ran.values()) <= {1}, (finals, ran)
    texts = [turn.transcript for turn in walk.turns if await is_owed(turn)]
    unanswered = [text for text in texts if not finals[f"Noted {text}."]]
    assert len(unanswered) <= apologies, unanswered
    assert all(ran[text] for text in texts if text not in unanswered), ran


async def is_owed(turn: Turn) -> bool:
    """Tell whether a transcript needs an answer."""
    try:
        await turn
    except ConnectionLost:
        return turn.stage in ("recorded", "running")
    return turn.stage != "refused"
