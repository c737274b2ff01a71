"""Predicates of rules over arguments: strict for allow rules, broad for deny and ask rules.

Strict: the value itself must match. Broad: every leaf of a list or object is tested, and strings are compared
also after NFKC, case folding and removal of blanks and invisible characters. An undecidable value matches, so
that no spelling evades a deny rule.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import unquote

from conductor.tools.base import literally, matcher

PredicateName: TypeAlias = Literal["eq", "in", "glob", "under", "host", "max"]

# Leaves and levels of a value that rules examine; a larger value is undecidable.
MAX_LEAVES = 1_000
MAX_DEPTH = 64
# Characters that the patterns of all rules may compare in one call: about 10 ms.
MAX_WORK = 2_000_000
_MAX_PATH = 4_096
_MAX_PARTS = 32
_MAX_HOST = 253
_MAX_QUOTED = 8_192
# Cost of a leaf in addition to its characters, in characters.
_LEAF_WORK = 250


class Predicate(Protocol):
    """A condition on one argument. The constructor raises ValueError with a description of a valid value."""

    def matches(self, argument: Argument) -> bool:
        """Return whether the value satisfies the condition (strict)."""
        ...

    def may_match(self, argument: Argument) -> bool:
        """Return whether a program could read the value or a part of it as a match (broad)."""
        ...


class ComparisonBudget:
    """Bounds the time that the patterns of all rules take for one call."""

    def __init__(self, characters: int = MAX_WORK) -> None:
        self._remaining = characters

    def allows(self, characters: int) -> bool:
        """Spend some of the budget; False once it is exhausted."""
        self._remaining -= characters
        return self._remaining > 0


class Argument:
    """One argument of a call. The forms that rules compare are computed once."""

    def __init__(self, value: Any, work: ComparisonBudget | None = None) -> None:
        self.value = value
        self.work = work or ComparisonBudget()

    @cached_property
    def leaves(self) -> list[Any] | None:
        """Scalars at any depth, and keys that are not plain names; None if too many or too deep."""
        values: list[Any] = []
        stack: list[tuple[int, Any]] = [(0, self.value)]
        while stack:
            depth, item = stack.pop()
            # Counted before it is unpacked: one list may exceed the limit.
            size = len(item) if isinstance(item, Mapping | list | tuple) else 0
            if depth > MAX_DEPTH or len(values) + len(stack) + size > MAX_LEAVES:
                return None
            if isinstance(item, Mapping):
                # A key may be a URL or a path that a rule names; a plain name cannot.
                values += [name for name in item if not name.replace("-", "_").isidentifier()]
                stack += [(depth + 1, inner) for inner in item.values()]
            elif isinstance(item, list | tuple):
                stack += [(depth + 1, inner) for inner in item]
            else:
                values.append(item)
        return values

    @cached_property
    def texts(self) -> list[str]:
        return [as_text(leaf) for leaf in self.leaves or ()]

    @cached_property
    def folded(self) -> list[str]:
        return [text for text in map(fold, self.texts) if text is not None]

    @cached_property
    def is_undecidable(self) -> bool:
        return self.leaves is None or len(self.folded) < len(self.texts)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(self.folded)

    @property
    def is_scalar(self) -> bool:
        return not isinstance(self.value, Mapping | list | tuple)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The parts of its path; empty if it is not a string or cannot be decided."""
        text = self.value
        return _path(text, fold(text)) or () if isinstance(text, str) and text else ()

    @cached_property
    def host(self) -> str:
        return _host_of(self.value) or "" if isinstance(self.value, str) else ""

    @cached_property
    def folders(self) -> tuple[set[str | None], set[tuple[str, ...]]]:
        """The roots of its paths (None for an undecidable path) and all parent folders."""
        roots: set[str | None] = set()
        folders: set[tuple[str, ...]] = set()
        for text, folded in self._own_texts:
            path = _parts(folded) if _path(text, folded) else None
            roots.add(path[0] if path else None)
            folders.update(path[: end + 1] for end in range(len(path or ())) if path)
        return roots, folders

    @cached_property
    def hosts(self) -> tuple[set[str], str | None]:
        """The hosts of its plain URLs with their parent domains, and its other strings, folded.

        None in their place if one cannot be decided.
        """
        hosts: set[str] = set()
        texts: list[str] = []
        for text, folded in self._own_texts:
            host = _host_of(text)
            if host is not None:
                hosts.update(_domains(host))
                continue
            if "%" in text:
                unquoted = fold(_unquoted(text)) if len(text) <= _MAX_QUOTED else None
                if unquoted is None:
                    return hosts, None
                folded = unquoted
            texts.append(folded.replace(_IDEOGRAPHIC_DOT, "."))
        return hosts, "\n".join(texts)

    @cached_property
    def may_name_address(self) -> bool:
        """Whether a string that is not a plain URL may contain an IP address, for example as one number."""
        return re.search(r"[\d:]", self.hosts[1] or "") is not None

    @cached_property
    def least(self) -> float:
        """The smallest number in it, numeric strings included; infinity without numbers."""
        numbers = [math.inf]  # first, since min() never takes NaN after it
        for text in self.folded:
            with suppress(ValueError):
                numbers.append(float(text))
        return min(numbers)

    @property
    def _own_texts(self) -> Iterator[tuple[str, str]]:
        pairs = zip(self.leaves or (), self.folded, strict=False)
        return ((leaf, folded) for leaf, folded in pairs if isinstance(leaf, str) and leaf)


