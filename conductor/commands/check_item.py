"""One line of what ``conductor check`` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Item:
    """What was looked at, and what was found: ``fail`` is what keeps the server from doing its work."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.subject}: {self.text}"


def ok(subject: str, text: str) -> Item:
    """Say that something is as it should be."""
    return Item("ok", subject, text)


def warn(subject: str, text: str) -> Item:
    """Say that something may not be what was meant, and how to mend it."""
    return Item("warn", subject, text)


def fail(subject: str, text: str) -> Item:
    """Say that something does not work, and how to mend it."""
    return Item("fail", subject, text)
