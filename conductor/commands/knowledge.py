"""``conductor knowledge``: index the documents of the knowledge base."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from itertools import islice
from typing import TextIO

from rich.console import Console
from rich.progress import Progress

from conductor.app import knowledge_index
from conductor.commands.output import write_table
from conductor.errors import SettingsError
from conductor.logs import configure_logs
from conductor.plugins.tools.knowledge_index import IndexBusy
from conductor.plugins.tools.sandbox import CancelFlag, FileError
from conductor.settings import load_settings

# Unreadable documents to list.
MAX_LISTED = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("index", help="index changed documents of KNOWLEDGE_DIR, as a running server does")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Index with a progress bar on stderr; returns 2 for unreadable documents. Raises `SettingsError`."""
    configure_logs("error", "console", cache=False)
    out, index = stdout or sys.stdout, knowledge_index(load_settings())
    if index is None:
        raise SettingsError("There is no knowledge base: KNOWLEDGE_DIR is not set.")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("indexing", total=None)
        try:
            update = index.update(
                CancelFlag(), lambda count, total: progress.update(bar, completed=count, total=total)
            )
        except IndexBusy:
            raise SettingsError("A running server is updating the index.") from None
        except (FileError, OSError, sqlite3.Error) as error:
            raise SettingsError(f"The index cannot be written: {error}.") from None
    out.write(
        f"{update.documents:,} documents: {update.indexed:,} indexed, {update.removed:,} removed, "
        f"{len(update.problems):,} unreadable, in {update.duration_s:.1f} s\n"
    )
    if not update.problems:
        return 0
    write_table(out, ("document", "reason"), list(islice(update.problems.items(), MAX_LISTED)))
    return 2
