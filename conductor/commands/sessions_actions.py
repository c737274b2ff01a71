"""What ``conductor sessions`` does: list, show, export and delete, each from its options to its output."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import asdict

from conductor.commands.sessions_store import NoSuchSession, find, list_all, with_admin
from conductor.commands.sessions_text import as_json, kind, private_file, table
from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import SessionKey
from conductor.stores.registry import describe_store


@dataclass(frozen=True, slots=True)
class Streams:
    """Where a command reads answers from, and writes what it found and what was not there."""

    answers: TextIO
    out: TextIO
    mistakes: TextIO


def list_sessions(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Write a table of what there is, or the same as JSON."""
    limit: int = options.limit
    if limit < 1:
        raise SettingsError("--limit must be at least 1.")
    found = with_admin(settings, lambda admin: list_all(admin, options.subject, limit + 1))
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
    """Write all that is kept of a session."""

    async def read(admin: SessionAdmin) -> dict[str, Any]:
        key = await find(admin, options.session, options.subject)
        kept = await admin.show(key)
        if kept is None:
            raise NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")
        return kept

    streams.out.write(as_json(with_admin(settings, read), indent=2))
    return 0


def export(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Write all that is kept of many sessions, to a file or where it is read."""

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
        with_admin(settings, lambda admin: write(admin, streams.out))
        return 0
    with private_file(target, replace=options.force) as file:
        count = with_admin(settings, lambda admin: write(admin, file))
    streams.out.write(f"{_sessions(count)} written to {target}.\n")
    return 0


def delete(options: argparse.Namespace, settings: Settings, streams: Streams) -> int:
    """Delete a session, or all of a subject, once that is agreed."""
    if options.all == (options.session is not None):
        raise SettingsError("Say either which session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all needs --subject: say whose sessions to delete.")
    if not options.yes and not streams.answers.isatty():
        raise SettingsError("Nobody can be asked whether that is meant: give --yes.")
    keys = with_admin(settings, lambda admin: _doomed(admin, options))
    what = _called(keys)
    # Nothing runs while the person thinks: the store is opened anew afterwards.
    if not options.yes and not _agreed(f"Delete {what}, for good? [y/N] ", streams):
        streams.out.write("Nothing was deleted.\n")
        return 1

    async def carry_out(admin: SessionAdmin) -> int:
        if options.all:
            return await admin.delete_subject(options.subject)
        return int(await admin.delete(keys[0]))

    count = with_admin(settings, carry_out)
    if not count:
        raise NoSuchSession(f"There is nothing left of {what}.")
    streams.out.write(f"Deleted {what}.\n" if count == len(keys) else f"Deleted {_sessions(count)}.\n")
    return 0


async def _doomed(admin: SessionAdmin, options: argparse.Namespace) -> list[SessionKey]:
    """Find what is to be deleted."""
    if options.all:
        infos = await list_all(admin, options.subject, sys.maxsize)
        if not infos:
            raise NoSuchSession(f"There is no session of {options.subject!r}.")
        return [SessionKey(info.subject, info.session_id) for info in infos]
    key = await find(admin, options.session, options.subject)
    if key.subject not in await admin.subjects(key.session_id):
        raise NoSuchSession(f"There is no session {key.session_id!r} of {key.subject!r}.")
    return [key]


def _called(keys: list[SessionKey]) -> str:
    """Say in words what is to be deleted."""
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
