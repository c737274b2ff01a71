"""``conductor knowledge``: index the documents of the knowledge base."""

from __future__ import annotations

import argparse
import sqlite3
from itertools import islice

from conductor.commands.output import progress, write, write_table
from conductor.errors import SettingsError
from conductor.plugins.tools.definitions import ToolFailure
from conductor.plugins.tools.folders import knowledge_index
from conductor.plugins.tools.knowledge_index import IndexBusy
from conductor.plugins.tools.sandbox import CancelFlag
from conductor.settings import load_settings

# Unreadable documents to list.
MAX_LISTED = 50


def index(_options: argparse.Namespace) -> int:
    """Index with a progress bar on stderr; returns 2 for unreadable documents. Raises `SettingsError`."""
    index = knowledge_index(load_settings())
    if index is None:
        raise SettingsError("There is no knowledge base: KNOWLEDGE_DIR is not set.")
    with progress() as bar:
        task = bar.add_task("indexing", total=None)
        try:
            update = index.update(
                CancelFlag(), lambda count, total: bar.update(task, completed=count, total=total)
            )
        except IndexBusy:
            raise SettingsError("A running server is updating the index.") from None
        except (ToolFailure, OSError, sqlite3.Error) as error:
            raise SettingsError(f"The index cannot be written: {error}.") from None
    write(
        f"{update.documents:,} documents: {update.indexed:,} indexed, {update.removed:,} removed, "
        f"{len(update.problems):,} unreadable, in {update.duration_s:.1f} s"
    )
    if not update.problems:
        return 0
    write_table(("document", "reason"), list(islice(update.problems.items(), MAX_LISTED)))
    return 2
