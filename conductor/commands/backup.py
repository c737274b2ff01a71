"""``conductor sessions backup`` and ``restore``: copies of the SQLite store."""

from __future__ import annotations

import argparse
from pathlib import Path

from conductor.commands.output import write
from conductor.commands.sessions import describe_count
from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.stores import sqlite_backup
from conductor.stores.registry import check_kept, describe_store


def back_up(options: argparse.Namespace) -> None:
    """Copy the store to a file. Raises `SettingsError`."""
    store = _store()
    if not store.exists():
        raise SettingsError(f"There is no session store: {store} does not exist.")
    count = sqlite_backup.back_up(store, options.file, replace=options.force)
    write(f"{describe_count(count)} copied to {options.file}.")


def restore(options: argparse.Namespace) -> None:
    """Make a file the store. Raises `SettingsError`."""
    store = _store()
    count = sqlite_backup.restore(options.file, store, replace=options.force)
    write(f"{describe_count(count)} restored to {store}.")


def _store() -> Path:
    settings = load_settings()
    check_kept(settings)
    if settings.store_kind != "sqlite":
        raise SettingsError(
            f"The session store is {describe_store(settings)}: back it up with its own tools "
            "(redis-cli --rdb, pg_dump)."
        )
    return settings.store_path
