"""``conductor sessions``: list, show, replay, export and delete sessions of a store that a server may use."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Literal, TextIO, TypeVar

import msgspec
from rich import filesize

from conductor.commands.output import as_json, confirm, private_file, write, write_json, write_table
from conductor.commands.replay import write_moments
from conductor.conversation.ledger import RECORD_ID, Moment, moments, plain_moment, plain_state
from conductor.conversation.ledger import replay as replay_commits
from conductor.conversation.state import Conversation
from conductor.errors import SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.settings import load_settings
from conductor.stores.base import NEVER_EXPIRES, SessionKey, SessionLog, Stored
from conductor.stores.registry import check_kept, describe_store, make_store

_T = TypeVar("_T")
# Keys in one page: a page of Redis costs a scan of all names.
_PAGE = 10_000
_NUMBERS = ("messages", "open calls", "unacked", "size")
_HEADINGS = ("subject", "session", "last written", *_NUMBERS, "owned")


class NoSuchSession(SettingsError):
    """The session does not exist; the message is a sentence."""

    exit_code = 1


class SessionInfo(msgspec.Struct, frozen=True):
    """A session in a list. ``updated`` is epoch seconds, ``size`` bytes of stored commits.

    ``owned``: a claim is not released; its process may have died. ``calls`` are open, ``outbound`` events
    not acknowledged.
    """

    subject: str
    session_id: str
    updated: float
    epoch: int
    revision: int
    owned: bool
    messages: int
    calls: int
    outbound: int
    size: int


def list_sessions(options: argparse.Namespace) -> None:
    """List the sessions of a subject, or all. An unreadable one has no messages."""
    limit: int = options.limit
    if limit < 1:
        raise SettingsError("--limit must be at least 1.")

    async def read(store: SessionLog) -> list[SessionInfo]:
        infos: list[SessionInfo] = []
        async for key, stored in _sessions(store, options.subject, min(limit + 1, _PAGE)):
            try:
                infos.append(_info(key, stored, _state(stored)))
            except StoreUnavailable:
                infos.append(_info(key, stored, Conversation()))
            if len(infos) > limit:
                break
        return infos

    infos = in_store(read)
    if not infos:
        raise _no_sessions(options.subject)
    more = len(infos) > limit
    if options.json:
        documents = [{**msgspec.to_builtins(info), "kind": kind(info.session_id)} for info in infos[:limit]]
        write_json({"sessions": documents, "more": more})
        return
    write_table(_HEADINGS, map(row, infos[:limit]), _NUMBERS)
    if more:
        write(f"There are more sessions; use --limit {2 * limit}.")


def show(options: argparse.Namespace) -> None:
    """Print a session as JSON."""
    write_json(_document(*in_store(lambda store: _read(store, options))))


def replay(options: argparse.Namespace) -> None:
    """Print a session's records since the last snapshot, as a table or as lines of JSON."""
    moments = read_moments(options)
    if options.json:
        for moment in moments:
            write_json(plain_moment(moment), indent=None)
    else:
        write_moments(moments, text=options.text)


def read_moments(options: argparse.Namespace) -> Iterator[Moment]:
    """Step through the records of the ``session`` of the options.

    Raises `NoSuchSession`, `StoreUnavailable`, and `SettingsError` for an ambiguous id or an unusable store.
    """
    _, stored = in_store(lambda store: _read(store, options))
    return moments(stored.commits(), stored.meta.revision)


def export(options: argparse.Namespace) -> None:
    """Write the sessions of a subject, or all, as lines of JSON."""

    def write_to(file: TextIO) -> int:
        async def write_all(store: SessionLog) -> int:
            count = 0
            async for key, stored in _sessions(store, options.subject, _PAGE):
                file.write(f"{as_json(_document(key, stored))}\n")
                count += 1
            return count

        count = in_store(write_all)
        if not count:
            raise _no_sessions(options.subject)
        return count

    if options.output is None:
        if options.force:
            raise SettingsError("--force requires --output.")
        write_to(sys.stdout)
        return
    with private_file(options.output, replace=options.force) as file:
        count = write_to(file)
    write(f"{describe_count(count)} written to {options.output}.")


