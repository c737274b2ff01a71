"""Redaction of secrets in tool results, before a model, a log or a person reads them.

Pure functions, in this order: known secrets in any encoding, tokens and keys of known formats, values by the
name of their field, and paths if configured. Redaction is idempotent and takes linear time.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

from conductor import possessive
from conductor.tools.redaction_patterns import (
    ASSIGNED,
    BEARER,
    CONTEXTS,
    MIN_SECRET,
    PATHS,
    RUNS,
    SECRET_NAME,
    TOKENS,
    USER_INFO,
    Pattern,
)

# Levels of a nested value; deeper values are withheld.
MAX_DEPTH = 128

MARKER = re.compile(r"\[REDACTED:[a-z_]{1,16}\]")
KINDS = tuple("api_key bearer jwt nested password path private_key secret token".split())

_Span: TypeAlias = tuple[int, int, str]  # from, to (exclusive), kind


def mark(kind: str) -> str:
    """Return the marker that replaces a redacted text."""
    return f"[REDACTED:{kind}]"


class Redactor:
    """Replaces secrets by ``[REDACTED:kind]``.

    ``secrets`` are known values; a value with fewer than `MIN_SECRET` characters besides blanks, quotes and
    escapes is ignored. With ``paths`` absolute paths of this machine are redacted too.
    """

    def __init__(self, secrets: Iterable[str], *, paths: bool = False) -> None:
        values = [secret.strip() for secret in secrets if len(_plain(_encoded(secret))) >= MIN_SECRET]
        spellings = {form for value in values for form in _spellings(value) if not _is_in_marker(form)}
        self._secrets = tuple(values)
        self._spellings = sorted(spellings, key=len, reverse=True)
        self._plain_forms = {form for value in values for form in _plain_forms(value)}
        self._paths = paths

    def knowing(self, secrets: Iterable[str]) -> Redactor:
        """Return a redactor of further known values."""
        return Redactor((*self._secrets, *secrets), paths=self._paths)

    def text(self, text: str) -> str:
        """Redact a text; returns the same object if there is nothing to redact."""
        if len(text) < MIN_SECRET:
            return text
        if self._plain_forms:
            text = self._without_known(text)
        text = _in_context(CONTEXTS, text, _folded)
        text = _substituted(BEARER, "bearer", _replaced(text, _tokens(text)))
        text = _replaced(text, _assigned(text))
        text = _substituted(USER_INFO, "password", text)  # late: these markers make the text longest
        return _in_context(PATHS, text) if self._paths else text

    def value(self, value: Any) -> Any:
        """Redact a JSON value and its field names; returns the same object if there is nothing to redact.

        In a redacted text NUL characters become U+FFFD.
        """
        # As one text, since a value may consist of thousands.
        texts: list[str] = []
        _gather(value, 0, texts)
        # Half a boundary in a text would shift all later texts once a secret took it along.
        joined = "".join(_line(text) + _BOUNDARY for text in texts)
        redacted = _with_texts(value, 0, iter(self.text(joined).split(_BOUNDARY)))
        return value if redacted == value else redacted

    def _without_known(self, text: str) -> str:
        # The literal spellings come first, by plain replacement; the longest first, since one may contain
        # another.
        for form in self._spellings:
            text = text.replace(form, mark("secret"))
        data = searched = _encoded(text)
        if b"[REDACTED:" in data:  # a marker is not searched: it contains the word "secret"
            searched = _BYTE_MARKER.sub(lambda match: b"\0" * len(match[0]), data)
        plain = _plain(searched)
        matches = [span for form in self._plain_forms if form in plain for span in _occurrences(form, plain)]
        if not matches:
            return text
        starts, ends = _origins(searched)
        pieces: list[bytes] = []
        position = 0
        for start, end in sorted((starts[start], ends[end - 1]) for start, end in matches):
            if start >= position:
                pieces += (data[position:start], mark("secret").encode())
            position = max(position, end)
        return b"".join((*pieces, data[position:])).decode("utf-8", "surrogatepass")


_BOUNDARY = "\0\n"
"""After each text of a value, which becomes a line: no pattern and no known secret crosses it."""


def _line(text: str) -> str:
    return text.replace("\0", "\ufffd") + "\n"


def _gather(value: Any, depth: int, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list | dict) and depth < MAX_DEPTH:
        for item in value:
            _gather(item, depth + 1, texts)
            if isinstance(value, dict):
                _gather(value[item], depth + 1, texts)


def _with_texts(value: Any, depth: int, texts: Iterator[str]) -> Any:
    if isinstance(value, str):
        text = next(texts)
        return value if text == _line(value) else text.removesuffix("\n")
    if not value or not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return mark("nested")
    if isinstance(value, list):
        return [_with_texts(item, depth + 1, texts) for item in value]
    fields: dict[Any, Any] = {}
    for key, item in value.items():
        name = unique = _with_texts(key, depth + 1, texts)
        while unique in fields:  # two secrets have the same marker
            unique = f"{name} ({len(fields)})"
        fields[unique] = _field(key, _with_texts(item, depth + 1, texts))
    return fields


def _field(name: Any, value: Any) -> Any:
    if not isinstance(name, str) or not isinstance(value, str | list) or not is_secret_name(name):
        return value
    if isinstance(value, list):
        return [_field(name, item) if isinstance(item, str) else item for item in value]
    return mark("secret") if _is_long(value) else value


def _replaced(text: str, spans: Iterable[_Span]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end, kind in spans:
        pieces += (text[position:start], mark(kind))
        position = end
    return "".join((*pieces, text[position:])) if pieces else text


# -- known secrets: a text and the secrets are reduced to one spelling

_BYTE_MARKER = re.compile(MARKER.pattern.encode())
_ESCAPES = possessive.compile(
    # Runs of one kind, since a text may consist of them.
    rb"((?:\\(?<!\\\\)\\*+u[0-9a-f]{4})++)|((?:\\(?<!\\\\)\\*+x[0-9a-f]{2}|%(?:25)*+[0-9a-f]{2})++)"
    rb"|\\(?<!\\\\)\\*+[nrtbf]",
    re.IGNORECASE,
)
_ESCAPE = possessive.compile(rb"\\++[ux]|%(?:25)*+", re.IGNORECASE)
_IGNORED = b" \t\r\n\\\"'+"
"""Characters that are added where a text is wrapped, quoted or escaped."""


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match.lastindex is None:
        return b""
    code = bytes.fromhex(_ESCAPE.sub(b"", match[0]).decode())
    return code if match[2] else _encoded(code.decode("utf-16-be", "surrogatepass"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(data: bytes) -> bytes:
    if b"\\" in data or b"%" in data:
        data = _ESCAPES.sub(_unescaped, data)
    return data.translate(None, _IGNORED)


def _spellings(secret: str) -> tuple[str, ...]:
    # `_plain` may take the start of a secret for part of an escape.
    return secret, json.dumps(secret)[1:-1], quote(_encoded(secret), safe="")


def _is_in_marker(form: str) -> bool:
    return any(form in mark(kind) for kind in KINDS)


def _plain_forms(secret: str) -> Iterator[bytes]:
    raw = _encoded(secret)
    yield _plain(raw)
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).rstrip(b"=").translate(None, _IGNORED)
        for offset in range(3):
            # Where the secret does not start or end with a group of three bytes, the characters that it
            # shares with its neighbours are left out.
            form = encode(b"\0" * offset + raw)[(0, 2, 3)[offset] : (offset + len(raw)) * 8 // 6]
            yield form.translate(None, _IGNORED)


def _occurrences(form: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    start = data.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = data.find(form, start + len(form))


def _origins(data: bytes) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    plain = bytearray()
    position = 0
    for match in (*_ESCAPES.finditer(data), None):
        start, end = match.span() if match else (len(data), len(data))
        plain += data[position:start]
        starts += range(position, start)
        ends += range(position + 1, start + 1)
        if match and (code := _unescaped(match)):
            plain += code
            size = end - start
            step = size // len(code) if size % len(code) == 0 else 0
            starts += range(start, end, step) if step else [start] * len(code)
            ends += range(start + step, end + 1, step) if step else [end] * len(code)
        position = end
    indexes = [index for index, byte in enumerate(plain) if byte not in _IGNORED]
    return [starts[index] for index in indexes], [ends[index] for index in indexes]


def _tokens(text: str) -> Iterator[_Span]:
    position = 0
    while (run := RUNS.match(text, position)) and run["run"]:
        match = TOKENS.match(text, run.start("run"))
        position = run.end() if match is None else match.end()
        if match is not None:
            yield match.start(), position, str(match.lastgroup)


def _substituted(pattern: re.Pattern[str], kind: str, text: str) -> str:
    return pattern.sub(rf"\1{mark(kind)}", text) if pattern.search(text) else text


def _folded(text: str) -> str:
    # Character by character, so that positions stay the same.
    return text.encode("ascii", "replace").lower().decode("ascii")


def _in_context(patterns: Iterable[Pattern], text: str, fold: Callable[[str], str] = str) -> str:
    for literal, pattern in patterns:
        searched = fold(text)
        if literal in searched:
            text = _replaced(text, _matches(pattern, text, searched))
    return text


def _matches(pattern: re.Pattern[str], text: str, searched: str) -> Iterator[_Span]:
    marked = "[REDACTED:" in text
    for match in pattern.finditer(searched):
        kind = match.lastgroup
        if kind is None:
            continue
        start, end = match.span(kind)
        if not marked or not MARKER.search(text, start, end) or _is_long(text[start:end]):
            yield start, end, kind


# -- values of fields and assignments, by their names

# Characters of a quoted value.
_MAX_VALUE = 4_096
_AFTER = ".!?:)}*"  # of a sentence around the value


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name holds a secret: ``db_password`` does, ``token_count`` does not."""
    return SECRET_NAME.search(_folded(name[-32:])) is not None


