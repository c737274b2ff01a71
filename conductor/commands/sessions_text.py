"""How ``conductor sessions`` writes sessions: as a table, as JSON, into a file that is its owner's alone."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TextIO
from uuid import uuid4

from conductor.conversation.lasting import LASTING_ID
from conductor.errors import SettingsError
from conductor.stores.admin import SessionInfo
from conductor.stores.base import LASTING

_HEADINGS = ("subject", "session", "last written", "messages", "open calls", "unacked", "size", "owned")
_NUMBERS = frozenset((3, 4, 5, 6))
_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Characters that a terminal acts upon, does not show, or could not write."""


def kind(session_id: str) -> Literal["conversation", "grants", "record"]:
    """Tell conversations from what the server itself keeps: what a person allowed always, and the like."""
    if session_id == LASTING_ID:
        return "grants"
    return "record" if session_id.startswith(LASTING) else "conversation"


def table(infos: Sequence[SessionInfo]) -> list[str]:
    """Write a line for each session below the headings; times are local."""
    rows = [_HEADINGS, *(_row(info) for info in infos)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return ["  ".join(_cell(row, column, widths) for column in range(len(row))).rstrip() for row in rows]


def _cell(row: Sequence[str], column: int, widths: Sequence[int]) -> str:
    return row[column].rjust(widths[column]) if column in _NUMBERS else row[column].ljust(widths[column])


def _row(info: SessionInfo) -> tuple[str, ...]:
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    what = kind(info.session_id)
    if what != "conversation":  # what it holds is no talk, and nobody has to let go of it
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
    """Write a value as JSON, on one line without ``indent``; what a terminal would act upon is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


@contextmanager
def private_file(target: Path, *, replace: bool) -> Iterator[TextIO]:
    """Write a file that only its owner may read; it is there once the block has ended well, and whole.

    Raises `SettingsError` for one that is there already, unless it may be replaced.
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
            # Whoever made such a file meanwhile keeps it.
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise _there(target) from None
    os.replace(temporary, target)


def _there(target: Path) -> SettingsError:
    return SettingsError(f"{target} is there already; --force replaces it.")
