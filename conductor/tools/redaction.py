"""What must not be seen, taken out of what a tool gave before a model, a log or a person reads it.

Pure: exact values of known secrets go first, then what the patterns find, then values by the name that they
are given, then paths if they are to go (tools, "Redaction"). Redacting twice changes nothing more.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from conductor.tools.redaction_patterns import (
    HEADER_RULES,
    KEY_RULES,
    MARKER,
    MIN_SECRET,
    Rule,
    Span,
    apply_rules,
    mark,
    path_rules,
)

MAX_DEPTH = 128
"""Of nested values; what lies deeper is not looked through but withheld."""


class Redactor:
    """Replaces secrets by ``[REDACTED:kind]``.

    Kinds are api_key, bearer, jwt, nested, password, path, private_key, secret and token. ``secrets`` are the
    values that the process knows, of which those under `MIN_SECRET` characters are ignored. ``paths`` takes
    absolute paths of this machine out as well; ``home`` is a directory more that counts as such.
    """

    def __init__(self, secrets: Iterable[str], *, paths: bool = False, home: str | None = None) -> None:
        forms = {form for secret in secrets for form in _forms(secret.strip())}
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        # A marker is taken first, as it is, or a secret such as "secret" would be found in it.
        self._exact = re.compile("|".join((MARKER.pattern, *map(re.escape, self._forms))))
        self._paths = tuple(path_rules(home)) if paths else ()

    def text(self, text: str) -> str:
        """Redact a text; the same object when there is nothing to redact."""
        if len(text) < MIN_SECRET:
            return text
        for form in self._forms:
            if form in text:
                after = self._exact.sub(_exact_marker, text)
                text = text if after == text else after
                break
        text = apply_rules(_PATTERNS, text)
        if ":" in text or "=" in text:
            text = apply_rules(_NAMED, text)
        return apply_rules(self._paths, text) if self._paths else text

    def value(self, value: Any) -> Any:
        """Redact a JSON value, dict keys excepted; the same object when there is nothing to redact."""
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= MAX_DEPTH:
            return mark("nested")
        if isinstance(value, list):
            items = [self._value(item, depth + 1) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        fields = {key: self._field(key, item, depth) for key, item in value.items()}
        return fields if any(fields[key] is not item for key, item in value.items()) else value

    def _field(self, name: Any, value: Any, depth: int) -> Any:
        after = self._value(value, depth + 1)
        kind = secret_kind(name) if isinstance(after, str | list) and isinstance(name, str) else None
        if kind is None:
            return after
        if isinstance(after, str):
            return mark(_shown(kind)) if _is_worth(kind, after) else after
        if isinstance(after, list):
            worth = [isinstance(item, str) and _is_worth(kind, item) for item in after]
            if any(worth):
                marker = mark(_shown(kind))
                return [marker if hide else item for hide, item in zip(worth, after, strict=True)]
        return after


# Exact values


def _forms(secret: str) -> Iterator[str]:
    """Give a secret as it is, and as it looks in JSON, in a URL and in Base64."""
    if len(secret) < MIN_SECRET:
        return
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        for before in range(3):
            # Where the secret does not start or end with a group of three bytes, the characters that it
            # shares with its neighbours are left out.
            size = before + len(raw)
            form = encode(b"\0" * before + raw).decode()[(0, 2, 3)[before] : size * 8 // 6]
            if len(form) > MIN_SECRET:
                yield form


def _exact_marker(found: re.Match[str]) -> str:
    return found[0] if MARKER.fullmatch(found[0]) else mark("secret")


# Values by their names

_COOKIE = "cookie"
_KINDS: tuple[tuple[str, Sequence[str]], ...] = (
    ("password", "password passwords passwd pwd passphrase passcode".split()),
    ("token", "token accesstokens authtokens apitokens refreshtokens jwt sessioncookie authcookie".split()),
    (
        "api_key",
        "apikey apikeys accesskey secretkey accountkey sharedkey authkey signingkey encryptionkey masterkey "
        "subscriptionkey".split(),
    ),
    ("private_key", ["privatekey"]),
    ("secret", "secret secrets credential credentials".split()),
    ("bearer", ["authorization"]),
    (_COOKIE, ["cookie", "cookies"]),
)
_NAME_ENDS = tuple((kind, tuple(ends)) for kind, ends in _KINDS)
# Tokens that open nothing: places in a list, and words of a model's vocabulary.
_HARMLESS = frozenset(
    "page next previous prev continuation sync cursor resume resumption scroll start end stop eos bos pad "
    "unk mask sep cls per special image delta".split()
)
_HARMLESS_ENDS = ("pagetoken", "nexttoken", "continuationtoken", "synctoken", "cursortoken")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_NAME_LENGTH = 64  # characters of a name that are looked at, its last


def secret_kind(name: str) -> str | None:
    """Tell which kind of secret a value of this name is; None if it is none.

    What counts is how the name ends, written in any style: ``db_password``, ``X-Api-Key``, ``accessToken``,
    but neither ``token_count`` nor ``nextPageToken``.
    """
    return _secret_kind(name[-_NAME_LENGTH:])


@functools.lru_cache(maxsize=1024)
def _secret_kind(name: str) -> str | None:
    squashed = re.sub(r"[\W_]+", "", name).lower()
    if name.lower().endswith(("_pass", "-pass")):
        return "password"
    kind = next((kind for kind, ends in _NAME_ENDS if squashed.endswith(ends)), None)
    if kind == "token":
        words = _WORDS.findall(name)
        if squashed.endswith(_HARMLESS_ENDS) or (len(words) > 1 and words[-2].lower() in _HARMLESS):
            return None
    if kind == "password" and squashed.endswith("pwd"):
        return _PWD
    return kind


_PWD = "pwd"  # a password or the working directory
_DIRECTORY = re.compile(r"[/~]|[A-Za-z]:[\\/]|\[REDACTED:path\]")


def _shown(kind: str) -> str:
    return {_COOKIE: "token", _PWD: "password"}.get(kind, kind)


def _is_worth(kind: str, value: str) -> bool:
    """Tell whether a value of a secret's name is to be redacted: long enough, and not a marker already."""
    if kind == _COOKIE and "=" not in value:
        return False
    if kind == _PWD and _DIRECTORY.match(value):
        return False
    return len(value) >= MIN_SECRET and len(MARKER.sub("", value)) >= MIN_SECRET