_SCHEME = re.compile(r"(?:bearer|basic|token|apikey)\s+", re.IGNORECASE)


def without_scheme(value: str) -> str:
    """Return the credentials of a header, without a scheme such as ``Bearer``."""
    return _SCHEME.sub("", value.strip(), count=1)


def secrets_in(fields: Mapping[str, str]) -> list[str]:
    """List the secret values of fields by their names."""
    return [without_scheme(value) for name, value in fields.items() if is_secret_name(name)]


def _is_long(value: str) -> bool:
    return len(value if "[REDACTED:" not in value else MARKER.sub("", value)) >= MIN_SECRET


def _assigned(text: str) -> Iterator[_Span]:
    end = 0
    for match in ASSIGNED.finditer(_folded(text)):
        start = match.end() if match["quote"] else match.start("value")
        if start < end:
            continue
        if match["quote"]:
            stop = _quoted_end(text, start, match["quote"])
        else:
            stop = start + len(match["value"].rstrip(_AFTER))
        if _is_long(text[start:stop]):
            end = stop
            yield start, end, "secret"


def _quoted_end(text: str, start: int, quote: str) -> int:
    line_end = text.find("\n", start, start + _MAX_VALUE)
    limit = min(start + _MAX_VALUE, len(text)) if line_end < 0 else line_end
    slashes, end = len(quote) - 1, start - 1
    while (end := text.find(quote, end + 1, limit)) >= 0:
        # Each level of escaping doubles the backslashes: a quote with fewer or more belongs to the value.
        run = len(quote) - 1 + end - start - len(text[start:end].rstrip("\\"))
        if (run - slashes) % (2 * slashes + 2) == 0:
            return end
    return limit
