"""Redaction of secrets in tools' results, before a model, a log or a person reads them.

Pure functions, in this order: known secrets in any encoding, patterns of known formats, values by the name of
their field, and paths if asked for (tools, "Redaction"). Redaction is idempotent and takes linear time.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote

from conductor.tools.redaction_patterns import (
    ASSIGNED,
    BACKWARDS,
    BEARER,
    KINDS,
    MARKER,
    MIN_SECRET,
    MIN_TOKEN,
    PLACES,
    RUNS,
    SIGNS,
    TOKENS,
    USER_INFO,
    VALUE_REST,
    mark,
    path_patterns,
)

# Bytes of a result that the model gets: longer ones are truncated.
MAX_OBSERVATION_BYTES = 16 * 1024


def truncate(text: str, limit_bytes: int = MAX_OBSERVATION_BYTES, whole: int | None = None) -> str:
    """Cut a text to ``limit_bytes`` of UTF-8, marker included; the marker says how much is missing.

    ``whole`` is the size in bytes of the complete text, if ``text`` is only its beginning.

    Cuts between characters. A text within the limit is returned unchanged. Below some 50 bytes only the
    marker remains, which may then exceed the limit.
    """
    if whole is None and len(text) * 4 <= limit_bytes:  # no character takes more than four bytes
        return text
    encoded = text.encode(errors="replace")
    if whole is None and len(encoded) <= limit_bytes:
        return text
    size = len(encoded) if whole is None else max(whole, len(encoded))
    # The marker is as long as possible when everything is missing; room for it is kept before the cut.
    room = max(0, limit_bytes - len(_marker(size, size)))
    kept = encoded[:room].decode(errors="ignore")
    return kept + _marker(size - len(kept.encode()), size)


def _marker(missing: int, whole: int) -> str:
    return f"\n[shortened: {missing:,} of {whole:,} bytes are missing]"


# Secrets in a text: more would take too long, and the rest is withheld.
MOST = 2_000
# Levels of a nested value; deeper values are withheld.
MAX_DEPTH = 128

_Span: TypeAlias = tuple[int, int, str]  # from, to (exclusive), kind
_Pattern: TypeAlias = tuple[str, re.Pattern[str]]  # what a text must hold for it, and the pattern


class Redactor:
    """Replaces secrets by ``[REDACTED:kind]``.

    `KINDS` lists the kinds; after `MOST` secrets the rest of a text is withheld. ``secrets`` are known
    values; those with fewer than `MIN_SECRET` characters besides blanks, quotes and escapes are ignored. With
    ``paths`` absolute paths of this machine are redacted too, ``home`` included.
    """

    def __init__(self, secrets: Iterable[str], *, paths: bool = False, home: str | None = None) -> None:
        known = [secret.strip() for secret in secrets if len(_plain(_encoded(secret))) >= MIN_SECRET]
        spelled = {form for secret in known for form in _spellings(secret) if not _is_in_marker(form)}
        self._spelled = sorted(spelled, key=len, reverse=True)
        self._plain = {form for secret in known for form in _plain_forms(secret)}
        self._paths = _compiled(path_patterns(home)) if paths else ()

    def text(self, text: str) -> str:
        """Redact a text; returns the same object if there is nothing to redact."""
        if len(text) < MIN_SECRET:
            return text
        if self._plain:
            text = self._without_known(text)
        signs = SIGNS.search(text) is not None
        if signs:
            text = _in_places(_PLACES, text, _folded)
        if len(text) >= MIN_TOKEN:
            text = _substituted(BEARER, "bearer", _replaced(text, _tokens(text)))
        if signs:
            text = _replaced(text, _assigned(text))
            text = _substituted(USER_INFO, "password", text)  # late, since a text grows most by these
        return _in_places(self._paths, text) if self._paths else text

    def _without_known(self, text: str) -> str:
        # The spellings as they stand come first, by plain replacement; the longest first, since one may hold
        # another.
        for form in self._spelled:
            text = text.replace(form, mark("secret"))
        data = searched = _encoded(text)
        if b"[REDACTED:" in data:  # a marker is no place to look, or "secret" would be found in it
            searched = _MARKER.sub(lambda found: b"\0" * len(found[0]), data)
        plain = _plain(searched)
        places = [place for form in self._plain if form in plain for place in _occurrences(form, plain)]
        if not places:
            return text
        starts, ends = _origins(searched)
        pieces: list[bytes] = []
        done = 0
        for start, end in sorted((starts[start], ends[end - 1]) for start, end in places):
            if start >= done:
                pieces += (data[done:start], mark("secret").encode())
            done = max(done, end)
        return b"".join((*pieces, data[done:])).decode("utf-8", "surrogatepass")

    def value(self, value: Any) -> Any:
        """Redact a JSON value and its field names; returns the same object if there is nothing to redact."""
        # As one text, since a value may consist of thousands.
        texts: list[str] = []
        _gather(value, 0, texts)
        joined = "".join(f"{text}\n{_APART}" for text in texts)
        return _with_texts(value, 0, iter(self.text(joined).split(_APART)))


# -- values

_APART = "\0\n"
"""After each of a value's texts, which are lines then: no pattern and no known secret goes beyond it."""


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
        after = next(texts, mark("rest"))
        for _ in range(f"{value}\n".count(_APART)):
            after += _APART + next(texts, mark("rest"))
        after = after.removesuffix("\n")
        return value if after == value else after
    if not value or not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return mark("nested")
    if isinstance(value, list):
        return _unless_same(value, [_with_texts(item, depth + 1, texts) for item in value])
    fields: dict[Any, Any] = {}
    for key, item in value.items():
        name = shown = _with_texts(key, depth + 1, texts)
        while shown in fields:  # two secrets look alike
            shown = f"{name} ({len(fields)})"
        fields[shown] = _field(key, _with_texts(item, depth + 1, texts))
    same = all(map(operator.is_, [*fields, *fields.values()], [*value, *value.values()]))
    return value if same else fields


