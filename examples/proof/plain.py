"""A voice server with a plain tool loop: sessions, turns and pending calls are in memory; nobody is asked.

It speaks enough of docs/protocol.md for the phones of scripts/tau2, which start it by `PORT` and
`ANTHROPIC_BASE_URL`. It is what most agents do, and a control: the harness must find what it loses.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.request import Request, urlopen

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

MODEL_URL = os.environ["ANTHROPIC_BASE_URL"]
SESSIONS: dict[str, Session] = {}
NUMBERS = count(1)


class Session:
    """One conversation: its messages, its tools, its socket, and the calls that wait for the device."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.calls: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.socket: ServerConnection | None = None
        self.turn = asyncio.Lock()

    async def send(self, kind: str, payload: dict[str, Any]) -> None:
        """Send an event; without a connection it is lost."""
        event = {
            "id": f"evt_{os.getpid()}_{next(NUMBERS)}",
            "type": kind,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "sessionId": self.id,
            "protocolVersion": 1,
            "payload": payload,
        }
        if self.socket is not None:
            try:
                await self.socket.send(json.dumps(event))
            except ConnectionClosed:
                pass

    async def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        """Send a call to the device."""
        await self.send("tool.call", {"callId": call_id, "name": name, "arguments": json.dumps(arguments)})

    async def run_turn(self, text: str) -> None:
        """Answer a transcript: ask the model and run its calls, until it only speaks."""
        async with self.turn:
            await self.call(f"ui_{next(NUMBERS)}", "convo.setState", {"state": "thinking"})
            shown = {"role": "user", "text": text, "isPartial": False}
            await self.call(f"ui_{next(NUMBERS)}", "convo.appendMessage", shown)
            self.messages.append({"role": "user", "content": text})
            while True:
                content = await asyncio.to_thread(ask_model, self.messages, self.tools)
                self.messages.append({"role": "assistant", "content": content})
                uses = [block for block in content if block["type"] == "tool_use"]
                if not uses:
                    break
                results = [await self.run_tool(use) for use in uses]
                self.messages.append({"role": "user", "content": results})
            answer = "".join(block.get("text", "") for block in content)
            await self.send("assistant.speech.final", {"text": answer})
            await self.call(f"ui_{next(NUMBERS)}", "tts.speak", {"text": answer})
            await self.call(f"ui_{next(NUMBERS)}", "convo.setState", {"state": "idle"})

    async def run_tool(self, use: dict[str, Any]) -> dict[str, Any]:
        """Run a call on the device; a call without a result in 30 seconds failed."""
        names = {tool["name"].replace(".", "_"): tool["name"] for tool in self.tools}
        self.calls[use["id"]] = asyncio.get_running_loop().create_future()
        await self.call(use["id"], names[use["name"]], use["input"])
        try:
            async with asyncio.timeout(30):
                result = await self.calls[use["id"]]
            text, failed = result.get("error") or result.get("result") or "", bool(result.get("error"))
        except TimeoutError:
            text, failed = '{"error_type":"cancelled"}', True
        return {"type": "tool_result", "tool_use_id": use["id"], "content": text, "is_error": failed}


def ask_model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send a request to the Messages API; returns the blocks of the reply."""
    offers = [{"name": tool["name"].replace(".", "_"), "input_schema": tool["inputSchema"]} for tool in tools]
    body = {"model": "claude-haiku-4-5", "max_tokens": 1000, "messages": messages, "tools": offers}
    headers = {
        "x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""),
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
    }
    with urlopen(Request(f"{MODEL_URL}/v1/messages", json.dumps(body).encode(), headers)) as answer:
        content: list[dict[str, Any]] = json.load(answer)["content"]
    return content


async def handle(socket: ServerConnection) -> None:
    """Serve a connection."""
    session, turns = None, set[asyncio.Task[None]]()
    async for frame in socket:
        event = json.loads(frame)
        payload = event["payload"]
        match event["type"]:
            case "session.start":
                known = event["sessionId"] in SESSIONS
                session = SESSIONS.setdefault(event["sessionId"], Session(event["sessionId"]))
                session.socket, session.tools = socket, payload.get("tools") or []
                accepted = [tool["name"] for tool in session.tools]
                started = {"sessionId": session.id, "resumed": known, "capabilities": ["tools"]}
                await session.send("session.started", {**started, "acceptedTools": accepted})
            case "user.audio.transcript.final" if session is not None:
                turns.add(asyncio.create_task(session.run_turn(payload["text"])))
            case "tool.result" if session is not None and payload["callId"] in session.calls:
                call = session.calls.pop(payload["callId"])
                if not call.done():
                    call.set_result(payload)


async def main() -> None:
    """Listen until the process ends."""
    async with serve(handle, "127.0.0.1", int(os.environ["PORT"])) as server:
        print(f"ws://127.0.0.1:{os.environ['PORT']}/ws", file=sys.stderr, flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
