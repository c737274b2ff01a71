"""Steps of a scripted server with extensions of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from conductor.client import Client, Reconnect, Turn, connect
from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer, ScriptedServer, scripted_server

ALL = ("tools", "approval", "cancel", "lease", "late", "activity")


async def start(peer: Peer, *capabilities: str, resumed: bool = False, **fields: Any) -> Json:
    """Answer ``session.start``, accepting capabilities (by default `ALL`); return its payload.

    ``fields`` are further fields of the answer.
    """
    event = await peer.receive("session.start")
    accepted = list(capabilities or ALL)
    payload = {"sessionId": peer.session_id, "resumed": resumed, "capabilities": accepted, **fields}
    await peer.send("session.started", payload)
    return dict(event["payload"])


def request(approval_id: str = "appr_1", **fields: Any) -> Json:
    """Make the payload of an ``approval.request``."""
    return {
        "approvalId": approval_id,
        "batchId": "batch_1",
        "callId": f"call_of_{approval_id}",
        "name": "notes.delete",
        "arguments": {"path": "notes.txt"},
        "argumentsDigest": f"digest of {approval_id}",
        "risk": "medium",
        "reasons": ["It cannot be undone."],
        "prompt": "May I run notes delete, path notes.txt?",
        "scopes": ["once", "session", "always"],
        "expiresAt": "2026-03-01T12:10:00.000Z",
        **fields,
    }


async def approval_response(peer: Peer) -> Json:
    """Wait for an ``approval.response``; return its payload."""
    return dict((await peer.receive("approval.response"))["payload"])


async def resolve(peer: Peer, outcome: str, approval_id: str = "appr_1", **fields: Any) -> None:
    """Resolve an approval request."""
    await peer.send("approval.resolved", {"approvalId": approval_id, "outcome": outcome, **fields})


def asking(
    *requests: Json, responses: list[Json], outcome: str = "allowed"
) -> Callable[[Peer], Awaitable[None]]:
    """Make a script: a turn with these approval requests and an answer."""

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for payload in requests:
            await peer.send("approval.request", payload)
        for _ in requests:
            responses.append(await approval_response(peer))
        for payload in requests:
            await resolve(peer, outcome, payload["approvalId"])
        await peer.answer("Done.")

    return script


Part: TypeAlias = Callable[[Peer], Awaitable[None]]


def cut(peer: Peer) -> None:
    """Cut the connection."""
    peer.connection.transport.abort()


async def play(
    *parts: Part,
    capabilities: Sequence[str] = ALL,
    fields: Sequence[Json] = (),
    clients: list[Client] | None = None,
    **options: Any,
) -> tuple[ScriptedServer, Turn]:
    """Play one turn over several connections, one a part, each cut after its part but for the last.

    ``fields`` are further fields of ``session.started``, a dict for each connection. The client is added to
    ``clients``, for handlers that use it.
    """

    def script(number: int) -> Part:
        async def serve(peer: Peer) -> None:
            extra = fields[number] if number < len(fields) else {}
            await start(peer, *capabilities, resumed=number > 0, **extra)
            if number == 0:
                await peer.begin()
            await parts[number](peer)
            if number < len(parts) - 1:
                cut(peer)
            else:
                await peer.answer("Done.")

        return serve

    scripts = [script(number) for number in range(len(parts))]
    options.setdefault("reconnect", Reconnect(first_s=0, most_s=0))
    async with scripted_server(*scripts) as server, connect(server.url, **options) as client:
        if clients is not None:
            clients.append(client)
        result = await (await client.say("go")).wait(LIMIT_S)
    assert result.text == "Done."
    return server, result


def payloads(server: ScriptedServer, kind: str) -> list[Json]:
    """List the payloads of a client's events of a type."""
    return [event["payload"] for event in server.heard if event["type"] == kind]


def tool_results(server: ScriptedServer) -> list[tuple[str, str]]:
    """List envelope id and call id of the tool results that a server received."""
    ui = ('{"ok":true}', '{"spoken":true}')
    events = [event for event in server.heard if event["type"] == "tool.result"]
    return [
        (event["id"], event["payload"]["callId"]) for event in events if event["payload"]["result"] not in ui
    ]


async def soon(event: asyncio.Event) -> None:
    """Wait for an event, within the limit."""
    async with asyncio.timeout(LIMIT_S):
        await event.wait()
