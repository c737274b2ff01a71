"""Pictures and other data in base64, which a model cannot read, are described by their type and size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from conductor import possessive

# Characters of base64 that are taken for data; shorter runs may be keys or identifiers.
MIN_RUN = 1_024
# Levels of a nested value that are searched.
MAX_DEPTH = 128

_CHAR = r"[A-Za-z0-9+/_-]"
# A line's end and a slash may be quoted, in a text that is JSON.
_BREAK = r"(?:\r?\n|\\r\\n|\\n)"
_LINES = rf"(?:{_CHAR}{{60,80}}+{_BREAK})"
_ONE = rf"(?:{_CHAR}|\\/)"
_TYPE = r"[\w.+-]{1,64}/[\w.+-]{1,64}"
_PARAMETERS = r"(?:;[\w.+-]{1,64}=[\w.+-]{1,64}){0,4}"
_URL = rf"data:(?P<type>{_TYPE})?{_PARAMETERS};base64,"
# Of a data URL without base64: it ends at a blank, a quote or a bracket.
_ESCAPED = rf"data:(?P<other>{_TYPE}){_PARAMETERS},(?P<escaped>[^\s\"'<>()\\]{{{MIN_RUN},}}+)"
# A run is in one line, or in lines of mail's width. It begins where no run is: each is visited once.
_RUN = possessive.compile(
    rf"(?<!{_CHAR})(?P<break>{_BREAK})?(?:{_URL}(?P<data>{_LINES}{{4,}}+{_ONE}*+={{0,2}}|{_ONE}++={{0,2}})"
    rf"|{_ESCAPED}|(?P<run>{_LINES}{{16,}}+{_ONE}*+={{0,2}}|{_ONE}{{{MIN_RUN},}}+={{0,2}}))"
)
_REST = possessive.compile(rf"(?:{_ONE}|{_BREAK}(?={_CHAR}))*+={{0,2}}")
# Characters that are searched in one step, and that are kept of a text: more is cut before a model reads it.
_STEP = 131_072
_KEPT = 131_072
# The first characters of base64 of well-known formats.
_BEGINNINGS = {
    "iVBORw0KGg": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi0": "application/pdf",
}
_TYPE_FIELDS = ("mimeType", "mime_type", "media_type", "mediaType")
_BASE64 = possessive.compile(rf"(?:{_CHAR}|\s)++={{0,2}}\s*")


def label(media_type: str, size: int) -> str:
    """Describe data of ``size`` bytes: ``[image/png, 40 KB]``."""
    return f"[{media_type}, {f'{size} bytes' if size < 1_024 else f'{round(size / 1_024)} KB'}]"


def base64_size(data: str) -> int:
    """Estimate the bytes of base64 from its length."""
    return (len(data) - sum(map(data.count, "\r\n\\="))) * 3 // 4


def without_media(value: Any, depth: int = 0) -> Any:
    """Describe the data in a JSON value or a text; returns the same object if there is none.

    Data are data URLs in base64, the ``data`` of a block with a media type, and runs of base64 and other data
    URLs of at least `MIN_RUN` characters.
    """
    if isinstance(value, str):
        return _text(value) if len(value) >= MIN_RUN or ";base64," in value else value
    if depth >= MAX_DEPTH or not isinstance(value, list | dict):
        return value
    if isinstance(value, list):
        items = [without_media(item, depth + 1) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    fields = {name: _field(value, name, depth + 1) for name in value}
    return fields if any(fields[name] is not value[name] for name in value) else value


def _field(block: Mapping[str, Any], name: str, depth: int) -> Any:
    data = block[name]
    if name == "data" and isinstance(data, str) and _BASE64.fullmatch(data):
        # A block such as MCP's images.
        kind = next((block[field] for field in _TYPE_FIELDS if isinstance(block.get(field), str)), "")
        if kind:
            return label(kind[:128], base64_size(data))
    return without_media(data, depth)


def _text(text: str) -> str:
    pieces: list[str] = []
    kept = position = 0
    while position < len(text) and kept < _KEPT:
        rest = _REST.match(text, position + _STEP)  # a run that crosses the end
        end = rest.end() if rest else len(text)
        for match in _RUN.finditer(text, position, end):
            if description := _described(match):
                kept += match.start() - position
                pieces += (text[position : match.start()], match["break"] or "", description)
                position = match.end()
        kept += end - position
        pieces.append(text[position:end])
        position = end
    return "".join((*pieces, text[position:])) if len(pieces) > 1 else text


def _described(match: re.Match[str]) -> str:
    run, data, escaped = match["run"], match["data"], match["escaped"]
    if escaped:
        return label(match["other"], len(escaped) - 2 * escaped.count("%"))
    # Words, numbers and rules may be long, too; data has capital letters.
    if run and run == run.lower():
        return ""
    known = next((kind for begin, kind in _BEGINNINGS.items() if run and run.startswith(begin)), "base64")
    return label(match["type"] or known, base64_size(run or data))
