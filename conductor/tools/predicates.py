"""Predicates of rules over arguments: exact for allow rules, broad for deny and ask rules.

Exact: the value itself must match. Broad, of the predicates in `BROAD`: every leaf of a list or object is
tested, and strings are compared also after NFKD, case folding and removal of blanks, accents and invisible
characters.
A value that is too large to compare matches.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

from conductor.tools.base import matcher, matcher_of

PredicateName: TypeAlias = Literal["eq", "in", "glob", "under", "host", "max"]

# Scalars of a value that rules examine; a larger value is undecidable.
MAX_LEAVES = 1_000
_MAX_PATH = 4_096
_MAX_PARTS = 32
_MAX_HOST = 253


class Argument:
    """One argument of a call, and the forms of it that rules compare, each computed once."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.is_scalar = not isinstance(value, Mapping | list | tuple)

    @cached_property
    def texts(self) -> list[str] | None:
        """Scalars at any depth, and keys that are not plain names, as texts; None if they are too many."""
        values: list[Any] = []
        stack: list[Any] = [self.value]
        while stack:
            item = stack.pop()
            # Counted before it is unpacked: one list may exceed the limit.
            size = len(item) if isinstance(item, Mapping | list | tuple) else 0
            if len(values) + len(stack) + size > MAX_LEAVES:
                return None
            if isinstance(item, Mapping):
                # A key may be a URL or a path that a rule names; a plain name cannot.
                values += [name for name in item if not name.replace("-", "_").isidentifier()]
                stack += item.values()
            elif isinstance(item, list | tuple):
                stack += item
            else:
                values.append(item)
        return [as_text(value) for value in values]

    @cached_property
    def folded(self) -> frozenset[str]:
        return frozenset(map(fold, self.texts or ()))


class Predicate:
    """A condition on one argument. The constructor raises ValueError with a description of a valid value."""

    def matches(self, argument: Argument) -> bool:
        """Return whether the value satisfies the condition (exact)."""
        raise NotImplementedError

    def may_match(self, argument: Argument) -> bool:
        """Return whether a program could read the value or a part of it as a match (broad)."""
        raise NotImplementedError


# -- texts

_UNSEEN = re.compile(
    "[\\s\0-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""Blanks, controls, and the default ignorable characters of Unicode."""


def fold(text: str) -> str:
    """Normalize a string for the comparison of deny and ask rules: without blanks, accents and case."""
    return _UNSEEN.sub("", text).casefold() if text.isascii() else "".join(map(_folded, text))


@lru_cache(maxsize=4_096)
def _folded(char: str) -> str:
    # Character by character: NFKC of a text takes quadratic time for a run of accents.
    signs = unicodedata.normalize("NFKD", char)
    return _UNSEEN.sub("", "".join(sign for sign in signs if not unicodedata.combining(sign))).casefold()


def as_text(leaf: Any) -> str:
    """Format a scalar as a person would: 3.0 is 3."""
    if isinstance(leaf, str):
        return leaf
    return json.dumps(int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _OneOf(Predicate):
    # Equality is JSON's: 1 is 1.0, true is not 1. A list or object may match one of the same leaves.
    def __init__(self, values: Any) -> None:
        if not isinstance(values, list | tuple):
            raise ValueError("a list")
        self._values = values
        arguments = [Argument(value) for value in values]
        if any(argument.texts is None for argument in arguments):
            raise ValueError(f"of at most {MAX_LEAVES} values each")
        self._scalars = {text for argument in arguments if argument.is_scalar for text in argument.folded}
        self._structures = {argument.folded for argument in arguments if not argument.is_scalar}

    def matches(self, argument: Argument) -> bool:
        return any(_same(value, argument.value) for value in self._values)

    def may_match(self, argument: Argument) -> bool:
        is_same = not argument.is_scalar and argument.folded in self._structures
        return is_same or argument.texts is None or not self._scalars.isdisjoint(argument.folded)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second) and (type(first) is type(second) or (_number(first) and _number(second)))


class _Glob(Predicate):
    def __init__(self, pattern: Any) -> None:
        if not isinstance(pattern, str) or len(pattern) > _MAX_PATH or "[" in pattern:
            raise ValueError(
                f"text of at most {_MAX_PATH} characters without [, where * is the only wildcard"
            )
        self._exact = matcher(pattern)
        self._folded = matcher_of([fold(part) for part in pattern.split("*")])

    def matches(self, argument: Argument) -> bool:
        return isinstance(argument.value, str) and self._exact(argument.value)

    def may_match(self, argument: Argument) -> bool:
        texts = argument.texts
        return texts is None or any(map(self._exact, texts)) or any(map(self._folded, argument.folded))


class _AtMost(Predicate):
    def __init__(self, bound: Any) -> None:
        if not _number(bound) or not math.isfinite(bound):
            raise ValueError("a number")
        self._bound = bound

    def matches(self, argument: Argument) -> bool:
        return _number(argument.value) and bool(argument.value <= self._bound)


# -- paths

_EXPANDED = re.compile(r"[\\$%]|\A~|\A[A-Za-z][A-Za-z0-9+.-]*:")
"""What some program would make another path of: Windows, a shell, an address, a drive."""
_TRIMMED = re.compile(r"(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/]*[. ](?:/|\Z)")
"""A part with a dot or blank at its end, which Windows leaves out: "secret. " is secret."""
_SIGNS = "/.:~\\"


class _Under(Predicate):
    # Decided by the text alone; links are the concern of the tools.
    def __init__(self, path: Any) -> None:
        folder = _path(path)
        if folder is None:
            raise ValueError("a folder, written out, with slashes and without ~, $ and %")
        self._folder = folder

    def matches(self, argument: Argument) -> bool:
        path = _path(argument.value)
        return path is not None and path[: len(self._folder)] == self._folder


def _path(text: Any) -> tuple[str, ...] | None:
    # None: no path, or programs may read it in different ways.
    if not isinstance(text, str) or not text or len(text) > _MAX_PATH or not text.isprintable():
        return None
    folded = fold(text)
    if _EXPANDED.search(text) or _TRIMMED.search(text):
        return None
    return None if any(folded.count(sign) != text.count(sign) for sign in _SIGNS) else _parts(text)


def _parts(path: str) -> tuple[str, ...] | None:
    # None: the path leaves the working folder.
    parts = ["/" if path.startswith("/") else "."]
    for part in path.split("/"):
        if part == ".." and parts == ["."]:
            return None
        if part == "..":
            del parts[max(1, len(parts) - 1) :]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts) if len(parts) <= _MAX_PARTS else None


