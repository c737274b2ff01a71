"""``query_knowledge_base``: an index that follows its documents, and queries of any text."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools import knowledge_index
from conductor.plugins.tools.builtin import BuiltinToolset, standard_tools
from conductor.plugins.tools.knowledge_index import IndexBusy, KnowledgeIndex, Update, knowledge_searcher
from conductor.plugins.tools.sandbox import CancelFlag
from conductor.tools import ToolError
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.server.wires import WAIT
from tests.unit.tools.builtin.conftest import run
from tests.unit.tools.builtin.test_knowledge_text import pdf

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "birds").mkdir(parents=True)
    (docs / "birds" / "heron.md").write_text("# Herons\n\nHerons stand in the pond and catch sprats.\n")
    (docs / "duck.txt").write_text("Ducks dive for weeds.\n")
    return docs


@pytest.fixture
def index(folder: Path) -> KnowledgeIndex:
    return KnowledgeIndex(folder, folder.parent / "data" / "knowledge.db")


def update(index: KnowledgeIndex) -> Update:
    return index.update(CancelFlag())


async def ask(index: KnowledgeIndex, query: str, **arguments: Any) -> ToolOutcome:
    return await run(knowledge_searcher(index), {"query": query, **arguments}, CONTEXT)


async def paths(index: KnowledgeIndex, query: str) -> list[str]:
    outcome = await ask(index, query)
    assert outcome.success, outcome.error_message
    return [result["path"] for result in outcome.data["results"]]


async def test_passages_are_found_with_number_path_and_lines(index: KnowledgeIndex) -> None:
    result = update(index)
    assert (result.documents, result.indexed, result.removed, result.problems) == (2, 2, 0, {})
    outcome = await ask(index, "What does the heron catch?")
    assert outcome.data == {
        "results": [
            {
                "number": 1,
                "path": "birds/heron.md",
                "lines": "1-3",
                "text": "# Herons\n\nHerons stand in the pond and catch sprats.",
            }
        ]
    }
    assert await paths(index, "crocodile") == [] == await paths(index, "?!")


async def test_the_best_passages_come_first_and_names_count(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "pond.md").write_text("A pond. " + "Filler words follow here. " * 20)
    (folder / "pump-manual.md").write_text("Turn it on. " + "Filler words follow here. " * 20)
    (folder / "book.pdf").write_bytes(pdf("Cover", "Kingfishers nest in banks."))
    update(index)
    assert await paths(index, "heron pond") == ["birds/heron.md", "pond.md"]
    assert await paths(index, "pump manual") == ["pump-manual.md"]
    assert len((await ask(index, "pond", limit=1)).data["results"]) == 1
    if "pypdf" in sys.modules:
        (result,) = (await ask(index, "kingfisher")).data["results"]
        assert (result["path"], result["page"]) == ("book.pdf", 2)


@pytest.mark.parametrize(
    "query",
    ['heron" OR "duck', "heron*", "NEAR(heron duck)", "title:heron", "heron AND", "(heron", "-heron"]
    + ["heron; DROP TABLE file", '"', "heron\0", "{heron}", "heron + NOT", "*"],
)
async def test_a_query_has_no_syntax(index: KnowledgeIndex, query: str) -> None:
    update(index)
    assert ("birds/heron.md" in await paths(index, query)) == ("heron" in query)


async def test_only_changed_documents_are_indexed(index: KnowledgeIndex, folder: Path) -> None:
    update(index)
    assert update(index).indexed == 0
    (folder / "duck.txt").write_text("Geese graze.\n")
    (folder / "new.rst").write_text("A gander.\n")
    os.remove(folder / "birds" / "heron.md")
    result = update(index)
    assert (result.documents, result.indexed, result.removed) == (2, 2, 1)
    assert await paths(index, "geese") == ["duck.txt"]
    assert await paths(index, "dive heron gander") == ["new.rst"]


async def test_hidden_ignored_linked_and_foreign_files_are_left_out(
    index: KnowledgeIndex, folder: Path
) -> None:
    (folder / ".hidden").mkdir()
    (folder / "drafts").mkdir()
    (folder / ".gitignore").write_text("drafts/\n")
    for path in (".hidden/a.md", "drafts/a.md", "a.png", "a"):
        (folder / path).write_text("heron")
    (folder.parent / "secret.md").write_text("heron")
    (folder / "link.md").symlink_to(folder.parent / "secret.md")
    update(index)
    assert await paths(index, "heron") == ["birds/heron.md"]


def test_an_unreadable_document_is_reported(
    index: KnowledgeIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_index, "MAX_DOCUMENT_BYTES", 100)
    (folder / "binary.txt").write_bytes(b"\0")
    (folder / "large.txt").write_bytes(b"x" * 101)
    os.link(folder / "duck.txt", folder / "second.txt")
    result = update(index)
    assert result.problems == {
        "binary.txt": "it is not text",
        "large.txt": "'large.txt' has 101 bytes or more; the limit is 100.",
        "duck.txt": "it cannot be read: too many links",
        "second.txt": "it cannot be read: too many links",
    }
    assert result.documents == 5
    assert update(index).problems == result.problems


async def test_common_words_do_not_hide_rare_ones(
    index: KnowledgeIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_index, "MAX_RANKED", 3)
    for number in range(5):
        (folder / f"{number}.md").write_text("the same words" + (" and a goose" if number == 3 else ""))
    update(index)
    assert await paths(index, "the same goose") == ["3.md"]
    assert len(await paths(index, "the same")) == 5
    assert len(await paths(index, "same words the crowd")) == 5


async def test_a_folder_that_is_missing_keeps_its_index(index: KnowledgeIndex, folder: Path) -> None:
    assert (
        await ask(index, "heron")
    ).error_message == "The knowledge base is not indexed yet; try again soon."
    update(index)
    os.rename(folder, folder.parent / "away")
    with pytest.raises(ToolError, match="The folder of KNOWLEDGE_DIR does not exist"):
        update(index)
    assert await paths(index, "heron") == ["birds/heron.md"]


@pytest.mark.parametrize("spoilt", [b"no database" * 1000, b""])
async def test_a_damaged_index_or_another_version_is_rebuilt(
    index: KnowledgeIndex, folder: Path, spoilt: bytes
) -> None:
    database = folder.parent / "data" / "knowledge.db"
    update(index)
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    if spoilt:
        database.write_bytes(spoilt)
    else:
        with sqlite3.connect(database) as connection:
            connection.execute("PRAGMA user_version=99")
        connection.close()
    assert update(index).indexed == 2
    assert await paths(index, "heron") == ["birds/heron.md"]


def test_two_processes_do_not_index_at_once(index: KnowledgeIndex, folder: Path) -> None:
    second = KnowledgeIndex(folder, folder.parent / "data" / "knowledge.db")

    class Meanwhile(CancelFlag):
        def check(self) -> None:
            with pytest.raises(IndexBusy):
                update(second)

    assert index.update(Meanwhile()).indexed == 2


def test_a_stopped_update_continues_later(index: KnowledgeIndex) -> None:
    class Soon(CancelFlag):
        def check(self) -> None:
            super().check()
            if index.pending == 1:  # of two
                self.set()

    with pytest.raises(ToolError):
        index.update(Soon())
    assert update(index).documents == 2


class Watched(KnowledgeIndex):
    """An index that sets an event after each update."""

    updated: asyncio.Event
    loop: asyncio.AbstractEventLoop

    def update(self, stop: CancelFlag) -> Update:
        try:
            return super().update(stop)
        finally:
            self.loop.call_soon_threadsafe(self.updated.set)


async def test_a_running_server_indexes_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge_index, "PAUSE_S", 0.001)
    index = Watched(folder, folder.parent / "data" / "knowledge.db")
    index.updated, index.loop = asyncio.Event(), asyncio.get_running_loop()
    toolset = BuiltinToolset(standard_tools(knowledge=index), index)
    await toolset.start(lambda: None)
    try:
        async with asyncio.timeout(WAIT):
            await index.updated.wait()
            assert await paths(index, "heron") == ["birds/heron.md"]
            (folder / "new.md").write_text("A grebe.")
            for _ in range(2):  # the first may have started earlier
                index.updated.clear()
                await index.updated.wait()
            assert await paths(index, "grebe") == ["new.md"]
    finally:
        await toolset.aclose()


PLACES = {
    "zh.md": "我们的餐厅每天上午八点开门,晚上十点关门。",
    "ja.md": "東京の天気は晴れです。営業時間は朝八時からです。",
    "th.md": "ร้านอาหารเปิดทุกวันตั้งแต่แปดโมงเช้า",
    "de.md": "Das Krankenhaus liegt am Donaudampfschifffahrtsufer.",
}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        *(("餐厅", "zh.md"), ("餐厅几点开门", "zh.md"), ("天気", "ja.md"), ("東京の天気", "ja.md")),
        *(("ร้านอาหาร", "th.md"), ("haus", "de.md"), ("dampfschiff", "de.md"), ("Krankenhaus", "de.md")),
    ],
)
async def test_words_without_blanks_and_parts_of_compounds_are_found(
    index: KnowledgeIndex, folder: Path, query: str, path: str
) -> None:
    for name, text in PLACES.items():
        (folder / name).write_text(text)
    update(index)
    assert await paths(index, query) == [path]
    (folder / path).unlink()
    update(index)
    assert await paths(index, query) == []


async def test_words_with_marks_are_words(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "milk.txt").write_text("आज दूध खरीदना है।")
    (folder / "other.txt").write_text("यह द और वह ध है।")
    update(index)
    assert await paths(index, "दूध?") == ["milk.txt"]


@pytest.mark.parametrize(
    ("encoding", "text", "query"),
    [
        ("iso-8859-1", "Die Öffnungszeiten für Gäste sind täglich von acht bis zehn Uhr.", "Öffnungszeiten"),
        ("windows-1251", "Ресторан работает каждый день с восьми утра до десяти вечера.", "ресторан"),
        ("gb2312", "我们的餐厅每天上午八点开门,晚上十点关门。欢迎大家来吃饭。", "餐厅"),
    ],
)
async def test_a_document_in_an_old_encoding_is_read(
    index: KnowledgeIndex, folder: Path, encoding: str, text: str, query: str
) -> None:
    (folder / "old.txt").write_bytes(text.encode(encoding))
    assert update(index).problems == {}
    (result,) = (await ask(index, query)).data["results"]
    assert (result["path"], result["text"]) == ("old.txt", text)


async def test_a_document_that_could_not_be_read_is_read_again(
    index: KnowledgeIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError("the disk is away")

    with monkeypatch.context() as away:
        away.setattr(knowledge_index, "read_bytes", fail)
        assert len(update(index).problems) == 2
    assert update(index).problems == {} and await paths(index, "heron") == ["birds/heron.md"]
    (folder / "not-text.txt").write_bytes(b"\0")
    assert update(index).indexed == 1
    assert update(index).indexed == 0, "it has not changed"
    assert update(KnowledgeIndex(folder, folder.parent / "data" / "knowledge.db")).indexed == 1