def delete(options: argparse.Namespace) -> int:
    """Delete a session, or all of a subject; returns 1 if the person declines. Fences the owners."""
    if options.all == (options.session is not None):
        raise SettingsError("Give either a session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all requires --subject.")
    if not options.yes and not sys.stdin.isatty():
        raise SettingsError("The input is not a terminal; use --yes.")

    async def matches(store: SessionLog) -> list[SessionKey]:
        if not options.all:
            return [(await _read(store, options))[0]]
        return [key async for key, _ in _sessions(store, options.subject, _PAGE)]

    keys = in_store(matches)
    if not keys:
        raise _no_sessions(options.subject)
    names = _describe(keys)
    if not options.yes and not confirm(f"Delete {names} permanently?"):
        write("Nothing was deleted.")
        return 1
    session_id = None if options.all else keys[0].session_id
    count = in_store(lambda store: store.delete(keys[0].subject, session_id))
    if not count:
        raise NoSuchSession(f"{names} no longer exists.")
    write(f"Deleted {names if count == len(keys) else describe_count(count)}.")
    return 0


def in_store(work: Callable[[SessionLog], Awaitable[_T]]) -> _T:
    """Do work in the store of the settings. Raises `StoreUnavailable`; `SettingsError` without a store."""
    configure_logs("critical", "console", cache=False)  # the command line prints errors of the store
    settings = load_settings()
    check_kept(settings)
    # A missing SQLite file must not be created.
    if settings.store_kind == "sqlite" and not os.path.exists(settings.store_path):
        raise SettingsError(f"There is no session store: {describe_store(settings)} does not exist.")

    async def run() -> _T:
        async with aclosing(make_store(settings)) as store:
            await store.open()
            return await work(store)

    return asyncio.run(run())


async def _sessions(
    store: SessionLog, subject: str | None, page: int
) -> AsyncIterator[tuple[SessionKey, Stored]]:
    # Pages start after the last key, so that no session comes twice.
    after: SessionKey | None = None
    while keys := await store.keys(subject, None, after, page):
        for after in keys:
            stored = await store.read(after)
            if stored is not None:  # else it was deleted after the listing
                yield after, stored


async def _read(store: SessionLog, options: argparse.Namespace) -> tuple[SessionKey, Stored]:
    session_id, subject = options.session, options.subject
    keys = await store.keys(subject, session_id, None, sys.maxsize)
    matches = [(key, stored) for key in keys if (stored := await store.read(key)) is not None]
    if not matches:
        owner = "" if subject is None else f" of {subject!r}"
        raise NoSuchSession(f"There is no session {session_id!r}{owner}.")
    if len(matches) > 1:
        raise SettingsError(f"{len(matches)} subjects have a session {session_id!r}; use --subject.")
    return matches[0]


def _no_sessions(subject: str | None) -> SettingsError:
    if subject is not None:
        return NoSuchSession(f"There is no session of {subject!r}.")
    return SettingsError(f"There are no sessions in {describe_store(load_settings())}.")


def _state(stored: Stored) -> Conversation:
    return replay_commits(stored.commits(), stored.meta.revision)


def _info(key: SessionKey, stored: Stored, state: Conversation) -> SessionInfo:
    meta = stored.meta
    return SessionInfo(
        key.subject,
        key.session_id,
        meta.updated,
        meta.epoch,
        meta.revision,
        bool(meta.token),
        len(state.log),
        sum(call.is_open for call in state.calls),
        len(state.outbound),
        sum(map(len, stored.by_revision.values())),
    )


def _document(key: SessionKey, stored: Stored) -> dict[str, Any]:
    state = _state(stored)
    return {**msgspec.to_builtins(_info(key, stored, state)), "state": plain_state(state)}


def kind(session_id: str) -> Literal["conversation", "grants", "record"]:
    """Distinguish conversations from records of the server, such as permissions."""
    if session_id == RECORD_ID:
        return "grants"
    return "record" if session_id.startswith(NEVER_EXPIRES) else "conversation"


def row(info: SessionInfo) -> tuple[object, ...]:
    """Make a session's row in the list, with its local time."""
    record, size = kind(info.session_id), filesize.decimal(info.size)
    updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    if record != "conversation":  # it has no messages and no owner
        return info.subject, f"{info.session_id} ({record})", updated, "-", "-", "-", size, "-"
    figures = (info.messages, info.calls, info.outbound, size)
    return info.subject, info.session_id, updated, *figures, "yes" if info.owned else "no"


def _describe(keys: list[SessionKey]) -> str:
    talks = [key.session_id for key in keys if kind(key.session_id) == "conversation"]
    parts = []
    if talks:
        parts.append(f"session {talks[0]!r}" if len(talks) == 1 else describe_count(len(talks)))
    if any(key.session_id == RECORD_ID for key in keys):
        parts.append("the permissions")
    return f"{' and '.join(parts) or 'the records'} of {keys[0].subject!r}"


def describe_count(sessions: int) -> str:
    """Count sessions in words."""
    return "1 session" if sessions == 1 else f"{sessions} sessions"
