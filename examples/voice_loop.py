"""A minimal voice loop: each typed line is the person's speech, and printing stands for speaking.

    python examples/voice_loop.py [URL] [--token TOKEN]

A line that is typed during an answer interrupts it. Replace `StdinReader` by your transcriber, and `speak` by
your synthesizer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from conductor.client import (
    Client,
    ClientError,
    ConnectionLost,
    GaveUp,
    Lost,
    Reconnect,
    Reconnected,
    connect,
)
from conductor.events.server import ErrorEvent, SpeechPartial
from conductor.talk.plain import StdinReader

CHARACTERS_PER_S = 15


async def speak(text: str) -> None:
    """Speak a text; it is cancelled to stop the speech."""
    print(f"speaking: {text}", flush=True)
    await asyncio.sleep(len(text) / CHARACTERS_PER_S)


def listen(client: Client) -> None:
    """Print events as they arrive."""
    client.on_speak(speak)
    client.on(SpeechPartial, lambda event: print(f"... {event.text}", flush=True))
    client.on(ErrorEvent, lambda event: print(f"error: {event.message} ({event.code})", flush=True))
    client.on(Lost, lambda news: print(f"lost: {news.error}", flush=True))
    client.on(Reconnected, lambda _news: print("connected again", flush=True))
    client.on(GaveUp, lambda news: print(f"gave up: {news.error}", flush=True))


async def converse(client: Client, lines: StdinReader) -> None:
    """Say each line; at the end of the input, wait for the last answer."""
    turn = None
    while (text := await lines.next()) is not None:
        if client.busy:
            with contextlib.suppress(ConnectionLost):  # the speech has stopped anyway
                await client.interrupt("user_speech")
        turn = await client.say(text)
    if turn is not None:
        await turn


async def main(url: str, token: str | None) -> int:
    """Talk until the input ends."""
    client = connect(url, token=token, locale="en-GB", reconnect=Reconnect(first_s=0.5, most_s=15, tries=20))
    listen(client)
    try:
        async with client:
            await converse(client, StdinReader(sys.stdin))
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
