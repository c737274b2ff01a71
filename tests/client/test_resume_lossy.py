"""A client with ``resume`` whose connection breaks at any frame, against a server that keeps its word."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from conductor.client import Reconnect, Reconnected, connect
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, scripted_server

TURNS = 12
CALLS = 3
LARGE = 40_000


class BrokenError(Exception):
    """The connection was cut."""


class Server:
    """Keeps a session as the protocol says for ``resume``, on connections that break at random.

    What it commits it commits before the frame that may be lost: in each direction any frame may be the
    first that does not arrive. It calls tools that change something, and calls them again on each connection
    until it has their results.
    """

    def __init__(self, chance: random.Random) -> None:
        self.taken: list[str] = []
        self.results: dict[str, list[str]] = {}
        self._chance = chance
        self._seen: set[str] = set()
        self._unacknowledged: dict[str, Json] = {}
        self._waiting: list[str] = []
        self._numbers = iter(range(1, 1_000_000))

    async def serve(self, peer: Peer) -> None:
        """Serve one connection until it breaks."""
        first = not self._seen
        try:
            while True:
                event = json.loads(await peer.connection.recv())
                peer.session_id = event["sessionId"]
                if not first:
                    self._cut(peer)
                await self._take(peer, event)
                first = False
        except BrokenError:
            return

    def _cut(self, peer: Peer) -> None:
        if self._chance.random() < 0.04:
            peer.connection.transport.abort()
            raise BrokenError

    async def _send(self, peer: Peer, kind: str, payload: Json, event_id: str | None = None) -> None:
        if self._seen:
            self._cut(peer)
        await peer.send(kind, payload, event_id)

    async def _take(self, peer: Peer, event: Json) -> None:
        payload = event["payload"]
        match event["type"]:
            case "session.start":
                await self._start(peer, payload.get("resume"))
            case "user.audio.transcript.final":
                new = event["id"] not in self._seen
                made = self._begin(event["id"], payload["text"]) if new else []
                await self._send(peer, "event.ack", {"eventIds": [event["id"]]})
                await self._emit(peer, made)
            case "tool.result":
                made = self._record(payload["callId"], payload["result"])
                await self._send(peer, "event.ack", {"eventIds": [event["id"]]})
                await self._emit(peer, made)

    async def _start(self, peer: Peer, known: Json | None) -> None:
        resend, drop = [], []
        known = known or {}
        last = known.get("lastEventId")
        if last in self._unacknowledged:
            for event_id in [*self._unacknowledged][: [*self._unacknowledged].index(last) + 1]:
                if not self._is_tool(event_id):
                    del self._unacknowledged[event_id]
        for done in known.get("done", ()):
            if done["callId"] not in self._waiting:
                drop.append(done["callId"])
            elif done.get("result") is None:
                resend.append(done["callId"])
            else:
                self._record(done["callId"], done["result"])
        drop += [call_id for call_id in known.get("pending", ()) if call_id not in self._waiting]
        lists: Json = {"resend": resend, "drop": drop} if known else {}
        started = {"sessionId": peer.session_id, "resumed": bool(self._seen), "capabilities": ["resume"]}
        await self._send(peer, "session.started", {**started, **lists})
        await self._emit(peer, list(self._unacknowledged))

    def _begin(self, event_id: str, text: str) -> list[str]:
        self._seen.add(event_id)
        self.taken.append(text)
        made = [self._ui("setState", state="thinking"), self._ui("appendMessage", role="user", text=text)]
        return made + [self._put("notes.add", {"text": text}) for _ in range(CALLS)]

    def _record(self, call_id: str, result: str) -> list[str]:
        """Commit a result; gives the events that follow from it."""
        self._unacknowledged.pop(f"evt_{call_id}", None)
        if call_id not in self._waiting:
            return []
        self._waiting.remove(call_id)
        self.results.setdefault(self.taken[-1], []).append(result)
        if self._waiting:
            return []
        final = f"evt_final_{next(self._numbers)}"
        self._unacknowledged[final] = {"text": f"Added: {self.taken[-1]}"}
        return [final, self._ui("setState", state="idle")]

    def _ui(self, name: str, **arguments: Any) -> str:
        return self._put(f"convo.{name}", arguments)

    def _put(self, name: str, arguments: Json) -> str:
        call_id = f"call_{next(self._numbers)}"
        payload = {"callId": call_id, "name": name, "arguments": json.dumps(arguments)}
        self._unacknowledged[f"evt_{call_id}"] = payload
        if name == "notes.add":
            self._waiting.append(call_id)
        return f"evt_{call_id}"

    def _is_tool(self, event_id: str) -> bool:
        return self._unacknowledged[event_id].get("name") == "notes.add"

    async def _emit(self, peer: Peer, event_ids: Iterable[str]) -> None:
        for event_id in event_ids:
            payload = self._unacknowledged.get(event_id)
            if payload is not None:
                kind = "tool.call" if "callId" in payload else "assistant.speech.final"
                # A call may come a second time under another id; it must not run a second time.
                again = kind == "tool.call" and self._is_tool(event_id) and self._chance.random() < 0.1
                await self._send(peer, kind, payload, f"{event_id}_again" if again else event_id)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("round_", range(4))
async def test_every_text_is_taken_once_and_every_call_runs_once_and_is_recorded(
    serial: bool, round_: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}, round {round_}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    runs: list[str] = []
    back: list[Reconnected] = []
    kept = Server(chance)

    async def add(arguments: Json) -> str:
        number = len(runs)
        runs.append(arguments["text"])
        for _ in range(chance.choice([0, 5, 50, 500])):
            await asyncio.sleep(0)
        return f"{number} " + "x" * chance.choice([0, 10, LARGE])

    texts = [f"text {number}" for number in range(TURNS)]
    async with (
        scripted_server(kept.serve) as server,
        connect(
            server.url,
            handlers={"notes.add": add},
            serial=serial,
            reconnect=Reconnect(first_s=0, most_s=0),
        ) as client,
    ):
        client.on(Reconnected, back.append)
        for text in texts:
            result = await (await client.say(text)).wait(LIMIT_S)
            assert (result.text, result.ending) == (f"Added: {text}", "idle")
    assert back
    assert kept.taken == texts
    assert runs == [text for text in texts for _ in range(CALLS)]
    numbers = sorted(int(result.split()[0]) for text in texts for result in kept.results[text])
    assert numbers == list(range(TURNS * CALLS))
    assert {len(results) for results in kept.results.values()} == {CALLS}
