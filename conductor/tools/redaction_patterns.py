"""What secrets and paths look like in a text: the rules by which a redactor finds them.

A rule is tried only where one of its needles stands, a plain substring, so that a text without any costs
little more than looking for needles. Two things keep a redacted text as it is when it is redacted again:
a match ends where its run of characters ends, and a value that is a marker already, or has fewer than
`MIN_SECRET` characters besides markers, is left. Growth is linear: what a long run matches is consumed, and
what may fail after a run either is short or starts only where such a run can start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

MIN_SECRET = 6
"""In characters; what is shorter is as likely to be a word as a secret."""

MARKER = re.compile(r"\[REDACTED:[a-z_]{1,16}\]")

Span: TypeAlias = tuple[int, int, str]
"""From, to (exclusive), kind."""

Find: TypeAlias = Callable[[str, int], Span | None]
"""Looks at a text where a needle stands; gives what is to be redacted there, if anything."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of secret; ``needs`` is a character without which the needles need not be looked for."""

    needles: tuple[str, ...]
    find: Find
    needs: str = ""
    folded: bool = False  # the needles are in lower case and stand for any case


def mark(kind: str) -> str:
    """Write what stands for a redacted text."""
    return f"[REDACTED:{kind}]"


def _fold(text: str) -> str:
    """Put a text in lower case, character by character: what is not ASCII becomes a question mark."""
    return text.encode("ascii", "replace").lower().decode("ascii")


def apply_rules(rules: Iterable[Rule], text: str) -> str:
    """Redact what the rules find, one rule after the other."""
    folded: str | None = None
    for rule in rules:
        if rule.needs not in text:
            continue
        for needle in rule.needles:
            searched = text
            if rule.folded:
                searched = folded = _fold(text) if folded is None else folded
            if needle in searched:
                after = _replace(text, searched, needle, rule.find)
                if after is not text:
                    text, folded = after, None
    return text


def _replace(text: str, searched: str, needle: str, find: Find) -> str:
    pieces: list[str] = []
    done = 0
    at = searched.find(needle)
    while at >= 0:
        span = find(text, at)
        if span is not None and span[0] >= done:
            pieces += (text[done : span[0]], mark(span[2]))
            done = span[1]
        at = searched.find(needle, max(done, at + 1))
    return "".join((*pieces, text[done:])) if pieces else text


# A run that ends a match: longer than anything that reaches a model, so that no tail is left behind.
_RUN = f"{{0,{1 << 20}}}"
# A key starts where no word goes on, or after an escaped line break or a percent-encoded character.
_LEFT = r"(?:(?<![\w-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"


def _matched(kind: str, pattern: str) -> Find:
    compiled = re.compile(pattern, re.ASCII)

    def find(text: str, at: int) -> Span | None:
        found = compiled.match(text, at)
        return None if found is None else (found.start(), found.end(), kind)

    return find


def _key(pattern: str) -> Find:
    return _matched("api_key", rf"{_LEFT}{pattern}[\w-]{_RUN}")


_PEM_HEAD = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_REST = re.compile(rf"[\w+/=:,\s-]{_RUN}(?:\\{{1,7}}[nrt][\w+/=:,\s-]{_RUN}){{0,65536}}", re.ASCII)


def _private_key(text: str, at: int) -> Span | None:
    """Find a block up to its end or, where the end is missing, as far as it looks like one."""
    head = _PEM_HEAD.match(text, at)
    if head is None:
        return None
    dashes = text.find("-----", head.end())
    end = _PEM_END.match(text, dashes) if dashes >= 0 else None
    rest = end or _PEM_REST.match(text, head.end())
    return at, head.end() if rest is None else rest.end(), "private_key"


_BEARER = re.compile(
    rf"{_LEFT}bearer(?:[ \t]{{1,4}}|%20|\+)([\w.~+/=-]{{8}}[\w.~+/=-]{_RUN})", re.ASCII | re.IGNORECASE
)
_MADE_UP = re.compile(r"[0-9_~+=]|[a-z][A-Z]|[A-Z]{2}[a-z]")
_LONG_WORD = 24  # characters; few words are as long


def _bearer(text: str, at: int) -> Span | None:
    """Find what follows the word Bearer, unless that looks like a word, as in "bearer authentication"."""
    found = _BEARER.match(text, at)
    if found is None or (len(found[1]) < _LONG_WORD and _MADE_UP.search(found[1]) is None):
        return None
    return found.start(1), found.end(1), "bearer"


_USER_INFO = re.compile(r""":\\?/\\?/[^\s/?#:@"'<>\\]{0,256}:([^\s/?#"'<>\\]{1,512})@""")


def _user_info(text: str, at: int) -> Span | None:
    found = _USER_INFO.match(text, at)
    if found is None or not MARKER.sub("", found[1]):
        return None
    return found.start(1), found.end(1), "password"


