"""Measures the knowledge base: indexing, one changed document, queries, and how they hold the event loop."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

from benchmarks.scenarios import ToolMetrics
from conductor.plugins.tools.functions import PythonToolset, builtin_tool
from conductor.plugins.tools.knowledge_index import KnowledgeIndex, knowledge_searcher
from conductor.plugins.tools.sandbox import CancelFlag
from conductor.tools.base import CallContext

DOCUMENTS = 10_000
QUERIES = 500
VOCABULARY = 20_000
_LETTERS = "abcdefghijklmnoprstuvw"
_TICK_S = 0.001


class Words:
    """Words of an invented language, some far more frequent than others, as in any language (Zipf's law)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._words = ["".join(rng.choices(_LETTERS, k=rng.randint(3, 10))) for _ in range(VOCABULARY)]
        self._weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def some(self, count: int) -> str:
        """Give a number of words."""
        return " ".join(self._rng.choices(self._words, cum_weights=self._weights, k=count))

    def document(self) -> str:
        """Give a document of some sections, 2.5 KB in the mean."""
        sections = []
        for _ in range(self._rng.randint(1, 6)):
            lines = [self.some(12) for _ in range(self._rng.randint(3, 12))]
            sections.append("\n".join([f"## {self.some(3)}", "", *lines, ""]))
        return "\n".join(sections)


async def knowledge_base(documents: int = DOCUMENTS, queries: int = QUERIES) -> ToolMetrics:
    """Index generated documents, change one, and ask one query after the other; times are wall clock."""
    rng = random.Random(1)
    words = Words(rng)
    with tempfile.TemporaryDirectory(prefix="conductor-") as temporary:
        folder = Path(temporary) / "documents"
        for number in range(documents):
            subfolder = folder / f"{number % 100:02}"
            subfolder.mkdir(parents=True, exist_ok=True)
            (subfolder / f"{words.some(1)}-{number}.md").write_text(words.document())
        index = KnowledgeIndex(folder, Path(temporary) / "knowledge.db")
        gaps: list[float] = []
        figures: ToolMetrics = {"documents": documents}
        async with _gaps(gaps):
            first = await asyncio.to_thread(index.update, CancelFlag())
        figures |= {"index_s": round(first.duration_s, 2), "index_loop_max_ms": _ms(max(gaps))}
        (folder / "00" / "changed.md").write_text("xylophone")
        changed = await asyncio.to_thread(index.update, CancelFlag())
        assert changed.indexed == 1
        figures["update_s"] = round(changed.duration_s, 3)
        async with _gaps(gaps):
            texts = [words.some(rng.randint(1, 8)) for _ in range(queries)]
            times = sorted(await _ask(PythonToolset([builtin_tool(knowledge_searcher(index))]), texts))
        figures |= {"query_p50_ms": _ms(times[queries // 2]), "query_p99_ms": _ms(times[queries * 99 // 100])}
        figures |= {"query_max_ms": _ms(times[-1]), "query_loop_max_ms": _ms(max(gaps))}
    return figures


async def _ask(tools: PythonToolset, queries: Sequence[str]) -> list[float]:
    times, context = [], CallContext(session_id="s", call_id="c")
    for query in queries:
        start = time.perf_counter()
        outcome = await tools.call("query_knowledge_base", {"query": query}, context)
        times.append(time.perf_counter() - start)
        assert outcome.success and outcome.data["results"]
    return times


@asynccontextmanager
async def _gaps(gaps: list[float]) -> AsyncIterator[None]:
    # How long the event loop was held, beyond the pauses that were asked for.
    gaps.clear()

    async def tick() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            gaps.append(time.perf_counter() - start - _TICK_S)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
