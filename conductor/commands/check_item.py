"""One result of ``conductor check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Item:
    """What was checked and the result; ``fail`` is what keeps the server from working."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.subject}: {self.text}"


def ok(subject: str, text: str) -> Item:
    """Make an item for what works."""
    return Item("ok", subject, text)


def warn(subject: str, text: str) -> Item:
    """Make an item for what may be a mistake, with the remedy."""
    return Item("warn", subject, text)


def fail(subject: str, text: str) -> Item:
    """Make an item for what does not work, with the remedy."""
    return Item("fail", subject, text)
