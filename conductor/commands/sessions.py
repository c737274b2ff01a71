"""``conductor sessions``: list, show, export and delete stored sessions."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from msgspec.structs import asdict

from conductor.commands.output import as_json, write_table
from conductor.conversation.fields import RECORD_ID
from conductor.errors import SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.settings import Settings, load_settings
from conductor.stores.admin import SessionAdmin, SessionInfo
from conductor.stores.base import NEVER_EXPIRES, SessionKey, SessionStore
from conductor.stores.registry import describe_store, make_session_admin, make_store

_NUMBERS = ("messages", "open calls", "unacked", "size")
_HEADINGS = ("subject", "session", "last written", *_NUMBERS, "owned")


class NoSuchSession(SettingsError):
    """There is no such session; the message is a sentence."""

    exit_code = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|show|export|delete")
    listing = commands.add_parser(
        "list", help="show which sessions there are", description="Lists sessions by subject and id."
    )
    listing.add_argument("--subject", help="only this subject's")
    listing.add_argument(
        "--limit", type=int, default=1000, help="largest number of lines (default: %(default)s)"
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
    deleting = commands.add_parser(
        "delete",
        help="delete a session, or all that is kept of a subject",
        description="Deletes for good. A server that serves the session is fenced: it can no longer write. "
        "With --all, what the person allowed always goes too; it holds until they open another session.",
    )
    deleting.add_argument("session", nargs="?", help="the session's id")
    deleting.add_argument(
        "--subject", help="whose it is; needed with --all, and where several have such an id"
    )
    deleting.add_argument(
        "--all", action="store_true", help="all of the subject's, and what they allowed always"
    )
    deleting.add_argument(
        "--yes", action="store_true", help="do not ask; needed where the input is no terminal"
    )


def run(options: argparse.Namespace, stdout: TextIO | None = None, stdin: TextIO | None = None) -> int:
    """Run a subcommand; returns the exit code, 1 for a deletion that was declined.

    Raises `NoSuchSession`, and `SettingsError` for a user's mistake and for a store that is empty or cannot
    be used.
    """
    configure_logs("critical", "console", cache=False)  # errors of the store are printed by this command
    out, settings = stdout or sys.stdout, load_settings()
    try:
        match options.action:
            case "list":
                asyncio.run(_list(options, settings, out))
            case "show":
                asyncio.run(_show(options, settings, out))
            case "export":
                asyncio.run(_export(options, settings, out))
            case _:
                return _delete(options, settings, out, stdin or sys.stdin)
    except StoreUnavailable as error:
        raise SettingsError(str(error)) from None
    return 0


async def _list(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    limit: int = options.limit
    if limit < 1:
        raise SettingsError("--limit must be at least 1.")
    async with _opened(settings) as admin:
        # One more than is shown tells whether there are more.
        found = await admin.sessions(options.subject, limit=min(limit + 1, sys.maxsize))
    if not found:
        raise _nothing(settings, options.subject)
    shown, more = found[:limit], len(found) > limit
    if options.json:
        sessions = [{**asdict(info), "kind": kind(info.session_id)} for info in shown]
        out.write(as_json({"sessions": sessions, "more": more}, indent=2))
        return
    write_table(out, _HEADINGS, map(row, shown), _NUMBERS)
    if more:
        out.write(f"There are more; --limit {2 * limit} shows more of them.\n")


async def _show(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    async with _opened(settings) as admin:
        key = await _find(admin, options.session, options.subject)
        kept = await admin.show(key)
    if kept is None:
        raise _no_session(key)
    out.write(as_json(kept, indent=2))


async def _export(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    async def write(file: TextIO) -> int:
        count = 0
        async with _opened(settings) as admin:
            async for session in admin.export(options.subject):
                file.write(as_json(session))
                count += 1
        if not count:
            raise _nothing(settings, options.subject)
        return count

    if options.output is None:
        if options.force:
            raise SettingsError("--force goes with --output.")
        await write(out)
    else:
        with private_file(options.output, replace=options.force) as file:
            count = await write(file)
        out.write(f"{_sessions(count)} written to {options.output}.\n")


def _delete(options: argparse.Namespace, settings: Settings, out: TextIO, answers: TextIO) -> int:
    if options.all == (options.session is not None):
        raise SettingsError("Say either which session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all needs --subject: say whose sessions to delete.")
    if not options.yes and not answers.isatty():
        raise SettingsError("The input is no terminal to ask at: give --yes.")
    keys = asyncio.run(_doomed(options, settings))
    what = _called(keys)
    if not options.yes:  # asked outside of the event loop, which would swallow Ctrl-C
        out.write(f"Delete {what}, for good? [y/N] ")
        out.flush()
        if answers.readline().strip().lower() not in ("y", "yes"):
            out.write("Nothing was deleted.\n")
            return 1

    async def carry_out() -> int:
        async with _opened(settings) as admin:
            return await admin.delete(keys[0].subject, None if options.all else keys[0].session_id)

    count = asyncio.run(carry_out())
    if not count:
        raise NoSuchSession(f"There is nothing left of {what}.")
    out.write(f"Deleted {what if count == len(keys) else _sessions(count)}.\n")
    return 0


async def _doomed(options: argparse.Namespace, settings: Settings) -> list[SessionKey]:
    async with _opened(settings) as admin:
        if options.all:
            infos = await admin.sessions(options.subject, limit=sys.maxsize)
            if not infos:
                raise _nothing(settings, options.subject)
            return [SessionKey(info.subject, info.session_id) for info in infos]
        key = await _find(admin, options.session, options.subject)
        # Before the question: there is nothing to confirm if it is gone.
        if key.subject not in await admin.subjects(key.session_id):
            raise _no_session(key)
        return [key]


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[SessionAdmin]:
    async with aclosing(_existing_store(settings)) as store:
        admin = make_session_admin(settings, store)
        await store.open()
        yield admin


def _existing_store(settings: Settings) -> SessionStore:
    # Looking at a SQLite file that does not exist must not create it.
    if settings.store_kind == "sqlite" and not os.path.exists(settings.store_path):
        raise SettingsError(f"There is no session store yet: {describe_store(settings)} is not there.")
    return make_store(settings)


async def _find(admin: SessionAdmin, session_id: str, subject: str | None) -> SessionKey:
    if subject is not None:
        return SessionKey(subject, session_id)
    subjects = await admin.subjects(session_id)
    if not subjects:
        raise NoSuchSession(f"There is no session {session_id!r}.")
    if len(subjects) > 1:
        raise SettingsError(
            f"{len(subjects)} subjects have a session {session_id!r}: say whose with --subject."
        )
    return SessionKey(subjects[0], session_id)


def _no_session(key: SessionKey) -> NoSuchSession:
    return NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")


def _nothing(settings: Settings, subject: str | None) -> SettingsError:
    if subject is not None:
        return NoSuchSession(f"There is no session of {subject!r}.")
    return SettingsError(f"There are no sessions in {describe_store(settings)}.")


# -- words


def kind(session_id: str) -> Literal["conversation", "grants", "record"]:
    """Tell conversations from the server's own records, such as what a person allowed always."""
    if session_id == RECORD_ID:
        return "grants"
    return "record" if session_id.startswith(NEVER_EXPIRES) else "conversation"


