"""``conductor talk``: a voice client for the terminal; text stands for speech."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from conductor.client.client import Client, connect
from conductor.client.reconnect import Reconnect
from conductor.talk.chat import COMMANDS, LEFT, TerminalChat, voice_speed
from conductor.talk.plain import Plain, StdinReader

# Tries within about half a minute.
RECONNECT = Reconnect(tries=6)
NO_EDITOR = "For an editor, cards and colours: pip install 'conductor-voice[talk]'."


async def talk(
    url: str,
    text: str | None = None,
    *,
    token: str | None = None,
    session_id: str | None = None,
    voice_chars_per_s: float = 0.0,
    voice_approvals: bool = False,
    json: bool = False,
    reconnect: Reconnect = RECONNECT,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Talk to a server from the terminal: send ``text``, or each line of the input.

    The device's tools are simulated. At a terminal there are an editor and cards. Otherwise answers go to
    ``stdout``, errors and the state of the connection to ``stderr``, and approval requests are spoken, as
    with ``voice_approvals``: the next line answers. ``json`` writes the server's events instead, one a line.
    ``voice_chars_per_s`` is the speed of the voice; 0 speaks at once. Returns the exit code: 0; 1 if a turn
    failed (an ``error`` event, or no answer); 2 without a connection; 130 if Ctrl-C ended the single text.
    """

    def make(session: str | None) -> Client:
        return connect(url, session, token=token, reconnect=reconnect)

    stdin, stdout, stderr = stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr
    chat = TerminalChat(make, voice_chars_per_s, cards=not voice_approvals)
    plain = Plain(StdinReader(stdin), stdout, stderr, json=json)
    with _on_ctrl_c(chat.signalled):
        if stdin.isatty() and stdout.isatty() and not json:
            try:
                from prompt_toolkit.utils import is_dumb_terminal

                from conductor.talk.screen import Screen
            except ImportError:
                plain.error(NO_EDITOR)
            else:
                if not is_dumb_terminal():
                    async with Screen(stdin, stdout, COMMANDS, chat.signalled) as screen:
                        return await chat.run(screen, session_id, text)
        return await chat.run(plain, session_id, text)


@contextlib.contextmanager
def _on_ctrl_c(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    # On Windows and outside of the main thread Ctrl-C raises KeyboardInterrupt.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, handle)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``talk``."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "text", nargs="*", metavar="TEXT", default=[], help="send this text and exit after the answer"
    )
    source.add_argument(
        "--script",
        type=argparse.FileType(encoding="utf-8"),
        metavar="FILE",
        help="send the lines of a file, each after the previous answer, and exit",
    )
    parser.add_argument("--json", action="store_true", help="print the server's events, one a line")
    parser.add_argument("--url", help="the server's WebSocket (default: HOST and PORT)")
    parser.add_argument("--host", help="the server's address (HOST)")
    parser.add_argument("--port", help="the server's port (PORT)")
    parser.add_argument("--token", help="the server's token (without --url: AUTH_TOKENS)")
    parser.add_argument("--session", metavar="ID", help="the session to continue (default: a new one)")
    parser.add_argument(
        "--voice-speed",
        type=_voice_speed,
        default=0.0,
        metavar="CHARS",
        help="speed of the voice in characters per second (default: it speaks at once)",
    )
    parser.add_argument(
        "--voice-approvals",
        action="store_true",
        help="approve tools by voice: the next line answers",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``talk`` with the options of `add_arguments`; return the exit code."""
    # The answer reports errors of simulated tools.
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
                json=args.json,
                stdin=args.script,
            )
        )
    except KeyboardInterrupt:
        return LEFT


def _voice_speed(text: str) -> float:
    try:
        return voice_speed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
