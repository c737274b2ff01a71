"""``conductor sessions``: read, delete, back up and restore sessions of a store that a server may use."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conductor.commands.output import as_json, confirm, private_file, write, write_json, write_table
from conductor.conversation.replay import Moment, moments, plain_state
from conductor.conversation.replay import replay as replay_commits
from conductor.conversation.state import Conversation
from conductor.errors import SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.plugins.stores import sqlite_backup
from conductor.session.fields import RECORD_ID
from conductor.settings import load_settings
from conductor.stores.base import NEVER_EXPIRES, SessionKey, SessionLog, Stored
from conductor.stores.registry import check_kept, describe_store, make_store

_T = TypeVar("_T")
# Keys in one page: a page of Redis costs a scan of all names.
_PAGE = 10_000
_NUMBERS = ("messages", "open calls", "unacked", "size")
_HEADINGS = ("subject", "session", "last written", *_NUMBERS, "owned")


# Texts of these fields are printed; others may hold words of people or of the model.
_PLAIN = frozenset(
    "event_id call_id question_id speech_id tool name source effect cause reason consent outcome"
    " state error_type error event_ids cancelled superseded trim before capabilities locale model probe claim"
    " follows paused id callId approvalId batchId code errorType status".split()
)


class NoSuchSession(SettingsError):
    """The session does not exist; the message is a sentence."""

    exit_code = 1


def list_sessions(options: argparse.Namespace) -> None:
    """List the sessions of a subject, or all. An unreadable one has no messages."""

    async def read(store: SessionLog) -> list[dict[str, Any]]:
        infos = []
        async for key, stored in _sessions(store, options.subject):
            try:
                state = _state(stored)
            except StoreUnavailable:
                state = Conversation()
            infos.append(_info(key, stored, state))
        return infos

    infos = in_store(read)
    if not infos:
        raise _no_sessions(options.subject)
    write_table(_HEADINGS, map(_row, infos), _NUMBERS, json=options.json)


def show(options: argparse.Namespace) -> None:
    """Print a session as JSON."""
    write_json(_document(*in_store(lambda store: _read(store, options))))


def replay(options: argparse.Namespace) -> None:
    """Print a session's records since the last snapshot."""
    rows = _rows(read_moments(options), options.text)
    write_table(("time", "number", "record", "fields"), rows, ("number",))


def read_moments(options: argparse.Namespace) -> Iterator[Moment]:
    """Step through the records of the ``session`` of the options.

    Raises `NoSuchSession`, `StoreUnavailable`, and `SettingsError` for an ambiguous id or an unusable store.
    """
    _, stored = in_store(lambda store: _read(store, options))
    return moments(stored.commits(), stored.meta.revision)


def export(options: argparse.Namespace) -> None:
    """Write the sessions of a subject, or all, as lines of JSON."""
    if options.force and options.output is None:
        raise SettingsError("--force requires --output.")

    async def write_all(store: SessionLog) -> int:
        count = 0
        async for key, stored in _sessions(store, options.subject):
            file.write(f"{as_json(_document(key, stored))}\n")
            count += 1
        return count

    target = options.output and private_file(options.output, replace=options.force)
    with target or nullcontext(sys.stdout) as file:
        count = in_store(write_all)
        if not count:
            raise _no_sessions(options.subject)
    if target:
        write(f"{_describe_count(count)} written to {options.output}.")


def delete(options: argparse.Namespace) -> int:
    """Delete a session, or all of a subject; returns 1 if the person declines. Fences the owners."""
    if options.all == (options.session is not None):
        raise SettingsError("Give either a session to delete, or --all.")
    if options.all and options.subject is None:
        raise SettingsError("--all requires --subject.")
    if not options.yes and not sys.stdin.isatty():
        raise SettingsError("The input is not a terminal; use --yes.")
    subject = options.subject
    if options.all:
        count = len(in_store(lambda store: store.keys(subject, None, None, sys.maxsize)))
        if not count:
            raise _no_sessions(subject)
        names = f"all data of {subject!r} ({count} record{'' if count == 1 else 's'})"
    else:
        subject = in_store(lambda store: _read(store, options))[0].subject
        names = f"session {options.session!r} of {subject!r}"
    if not options.yes and not confirm(f"Delete {names} permanently?"):
        write("Nothing was deleted.")
        return 1
    if not in_store(lambda store: store.delete(subject, options.session)):
        raise NoSuchSession(f"{names} no longer exists.")
    write(f"Deleted {names}.")
    return 0