# -- texts

_UNSEEN = re.compile(
    "[\\s\0-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
"""Blanks, controls, and the default ignorable characters of Unicode."""
# Marks in an aligned block: a run of twice as many holds one, and the longest that is allowed is 30.
_PILE = 16
# The only letters of combining class 0 that decompose to marks alone; they are never composed again.
_TWO_MARKS = str.maketrans({"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"})
_LONG_SIGN = "\ufdfa"  # one sign, which NFKC makes 18 of
_PILED = "text without dozens of marks on one letter"


def fold(text: str) -> str | None:
    """Normalize a string for the comparison of deny and ask rules; None if that takes too long.

    NFKC takes quadratic time in the length of a run of combining marks. UAX #15 ("Stream-Safe Text Format")
    allows 30 in a row.
    """
    text = _UNSEEN.sub("", text)
    if text.isascii():
        return text.casefold()
    text = text.translate(_TWO_MARKS)
    blocks = range(0, len(text) - _PILE + 1, _PILE)
    if any(all(map(unicodedata.combining, text[start : start + _PILE])) for start in blocks):
        return None
    # A text of these alone would grow to 18 times its length.
    if text.count(_LONG_SIGN) > _PILE:
        return None
    # Twice, since NFKC makes blanks of some signs.
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).casefold()


def as_text(leaf: Any) -> str:
    """Format a scalar as a person would: 3.0 is 3."""
    if isinstance(leaf, str):
        return leaf
    return json.dumps(int(leaf) if isinstance(leaf, float) and leaf.is_integer() else leaf)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _OneOf:
    # Equality is that of JSON: 1 is 1.0, true is not 1. A list or object may match one of the same leaves.
    def __init__(self, values: Any) -> None:
        if not isinstance(values, list | tuple):
            raise ValueError("a list")
        self._values = values
        arguments = [Argument(value) for value in values]
        if any(argument.leaves is None for argument in arguments):
            raise ValueError(f"of at most {MAX_LEAVES} values each, and nested less deep")
        if any(argument.is_undecidable for argument in arguments):
            raise ValueError(_PILED)
        self._scalars = frozenset(
            word for argument in arguments if argument.is_scalar for word in argument.words
        )
        self._structures = {argument.words for argument in arguments if not argument.is_scalar}

    def matches(self, argument: Argument) -> bool:
        return any(_same(value, argument.value) for value in self._values)

    def may_match(self, argument: Argument) -> bool:
        if argument.is_undecidable or not self._scalars.isdisjoint(argument.words):
            return True
        return not argument.is_scalar and argument.words in self._structures


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second) and (type(first) is type(second) or (_number(first) and _number(second)))


