"""The questions about one reply, and the decisions on their way to its turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from conductor.tools.base import ToolOutcome
from conductor.tools.executor import Asked, Ready


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of one question: run ``ready``, or take ``outcome`` for the call's."""

    asked: Asked
    ready: Ready | None
    outcome: ToolOutcome | None


class Batch:
    """The questions about one reply; whoever asked takes what was decided, one after the other."""

    def __init__(self, count: int = 0) -> None:
        self._undecided = count
        self._decided: asyncio.Queue[Decided] = asyncio.Queue()

    @property
    def open(self) -> bool:
        """Whether there is a decision to wait for."""
        return self._undecided > 0

    async def next(self) -> Decided:
        """Wait for the next decision."""
        decided = await self._decided.get()
        self._undecided -= 1
        return decided

    def put(self, decided: Decided) -> None:
        """Hand a decision over."""
        self._decided.put_nowait(decided)

    def rest(self) -> list[Decided]:
        """Take what was decided and nobody took."""
        taken = []
        while not self._decided.empty():
            taken.append(self._decided.get_nowait())
        return taken
