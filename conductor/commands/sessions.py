"""``conductor sessions``: what the session store keeps, listed, shown, exported and deleted."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conductor.errors import SettingsError, StoreUnavailable

if TYPE_CHECKING:
    from conductor.commands.sessions_actions import Streams

_LIMIT = 1000
_GONE = 1
"""The exit code for a session that is not there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|show|export|delete")
    listing = commands.add_parser(
        "list", help="show which sessions there are", description="Lists sessions by subject and id."
    )
    listing.add_argument("--subject", help="only this subject's")
    listing.add_argument(
        "--limit", type=int, default=_LIMIT, help="at most so many lines (default: %(default)s)"
    )
    listing.add_argument("--json", action="store_true", help="as JSON")
    showing = commands.add_parser(
        "show",
        help="print all that is kept of a session",
        description="Prints all that is kept of a session as JSON, with what was said.",
    )
    showing.add_argument("session", help="the session's id")
    showing.add_argument("--subject", help="whose it is; needed where several have one with this id")
    exporting = commands.add_parser(
        "export",
        help="write all that is kept, a line of JSON for each session",
        description="Writes a line of JSON for each session: all that is kept, with what was said.",
    )
    exporting.add_argument("--subject", help="only this subject's")
    exporting.add_argument(
        "--output", type=Path, metavar="FILE", help="a new file, for its owner's eyes only"
    )
    exporting.add_argument("--force", action="store_true", help="replace the file if it is there")
    _add_delete(commands)


def _add_delete(commands: argparse._SubParsersAction[Any]) -> None:
    deleting = commands.add_parser(
        "delete",
        help="delete a session, or all that is kept of a subject",
        description="Deletes for good. Whoever serves the session is fenced: it may write to it no more. "
        "With --all, what the person allowed always goes too; it holds until they open another session.",
    )
    deleting.add_argument("session", nargs="?", help="the session's id")
    deleting.add_argument(
        "--subject", help="whose it is; needed with --all, and where several have such an id"
    )
    deleting.add_argument(
        "--all", action="store_true", help="all of the subject's, and what they allowed always"
    )
    deleting.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")


def run(options: argparse.Namespace, streams: Streams | None = None) -> int:
    """Run one of the commands; returns the exit code, 1 where there is no such session.

    Raises `SettingsError` for a user's mistake, and for a store that is empty or cannot be used.
    """
    from conductor.commands import sessions_actions as actions
    from conductor.commands.sessions_store import NoSuchSession
    from conductor.logs import configure_logs
    from conductor.settings import load_settings

    configure_logs("critical", "console", cache=False)  # what is wrong with the store is said here
    streams = streams or actions.Streams(sys.stdin, sys.stdout, sys.stderr)
    settings = load_settings()
    action = {
        "list": actions.list_sessions,
        "show": actions.show,
        "export": actions.export,
        "delete": actions.delete,
    }[options.action]
    try:
        code = action(options, settings, streams)
        streams.out.flush()
        return code
    except NoSuchSession as missing:
        streams.mistakes.write(f"conductor: {missing}\n")
        return _GONE
    except StoreUnavailable as error:
        raise SettingsError(str(error)) from None
    except BrokenPipeError:  # whoever reads the output has seen enough
        if streams.out is sys.stdout:
            # What is still to be written must not fail once more at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