# -- hosts

_URL = re.compile(r"(?:https?|wss?)://([^/?#\\]+)(?:[/?#]|\Z)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?)(?::([0-9]{1,5}))?\Z")
_NUMERIC = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")


class _Host(Predicate):
    # Programs read odd addresses in different ways, so only a plain one matches: a web scheme, a host of
    # ASCII letters, no user name, no backslash or percent sign in the host, no control character or space
    # anywhere. The port does not count.
    def __init__(self, text: Any) -> None:
        host = _rule_host(text) if isinstance(text, str) else None
        if host is None:
            raise ValueError(
                "a host such as example.org, without scheme and port (xn--... for other letters)"
            )
        self._host = host

    def matches(self, argument: Argument) -> bool:
        host = _host_of(argument.value) if isinstance(argument.value, str) else None
        return host is not None and f".{host}".endswith(f".{self._host}")


def _rule_host(text: str) -> str | None:
    host = f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
    match = _AUTHORITY.match(host)
    return None if match is None or match[2] is not None else _plain_host(host)


def _host_of(url: str) -> str | None:
    if "\\" in url or " " in url or not url.isprintable():
        return None
    match = _URL.match(url)
    authority = _AUTHORITY.match(match[1]) if match and len(match[1]) <= _MAX_HOST else None
    if authority is None or int(authority[2] or 0) > 65_535:
        return None
    return _plain_host(authority[1])


def _plain_host(host: str) -> str | None:
    host = host.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    if not host or not host.isascii():
        return None
    if ":" in host or _NUMERIC.match(host.rpartition(".")[2]):
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return None  # 0x7f.1 and the like, which some programs take for 127.0.0.1
    return host


PREDICATES: Mapping[PredicateName, Callable[[Any], Predicate]] = {
    "eq": lambda value: _OneOf([value]),
    "in": _OneOf,
    "glob": _Glob,
    "under": _Under,
    "host": _Host,
    "max": _AtMost,
}
"""Conditions on an argument: equal to, one of, a pattern of the whole text, a path inside a folder, an
address at a host or below it, a maximum."""
BROAD = frozenset(["eq", "in", "glob"])
"""The predicates of deny and ask rules."""
