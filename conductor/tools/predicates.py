"""Predicates of rules over arguments: strict for allow rules, broad for deny and ask rules.

Strict: the predicate tests the value as it is. Broad: it tests every leaf of a list or object, and compares
strings also after NFKC, case folding and removal of blanks and invisible characters. A value that cannot be
decided matches, so that no spelling evades a deny rule (tools, "Permissions").
"""

from __future__ import annotations

import fnmatch
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

PredicateName: TypeAlias = Literal["eq", "in", "glob", "under", "host", "max"]

# Leaves and levels of a value that rules look at; a larger value counts as unclear.
MAX_LEAVES = 1_000
MAX_DEPTH = 64
# Characters that the patterns of all rules may compare in one call: about 10 ms.
MAX_WORK = 2_000_000
_MAX_PATH = 4_096
_MAX_PARTS = 32
_MAX_HOST = 253
_MAX_QUOTED = 8_192
# Cost of a leaf beside its characters, in characters.
_LEAF_WORK = 250


class Predicate(Protocol):
    """A condition on one argument. Its constructor raises ValueError, which says what value is valid."""

    def holds(self, argument: Argument) -> bool:
        """Return whether the value satisfies the condition (strict)."""
        ...

    def meant(self, argument: Argument) -> bool:
        """Return whether the value or a part of it could be read as satisfying the condition (broad)."""
        ...


class ComparisonBudget:
    """Bounds the time that the patterns of all rules take for one call."""

    def __init__(self, characters: int = MAX_WORK) -> None:
        self._left = characters

    def allows(self, characters: int) -> bool:
        """Spend some of the budget; False once it is exhausted."""
        self._left -= characters
        return self._left > 0