_RUN = f"{{0,{1 << 20}}}"
_NAME_CHARACTERS = string.ascii_letters + string.digits + "_-. "
_ASSIGNED = re.compile(
    r"""([\w-]{0,16})(\\{0,7}["'`])?\]?\*{0,2}[ \t]{0,4}(=>|:=|[=:])\*{0,2}([ \t]{0,8})(\\{0,7}["'`])?""",
    re.ASCII,
)
_PLAIN = re.compile(rf"""[^\s"'`,;&<>\\]{_RUN}(?:\\(?![nrtbfu"'`\\/])[^\s"'`,;&<>\\]{_RUN}){{0,256}}""")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Negotiate|Bot)[ \t]{1,4}(?=\S)", re.IGNORECASE)
_SIGNED = re.compile(rf"""(?:AWS4-HMAC-SHA256|Digest)[ \t][^\r\n"'\\]{_RUN}""")
_COOKIES = re.compile(
    # A quoted cookie goes on after its quotes, which must not be those around the header.
    rf"""[^\r\n"'\\]{_RUN}(?:(?<==)"(?![\s,:}}\]])[^"\r\n\\]{{1,4096}}"[^\r\n"'\\]{_RUN}){{0,64}}"""
)
_NUMBER_OR_NESTED = re.compile(r"[\[{]|-?[0-9][0-9.eE+-]{0,400}[}\]]{0,128}\Z")
_ORDINARY = frozenset(
    "required optional missing invalid incorrect expired string undefined unknown disabled enabled forbidden "
    "changed protected accepted rejected redacted default".split()
)


def _named(text: str, at: int) -> Span | None:
    """Find the value in ``name = value`` or ``"name": "value"``, where ``at`` is in the name's last word."""
    found = _ASSIGNED.match(text, at)
    if found is None:
        return None
    before = text[max(0, at - _NAME_LENGTH) : at]
    start = len(before.rstrip(_NAME_CHARACTERS))
    name = before[start:] + text[at : found.end(1)]
    kind = secret_kind(name)
    if kind is None or before.endswith("[REDACTED:", 0, start):
        return None
    if found[5]:
        end = _quoted_end(text, found.end(), found[5])
        worth = _is_worth(kind, text[found.end() : end])
        return (found.end(), end, _shown(kind)) if worth else None
    end = _unquoted_end(text, found.end(), kind, found[3])
    value = text[found.end() : end]
    if not _is_worth(kind, value) or value.startswith(("//", ":", "=")):
        return None
    if found[2] and _NUMBER_OR_NESTED.match(value):  # as JSON has it after a name in quotes
        return None
    if found[3] == ":" and found[4] and value.isalpha():
        # A word after a colon is a word, but for a line that consists of a name and a value.
        alone = before[:start].endswith(("\n", "\\")) or (start == 0 and at <= _NAME_LENGTH)
        if not alone or " " in name.strip(" -") or text[end : end + 1] not in ("", "\r", "\n", "\\"):
            return None
    if value.lower() in _ORDINARY or len(set(value)) == 1:
        return None
    return found.end(), end, _shown(kind)


def _quoted_end(text: str, start: int, opening: str) -> int:
    """Find where a quoted value ends: at its quote, escaped as the opening one is, or with its line."""
    slashes = len(opening) - 1
    at = text.find(opening[-1], start)
    while at >= 0:
        first = at
        while first > start and text[first - 1] == "\\":
            first -= 1
        # Each level of escaping doubles the backslashes: fewer or more belong to a quote in the value.
        if (at - first) % (2 * slashes + 2) == slashes:
            break
        at = text.find(opening[-1], at + 1)
    end = len(text) if at < 0 else at - slashes
    line = text.find("\n", start, end)
    return end if line < 0 else line


def _unquoted_end(text: str, start: int, kind: str, separator: str) -> int:
    found: re.Match[str] | None = None
    if kind == _COOKIE:
        found = _COOKIES.match(text, start) if separator == ":" else None
    elif kind == "bearer":
        found = _SIGNED.match(text, start)
        scheme = _SCHEME.match(text, start)
        found = found or _PLAIN.match(text, scheme.end() if scheme else start)
    else:
        found = _PLAIN.match(text, start)
    end = start if found is None else found.end()
    while end > start and text[end - 1] in ".!?:)}*":
        end -= 1
    return end


_PATTERNS = (*KEY_RULES, *HEADER_RULES)
_NAMED = (
    Rule(
        ("pass", "pwd", "secret", "token", "key", "authorization", "credential", "cookie", "jwt"),
        _named,
        folded=True,
    ),
)
