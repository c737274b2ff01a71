"""Steps of a scripted server with extensions of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.stand_ins.scripted_server import LIMIT_S, Json, Peer

ALL = ("tools", "approval", "cancel", "lease", "late", "async", "activity")


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
    *requests: Json, payloads: list[Json], outcome: str = "allowed"
) -> Callable[[Peer], Awaitable[None]]:
    """Make a script: a turn with these approval requests and an answer."""

    async def script(peer: Peer) -> None:
        await start(peer)
        await peer.begin()
        for payload in requests:
            await peer.send("approval.request", payload)
        for _ in requests:
            payloads.append(await approval_response(peer))
        for payload in requests:
            await resolve(peer, outcome, payload["approvalId"])
        await peer.answer("Done.")

    return script


async def soon(event: asyncio.Event) -> None:
    """Wait for an event, within the limit."""
    async with asyncio.timeout(LIMIT_S):
        await event.wait()
