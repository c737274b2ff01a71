"""Output of the commands: tables, JSON, results of checks and questions, with control characters escaped."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conductor.errors import SettingsError


def write(*lines: object) -> None:
    """Write lines at once."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def write_warnings(warnings: Iterable[str], *, json: bool) -> None:
    """Write warnings, each on a line; beside ``json``, which programs read, to the standard error."""
    stream = sys.stderr if json else sys.stdout
    stream.writelines(f"warn  {escape(warning)}\n" for warning in warnings)


def write_json(value: Any, indent: int | None = 2) -> None:
    """Write a value as JSON, on one line without ``indent``."""
    write(as_json(value, indent))


def write_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Collection[str] = (),
    texts: Collection[str] = (),
    *,
    json: bool = False,
) -> None:
    """Write a table, or with ``json`` a list of objects with the headings as names.

    Columns named in ``numbers`` are aligned right.
    On a terminal the last column and the columns named in ``texts`` wrap; otherwise each row is one complete
    line. Cells may come from clients, so control characters are escaped.
    """
    if json:
        write_json([dict(zip(headings, row, strict=True)) for row in rows])
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        # Names stay whole, so that people can copy them.
        justify: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in {headings[-1], *texts})
    for row in rows:
        table.add_row(*(Text(escape(str(cell))) for cell in row))  # strings would be parsed as markup
    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, color_system="auto" if is_terminal else None)
    widths = console.measure(table, options=console.options.update(max_width=1_000_000))
    console.width = max(console.width, widths.minimum) if is_terminal else widths.maximum
    with console.capture() as capture:  # rich would end the process at a closed pipe
        console.print(table)
    write(*(line.rstrip() for line in capture.get().splitlines()))


def escape(text: str, keep: str = "") -> str:
    """Escape as JSON does the characters that are invisible, reorder the text or control the terminal.

    Those in ``keep`` stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else dumps(char)[1:-1] for char in text)


def as_json(value: Any, indent: int | None = None) -> str:
    """Format a value as JSON, on one line without ``indent``, with invisible characters escaped."""
    return escape(dumps(value, indent=indent, ensure_ascii=False), "\n")


def confirm(question: str) -> bool:
    """Ask a question; anything but yes is no."""
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@dataclass(frozen=True, slots=True)
class Item:
    """The result of one check.

    ``warn`` marks a possible mistake, ``fail`` an error that prevents the server from working; ``text`` names
    the remedy.
    """

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.subject}: {self.text}"


ok, warn, fail = partial(Item, "ok"), partial(Item, "warn"), partial(Item, "fail")


@contextmanager
def private_file(target: Path, *, replace: bool) -> Iterator[TextIO]:
    """Write a file that only its owner may read; it is created at the end of the block.

    Raises `SettingsError` for an existing file, unless ``replace``.
    """
    try:
        if not replace and os.path.lexists(target):
            raise FileExistsError
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=target.parent) as folder:
            temporary = Path(folder, target.name)
            # Before anything is written, because it contains conversations.
            temporary.touch(0o600)
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if not replace:
                target.touch(0o600, exist_ok=False)  # keep a file of another process
            temporary.replace(target)
    except FileExistsError:
        raise SettingsError(f"{target} exists; --force replaces it.") from None
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}.") from None