KEY_RULES: tuple[Rule, ...] = (
    Rule(("-----BEGIN",), _private_key),
    Rule(
        ("eyJ",),
        # Three parts, or the five of an encrypted one; any but the first may be empty.
        _matched(
            "jwt", rf"{_LEFT}eyJ[\w-]{{8}}[\w-]{_RUN}(?:\.[\w-]{_RUN}){{2}}(?:\.[\w-]{_RUN}[\w-]){{0,2}}"
        ),
        needs=".",
    ),
    Rule(("sk-",), _key(r"sk-(?=[A-Za-z_-]{0,64}[0-9])[\w-]{20}")),
    Rule(("AKIA", "ASIA"), _matched("api_key", rf"{_LEFT}A[KS]IA[A-Z0-9]{{16}}(?![\w-])")),
    Rule(("AIza",), _key(r"AIza[\w-]{30}")),
    Rule(("xox",), _key(r"xox[a-z]-[\w-]{10}"), needs="-"),
    Rule(("glpat-",), _key(r"glpat-[\w-]{16}"), needs="-"),
    Rule(("ghp_", "gho_", "ghs_", "ghu_", "ghr_"), _key(r"gh[posur]_[A-Za-z0-9]{30}"), needs="_"),
    Rule(("github_pat_",), _key(r"github_pat_\w{22}"), needs="_"),
    Rule(("sk_live_", "rk_live_", "sk_test_", "rk_test_"), _key(r"[sr]k_\w{4}_[A-Za-z0-9]{10}"), needs="_"),
    Rule(("npm_",), _key(r"npm_[A-Za-z0-9]{30}"), needs="_"),
    Rule(("hf_",), _key(r"hf_[A-Za-z0-9]{30}"), needs="_"),
    Rule(("SG.",), _key(r"SG\.[\w-]{16,64}\.[\w-]{16}"), needs="."),
    Rule(("ya29.",), _matched("token", rf"{_LEFT}ya29\.[\w-]{{20}}[\w-]{_RUN}"), needs="."),
    Rule(
        ("hooks.slack.com/",),
        _matched("token", rf"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{{16}}[\w/-]{_RUN}"),
    ),
)
"""What shows by itself what it is, by its prefix."""

HEADER_RULES: tuple[Rule, ...] = (
    Rule(("://", ":\\/\\/"), _user_info, needs="@"),
    Rule(("bearer",), _bearer, folded=True),
)
"""What is a secret by where it stands; these can hold what `KEY_RULES` find and come after them."""

_UNIX_ROOTS = (
    "home Users root tmp var etc opt usr mnt media srv run proc sys private Volumes Library Applications "
    "boot lib bin sbin dev"
).split()
_STOPS = r"""\s"'`<>|:;,()\[\]{}*?&=\\"""
_URL_STARTS = re.compile(r"""[\s"'`<>|,()]""")
_URL_REACH = 256  # characters before a path in which a URL that it belongs to may begin


def _in_url(text: str, at: int) -> bool:
    before = text[max(0, at - _URL_REACH) : at]
    scheme = before.rfind("://")
    if scheme < 0 or before.endswith("file://"):
        return False
    return _URL_STARTS.search(before, scheme) is None


def _unix_path(home: str | None) -> Find:
    roots = "|".join(_UNIX_ROOTS)
    if home is not None and home.startswith("/") and home.strip("/"):
        roots = re.escape(home.strip("/")).replace("/", r"\\?/") + "|" + roots
    path = re.compile(
        # The roots first: most slashes are not before one.
        rf"(?=\\?/(?:{roots})(?![\w-]))(?:(?<![\w./~-])|(?<=\\[nrt])|(?<=file://))"
        rf"\\?/[^{_STOPS}]{_RUN}(?:\\/[^{_STOPS}]{_RUN}){_RUN}",
        re.ASCII,
    )

    def find(text: str, at: int) -> Span | None:
        if text[max(0, at - 1) : at] == "\\":  # a slash that is escaped, as some write JSON
            at -= 1
        found = path.match(text, at)
        return None if found is None or _in_url(text, at) else (at, found.end(), "path")

    return find


_WINDOWS_NAME = r"""[^\\/:*?"'<>|\r\n\t,;\[\]]{1,255}"""
_WINDOWS_PATH = re.compile(
    # The separator is doubled in JSON; a single backslash is then an escape and ends the path.
    rf"""{_LEFT}(?:(?<!/)|(?<=file:///))[A-Za-z]:(?P<sep>\\{{1,4}}|/)(?![\\/])"""
    rf"""(?:{_WINDOWS_NAME}(?P=sep)(?![\\/])){{0,64}}[^/{_STOPS}]{{0,255}}""",
    re.ASCII,
)


def _windows_path(text: str, at: int) -> Span | None:
    found = _WINDOWS_PATH.match(text, at - 1) if at else None
    return None if found is None else (found.start(), found.end(), "path")


def path_rules(home: str | None) -> Iterator[Rule]:
    """Make the rules for absolute paths of this machine; ``home`` is a directory that is one, too.

    A path within a URL is none, except after ``file://``.
    """
    yield Rule((":\\", ":/"), _windows_path, needs=":")
    yield Rule(("/",), _unix_path(home))
