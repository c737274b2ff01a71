"""A device with two tools of its own: it declares them, and the model calls them.

    python examples/device_tools.py [URL] [--token TOKEN]

The demo model knows the two sentences; another model understands any.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from conductor.client import ClientError, connect

ROOM = {"type": "string", "enum": ["kitchen", "bedroom"]}
TOOLS = [
    {
        "name": "lamp.switch",
        "description": "Switch the lamp of a room on or off.",
        "inputSchema": {
            "type": "object",
            "properties": {"room": ROOM, "on": {"type": "boolean"}},
            "required": ["room", "on"],
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": False, "idempotentHint": True},
        "_meta": {"conductor": {"approval": "never"}},
    },
    {
        "name": "lamp.list",
        "description": "Say which lamps are on.",
        "inputSchema": {"type": "object", "additionalProperties": False},
        "annotations": {"readOnlyHint": True},
    },
]
REQUESTS = ("Switch on the kitchen lamp", "Which lamps are on?")


class Lamps:
    """The device."""

    def __init__(self) -> None:
        self.on: set[str] = set()

    def switch(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Switch a lamp; the arguments fit the schema."""
        (self.on.add if arguments["on"] else self.on.discard)(arguments["room"])
        return arguments

    async def list(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        """List the lamps that are on. A handler may be async; its exception becomes the call's error."""
        return {"on": sorted(self.on)}


async def main(url: str, token: str | None) -> int:
    """Declare the tools, request each one, and print the calls."""
    lamps = Lamps()
    handlers = {"lamp.switch": lamps.switch, "lamp.list": lamps.list}
    try:
        async with connect(url, token=token, tools=TOOLS, handlers=handlers) as client:
            for request in REQUESTS:
                result = await (await client.say(request)).wait(60)
                for run in result.calls:
                    print(f"{run.name}({run.arguments}) -> {run.result or run.error}")
                print(result.text)
    except ClientError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="ws://127.0.0.1:8080/ws")
    parser.add_argument("--token")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.url, options.token)))
