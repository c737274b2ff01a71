"""``notes_create`` and ``notes_search``: a file for each note, found again by its words."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools import notes
from conductor.plugins.tools.notes import EXCERPT_CHARS, note_search, note_writer
from conductor.plugins.tools.sandbox import Files, Roots
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import run

CONTEXT = CallContext(session_id="s", call_id="c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.mkdir()
    return path


async def create(folder: Path, title: str, text: str = "text", context: CallContext = CONTEXT) -> ToolOutcome:
    tool = note_writer(Files(Roots([folder])), lambda: datetime(2026, 3, 1, 23, 30, tzinfo=UTC))
    return await run(tool, {"title": title, "text": text}, context)


async def search(folder: Path, **arguments: Any) -> ToolOutcome:
    return await run(note_search(Files(Roots([folder]))), arguments, CONTEXT)


def titles(outcome: ToolOutcome) -> list[str]:
    return [note["title"] for note in outcome.data["notes"]]


async def test_a_note_is_a_file_that_only_the_server_may_read(folder: Path) -> None:
    outcome = await create(folder, " Heron\n food ", "Buy sprats.\n")
    assert outcome.data == {"path": "2026-03-01-heron-food.md"}
    file = folder / "2026-03-01-heron-food.md"
    assert file.read_text() == "# Heron food\n\nBuy sprats.\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    outcome = await create(
        folder, "x", context=CallContext(session_id="s", call_id="c", time_zone="Europe/Berlin")
    )
    assert outcome.data == {"path": "2026-03-02-x.md"}
    assert (await create(folder / "gone", "a")).error_type == "io_error"
    assert (await search(folder / "gone")).error_type == "io_error"


async def test_no_note_replaces_another(folder: Path) -> None:
    paths = [(await create(folder, "Same", str(number))).data["path"] for number in range(3)]
    assert paths == ["2026-03-01-same.md", "2026-03-01-same-2.md", "2026-03-01-same-3.md"]
    assert [(folder / path).read_text()[-2] for path in paths] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("ÜBER: Straße!", "über-strasse"),
        ("…", "note"),
        ("x" * 120, "x" * 60),
        ("鷺" * 120, "鷺" * 60),
        ("दूध खरीदना", "दूध-खरीदना"),
    ],
)
async def test_a_title_becomes_a_plain_name(folder: Path, title: str, name: str) -> None:
    assert (await create(folder, title)).data == {"path": f"2026-03-01-{name}.md"}


async def test_notes_with_the_most_words_of_a_query_come_first(folder: Path) -> None:
    await create(folder, "Dentist", "Appointment on Monday")
    await create(folder, "Heron", "It likes Mondays by the pond.")
    await create(folder, "Shopping", "Oats")
    assert titles(await search(folder, query="MONDAY pond")) == ["Heron", "Dentist"]
    assert titles(await search(folder, query="heron")) == ["Heron"]
    outcome = await search(folder, query="crocodile")
    assert outcome.data == {"notes": [], "found": 0, "complete": True}


async def test_without_a_query_the_newest_come(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        path = (await create(folder, f"n{number}")).data["path"]
        os.utime(folder / path, (number, number))
    outcome = await search(folder)
    assert titles(outcome) == ["n6", "n5", "n4", "n3", "n2"] and outcome.data["found"] == 7
    assert titles(await search(folder, limit=1)) == ["n6"]
    assert outcome.data["notes"][0]["modified"] == "1970-01-01T00:00:06Z"
    monkeypatch.setattr(notes, "BUDGET_S", 0)
    outcome = await search(folder)
    assert not outcome.data["complete"] and outcome.metadata.notes == ("The time limit was reached.",)


async def test_notes_of_other_programs_are_found(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "plain.txt").write_text("heron without a title")
    (folder / "image.png").write_text("heron")
    (folder / "link.md").symlink_to("/etc/hostname")
    (folder / "large.md").write_text("heron" + " " * notes.MAX_NOTE_BYTES)
    (note,) = (await search(folder, query="heron")).data["notes"]
    assert (note["path"], note["title"]) == ("sub/plain.txt", "sub/plain.txt")
    assert note["text"] == "heron without a title"


async def test_a_long_note_is_cut_around_the_match(folder: Path) -> None:
    for number in range(25):
        await create(folder, f"n{number}", "x " * 1000 + "heron" + " y" * 1000)
    outcome = await search(folder, query="heron", limit=20)
    assert len(outcome.data["notes"]) == 20 and len(outcome.content) < 16 * 1024
    for note in outcome.data["notes"]:
        assert "heron" in note["text"] and len(note["text"]) == EXCERPT_CHARS + 2


@pytest.mark.parametrize("query", ["milk?", "“milk”", "MILK, please!", "cafe\u0301", "café", "cafe"])
async def test_signs_and_accents_of_a_query_do_not_matter(folder: Path, query: str) -> None:
    await create(folder, "Shopping", "Buy milk at the café.")
    await create(folder, "Other", "Feed the heron.")
    assert titles(await search(folder, query=query)) == ["Shopping"]


@pytest.mark.parametrize(
    ("text", "query", "other"), [("दूध", "दूध?", "दवा, धन"), ("น้ำ", "น้ำ!", "นา ำ"), ("பால்", "“பால்”", "பா, லி")]
)
async def test_vowels_and_tones_are_part_of_their_words(
    folder: Path, text: str, query: str, other: str
) -> None:
    await create(folder, "Shopping", text)
    await create(folder, "Other", other)
    assert titles(await search(folder, query=query)) == ["Shopping"]


async def test_the_excerpt_is_where_the_words_are(folder: Path) -> None:
    await create(folder, "Sharp", "ß" * 400 + " the heron" + " and more" * 200)
    (note,) = (await search(folder, query="heron")).data["notes"]
    assert "heron" in note["text"]


async def test_a_note_in_another_encoding_is_read(folder: Path) -> None:
    (folder / "old.md").write_bytes(
        "# Garten\n\nDie Vögel fressen Körner, und die Äpfel sind süß.".encode("cp1252")
    )
    (note,) = (await search(folder, query="Körner")).data["notes"]
    assert "Vögel" in note["text"]
