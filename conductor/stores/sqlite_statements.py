"""SQL statements for many rows at once, in few sizes, so that each stays prepared.

A statement lets go of the interpreter's lock several times, and may have to wait for it each time, behind a
busy event loop: fewer statements are quicker commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]

_MANY = 64
_SOME = 16


def select(
    connection: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[Row]
) -> Iterator[Row]:
    """Read a table's rows by (session, key); gives the session and then ``columns``."""
    # A join, since SQLite scans the whole table for "(session, key) IN (VALUES ...)".
    for part in chunks(keys):
        sql = _sql(
            f"WITH wanted(a, b) AS (VALUES @) SELECT session, {columns} FROM wanted"
            f" CROSS JOIN {table} ON session=a AND {key}=b",
            "(?,?)",
            ",",
            len(part),
        )
        yield from connection.execute(sql, tuple(chain.from_iterable(part))).fetchall()


def put(connection: sqlite3.Connection, sql: str, row: str, rows: Sequence[Row]) -> None:
    """Run a statement with rows of values, such as ``(?,?)``, in the place of ``@``."""
    for part in chunks(rows):
        connection.execute(_sql(sql, row, ",", len(part)), tuple(chain.from_iterable(part)))


def delete(connection: sqlite3.Connection, sql: str, row: str, rows: Sequence[Row]) -> None:
    """Run a statement with alternatives, such as ``(a=? AND b=?)``, in the place of ``@``."""
    for part in chunks(rows):
        connection.execute(_sql(sql, row, " OR ", len(part)), tuple(chain.from_iterable(part)))


@cache
def _sql(template: str, row: str, separator: str, count: int) -> str:
    return template.replace("@", separator.join([row] * count))


def chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split rows into parts of few sizes, so that every statement stays prepared."""
    at, count = 0, len(rows)
    while at < count:
        left = count - at
        size = _MANY if left >= _MANY else _SOME if left >= _SOME else left
        yield rows[at : at + size]
        at += size
