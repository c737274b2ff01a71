"""``conductor talk``: a voice client for the terminal; text stands for speech."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from conductor.client.client import connect
from conductor.client.reconnect import Reconnect
from conductor.talk.chat import LEFT, TerminalChat
from conductor.talk.screen import Screen, StdinReader

# Retry for about half a minute.
RECONNECT = Reconnect(tries=6)


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
    """Talk to a server from the terminal: send ``text``, or each line of the input.

    The device's tools are simulated. Answers go to ``stdout``, errors and the state of the connection to
    ``stderr``. ``voice_chars_per_s`` is how fast the voice speaks, 0 for at once. Approval requests are asked
    at the terminal; with ``voice_approvals``, or without a terminal, they are spoken and the next line
    answers. ``reconnect`` says how a lost connection is retried. Returns the exit code: 0; 1 if a turn failed
    (an ``error`` event, or no answer); 2 without a connection; 130 if Ctrl-C ended the single text.
    """
    client = connect(url, session_id, token=token, reconnect=reconnect)
    screen = Screen(stdout or sys.stdout, stderr or sys.stderr)
    lines = StdinReader(stdin or sys.stdin)
    conversation = TerminalChat(client, screen, lines, voice_chars_per_s, cards=not voice_approvals)
    with _on_ctrl_c(conversation.signalled):
        return await conversation.run(text)


@contextlib.contextmanager
def _on_ctrl_c(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, handle)
    # Windows, or a thread that is not the main one: Ctrl-C raises KeyboardInterrupt there.
    except (NotImplementedError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``talk``."""
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="say this one text and leave after the answer"
    )
    parser.add_argument("--url", help="the server's WebSocket (default: as HOST and PORT say)")
    parser.add_argument("--host", help="the server's address (HOST)")
    parser.add_argument("--port", help="the server's port (PORT)")
    parser.add_argument("--token", help="the token, where the server wants one (without --url, AUTH_TOKENS)")
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
    """Run ``talk`` with the options of `add_arguments`; return the exit code."""
    # The answer reports the errors of simulated tools.
    logging.getLogger("conductor.client").addHandler(logging.NullHandler())
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
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not (math.isfinite(speed) and speed >= 0):
        raise argparse.ArgumentTypeError("it must be a number of characters, 0 or more")
    return speed
