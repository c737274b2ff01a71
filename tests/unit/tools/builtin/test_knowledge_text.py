"""Passages of documents: short pieces with their headings, lines and pages."""

from __future__ import annotations

import zlib

import pytest

from conductor.plugins.tools import knowledge_text
from conductor.plugins.tools.knowledge_text import (
    MAX_STREAM_BYTES,
    DocumentError,
    Passage,
    passages,
)
from conductor.plugins.tools.sandbox import CancelFlag


def cut(text: str, name: str = "a.md") -> list[Passage]:
    return list(passages(name, text.encode(), CancelFlag()))


def pdf(*pages: str) -> bytes:
    """Make a PDF with one line of text on each page."""
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    font = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>"]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        resources = f"/Resources<</Font<</F1 {font}>>>>/MediaBox[0 0 612 792]"
        objects.append(f"<</Type/Page/Parent 2 0 R{resources}/Contents {4 + 2 * number} 0 R>>")
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    data, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"trailer<</Size {size}/Root 1 0 R>>\nstartxref\n{len(data)}\n%%EOF\n"
    return f"{data}xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode()


def test_a_short_document_is_one_passage_with_its_lines() -> None:
    assert cut("\n\n# Herons\r\n\nThey fish.\n\n") == [Passage("Herons", "# Herons\n\nThey fish.", 3, 5)]
    assert cut("") == cut("\n \n") == []


def test_a_long_document_is_cut_at_headings_and_blank_lines() -> None:
    sections = [f"# S{number}\n\n" + ("word " * 60 + "\n") for number in range(4)]
    pieces = cut("".join(sections))
    assert [(piece.heading, piece.first_line, piece.last_line) for piece in pieces] == [
        (f"S{number}", 1 + 3 * number, 3 + 3 * number) for number in range(4)
    ]
    pieces = cut(("word " * 130 + "\n\n") * 3)
    assert [(piece.first_line, piece.last_line) for piece in pieces] == [(1, 1), (3, 3), (5, 5)]


def test_all_text_is_in_passages_of_limited_length() -> None:
    text = "\n".join(f"line {number} " + "x" * (number % 200) for number in range(500))
    pieces = cut(text + "\n" + "y" * 10_000)
    assert all(len(piece.text) <= 1500 for piece in pieces)
    assert sum(piece.text.count("y") for piece in pieces) == 10_000
    for number in (0, 123, 499):
        (piece,) = [piece for piece in pieces if f"line {number} " in piece.text]
        assert piece.first_line <= number + 1 <= piece.last_line
    assert pieces[-1].first_line == pieces[-1].last_line == 501


def test_a_pdf_is_cut_by_its_pages() -> None:
    pytest.importorskip("pypdf")
    pieces = list(passages("a.PDF", pdf("Herons fish.", "Ducks dive."), CancelFlag()))
    assert [(piece.text, piece.page) for piece in pieces] == [("Herons fish.", 1), ("Ducks dive.", 2)]


@pytest.mark.parametrize("data", [b"", b"%PDF-1.4\n", b"no pdf", pdf("x")[:200], b"%PDF-1.4\n" + bytes(5000)])
def test_a_broken_pdf_is_reported(data: bytes) -> None:
    pytest.importorskip("pypdf")
    with pytest.raises(DocumentError, match="it is not a readable PDF"):
        list(passages("a.pdf", data, CancelFlag()))


def packed(operation: bytes, count: int) -> bytes:
    """Make a PDF of one page whose content is compressed."""
    stream = zlib.compress(operation * count)
    begin, _, remainder = pdf("CONTENT").partition(b"<</Length ")
    end = remainder[remainder.index(b"\nendstream") :]
    return begin + b"<</Filter/FlateDecode/Length %d>>stream\n" % len(stream) + stream + end


@pytest.mark.parametrize("count", [501, MAX_STREAM_BYTES])
def test_a_pdf_that_unpacks_to_much_is_abandoned_early(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf")
    monkeypatch.setattr(knowledge_text, "MAX_OPERATIONS", 1_000)
    data = packed(b"q Q\n", count)
    assert len(data) < 100_000
    with pytest.raises(DocumentError, match="LimitReachedError"):
        list(passages("a.pdf", data, CancelFlag()))


def test_a_pdf_is_read_for_some_seconds_only() -> None:
    pytest.importorskip("pypdf")
    with pytest.raises(DocumentError, match="takes longer than 0 s"):
        list(passages("a.pdf", pdf("x", "y"), CancelFlag(), seconds=0.0))