def row(info: SessionInfo) -> tuple[str, ...]:
    """Make a session's row in the list, with its local time."""
    what = kind(info.session_id)
    session, figures, owned = info.session_id, (info.messages, info.calls, info.outbound), info.owned
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    if what != "conversation":  # a record of the server: it has no messages and no owner
        return (info.subject, f"{session} ({what})", written, "-", "-", "-", _size(info.size), "-")
    return (info.subject, session, written, *map(str, figures), _size(info.size), "yes" if owned else "no")


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


def _called(keys: list[SessionKey]) -> str:
    talks = [key.session_id for key in keys if kind(key.session_id) == "conversation"]
    parts = []
    if talks:
        parts.append(f"session {talks[0]!r}" if len(talks) == 1 else _sessions(len(talks)))
    if any(key.session_id == RECORD_ID for key in keys):
        parts.append("what was always allowed")
    said = " and ".join(parts) or "the server's own records"
    return f"{said} of {keys[0].subject!r}"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


@contextmanager
def private_file(target: Path, *, replace: bool) -> Iterator[TextIO]:
    """Write a file that only its owner may read; it appears when the block ends without an error.

    Raises `SettingsError` for a file that exists, unless ``replace``.
    """
    try:
        if not replace and os.path.lexists(target):
            raise FileExistsError
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=target.parent) as folder:
            temporary = Path(folder, target.name)
            # Before anything is written: it holds what people said.
            temporary.touch(0o600)
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if not replace:
                target.touch(0o600, exist_ok=False)  # a file that another process has created is kept
            temporary.replace(target)
    except FileExistsError:
        raise SettingsError(f"{target} is there already; --force replaces it.") from None
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}.") from None
