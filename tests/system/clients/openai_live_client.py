"""Talk to the stand-in of the Live API by the package ``openai``: the events it reads on stdout."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any


async def main(url: str) -> None:
    """Answer a delegation, and end the session."""
    openai: Any = import_module("openai")  # of an environment of its own
    client = openai.AsyncOpenAI(api_key="test-key", base_url=url, websocket_base_url=url)
    async with client.live.connect(max_retries=0) as connection:
        session = {"model": "gpt-live-1", "delegation": {"type": "client"}}
        await connection.send({"type": "session.start", "session": session})
        async for event in connection:
            sys.stdout.write(f"{event.type}\n")
            if event.type == "session.delegation.created":
                answer = {"content": "It is noon.", "delegation_id": event.delegation.id}
                await connection.send({"type": "session.commentary.append", "event_id": "a-1", **answer})
            if event.type == "session.commentary.appended":
                await connection.send({"type": "session.close"})
            if event.type == "session.closed":
                return


asyncio.run(main(sys.argv[1]))
