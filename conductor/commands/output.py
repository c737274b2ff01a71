"""Output of the commands: tables, JSON, results of checks and questions, with control characters escaped."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from typing import Any, Literal, TextIO

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
    On a terminal the last column and the columns named in ``texts`` wrap, with the extra ``terminal``;
    otherwise each row is one complete line. Cells may come from clients, so control characters are escaped.
    """
    if json:
        write_json([dict(zip(headings, row, strict=True)) for row in rows])
        return
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty() and has_terminal_extra():
        write(*_wrapped(headings, cells, numbers, {headings[-1], *texts}))
        return
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in ([*headings], *cells):
        aligned = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        write("  ".join(aligned).rstrip())


def _wrapped(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Collection[str],
    wrapping: Collection[str],
) -> Iterator[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        # Names stay whole, so that people can copy them.
        justify: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in wrapping)
    for row in cells:
        table.add_row(*map(Text, row))  # strings would be parsed as markup
    console = Console(file=sys.stdout)
    widths = console.measure(table, options=console.options.update(max_width=1_000_000))
    console.width = max(console.width, widths.minimum)
    with console.capture() as capture:  # rich would end the process at a closed pipe
        console.print(table)
    return (line.rstrip() for line in capture.get().splitlines())


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show one line that changes, on the standard error if it is a terminal; a pipe gets only the result."""
    if not (sys.stderr.isatty() and has_terminal_extra()):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(text))


def has_terminal_extra() -> bool:
    """Return whether ``rich`` is installed, of the extra ``terminal``; without it nothing wraps or moves."""
    return find_spec("rich") is not None


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
