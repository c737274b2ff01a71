"""What the commands write: tables, and JSON, both without what a terminal would obey."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Characters that a terminal obeys, does not show, or cannot encode."""


def write_table(
    out: TextIO,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[str] = (),
    texts: Collection[str] = (),
) -> None:
    """Write a table, with the columns that ``numbers`` names aligned right.

    On a terminal the last column wraps, and those that ``texts`` names; elsewhere each row is one uncut line.
    Cells may come from clients: control characters are escaped.
    """
    shown = [[cell if cell.isprintable() else ascii(cell)[1:-1] for cell in row] for row in rows]
    if out.isatty():
        _draw(out, headings, shown, numbers, {headings[-1], *texts})
        return
    # Not by rich, which takes a millisecond a row.
    lines = [headings, *shown]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for heading, cell, width in zip(headings, line, widths, strict=True)
        ]
        out.write("  ".join(cells).rstrip() + "\n")


def _draw(
    out: TextIO,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[str],
    texts: Collection[str],
) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        wraps = heading in texts  # names stay whole: people copy them
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=not wraps)
    for row in rows:
        table.add_row(*map(Text, row))  # a string would be read as markup
    console = Console(file=out)
    needed = console.measure(table, options=console.options.update(max_width=1_000_000)).minimum
    console.width = max(console.width, needed)
    with console.capture() as drawn:  # rich would end the process at a closed pipe
        console.print(table)
    out.write(drawn.get())


def as_json(value: Any, indent: int | None = None) -> str:
    """Write a value as JSON, on one line without ``indent``; what a terminal would obey is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    # As escapes the JSON stays the same to a program, and shows a person what is in it.
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
