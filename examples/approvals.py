"""A device that asks its person before a dangerous tool runs, and reports its progress if it is stopped.

    python examples/approvals.py [URL] [--token TOKEN]

Type "allow", new arguments as JSON, or a reason to refuse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from conductor.client import Approval, ApprovalDecision, ClientError, ToolRun, allow, connect, deny, edit
from conductor.talk.plain import StdinReader

TOOL = {
    "name": "photos.delete",
    "description": "Delete the newest photos of an album, for good.",
    "inputSchema": {
        "type": "object",
        "properties": {"album": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["album", "count"],
    },
    "annotations": {"destructiveHint": True},
}
REQUEST = "Delete my 3 newest photos of Rome"
ANSWER_S = 600
lines = StdinReader(sys.stdin)


async def ask(approval: Approval) -> ApprovalDecision | None:
    """Ask the person; it is cancelled when the question is no longer open."""
    print(f"May {approval.name} run? {approval.risk} risk: {json.dumps(approval.arguments)}", flush=True)
    answer = await lines.next()
    if answer is None:
        return None  # no answer, which is not a refusal
    if answer == "allow":
        return allow("once")
    if answer.startswith("{"):
        return edit(json.loads(answer))  # an exception here is a refusal
    return deny(answer)


async def delete(arguments: dict[str, Any], run: ToolRun) -> dict[str, Any]:
    """Delete one photo after the other; a cancellation comes at an ``await``."""
    run.effect = "none"
    for number in range(arguments["count"]):
        print(f"deleting photo {number + 1} of {arguments['album']}", flush=True)
        run.effect = "partial"
        await run.progress(f"{number + 1} photos", 100 * (number + 1) / arguments["count"])
    return {"deleted": arguments["count"]}


async def main(url: str, token: str | None) -> int:
    """Say the request, and print the result."""
    try:
        async with connect(
            url, token=token, tools=[TOOL], handlers={"photos.delete": delete}, on_approval=ask
        ) as client:
            result = await (await client.say(REQUEST)).wait(ANSWER_S)
    except ClientError as error:
        print(error, file=sys.stderr)
        return 1
    print(result.text)
    return 0 if result.ok else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="ws://127.0.0.1:8080/ws")
    parser.add_argument("--token")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.url, options.token)))
