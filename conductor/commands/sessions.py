"""``conductor sessions``: list, show, replay, export and delete stored sessions."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Literal, TextIO

from msgspec.structs import asdict

from conductor.commands.output import as_json, private_file, write_table
from conductor.commands.replay import write_moments
from conductor.commands.stored_sessions import SessionInfo, StoredSessions
from conductor.conversation.fields import RECORD_ID
from conductor.conversation.playback import Moment, plain_moment
from conductor.errors import SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.settings import Settings, load_settings
from conductor.stores.base import NEVER_EXPIRES, SessionKey
from conductor.stores.registry import check_kept, describe_store, make_store

_NUMBERS = ("messages", "open calls", "unacked", "size")
_HEADINGS = ("subject", "session", "last written", *_NUMBERS, "owned")


class NoSuchSession(SettingsError):
    """The session does not exist; the message is a sentence."""

    exit_code = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|show|replay|export|delete")
    listing = commands.add_parser("list", help="list sessions by subject and id")
    listing.add_argument("--limit", type=int, default=1000, help="maximum of lines (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="print JSON")
    showing = commands.add_parser(
        "show",
        help="print a session as JSON",
        description="Prints the state of a session as JSON, including the conversation.",
    )
    replaying = commands.add_parser(
        "replay",
        help="step through a session's records",
        description="Prints the records since the last snapshot of the session (up to 64 commits) in order: "
        "time (UTC), number, name and fields; below each, the events that it showed the client.",
    )
    replaying.add_argument("--text", action="store_true", help="also print texts and arguments")
    replaying.add_argument(
        "--json", action="store_true", help="print each record as a line of JSON, with the state after it"
    )
    exporting = commands.add_parser(
        "export",
        help="write sessions as lines of JSON",
        description="Writes the state of each session as a line of JSON, including the conversation.",
    )
    exporting.add_argument("--output", type=Path, metavar="FILE", help="a new file, readable by its owner")
    exporting.add_argument("--force", action="store_true", help="replace an existing file")
    deleting = commands.add_parser(
        "delete",
        help="delete a session, or all data of a subject",
        description="Deletes permanently. A server with the session is fenced: it can no longer write. --all "
        "also deletes the permissions of scope always, which apply until the next session starts.",
    )
    deleting.add_argument("--all", action="store_true", help="delete all data of the subject")
    deleting.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")
    for command in (listing, showing, replaying, exporting, deleting):
        command.add_argument("--subject", help="the session's subject; required if the id is ambiguous")
    for command in (showing, replaying, deleting):
        command.add_argument("session", nargs="?" if command is deleting else None, help="the session's id")


def run(options: argparse.Namespace, stdout: TextIO | None = None, stdin: TextIO | None = None) -> int:
    """Run a subcommand; returns the exit code, 1 for a declined deletion.

    Raises `NoSuchSession`, and `SettingsError` for a wrong argument and for an empty or unusable store.
    """
    configure_logs("critical", "console", cache=False)  # this command prints errors of the store
    out, settings = stdout or sys.stdout, load_settings()
    actions = {"list": _list, "show": _show, "replay": _replay, "export": _export}
    try:
        if options.action not in actions:
            return _delete(options, settings, out, stdin or sys.stdin)
        asyncio.run(actions[options.action](options, settings, out))
    except StoreUnavailable as error:
        raise SettingsError(str(error)) from None
    return 0


async def _list(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    limit: int = options.limit
    if limit < 1:
        raise SettingsError("--limit must be at least 1.")
    async with _opened(settings) as sessions:
        infos = await sessions.infos(options.subject, limit=min(limit + 1, sys.maxsize))
    if not infos:
        raise _no_sessions(settings, options.subject)
    more = len(infos) > limit
    if options.json:
        documents = [{**asdict(info), "kind": kind(info.session_id)} for info in infos[:limit]]
        out.write(as_json({"sessions": documents, "more": more}, indent=2))
        return
    write_table(out, _HEADINGS, map(row, infos[:limit]), _NUMBERS)
    if more:
        out.write(f"There are more sessions; use --limit {2 * limit}.\n")


async def _show(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    async with _opened(settings) as sessions:
        key = await _find(sessions, options.session, options.subject)
        session = await sessions.show(key)
    if session is None:
        raise _no_session(key)
    out.write(as_json(session, indent=2))


async def read_moments(settings: Settings, session_id: str, subject: str | None) -> Iterator[Moment]:
    """Step through a stored session's records.

    Raises `NoSuchSession`, `StoreUnavailable`, and `SettingsError` for an ambiguous id or an unusable store.
    """
    async with _opened(settings) as sessions:
        key = await _find(sessions, session_id, subject)
        moments = await sessions.moments(key)
    if moments is None:
        raise _no_session(key)
    return moments


async def _replay(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    moments = await read_moments(settings, options.session, options.subject)
    if options.json:
        for moment in moments:
            out.write(as_json(plain_moment(moment)))
    else:
        write_moments(out, moments, text=options.text)


async def _export(options: argparse.Namespace, settings: Settings, out: TextIO) -> None:
    async def write(file: TextIO) -> int:
        count = 0
        async with _opened(settings) as sessions:
            async for session in sessions.export(options.subject):
                file.write(as_json(session))
                count += 1
        if not count:
            raise _no_sessions(settings, options.subject)
        return count

    if options.output is None:
        if options.force:
            raise SettingsError("--force requires --output.")
        await write(out)
    else:
        with private_file(options.output, replace=options.force) as file:
            count = await write(file)
        out.write(f"{_sessions(count)} written to {options.output}.\n")


def _delete(options: argparse.Namespace, settings: Settings, out: TextIO, answers: TextIO) -> int:
    if options.all == (options.session is not None):
        raise SettingsError("Give either a session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all requires --subject.")
    if not options.yes and not answers.isatty():
        raise SettingsError("The input is not a terminal; use --yes.")
    keys = asyncio.run(_matches(options, settings))
    names = _describe(keys)
    if not options.yes:  # outside of the event loop, which would swallow Ctrl-C
        out.write(f"Delete {names} permanently? [y/N] ")
        out.flush()
        if answers.readline().strip().lower() not in ("y", "yes"):
            out.write("Nothing was deleted.\n")
            return 1

    async def carry_out() -> int:
        async with _opened(settings) as sessions:
            return await sessions.delete(keys[0].subject, None if options.all else keys[0].session_id)

    count = asyncio.run(carry_out())
    if not count:
        raise NoSuchSession(f"{names} no longer exists.")
    out.write(f"Deleted {names if count == len(keys) else _sessions(count)}.\n")
    return 0


async def _matches(options: argparse.Namespace, settings: Settings) -> list[SessionKey]:
    async with _opened(settings) as sessions:
        if options.all:
            infos = await sessions.infos(options.subject, limit=sys.maxsize)
            if not infos:
                raise _no_sessions(settings, options.subject)
            return [SessionKey(info.subject, info.session_id) for info in infos]
        key = await _find(sessions, options.session, options.subject)
        # Before the question, which is not needed for a missing session.
        if key.subject not in await sessions.subjects(key.session_id):
            raise _no_session(key)
        return [key]


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[StoredSessions]:
    _check_existence(settings)
    async with aclosing(make_store(settings)) as store:
        await store.open()
        yield StoredSessions(store)


def _check_existence(settings: Settings) -> None:
    check_kept(settings)
    # A missing SQLite file must not be created.
    if settings.store_kind == "sqlite" and not os.path.exists(settings.store_path):
        raise SettingsError(f"There is no session store: {describe_store(settings)} does not exist.")


async def _find(sessions: StoredSessions, session_id: str, subject: str | None) -> SessionKey:
    if subject is not None:
        return SessionKey(subject, session_id)
    subjects = await sessions.subjects(session_id)
    if not subjects:
        raise NoSuchSession(f"There is no session {session_id!r}.")
    if len(subjects) > 1:
        raise SettingsError(f"{len(subjects)} subjects have a session {session_id!r}; use --subject.")
    return SessionKey(subjects[0], session_id)


def _no_session(key: SessionKey) -> NoSuchSession:
    return NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")


def _no_sessions(settings: Settings, subject: str | None) -> SettingsError:
    if subject is not None:
        return NoSuchSession(f"There is no session of {subject!r}.")
    return SettingsError(f"There are no sessions in {describe_store(settings)}.")


def kind(session_id: str) -> Literal["conversation", "grants", "record"]:
    """Distinguish conversations from records of the server, such as permissions."""
    if session_id == RECORD_ID:
        return "grants"
    return "record" if session_id.startswith(NEVER_EXPIRES) else "conversation"


def row(info: SessionInfo) -> tuple[str, ...]:
    """Make a session's row in the list, with its local time."""
    record = kind(info.session_id)
    session, figures, owned = info.session_id, (info.messages, info.calls, info.outbound), info.owned
    updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    if record != "conversation":  # it has no messages and no owner
        return (info.subject, f"{session} ({record})", updated, "-", "-", "-", _size(info.size), "-")
    return (info.subject, session, updated, *map(str, figures), _size(info.size), "yes" if owned else "no")


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


def _describe(keys: list[SessionKey]) -> str:
    talks = [key.session_id for key in keys if kind(key.session_id) == "conversation"]
    parts = []
    if talks:
        parts.append(f"session {talks[0]!r}" if len(talks) == 1 else _sessions(len(talks)))
    if any(key.session_id == RECORD_ID for key in keys):
        parts.append("the permissions")
    return f"{' and '.join(parts) or 'the records'} of {keys[0].subject!r}"


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