class Argument:
    """One argument of a call. The forms that rules compare are computed once."""

    def __init__(self, value: Any, work: ComparisonBudget | None = None) -> None:
        self.value = value
        self.work = work or ComparisonBudget()

    @cached_property
    def leaves(self) -> list[Any] | None:
        """Scalars at any depth, and keys that are not plain names; None if too many or too deep."""
        found: list[Any] = []
        waiting: list[tuple[int, Any]] = [(0, self.value)]
        while waiting:
            depth, each = waiting.pop()
            # Counted before it is unpacked: one list may hold everything that the limit is to keep out.
            size = len(each) if isinstance(each, Mapping | list | tuple) else 0
            if depth > MAX_DEPTH or len(found) + len(waiting) + size > MAX_LEAVES:
                return None
            if isinstance(each, Mapping):
                # A key may carry what a rule looks for, such as a URL; a plain name cannot.
                found += [name for name in each if not name.replace("-", "_").isidentifier()]
                waiting += [(depth + 1, inner) for inner in each.values()]
            elif isinstance(each, list | tuple):
                waiting += [(depth + 1, inner) for inner in each]
            else:
                found.append(each)
        return found

    @cached_property
    def texts(self) -> list[str]:
        return [as_text(leaf) for leaf in self.leaves or ()]

    @cached_property
    def folded(self) -> list[str]:
        return [text for text in map(fold, self.texts) if text is not None]

    @cached_property
    def unclear(self) -> bool:
        return self.leaves is None or len(self.folded) < len(self.texts)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(self.folded)

    @cached_property
    def shape(self) -> Any:
        return _shape(self.value)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The parts of its path; empty if it is not a string or cannot be decided."""
        text = self.value
        return _path(text, fold(text)) or () if isinstance(text, str) and text else ()

    @cached_property
    def host(self) -> str:
        return _host_of(self.value) or "" if isinstance(self.value, str) else ""

    @cached_property
    def places(self) -> tuple[set[str | None], set[tuple[str, ...]]]:
        """The roots of its paths (None for one that cannot be decided) and all parent folders."""
        begins: set[str | None] = set()
        folders: set[tuple[str, ...]] = set()
        for text, folded in self._own_texts:
            path = _parts(folded) if _path(text, folded) else None
            begins.add(path[0] if path else None)
            folders.update(path[: end + 1] for end in range(len(path or ())) if path)
        return begins, folders

    @cached_property
    def hosts(self) -> tuple[set[str], str | None]:
        """The hosts of its plain URLs with their parent domains, and its other strings, folded.

        None in their place if one cannot be decided.
        """
        hosts: set[str] = set()
        others: list[str] = []
        for text, folded in self._own_texts:
            host = _host_of(text)
            if host is not None:
                hosts.update(_domains(host))
                continue
            named = folded if "%" not in text else fold(_unquoted(text)) if len(text) <= _MAX_QUOTED else None
            if named is None:
                return hosts, None
            others.append(named.replace(_IDEOGRAPHIC_DOT, "."))
        return hosts, "\n".join(others)

    @cached_property
    def may_name_address(self) -> bool:
        """Whether a string that is not a plain URL may contain an IP address, for example as one number."""
        return re.search(r"[\d:]", self.hosts[1] or "") is not None

    @cached_property
    def least(self) -> float:
        """The smallest number in it, numeric strings included; infinity if there is none."""
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
"""Blanks, controls, and what Unicode calls default ignorable."""
# Marks in an aligned block: a run of twice as many holds one, and the longest that is allowed is 30.
_PILE = 16
# The only letters of combining class 0 that decompose to marks alone; none is ever composed again.
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


def _shape(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_shape(name): _shape(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(each) for each in value]
    return fold(as_text(value))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- equal to one of


class _OneOf:
    # Equality is that of JSON: 1 is 1.0, true is not 1.
    def __init__(self, wanted: Any) -> None:
        if not isinstance(wanted, list | tuple):
            raise ValueError("a list")
        if any(Argument(each).leaves is None for each in wanted):
            raise ValueError(f"of at most {MAX_LEAVES} values each, and nested less deep")
        self._wanted = wanted
        shapes = [_shape(each) for each in wanted]
        if None in shapes:
            raise ValueError(_PILED)
        self._words = frozenset(each for each in shapes if isinstance(each, str))
        self._shapes = [each for each in shapes if isinstance(each, dict | list)]

    def holds(self, argument: Argument) -> bool:
        return any(_same(each, argument.value) for each in self._wanted)

    def meant(self, argument: Argument) -> bool:
        return argument.unclear or not self._words.isdisjoint(argument.words) or self._is_whole(argument)

    def _is_whole(self, argument: Argument) -> bool:
        whole = bool(self._shapes) and isinstance(argument.value, Mapping | list | tuple)
        return whole and argument.shape in self._shapes


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    # Python has True == 1.
    return bool(one == other) and (type(one) is type(other) or (_number(one) and _number(other)))


# -- patterns


def matcher(pattern: str) -> Callable[[str], bool]:
    """Compile a glob (``*``, ``?``, ``[...]``) to a test of whole strings."""
    # Only these patterns need backtracking; `ComparisonBudget` counts what they cost.
    if "?" in pattern or "[" in pattern:
        match = re.compile(fnmatch.translate(pattern)).match
        return lambda text: match(text) is not None
    first, *rest = pattern.split("*")
    if not rest:
        return pattern.__eq__
    last = rest.pop()

    def matches(text: str) -> bool:
        # Each part is looked for behind the one before: linear time, no backtracking.
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in rest:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def literally(text: str) -> str:
    """Escape a string, so that as a glob it matches only itself."""
    return re.sub(r"[*?[]", r"[\g<0>]", text)


class _Glob:
    def __init__(self, wanted: Any) -> None:
        if not isinstance(wanted, str) or len(wanted) > _MAX_PATH:
            raise ValueError(f"text of at most {_MAX_PATH} characters")
        signs = re.split(r"(\*|\?|\[!?\]?[^\]]*\])", wanted)
        literals = [fold(part) for part in signs[::2]]
        if None in literals:
            raise ValueError(_PILED)
        signs[::2] = [literally(part or "") for part in literals]
        self._exact, self._folded = matcher(wanted), matcher("".join(signs).casefold())
        self._cost = len(wanted) if "?" in wanted or "[" in wanted else 1

    def holds(self, argument: Argument) -> bool:
        text = argument.value
        return isinstance(text, str) and argument.work.allows(len(text) * self._cost) and self._exact(text)

    def meant(self, argument: Argument) -> bool:
        if argument.unclear:
            return True
        for texts, matches in ((argument.texts, self._exact), (argument.folded, self._folded)):
            if not argument.work.allows(sum(map(len, texts)) * self._cost + len(texts) * _LEAF_WORK):
                return True
            if any(map(matches, texts)):
                return True
        return False


# -- numbers


class _AtMost:
    def __init__(self, wanted: Any) -> None:
        if not _number(wanted) or not math.isfinite(wanted):
            raise ValueError("a number")
        self._wanted = wanted

    def holds(self, argument: Argument) -> bool:
        return _number(argument.value) and bool(argument.value <= self._wanted)

    def meant(self, argument: Argument) -> bool:
        return argument.unclear or argument.least <= self._wanted


# -- paths

_EXPANDED = re.compile(r"[\\$%]|\A~|\A[A-Za-z][A-Za-z0-9+.-]*:")
"""What some program would make another path of: Windows, a shell, an address, a drive."""
_TRIMMED = re.compile(r"(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/]*[. ](?:/|\Z)")
"""A part with a dot or blank at its end, which Windows leaves out: "secret. " is secret."""
_SIGNS = "/.:~\\"


class _Under:
    # Decided by the text alone; links are the concern of the tools. Undecidable: a path where only one of the
    # two is relative, one that leaves the working folder, and one that a program may read in another way.
    def __init__(self, wanted: Any) -> None:
        folder = Argument(wanted).path
        if not folder:
            raise ValueError("a folder, written out, with slashes and without ~, $ and %")
        self._folder, self._folded = folder, _parts(fold(wanted) or "")

    def holds(self, argument: Argument) -> bool:
        return argument.path[: len(self._folder)] == self._folder

    def meant(self, argument: Argument) -> bool:
        if argument.unclear:
            return True
        begins, folders = argument.places
        # A path that begins elsewhere, relative where the folder is absolute, may lead into it.
        return bool(begins - {self._folder[0]}) or self._folded in folders


def _path(text: str, folded: str | None) -> tuple[str, ...] | None:
    # None: programs may read this path in different ways.
    odd = folded is None or len(text) > _MAX_PATH or not text.isprintable() or _EXPANDED.search(text)
    if odd or (folded and not text.isascii() and any(folded.count(one) != text.count(one) for one in _SIGNS)):
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
    def __init__(self, wanted: Any) -> None:
        host = _rule_host(wanted) if isinstance(wanted, str) else None
        if host is None:
            raise ValueError(
                "a host such as example.org, without scheme and port (xn--... for other letters)"
            )
        self._host = host

    def holds(self, argument: Argument) -> bool:
        return argument.host == self._host or argument.host.endswith(f".{self._host}")

    def meant(self, argument: Argument) -> bool:
        if argument.unclear:
            return True
        hosts, others = argument.hosts
        if others is None or self._host in hosts or not argument.work.allows(len(others)):
            return True
        if self._host in others:
            return True
        if _is_address(self._host):  # it can be written in many ways, as one number or in IPv6 too
            other_kind = any((":" in host) != (":" in self._host) for host in hosts if _is_address(host))
            return other_kind or argument.may_name_address
        return "xn--" in self._host and not others.isascii()


def _rule_host(wanted: str) -> str | None:
    host = f"[{wanted}]" if wanted.count(":") > 1 and not wanted.startswith("[") else wanted
    found = _AUTHORITY.match(host)
    return None if found is None or found[2] is not None else _plain_host(host)


def _host_of(url: str) -> str | None:
    if "\\" in url or " " in url or not url.isprintable():
        return None
    found = _URL.match(url)
    authority = _AUTHORITY.match(found[1]) if found and len(found[1]) <= _MAX_HOST else None
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
    "eq": lambda wanted: _OneOf([wanted]),
    "in": _OneOf,
    "glob": _Glob,
    "under": _Under,
    "host": _Host,
    "max": _AtMost,
}
"""What can be said of an argument: equal to, one of, a pattern for the whole text, a path inside a folder,
an address at a host or below it, a number of at most."""
