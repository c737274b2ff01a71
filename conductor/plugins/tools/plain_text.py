"""Texts of people as they are searched and read: their spelling, their letters' encoding."""

from __future__ import annotations

import codecs
import re
import unicodedata
from importlib.util import find_spec

# Accents of Latin, Greek and Cyrillic letters. Signs of other scripts are part of their words.
_ACCENTS = re.compile("[\u0300-\u036f]")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# Bytes that are looked at to find the encoding.
_SAMPLE_BYTES = 16 * 1024


def folded(text: str, *, case: bool = False) -> str:
    """Return the spelling by which texts are compared, without accents unless ``case`` matters."""
    if text.isascii():
        return text if case else text.lower()
    text = unicodedata.normalize("NFD", text if case else text.casefold())
    return text if case else _ACCENTS.sub("", text)


def find(needle: str, text: str, *, case: bool = False) -> int:
    """Find a folded needle in a text; gives the position in the text, -1 without one."""
    position = folded(text, case=case).find(needle)
    if position <= 0 or text.isascii():
        return position
    # A letter may be several in its folded spelling.
    for index, letter in enumerate(text):
        position -= len(folded(letter, case=case))
        if position < 0:
            return index
    return len(text)


def words_of(text: str) -> list[str]:
    """Split a text into its different words, without signs; vowels and tones that are marks stay."""
    letters = (char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in text)
    return list(dict.fromkeys("".join(letters).split()))


def encoding_of(data: bytes) -> str:
    """Find the encoding of a text by its mark, as UTF-8, or by the frequency of its letters."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    try:
        data.decode()
    except UnicodeDecodeError:
        return _guessed(data[:_SAMPLE_BYTES])
    return "utf-8"


def decoded(data: bytes) -> str:
    """Decode a text; what is not in its encoding is replaced."""
    return data.decode(encoding_of(data), "replace")


def _guessed(sample: bytes) -> str:
    # Of the extra "knowledge"; most texts that are not UTF-8 are Western.
    if find_spec("charset_normalizer") is None:
        return "cp1252"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return "cp1252" if best is None else best.encoding
