"""A server of the protocol on a loopback socket that follows a test's scripts, one a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeAlias

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

LIMIT_S = 60.0

Json: TypeAlias = dict[str, Any]


class Peer:
    """The server's end of one connection, as a script uses it."""

    def __init__(self, connection: ServerConnection, server: ScriptedServer) -> None:
        self.connection = connection
        self.server = server
        self.session_id = ""
        self._unread: list[Json] = []

    async def receive(self, kind: str) -> Json:
        """Give the next event of a type, and keep others for later."""
        for index, event in enumerate(self._unread):
            if event["type"] == kind:
                return self._unread.pop(index)
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = json.loads(await self.connection.recv())
                self.session_id = event["sessionId"]
                self.server.heard.append(event)
                if event["type"] == kind:
                    return dict(event)
                self._unread.append(event)

    async def send(self, kind: str, payload: Json, event_id: str | None = None) -> str:
        """Send an event; give its envelope id."""
        event_id = event_id or f"evt_{next(self.server.numbers)}"
        event = {
            "id": event_id,
            "type": kind,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": self.session_id,
            "protocolVersion": 1,
            "payload": payload,
        }
        await self.connection.send(json.dumps(event))
        return event_id

    async def arrived(self) -> None:
        """Wait until the client has read all that was sent (it answers a ping after that)."""
        async with asyncio.timeout(LIMIT_S):
            await (await self.connection.ping())

    async def start(self, resumed: bool = False, **fields: Any) -> Json:
        """Answer ``session.start``, with these fields; give its payload."""
        start = await self.receive("session.start")
        await self.send("session.started", {"sessionId": self.session_id, "resumed": resumed, **fields})
        return dict(start["payload"])

    async def call(self, name: str, arguments: Any, event_id: str | None = None) -> str:
        """Send a ``tool.call``; give its call id, which is made from the event's where that is given."""
        call_id = f"call_{event_id or next(self.server.numbers)}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        await self.send("tool.call", {"callId": call_id, "name": name, "arguments": text}, event_id)
        return call_id

    async def result(self, call_id: str) -> Json:
        """Wait for the result of a call, and keep other results for later."""
        results: list[Json] = []
        try:
            while True:
                event = await self.receive("tool.result")
                if event["payload"]["callId"] == call_id:
                    return dict(event["payload"])
                results.append(event)
        finally:
            self._unread.extend(results)

    async def ask(self, name: str, arguments: Any) -> Json:
        """Call a tool and wait for its result."""
        return await self.result(await self.call(name, arguments))

    async def state(self, state: str) -> str:
        """Set the app's state; give the call id."""
        return await self.call("convo.setState", {"state": state})

    async def message(self, role: str, text: str) -> str:
        """Append a message; give the call id."""
        return await self.call("convo.appendMessage", {"role": role, "text": text, "isPartial": False})

    async def begin(self) -> str:
        """Take up the next transcript as a turn does; give its text."""
        text = str((await self.receive("user.audio.transcript.final"))["payload"]["text"])
        await self.state("thinking")
        await self.message("user", text)
        return text

    async def answer(self, *partials: str) -> None:
        """Send the reply and the end of a plain turn; the last partial is the whole."""
        for text in partials:
            await self.send("assistant.speech.partial", {"text": text})
        await self.send("assistant.speech.final", {"text": partials[-1]})
        await self.message("assistant", partials[-1])
        await self.state("speaking")
        await self.call("tts.speak", {"text": partials[-1]})
        await self.result(await self.state("idle"))


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


class ScriptedServer:
    """The server's address, its inbound events (``heard``), and its peers.

    ``headers`` are those of the handshakes. A script that failed is raised when the server is left.
    """

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.url = ""
        self.heard: list[Json] = []
        self.peers: list[Peer] = []
        self.numbers = count(1)
        self.failures: list[BaseException] = []
        self._scripts = scripts

    def types_heard(self) -> list[str]:
        """Give the types of all inbound events, in their order."""
        return [event["type"] for event in self.heard]

    async def handle(self, connection: ServerConnection) -> None:
        """Serve one connection by its script; the last script serves all further ones."""
        peer = Peer(connection, self)
        script = self._scripts[min(len(self.peers), len(self._scripts) - 1)]
        self.peers.append(peer)
        try:
            await script(peer)
            async with asyncio.timeout(LIMIT_S):
                await connection.wait_closed()
        except ConnectionClosed:
            pass
        except Exception as error:
            self.failures.append(error)


async def plain_turns(peer: Peer) -> None:
    """Answer every transcript by a plain turn, in the protocol's order."""
    await peer.start()
    while True:
        text = await peer.begin()
        await peer.answer("You", f"You said: {text}")


@asynccontextmanager
async def scripted_server(*scripts: Script) -> AsyncIterator[ScriptedServer]:
    """Run a server on a free loopback port: the first connection by the first script, and so on."""
    server = ScriptedServer(scripts or (plain_turns,))
    async with serve(server.handle, "127.0.0.1", 0, close_timeout=1) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        server.url = f"ws://127.0.0.1:{port}/ws"
        yield server
        for peer in server.peers:
            peer.connection.transport.abort()
    if server.failures:
        raise AssertionError("a script failed") from server.failures[0]
