"""``conductor sessions``: list, show, export and delete stored sessions."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar
from uuid import uuid4

from msgspec.structs import asdict

from conductor.conversation.grants import LASTING_ID
from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.admin import SessionAdmin, SessionInfo
from conductor.stores.base import LASTING, SessionKey
from conductor.stores.registry import describe_store, make_session_admin, make_store

_HEADINGS = ("subject", "session", "last written", "messages", "open calls", "unacked", "size", "owned")
_NUMBERS = frozenset((3, 4, 5, 6))
_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Characters that a terminal obeys, does not show, or cannot encode."""


def kind(session_id: str) -> Literal["conversation", "grants", "record"]:
    """Tell conversations from the server's own records, such as what a person allowed always."""
    if session_id == LASTING_ID:
        return "grants"
    return "record" if session_id.startswith(LASTING) else "conversation"


def table(infos: Sequence[SessionInfo]) -> list[str]:
    """Write headings and a line for each session, with local times."""
    rows = [_HEADINGS, *(_row(info) for info in infos)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return ["  ".join(_cell(row, column, widths) for column in range(len(row))).rstrip() for row in rows]


def _cell(row: Sequence[str], column: int, widths: Sequence[int]) -> str:
    return row[column].rjust(widths[column]) if column in _NUMBERS else row[column].ljust(widths[column])


def _row(info: SessionInfo) -> tuple[str, ...]:
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    what = kind(info.session_id)
    if what != "conversation":  # a record of the server: it has no messages and no owner
        session = f"{_plain(info.session_id)} ({what})"
        return (_plain(info.subject), session, written, "-", "-", "-", _size(info.size), "-")
    return (
        _plain(info.subject),
        _plain(info.session_id),
        written,
        str(info.messages),
        str(info.calls),
        str(info.outbound),
        _size(info.size),
        "yes" if info.owned else "no",
    )


def _plain(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


def as_json(value: Any, indent: int | None = None) -> str:
    """Write a value as JSON, on one line without ``indent``; terminal control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


@contextmanager
def private_file(target: Path, *, replace: bool) -> Iterator[TextIO]:
    """Write a file that only its owner may read; it appears when the block ends without an error.

    Raises `SettingsError` for a file that exists, unless ``replace``.
    """
    if not replace and os.path.lexists(target):
        raise _there(target)
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _put(temporary, target, replace=replace)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}.") from None


def _put(temporary: Path, target: Path, *, replace: bool) -> None:
    if not replace:
        try:
            # O_EXCL: a file that another process has created by now is kept.
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise _there(target) from None
    os.replace(temporary, target)


def _there(target: Path) -> SettingsError:
    return SettingsError(f"{target} is there already; --force replaces it.")


_T = TypeVar("_T")
# Sessions read from the store at once.
_PAGE = 1000


class NoSuchSession(Exception):
    """There is no such session; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Where a command reads answers, and writes results and errors."""

    answers: TextIO
    out: TextIO
    mistakes: TextIO


def list_sessions(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Write a table of the sessions, or the same as JSON."""
    limit: int = options.limit
    if limit < 1:
        raise SettingsError("--limit must be at least 1.")
    found = _with_admin(settings, lambda admin: _list_all(admin, options.subject, limit + 1))
    if not found:
        raise _nothing(settings, options.subject)
    shown, more = found[:limit], len(found) > limit
    if options.json:
        sessions = [{**asdict(info), "kind": kind(info.session_id)} for info in shown]
        streams.out.write(as_json({"sessions": sessions, "more": more}, indent=2))
        return 0
    for line in table(shown):
        streams.out.write(f"{line}\n")
    if more:
        streams.out.write(f"There are more; --limit {2 * limit} shows more of them.\n")
    return 0


def show(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Write all that is stored of a session."""

    async def read(admin: SessionAdmin) -> dict[str, Any]:
        key = await _find(admin, options.session, options.subject)
        kept = await admin.show(key)
        if kept is None:
            raise NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")
        return kept

    streams.out.write(as_json(_with_admin(settings, read), indent=2))
    return 0


def export(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Write all that is stored of many sessions, to a file or to the output."""

    async def write(admin: SessionAdmin, out: TextIO) -> int:
        count = 0
        async for session in admin.export(options.subject):
            out.write(as_json(session))
            count += 1
        if not count:
            raise _nothing(settings, options.subject)
        return count

    target: Path | None = options.output
    if target is None:
        if options.force:
            raise SettingsError("--force goes with --output.")
        _with_admin(settings, lambda admin: write(admin, streams.out))
        return 0
    with private_file(target, replace=options.force) as file:
        count = _with_admin(settings, lambda admin: write(admin, file))
    streams.out.write(f"{_sessions(count)} written to {target}.\n")
    return 0


def delete(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Delete a session, or all of a subject, after a confirmation."""
    if options.all == (options.session is not None):
        raise SettingsError("Say either which session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all needs --subject: say whose sessions to delete.")
    if not options.yes and not streams.answers.isatty():
        raise SettingsError("The input is no terminal to ask at: give --yes.")
    keys = _with_admin(settings, lambda admin: _doomed(admin, options))
    what = _called(keys)
    # The store is closed during the question, and opened again for the deletion.
    if not options.yes and not _agreed(f"Delete {what}, for good? [y/N] ", streams):
        streams.out.write("Nothing was deleted.\n")
        return 1

    async def carry_out(admin: SessionAdmin) -> int:
        if options.all:
            return await admin.delete_subject(options.subject)
        return int(await admin.delete(keys[0]))

    count = _with_admin(settings, carry_out)
    if not count:
        raise NoSuchSession(f"There is nothing left of {what}.")
    streams.out.write(f"Deleted {what}.\n" if count == len(keys) else f"Deleted {_sessions(count)}.\n")
    return 0


async def _doomed(admin: SessionAdmin, options: argparse.Namespace) -> list[SessionKey]:
    if options.all:
        infos = await _list_all(admin, options.subject, sys.maxsize)
        if not infos:
            raise NoSuchSession(f"There is no session of {options.subject!r}.")
        return [SessionKey(info.subject, info.session_id) for info in infos]
    key = await _find(admin, options.session, options.subject)
    if key.subject not in await admin.subjects(key.session_id):
        raise NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")
    return [key]


def _called(keys: list[SessionKey]) -> str:
    talks = [key for key in keys if kind(key.session_id) == "conversation"]
    parts = []
    if talks:
        parts.append(f"session {talks[0].session_id!r}" if len(talks) == 1 else _sessions(len(talks)))
    if any(kind(key.session_id) == "grants" for key in keys):
        parts.append("what was always allowed")
    if not parts:
        parts.append("the server's own records")
    return f"{' and '.join(parts)} of {keys[0].subject!r}"


def _agreed(question: str, streams: Streams) -> bool:
    streams.out.write(question)
    streams.out.flush()
    return streams.answers.readline().strip().lower() in ("y", "yes")


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _nothing(settings: Settings, subject: str | None) -> Exception:
    if subject is not None:
        return NoSuchSession(f"There is no session of {subject!r}.")
    return SettingsError(f"There are no sessions in {describe_store(settings)}.")


# -- the store, opened beside a server, listed and searched


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[SessionAdmin]:
    store = make_store(settings)
    admin = make_session_admin(settings, store)
    try:
        await store.open()
        yield admin
    finally:
        await store.aclose()


def _with_admin(settings: Settings, work: Callable[[SessionAdmin], Coroutine[Any, Any, _T]]) -> _T:
    # Looking at a SQLite file that does not exist must not create it.
    if settings.store_kind == "sqlite" and not os.path.exists(settings.store_path):
        raise SettingsError(f"There is no session store yet: {describe_store(settings)} is not there.")

    async def whole() -> _T:
        async with _opened(settings) as admin:
            return await work(admin)

    return asyncio.run(whole())


async def _list_all(admin: SessionAdmin, subject: str | None, limit: int) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    while len(found) < limit:
        after = SessionKey(found[-1].subject, found[-1].session_id) if found else None
        size = min(_PAGE, limit - len(found))
        page = await admin.sessions(subject, after=after, limit=size)
        found += page
        if len(page) < size:
            break
    return found


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


# Lines of a list unless told otherwise.
_LIMIT = 1000
# Exit code for a session that does not exist.
_GONE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|show|export|delete")
    listing = commands.add_parser(
        "list", help="show which sessions there are", description="Lists sessions by subject and id."
    )
    listing.add_argument("--subject", help="only this subject's")
    listing.add_argument(
        "--limit", type=int, default=_LIMIT, help="largest number of lines (default: %(default)s)"
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


def run(options: argparse.Namespace, streams: Streams | None = None) -> int:
    """Run a subcommand; returns the exit code, 1 if there is no such session.

    Raises `SettingsError` for a user's mistake, and for a store that is empty or cannot be used.
    """
    from conductor.commands import sessions as actions
    from conductor.logs import configure_logs
    from conductor.settings import load_settings

    configure_logs("critical", "console", cache=False)  # errors of the store are printed by this command
    streams = streams or actions.Streams(sys.stdin, sys.stdout, sys.stderr)
    settings = load_settings()
    action = {
        "list": actions.list_sessions,
        "show": actions.show,
        "export": actions.export,
        "delete": actions.delete,
    }[options.action]
    try:
        return action(options, settings, streams)
    except actions.NoSuchSession as missing:
        streams.mistakes.write(f"conductor: {missing}\n")
        return _GONE
    except StoreUnavailable as error:
        raise SettingsError(str(error)) from None