class _Glob:
    def __init__(self, pattern: Any) -> None:
        if not isinstance(pattern, str) or len(pattern) > _MAX_PATH:
            raise ValueError(f"text of at most {_MAX_PATH} characters")
        signs = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", pattern)
        literals = [fold(part) for part in signs[::2]]
        if None in literals:
            raise ValueError(_PILED)
        signs[::2] = [literally(part or "") for part in literals]
        self._exact, self._folded = matcher(pattern), matcher("".join(signs).casefold())
        self._cost = len(pattern) if "?" in pattern or "[" in pattern else 1

    def matches(self, argument: Argument) -> bool:
        text = argument.value
        return isinstance(text, str) and argument.work.allows(len(text) * self._cost) and self._exact(text)

    def may_match(self, argument: Argument) -> bool:
        if argument.is_undecidable:
            return True
        for texts, matches in ((argument.texts, self._exact), (argument.folded, self._folded)):
            if not argument.work.allows(sum(map(len, texts)) * self._cost + len(texts) * _LEAF_WORK):
                return True
            if any(map(matches, texts)):
                return True
        return False


class _AtMost:
    def __init__(self, bound: Any) -> None:
        if not _number(bound) or not math.isfinite(bound):
            raise ValueError("a number")
        self._bound = bound

    def matches(self, argument: Argument) -> bool:
        return _number(argument.value) and bool(argument.value <= self._bound)

    def may_match(self, argument: Argument) -> bool:
        return argument.is_undecidable or argument.least <= self._bound


# -- paths

_EXPANDED = re.compile(r"[\\$%]|\A~|\A[A-Za-z][A-Za-z0-9+.-]*:")
"""What some program would make another path of: Windows, a shell, an address, a drive."""
_TRIMMED = re.compile(r"(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/]*[. ](?:/|\Z)")
"""A part with a dot or blank at its end, which Windows leaves out: "secret. " is secret."""
_SIGNS = "/.:~\\"


class _Under:
    # Decided by the text alone; links are the concern of the tools. Undecidable: a path where only one of the
    # two is relative, one that leaves the working folder, and one that a program may read in another way.
    def __init__(self, path: Any) -> None:
        folder = Argument(path).path
        if not folder:
            raise ValueError("a folder, written out, with slashes and without ~, $ and %")
        self._folder, self._folded = folder, _parts(fold(path) or "")

    def matches(self, argument: Argument) -> bool:
        return argument.path[: len(self._folder)] == self._folder

    def may_match(self, argument: Argument) -> bool:
        if argument.is_undecidable:
            return True
        roots, folders = argument.folders
        # A path that begins elsewhere, relative where the folder is absolute, may lead into it.
        return bool(roots - {self._folder[0]}) or self._folded in folders


def _path(text: str, folded: str | None) -> tuple[str, ...] | None:
    # None: programs may read this path in different ways.
    odd = folded is None or len(text) > _MAX_PATH or not text.isprintable() or _EXPANDED.search(text)
    if odd or (
        folded and not text.isascii() and any(folded.count(sign) != text.count(sign) for sign in _SIGNS)
    ):
        return None
    return None if _TRIMMED.search(text) else _parts(text)


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
_IDEOGRAPHIC_DOT = "\u3002"  # IDNA takes it for a dot, NFKC does not


class _Host:
    # Programs read odd addresses in different ways, so only a plain one is decided: a web scheme, a host of
    # ASCII letters, no user name, no backslash or percent sign in the host, no control character or space
    # anywhere. Any other text is taken to mean the hosts that it names. The port does not count.
    def __init__(self, text: Any) -> None:
        host = _rule_host(text) if isinstance(text, str) else None
        if host is None:
            raise ValueError(
                "a host such as example.org, without scheme and port (xn--... for other letters)"
            )
        self._host = host

    def matches(self, argument: Argument) -> bool:
        return argument.host == self._host or argument.host.endswith(f".{self._host}")

    def may_match(self, argument: Argument) -> bool:
        if argument.is_undecidable:
            return True
        hosts, texts = argument.hosts
        if texts is None or self._host in hosts or not argument.work.allows(len(texts)):
            return True
        if self._host in texts:
            return True
        if _is_address(self._host):  # it can be written in many ways, as one number or in IPv6 too
            other_kind = any((":" in host) != (":" in self._host) for host in hosts if _is_address(host))
            return other_kind or argument.may_name_address
        return "xn--" in self._host and not texts.isascii()


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


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _domains(host: str) -> list[str]:
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(len(labels))]


def _unquoted(text: str) -> str:
    for _ in range(3):
        text = unquote(text)
    return text


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
