"""A client with ``resume`` on connections that break at any frame."""

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
    """A server with ``resume`` on connections that break at random.

    It commits before it sends: any frame in either direction may be lost. It repeats calls of tools on each
    connection until it has their results.
    """

    def __init__(self, chance: random.Random) -> None:
        self.transcripts: list[str] = []
        self.results: dict[str, list[str]] = {}
        self._chance = chance
        self._event_ids: set[str] = set()
        self._unacknowledged: dict[str, Json] = {}
        self._waiting: list[str] = []
        self._numbers = iter(range(1, 1_000_000))

    async def serve(self, peer: Peer) -> None:
        """Serve one connection until it breaks."""
        first = not self._event_ids
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
        if self._event_ids:
            self._cut(peer)
        await peer.send(kind, payload, event_id)

    async def _take(self, peer: Peer, event: Json) -> None:
        payload = event["payload"]
        match event["type"]:
            case "session.start":
                await self._start(peer, payload.get("resume"))
            case "user.audio.transcript.final":
                new = event["id"] not in self._event_ids
                event_ids = self._begin(event["id"], payload["text"]) if new else []
                await self._send(peer, "event.ack", {"eventIds": [event["id"]]})
                await self._emit(peer, event_ids)
            case "tool.result":
                event_ids = self._record(payload["callId"], payload["result"])
                await self._send(peer, "event.ack", {"eventIds": [event["id"]]})
                await self._emit(peer, event_ids)

    async def _start(self, peer: Peer, resume: Json | None) -> None:
        resend, drop = [], []
        resume = resume or {}
        last = resume.get("lastEventId")
        if last in self._unacknowledged:
            for event_id in [*self._unacknowledged][: [*self._unacknowledged].index(last) + 1]:
                if not self._is_tool(event_id):
                    del self._unacknowledged[event_id]
        for entry in resume.get("done", ()):
            if entry["callId"] not in self._waiting:
                drop.append(entry["callId"])
            elif entry.get("result") is None:
                resend.append(entry["callId"])
            else:
                self._record(entry["callId"], entry["result"])
        drop += [call_id for call_id in resume.get("pending", ()) if call_id not in self._waiting]
        lists: Json = {"resend": resend, "drop": drop} if resume else {}
        started = {"sessionId": peer.session_id, "resumed": bool(self._event_ids), "capabilities": ["resume"]}
        await self._send(peer, "session.started", {**started, **lists})
        await self._emit(peer, list(self._unacknowledged))

    def _begin(self, event_id: str, text: str) -> list[str]:
        self._event_ids.add(event_id)
        self.transcripts.append(text)
        event_ids = [
            self._ui("setState", state="thinking"),
            self._ui("appendMessage", role="user", text=text),
        ]
        return event_ids + [self._put("notes.add", {"text": text}) for _ in range(CALLS)]

    def _record(self, call_id: str, result: str) -> list[str]:
        """Commit a result; return the ids of the events that follow."""
        self._unacknowledged.pop(f"evt_{call_id}", None)
        if call_id not in self._waiting:
            return []
        self._waiting.remove(call_id)
        self.results.setdefault(self.transcripts[-1], []).append(result)
        if self._waiting:
            return []
        final = f"evt_final_{next(self._numbers)}"
        self._unacknowledged[final] = {"text": f"Added: {self.transcripts[-1]}"}
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
                # A call may be repeated under another id; it must not run again.
                repeated = kind == "tool.call" and self._is_tool(event_id) and self._chance.random() < 0.1
                await self._send(peer, kind, payload, f"{event_id}_again" if repeated else event_id)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("round_", range(4))
async def test_each_transcript_and_each_call_is_processed_once(serial: bool, round_: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}, round {round_}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    runs: list[str] = []
    back: list[Reconnected] = []
    peer_server = Server(chance)

    async def add(arguments: Json) -> str:
        number = len(runs)
        runs.append(arguments["text"])
        for _ in range(chance.choice([0, 5, 50, 500])):
            await asyncio.sleep(0)
        return f"{number} " + "x" * chance.choice([0, 10, LARGE])

    texts = [f"text {number}" for number in range(TURNS)]
    async with (
        scripted_server(peer_server.serve) as server,
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
    assert peer_server.transcripts == texts
    assert runs == [text for text in texts for _ in range(CALLS)]
    numbers = sorted(int(result.split()[0]) for text in texts for result in peer_server.results[text])
    assert numbers == list(range(TURNS * CALLS))
    assert {len(results) for results in peer_server.results.values()} == {CALLS}
