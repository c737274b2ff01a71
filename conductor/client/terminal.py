"""``conductor talk``: a voice client for the terminal, where typing is speaking and reading is hearing."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from conductor.client.connecting import connect
from conductor.client.lines import Lines
from conductor.client.reconnect import Reconnect
from conductor.client.screen import Screen
from conductor.client.talking import LEFT, Talk

DEFAULT_URL = "ws://127.0.0.1:8080/ws"
RECONNECT = Reconnect(tries=6)  # about half a minute


async def talk(
    url: str,
    text: str | None = None,
    *,
    token: str | None = None,
    session_id: str | None = None,
    voice_chars_per_s: float = 0.0,
    voice_approvals: bool = False,
    reconnect: Reconnect = RECONNECT,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Talk to a server from the terminal: say ``text``, or each line of the input.

    The device's tools are simulated. Answers go to ``stdout``, errors and news of the connection to
    ``stderr``. ``voice_chars_per_s`` is how fast the voice speaks, 0 for at once. What needs consent is asked
    at the terminal; with ``voice_approvals``, and where the input is none, the question is spoken and the
    next line answers it. ``reconnect`` says how a lost connection is opened anew. Returns the exit status: 0;
    1 if a turn failed (an ``error`` event, or no answer); 2 if there is no connection; 130 if the one text
    was left by Ctrl-C.
    """
    client = connect(url, session_id, token=token, reconnect=reconnect)
    screen = Screen(stdout or sys.stdout, stderr or sys.stderr)
    lines = Lines(stdin or sys.stdin)
    conversation = Talk(client, screen, lines, voice_chars_per_s, cards=not voice_approvals)
    with _on_ctrl_c(conversation.signalled):
        return await conversation.run(text)


@contextlib.contextmanager
def _on_ctrl_c(handle: Callable[[], None]) -> Iterator[None]:
    """Handle Ctrl-C in the loop, where the platform and the thread allow it."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, handle)
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``talk``."""
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="say this one text and leave after the answer"
    )
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's WebSocket (default: %(default)s)")
    parser.add_argument("--token", help="the token, where the server wants one")
    parser.add_argument("--session", metavar="ID", help="the session to go on with (default: a new one)")
    parser.add_argument(
        "--voice-speed",
        type=_speed,
        default=0.0,
        metavar="CHARS",
        help="characters a second that the voice takes for speaking (default: it speaks at once)",
    )
    parser.add_argument(
        "--voice-approvals",
        action="store_true",
        help="be asked by voice whether a tool may run, and answer by what is typed next",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``talk`` by the options that `add_arguments` declared; give the exit status."""
    text = " ".join(args.text).encode(errors="replace").decode() if args.text else None
    try:
        return asyncio.run(
            talk(
                args.url,
                text,
                token=args.token,
                session_id=args.session,
                voice_chars_per_s=args.voice_speed,
                voice_approvals=args.voice_approvals,
            )
        )
    except KeyboardInterrupt:
        return LEFT


def _speed(text: str) -> float:
    speed = float(text)
    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(text)
    return speed
