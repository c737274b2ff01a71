"""A bot that holds a scripted conversation and checks the answers.

    python examples/scripted_bot.py [URL] [--token TOKEN] [--script FILE]

A line of the script is a text, a tab, and a regular expression that the answer must match. The exit status is
0 if all answers match, 1 if one does not, and 2 if the server cannot be reached.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from conductor.client import Client, ClientError, ConnectionLost, WaitTimeout, connect

SCRIPT = """\
what is 17% of 2340\t397\\.8
what time is it in Tokyo?\t\\d
say good morning\tgood morning
"""
ANSWER_S = 60


async def mismatch(client: Client, text: str, expected: str) -> str | None:
    """Say a text; return the fault of the answer, or None."""
    try:
        turn = await client.say(text)
        result = await turn.wait(ANSWER_S)
    except WaitTimeout:
        return "no answer in time"
    except ConnectionLost as error:
        return f"the connection was lost: {error}"
    if result.errors:
        return result.errors[0].code
    if result.ending == "lost":
        return "the text did not arrive"
    return None if re.search(expected, result.text) else f"the answer is {result.text!r}"


async def main(url: str, token: str | None, script: str) -> int:
    """Hold the conversation; return the exit status."""
    failures = 0
    try:
        async with connect(url, token=token, locale="en", time_zone="UTC") as client:
            for line in filter(str.strip, script.splitlines()):
                text, _, expected = line.partition("\t")
                fault = await mismatch(client, text, expected)
                failures += fault is not None
                print(
                    f"{'ok' if fault is None else 'FAILED'}: {text}{f': {fault}' if fault else ''}",
                    flush=True,
                )
    except ClientError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="ws://127.0.0.1:8080/ws")
    parser.add_argument("--token")
    parser.add_argument("--script", type=Path)
    options = parser.parse_args()
    text = options.script.read_text(encoding="utf-8") if options.script else SCRIPT
    sys.exit(asyncio.run(main(options.url, options.token, text)))
