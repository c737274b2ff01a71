"""The passages of a document: pieces of its text, short enough for a search result, with lines or pages."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

from conductor.plugins.tools.plain_text import encoding_of
from conductor.plugins.tools.sandbox import CancelFlag

# Characters after which a passage ends at a heading, after which it ends at a blank line, and at most.
_HEADED_CHARS = 200
_ENOUGH_CHARS = 600
_MOST_CHARS = 1500
# Pages of a PDF; each takes some milliseconds.
MAX_PAGES = 2000
# Bytes and operations of one stream of a PDF when unpacked, since a small file can unpack to a large one, and
# seconds for the whole PDF.
MAX_STREAM_BYTES = 4 * 1024 * 1024
MAX_OPERATIONS = 1_000_000
MAX_PDF_S = 20.0
# Lines between two checks of the cancel flag.
_LINES = 1000

_HEADING = re.compile(r"#{1,6} +(\S.*)")


class DocumentError(Exception):
    """A document whose text cannot be read; the message is a clause for people."""


class Passage(NamedTuple):
    """A piece of a document's text. ``heading`` is the last one before it; ``page`` is 0 without pages."""

    heading: str
    text: str
    first_line: int
    last_line: int
    page: int = 0


def suffixes() -> tuple[str, ...]:
    """List the suffixes of the documents that can be read here."""
    text = (".md", ".markdown", ".txt", ".rst")
    return (*text, ".pdf") if find_spec("pypdf") is not None else text


def passages(name: str, data: bytes, stop: CancelFlag, seconds: float = MAX_PDF_S) -> Iterator[Passage]:
    """Split a document into passages; a PDF within ``seconds``.

    Raises `DocumentError`, and `ToolError` if ``stop`` is set.
    """
    if name.lower().endswith(".pdf"):
        for number, text in enumerate(_pages(data, stop, seconds), 1):
            yield from _passages(text.split("\n"), number, stop)
    elif b"\0" in data[:8192]:
        raise DocumentError("it is not text")
    else:
        # Line by line: one call for the whole of a large file would hold the interpreter lock.
        encoding = encoding_of(data)
        yield from _passages((line.decode(encoding, "replace") for line in io.BytesIO(data)), 0, stop)


def _passages(text: Iterable[str], page: int, stop: CancelFlag) -> Iterator[Passage]:
    heading = above = ""
    lines: list[str] = []
    first = last = size = 0
    for number, line in _lines(text):
        if number % _LINES == 0:
            stop.check()
        match = _HEADING.match(line)
        ends = size >= _HEADED_CHARS if match else size >= _ENOUGH_CHARS and not line.strip()
        if lines and (ends or size + len(line) > _MOST_CHARS):
            yield Passage(above, "\n".join(lines).rstrip(), first, last, page)
            lines, size = [], 0
        heading = match[1] if match else heading
        if line.strip():
            first, above = (first, above) if lines else (number, heading)
            last = number
        elif not lines:
            continue
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield Passage(above, "\n".join(lines).rstrip(), first, last, page)


def _lines(text: Iterable[str]) -> Iterator[tuple[int, str]]:
    # A line may be as long as a file: it is split into pieces with the same number.
    for number, line in enumerate(text, 1):
        line = line.rstrip("\r\n")
        for begin in range(0, max(1, len(line)), _MOST_CHARS):
            yield number, line[begin : begin + _MOST_CHARS]


def _pages(data: bytes, stop: CancelFlag, seconds: float) -> Iterator[str]:
    import pypdf

    # The exception reports a faulty file; its log would repeat it.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    deadline = time.monotonic() + seconds

    def check(*_: object) -> None:
        stop.check()
        if time.monotonic() > deadline:
            raise DocumentError(f"it takes longer than {seconds:g} s to read")

    try:
        pypdf.overwrite_configuration(
            array_based_stream_maximum_output_length=MAX_STREAM_BYTES,
            brotli_maximum_output_length=MAX_STREAM_BYTES,
            lzw_maximum_output_length=MAX_STREAM_BYTES,
            run_length_maximum_output_length=MAX_STREAM_BYTES,
            zlib_maximum_output_length=MAX_STREAM_BYTES,
            stream_parsing_work_maximum_count=MAX_OPERATIONS,
        )
        for page in pypdf.PdfReader(io.BytesIO(data)).pages[:MAX_PAGES]:
            check()
            yield page.extract_text(visitor_operand_before=check)
    except (GeneratorExit, MemoryError, DocumentError):
        raise
    except Exception as error:  # for a faulty file the library raises exceptions of many types
        stop.check()
        raise DocumentError(f"it is not a readable PDF ({type(error).__name__})") from None
