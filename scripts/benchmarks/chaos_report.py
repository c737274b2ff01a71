"""What a run under faults has found: as figures, as a table, and what of it must not be."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from benchmarks.chaos_book import NO_FAULT, Book, Column, Row
from benchmarks.chaos_faults import STEPS

COLUMNS: tuple[Column, ...] = get_args(Column)


@dataclass(frozen=True)
class Report:
    """One run.

    ``refused`` are the histories that the model's service did not accept, ``errors`` the harness's own.
    """

    seed: int
    store: str
    book: Book
    refused: Sequence[str]
    tracebacks: int
    errors: Sequence[str]
    seconds: float

    def total(self, column: Column) -> int:
        """Count what was found of one kind, at all steps."""
        return sum(count for (_, found), count in self.book.bad.items() if found == column)

    def failures(self) -> list[str]:
        """Name what must be zero and is not."""
        found = [f"{self.total(column)} {column}" for column in COLUMNS if self.total(column)]
        if self.refused:
            found.append(f"{len(self.refused)} invalid histories")
        if self.tracebacks:
            found.append(f"{self.tracebacks} tracebacks")
        return found + [f"the harness failed: {error}" for error in self.errors]

    def rows(self) -> list[Row]:
        """List the faults that fell, steps first."""
        rows: list[Row] = [("kill", step) for step in STEPS if self.book.faults["kill", step]]
        named = {row for row, _ in self.book.bad} | set(self.book.faults)
        return rows + sorted(named - set(rows) - {NO_FAULT}) + ([NO_FAULT] if NO_FAULT in named else [])

    def figures(self) -> dict[str, Any]:
        """Give everything as JSON."""
        book = self.book
        resumes = book.resume_times()
        return {
            "seed": self.seed,
            "store": self.store,
            "seconds": round(self.seconds, 1),
            "faults": {f"{kind}: {step}": count for (kind, step), count in sorted(book.faults.items())},
            "bad": {column: self.total(column) for column in COLUMNS},
            "bad_by_step": {f"{kind}: {step}: {found}": n for ((kind, step), found), n in book.bad.items()},
            "invalid": len(self.refused),
            "refused": list(self.refused)[:10],
            "tracebacks": self.tracebacks,
            "unknown": dict(book.unknown),
            "figures": dict(sorted(book.figures.items())),
            "resume_ms": {
                "count": len(resumes),
                "p50": _percentile(resumes, 50),
                "p99": _percentile(resumes, 99),
                "waited for a call": len(book.resumes) - len(resumes),
                "delayed claims": len(book.delayed),
            },
            "stories": book.traces,
            "failures": self.failures(),
        }


def summary(report: Report) -> str:
    """Say what must not be, with the stories of some of it."""
    lines = [f"seed {report.seed}: {', '.join(report.failures())}"]
    lines += [f"  {story}" for story in report.book.stories[:20]]
    return "\n".join(lines + [f"  invalid: {refusal}" for refusal in report.refused[:5]])


def print_report(report: Report, control: str | None) -> None:
    """Print the table and the totals."""
    book, figures = report.book, report.figures()
    title = f"control: {control}" if control else "chaos"
    print(f"\n{title}, seed {report.seed}, {report.store}, {report.seconds:.0f} s")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
    _print_table(report)
    resume = figures["resume_ms"]
    print(
        f"\ninvalid histories {figures['invalid']}; write calls unknown, by cause: {figures['unknown']}"
        f"\nresume p50 {resume['p50']} ms, p99 {resume['p99']} ms of {resume['count']}; "
        f"{resume['waited for a call']} waited for a call, {resume['delayed claims']} delayed claims"
        f"\n{dict(sorted(book.figures.items()))}"
    )
    print(f"FAILED {summary(report)}" if report.failures() else "nothing lost, nothing done twice")


def _print_table(report: Report) -> None:
    widths = [max(7, len(column)) for column in COLUMNS]
    head = " | ".join(f"{column:>{width}}" for column, width in zip(COLUMNS, widths, strict=True))
    print(f"| {'fault':<36} | {'count':>5} | {head} |")
    print(f"|{'-' * 38}|{'-' * 7}|{'|'.join('-' * (width + 2) for width in widths)}|")
    for row in report.rows():
        bad = (report.book.bad[row, column] for column in COLUMNS)
        cells = " | ".join(f"{count:>{width}}" for count, width in zip(bad, widths, strict=True))
        print(f"| {': '.join(row):<36} | {report.book.faults[row]:>5} | {cells} |")


def _percentile(values: Sequence[float], percent: int) -> float:
    """Give a percentile of sorted seconds, in milliseconds."""
    if not values:
        return 0.0
    return round(values[min(len(values) - 1, len(values) * percent // 100)] * 1000, 1)
