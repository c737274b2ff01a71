"""The rules of ``.gitignore`` files: pathspec reads the patterns, the linear engine of schemas matches them.

The files are not trusted: with the regular expressions of Python ``*a*a*a*a*b`` takes seconds for one name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from conductor.tools.schema import MAX_PATTERN_CHARS, SchemaError, linear_search

# Bytes of a file, and its rules.
MAX_BYTES = 64 * 1024
MAX_RULES = 1000


class IgnoreRule(NamedTuple):
    """One line. ``matches`` takes a path relative to the rules' folder; a folder's ends in a slash."""

    ignores: bool
    matches: Callable[[str], bool]


def parse(data: bytes) -> tuple[IgnoreRule, ...]:
    """Read a file's rules, at most `MAX_RULES`.

    Long lines, lines with named classes such as ``[:alpha:]``, and lines that git ignores are left out.
    """
    lines = data[:MAX_BYTES].decode(errors="replace").removeprefix("\ufeff").split("\n")
    rules = (_rule(line) for line in lines if line and line[0] != "#")
    return tuple(islice(filter(None, rules), MAX_RULES))


def verdict(rules: Sequence[IgnoreRule], parts: Sequence[str], is_folder: bool) -> bool | None:
    """Return whether a path, in parts below the rules' folder, is ignored; None if no rule matches.

    The last matching rule decides. The caller must not enter an ignored folder: as in git, a later rule
    cannot include a path below it.
    """
    # As `parse` decodes: bytes that are not UTF-8 are replaced.
    path = os.fsencode("/".join(parts)).decode(errors="replace") + ("/" if is_folder else "")
    return next((rule.ignores for rule in reversed(rules) if rule.matches(path)), None)


@lru_cache(maxsize=1024)
def _rule(line: str) -> IgnoreRule | None:
    # The library reads a named class as its letters, and takes quadratic time for `**/**/…`. To git "!/"
    # names nothing, to the library every folder.
    if "[:" in line or len(line) > MAX_PATTERN_CHARS or line.strip() == "!/":
        return None
    # To git ``a/**`` is everything in ``a``; the library's expression would name ``a`` too.
    line = re.sub(r"/\*\*(/?\s*)\Z", r"/**/*\1", line)
    try:
        expression, ignores = GitIgnoreSpecPattern.pattern_to_regex(line)
        if expression is None:
            return None
        # The library's expression also matches what is below a path, and a slash by ``[!a]``.
        expression = expression.replace("[^", "[^/")
        return IgnoreRule(bool(ignores), linear_search(f"(?s){expression}$"))
    except (GitIgnorePatternError, SchemaError):
        return None