def back_up(options: argparse.Namespace) -> None:
    """Copy the SQLite store to a file. Raises `SettingsError`."""
    store = _sqlite_file()
    if not store.exists():
        raise SettingsError(f"There is no session store: {store} does not exist.")
    count = sqlite_backup.back_up(store, options.file, replace=options.force)
    write(f"{_describe_count(count)} copied to {options.file}.")


def restore(options: argparse.Namespace) -> None:
    """Make a file the SQLite store. Raises `SettingsError`."""
    store = _sqlite_file()
    count = sqlite_backup.restore(options.file, store, replace=options.force)
    write(f"{_describe_count(count)} restored to {store}.")


def _sqlite_file() -> Path:
    settings = load_settings()
    check_kept(settings)
    if settings.store_kind != "sqlite":
        tools = "back it up with its own tools (redis-cli --rdb, pg_dump)"
        raise SettingsError(f"The session store is {describe_store(settings)}: {tools}.")
    return settings.store_path


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


async def _sessions(store: SessionLog, subject: str | None) -> AsyncIterator[tuple[SessionKey, Stored]]:
    # Pages start after the last key, so that no session comes twice.
    after: SessionKey | None = None
    while keys := await store.keys(subject, None, after, _PAGE):
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


def _info(key: SessionKey, stored: Stored, state: Conversation) -> dict[str, Any]:
    # ``updated`` is epoch seconds, ``size`` bytes of stored commits. ``owned``: a claim is not released; its
    # process may have died. ``calls`` are open, ``outbound`` events not acknowledged.
    meta = stored.meta
    kind = "record" if key.session_id.startswith(NEVER_EXPIRES) else "conversation"
    return {
        "subject": key.subject,
        "session_id": key.session_id,
        "kind": "grants" if key.session_id == RECORD_ID else kind,
        "updated": meta.updated,
        "epoch": meta.epoch,
        "revision": meta.revision,
        "owned": bool(meta.token),
        "messages": len(state.log),
        "calls": sum(call.is_open for call in state.calls),
        "outbound": len(state.outbound),
        "size": sum(map(len, stored.by_revision.values())),
    }


def _document(key: SessionKey, stored: Stored) -> dict[str, Any]:
    state = _state(stored)
    return {**_info(key, stored, state), "state": plain_state(state)}


def _row(info: dict[str, Any]) -> tuple[object, ...]:
    size = f"{info['size'] / 1000:,.1f} kB"
    updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(info["updated"]))
    if info["kind"] != "conversation":  # it has no messages and no owner
        return info["subject"], f"{info['session_id']} ({info['kind']})", updated, "-", "-", "-", size, "-"
    figures = (info["messages"], info["calls"], info["outbound"], size)
    return info["subject"], info["session_id"], updated, *figures, "yes" if info["owned"] else "no"


def _describe_count(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"


# -- the table of `replay`: a row for each record, and indented ones for its events


def _rows(moments: Iterable[Moment], text: bool) -> Iterator[tuple[object, ...]]:
    for moment in moments:
        fields: Any = {"messages": len(moment.state.log)}
        if moment.record is not None:
            fields = msgspec.to_builtins(moment.record)
            fields.get("message", {}).pop("calls", None)  # they follow as parts of the record
        elif moment.acked:
            fields = {"id": moment.acked}
        yield moment.time, moment.number, moment.name, as_json(_plain(fields, text))
        for event in moment.events:
            # The arguments of a state are no words of people.
            values = _plain(
                {"id": event.id, **msgspec.json.decode(event.payload)}, text or event.kind == "state"
            )
            yield "", "", f"  {event.type}", as_json(values)


def _plain(value: Any, text: bool, name: str = "") -> Any:
    # Without empty fields; a text that may be words is replaced by its length.
    match value:
        case dict():
            return {key: _plain(item, text, key) for key, item in value.items() if item and key != "type"}
        case list() | tuple():
            return [_plain(item, text, name) for item in value]
        case str() if not text and name not in _PLAIN:
            return f"({len(value)} characters)"
    return value
