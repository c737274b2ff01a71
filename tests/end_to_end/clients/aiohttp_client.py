"""The conversation by aiohttp: what `conversation.js` does in the other clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.app import WAIT
from tests.end_to_end.clients.conversation import QUESTION, RESULT_LENGTH
from tests.shapes import shape_of


class AiohttpClient:
    """One client, for one conversation."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._number = 0
        self._observations: dict[str, Any] = {
            "events": [],
            "finals": [],
            "spoken": [],
            "runs": [],
            "foreign": [],
        }

    async def converse(self, url: str) -> dict[str, Any]:
        """Hold the conversation; returns the observations."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with asyncio.timeout(WAIT), aiohttp.ClientSession(headers=headers) as session:
            async with session.ws_connect(url, protocols=("conductor.v1",), compress=15) as socket:
                await self._talk(socket)
        self._observations.update(subprotocol=socket.protocol, closeCode=socket.close_code, wasClean=True)
        self._observations["extensions"] = "permessage-deflate" if socket.compress else ""
        return self._observations

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._send(socket, "session.start", {"sessionId": "s-aiohttp"})
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            event = message.json()
            if event["type"] == "session.started":
                await self._send(socket, "user.audio.transcript.final", {"text": QUESTION})
            await self._take(socket, event)
            if self._observations["events"][-1:] == ["state idle"]:
                await socket.close()
                return

    async def _take(self, socket: aiohttp.ClientWebSocketResponse, event: dict[str, Any]) -> None:
        payload = event["payload"]
        if event["sessionId"] != "s-aiohttp":
            self._observations["foreign"].append(event["sessionId"])
        if event["type"] == "assistant.speech.final":
            self._observations["finals"].append(payload["text"])
        if event["type"] == "tool.call":
            arguments = json.loads(payload["arguments"])
            result = '{"ok":true}'
            if payload["name"] == "tts.speak":
                self._observations["spoken"].append(arguments["text"])
            elif not payload["name"].startswith("convo."):
                self._observations["runs"].append([payload["name"], arguments])
                result = "ü" * RESULT_LENGTH
            answer = {"callId": payload["callId"], "result": result, "error": None}
            await self._send(socket, "tool.result", answer)
        if event["type"] != "assistant.speech.partial":
            name = shape_of(event)
            self._observations["events"].append("convo.appendMessage" if name.startswith("append ") else name)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, event_type: str, payload: Any) -> None:
        self._number += 1
        event = {
            "id": f"aiohttp-{self._number}",
            "type": event_type,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": "s-aiohttp",
            "protocolVersion": 1,
            "payload": payload,
        }
        await socket.send_str(json.dumps(event, ensure_ascii=False))
