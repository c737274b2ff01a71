"""``conductor talk``: a voice client for the terminal; text stands for speech."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TextIO

from conductor.client import Client, Reconnect, connect
from conductor.commands.banner import server_address
from conductor.errors import SettingsError
from conductor.rehearse.script import Answers, Tool, load_tools
from conductor.settings import load_settings
from conductor.talk.chat import TerminalChat
from conductor.talk.plain import Plain, StdinReader

# Tries within about half a minute.
RECONNECT = Reconnect(tries=6)


async def talk(
    url: str,
    text: str | None = None,
    *,
    token: str | None = None,
    session_id: str | None = None,
    json: bool = False,
    tools: Sequence[Tool] = (),
    reconnect: Reconnect = RECONNECT,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Talk to a server from the terminal: send ``text``, or each line of the input.

    ``tools`` are the device's, with their answers. Answers go to ``stdout``, errors and the state of the
    connection to ``stderr``. Approval requests are spoken: the next line answers. At a terminal a line
    interrupts a running answer. ``json`` writes the server's events instead, one a line. Returns the exit
    code: 0; 1 if a turn failed (an ``error`` event, or no answer); 2 without a connection; 130 if Ctrl-C
    ended the single text.
    """
    answers = Answers()

    def make(session: str | None) -> Client:
        return connect(
            url,
            session,
            token=token,
            tools=[tool.declaration for tool in tools],
            handlers={tool.name: partial(answers.give, tool) for tool in tools},
            reconnect=reconnect,
        )

    stdin, stdout, stderr = stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr
    chat = TerminalChat(make)
    interactive = stdin.isatty() and stdout.isatty() and not json
    plain = Plain(StdinReader(stdin), stdout, stderr, json=json, interactive=interactive)
    with _on_ctrl_c(chat.signalled):
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


def run(options: argparse.Namespace) -> int:
    """Run ``talk``; return the exit code. Raises `SettingsError`."""
    # The answer reports errors of scripted tools.
    logging.getLogger("conductor.client").addHandler(logging.NullHandler())
    if options.url is None:
        settings = load_settings(host=options.host, port=options.port)
        options.url = f"ws://{server_address(settings)}/ws"
        options.token = options.token or next(iter(settings.auth_tokens), None)
    elif options.host or options.port is not None:
        raise SettingsError("--url cannot be combined with --host or --port.")
    if options.script and options.text:
        raise SettingsError("--script cannot be combined with a text.")
    return asyncio.run(
        talk(
            options.url,
            " ".join(options.text).encode(errors="replace").decode() or None,
            token=options.token,
            session_id=options.session,
            json=options.json,
            tools=load_tools(options.tools) if options.tools else (),
            stdin=options.script,
        )
    )