def _field(name: Any, value: Any) -> Any:
    kind = secret_kind(name) if isinstance(value, str | list) and isinstance(name, str) else None
    if kind is None:
        return value
    if isinstance(value, list):
        return _unless_same(value, [_marked(kind, item) for item in value])
    return _marked(kind, value)


def _unless_same(before: list[Any], after: list[Any]) -> list[Any]:
    return before if all(map(operator.is_, before, after)) else after


def _replaced(text: str, spans: Iterable[_Span]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end, kind in spans:
        pieces += (text[done:start], mark(kind))
        done = end
        # Withheld, not left as it is: what was not looked at may hold a secret.
        if len(pieces) > 2 * MOST:
            return "".join((*pieces, mark("rest")))
    return "".join((*pieces, text[done:])) if pieces else text


# -- known secrets: a text and they are brought into one way of writing

_MARKER = re.compile(MARKER.pattern.encode())
_ESCAPES = re.compile(
    # Runs of one kind, since a text may consist of them.
    rb"((?:\\(?<!\\\\)\\*+u[0-9a-f]{4})++)|((?:\\(?<!\\\\)\\*+x[0-9a-f]{2}|%(?:25)*+[0-9a-f]{2})++)"
    rb"|\\(?<!\\\\)\\*+[nrtbf]",
    re.IGNORECASE,
)
_ESCAPE = re.compile(rb"\\++[ux]|%(?:25)*+", re.IGNORECASE)
_BETWEEN = b" \t\r\n\\\"'+"
"""What may be added where a text is broken into lines, quoted or escaped."""


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found.lastindex is None:
        return b""
    code = bytes.fromhex(_ESCAPE.sub(b"", found[0]).decode())
    return code if found[2] else _encoded(code.decode("utf-16-be", "surrogatepass"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(data: bytes) -> bytes:
    if b"\\" in data or b"%" in data:
        data = _ESCAPES.sub(_unescaped, data)
    return data.translate(None, _BETWEEN)


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
        yield encode(raw).rstrip(b"=").translate(None, _BETWEEN)
        for before in range(3):
            # Where the secret does not start or end with a group of three bytes, the characters that it
            # shares with its neighbours are left out.
            form = encode(b"\0" * before + raw)[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
            yield form.translate(None, _BETWEEN)


def _occurrences(form: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    at = data.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = data.find(form, at + len(form))


def _origins(data: bytes) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    plain = bytearray()
    at = 0
    for found in (*_ESCAPES.finditer(data), None):
        start, end = found.span() if found else (len(data), len(data))
        plain += data[at:start]
        starts += range(at, start)
        ends += range(at + 1, start + 1)
        if found and (code := _unescaped(found)):
            plain += code
            size = end - start
            step = size // len(code) if size % len(code) == 0 else 0
            starts += range(start, end, step) if step else [start] * len(code)
            ends += range(start + step, end + 1, step) if step else [end] * len(code)
        at = end
    kept = [n for n, byte in enumerate(plain) if byte not in _BETWEEN]
    return [starts[n] for n in kept], [ends[n] for n in kept]


# -- secrets by what they look like


def _compiled(patterns: Iterable[tuple[str, str]]) -> tuple[_Pattern, ...]:
    return tuple((needle, re.compile(pattern, re.ASCII | re.MULTILINE)) for needle, pattern in patterns)


_PLACES = _compiled(PLACES)


def _tokens(text: str) -> Iterator[_Span]:
    at = 0
    while (run := RUNS.match(text, at)) and run["run"]:
        found = TOKENS.match(text, run.start("run"))
        at = run.end() if found is None else found.end()
        if found is not None:
            yield found.start(), at, str(found.lastgroup)


def _substituted(pattern: re.Pattern[str], kind: str, text: str) -> str:
    return pattern.sub(rf"\1{mark(kind)}", text) if pattern.search(text) else text


def _folded(text: str) -> str:
    # Character by character, so that positions stay the same.
    return text.encode("ascii", "replace").lower().decode("ascii")


def _in_places(patterns: Iterable[_Pattern], text: str, fold: Callable[[str], str] = str) -> str:
    searched = fold(text)
    for needle, pattern in patterns:
        if needle in searched:
            after = _replaced(text, _places(pattern, text, searched))
            if after is not text:
                text, searched = after, fold(after)
    return text


def _places(pattern: re.Pattern[str], text: str, searched: str) -> Iterator[_Span]:
    named, marked = "name" in pattern.groupindex, "[REDACTED:" in text
    for found in pattern.finditer(searched):
        kind = found.lastgroup
        if kind is None:
            continue
        start, end = found.span(kind)
        if named:
            kind = secret_kind(text[slice(*found.span("name"))])
            if kind is not None and _is_worth(kind, text[start:end]):
                yield start, end, _shown(kind)
        elif not marked or not MARKER.search(text, start, end) or _is_long(text[start:end]):
            yield start, end, kind


# -- secrets by their names

_DIRECTORY = re.compile(r"[/~]|[A-Za-z]:[\\/]|\[REDACTED:path\]")
_NUMBER_OR_NESTED = re.compile(r"[\[{]|-?[0-9][0-9.eE+-]*+[}\]]*+\Z")
# Characters of a name that are compared, from its end.
_NAME_LENGTH = 32
_SHOWN = {"cookie": "token", "pwd": "password", "auth": "password"}


def secret_kind(name: str) -> str | None:
    """Return the kind of secret that a field of this name holds; None if it is not secret.

    The end of the name decides, in any style: ``db_password``, ``X-Api-Key``, ``accessToken``,
    but neither ``token_count`` nor ``nextPageToken``.
    """
    return _secret_kind(name[-_NAME_LENGTH:])


@functools.lru_cache(maxsize=1024)
def _secret_kind(name: str) -> str | None:
    found = BACKWARDS.match(name[::-1])
    return None if found is None else found.lastgroup


def _shown(kind: str) -> str:
    return _SHOWN.get(kind, kind)


def _is_long(value: str) -> bool:
    return len(value if "[REDACTED:" not in value else MARKER.sub("", value)) >= MIN_SECRET


def _is_worth(kind: str, value: str) -> bool:
    if not _is_long(value):
        return False
    match kind:
        case "cookie":
            return "=" in value
        case "pwd":
            return _DIRECTORY.match(value) is None
        case "auth":
            return _is_user_and_password(value)
    return True


def _marked(kind: str, value: Any) -> Any:
    return mark(_shown(kind)) if isinstance(value, str) and _is_worth(kind, value) else value


def _is_user_and_password(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False


def _assigned(text: str) -> Iterator[_Span]:
    low, marked = _folded(text), "[REDACTED:" in text
    at = matches = run_end = stripped_end = 0
    while found := ASSIGNED.search(low, at):
        at = max(found.start("quote"), found.start("value"))
        matches += 1
        if matches > _MATCHES:
            yield at, len(text), "rest"
            return
        before = max(0, found.start() - _NAME_LENGTH)
        kind = _secret_kind(found["name"])
        if kind is None or kind == "token":  # the words before it decide
            kind = _secret_kind(text[before : found.end("name")])
        if kind is None or (marked and _IN_MARKER.search(low, before, found.start())):
            continue
        quote, closed, colon, more = found.group("quote", "closed", "colon", "more")
        start, end = at, found.end()
        if quote:
            start, end = end, _end(_quoted(len(quote) - 1, quote[-1]), text, end)
        elif closed and _NUMBER_OR_NESTED.match(low, start, end):
            continue  # as JSON has it after a name in quotes
        elif colon and text[start:end].isalpha() and not _LINE_START.search(low, before, found.start()):
            continue  # a word as in a sentence: the line is more than a name and a value
        else:
            if more is not None and start >= run_end:  # values that overlap end at the same place
                run_end = _end(VALUE_REST, low, end)
                stripped_end = start + len(text[start:run_end].rstrip(_AFTER))
            end = start + len(text[start:end].rstrip(_AFTER)) if more is None else max(start, stripped_end)
        if _is_worth(kind, text[start : min(end, start + _DECISIVE)]):
            at = end
            yield start, end, _shown(kind)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


_AFTER = ".!?:)}*"
# Characters of a value that decide whether it is secret; a multiple of four, as Base64 has it.
_DECISIVE = 256
# Values that are looked at in a text; the rest of a text with more is withheld.
_MATCHES = 4_000
_LINE_START = re.compile(r"(?:\A|[\n\\])[ -]*[\w.-]*\Z")
_IN_MARKER = re.compile(r"\[redacted:[a-z_]*\Z")


@functools.lru_cache(maxsize=64)
def _quoted(slashes: int, quote: str) -> re.Pattern[str]:
    # Each level of escaping doubles the backslashes: a quote with fewer or more belongs to the value.
    doubled = rf"(?:\\{{{2 * slashes + 2}}})*+"
    return re.compile(
        rf"(?:[^\\{quote}\n]++|(?!{doubled}\\{{{slashes}}}{quote})(?:\\++{quote}?+|{quote}))*+"
        rf"(?:{doubled}(?=\\{{{slashes}}}{quote}))?+"
    )
