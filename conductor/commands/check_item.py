"""One result of ``conductor check``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Item:
    """What was checked and the result.

    ``warn`` is for what may be a mistake, ``fail`` for what keeps the server from working; their text names
    the remedy.
    """

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.subject}: {self.text}"


ok, warn, fail = partial(Item, "ok"), partial(Item, "warn"), partial(Item, "fail")
