"""The rules of ``.gitignore`` files, as git reads them.

The files are not trusted, so a match never backtracks. The library pathspec (1.1) took 14 s for
``*a*a*a*a*b`` with the interpreter locked, raises on ``[z-a]``, and lets ``*`` take precedence over a later
``!*/``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Bytes of a file, its rules, and characters of a rule.
MAX_BYTES = 64 * 1024
MAX_RULES = 1000
MAX_RULE_CHARS = 512

_ANY_FOLDERS = None
"""The segment ``**``."""

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line. A rule with one segment that is not ``anchored`` looks at the last part of a path only."""

    ignores: bool
    folders_only: bool
    anchored: bool
    segments: tuple[re.Pattern[str] | None, ...]

    def matches(self, parts: Sequence[str], is_folder: bool) -> bool:
        """Return whether the rule names this path itself, not a folder above it."""
        if self.folders_only and not is_folder:
            return False
        if not self.anchored:
            segment = self.segments[0]
            return segment is not None and segment.match(parts[-1]) is not None
        return _match(self.segments, parts)


def parse(data: bytes) -> tuple[tuple[IgnoreRule, ...], int]:
    """Read a file's rules; also return the number of lines left out because of the limits.

    Lines that are no pattern to git are dropped. Names that are not UTF-8 match in `os.fsdecode`'s form.
    """
    text = data[:MAX_BYTES].decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    rules: list[IgnoreRule] = []
    left_out = int(len(data) > MAX_BYTES)
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        if len(line) > MAX_RULE_CHARS or len(rules) >= MAX_RULES:
            left_out += 1
        elif (rule := _rule(_trimmed(line.removesuffix("\r")))) is not None:
            rules.append(rule)
    return tuple(rules), left_out


def verdict(rules: Sequence[IgnoreRule], parts: Sequence[str], is_folder: bool) -> bool | None:
    """Return whether a path, in parts below the rules' folder, is ignored; None if no rule matches.

    The last matching rule decides. The caller must not enter an ignored folder: as in git, a later rule
    cannot include a path below it.
    """
    for rule in reversed(rules):
        if rule.matches(parts, is_folder):
            return rule.ignores
    return None


def _trimmed(line: str) -> str:
    trimmed = line.rstrip(" ")
    # One escaped space at the end is part of the pattern.
    if len(trimmed) < len(line) and (len(trimmed) - len(trimmed.rstrip("\\"))) % 2:
        return trimmed + " "
    return trimmed


def _rule(line: str) -> IgnoreRule | None:
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    folders_only = pattern.endswith("/")
    pattern = pattern[:-1] if folders_only else pattern
    if not pattern:
        return None
    # To git an escaped slash is a slash.
    pattern = re.sub(r"\\(.)", lambda match: "/" if match[1] == "/" else match[0], pattern, flags=re.DOTALL)
    anchored = "/" in pattern
    names = pattern.removeprefix("/").split("/")
    segments: list[re.Pattern[str] | None] = []
    for name in names:
        if anchored and len(name) > 1 and not name.strip("*"):  # to git three stars are two
            if not segments or segments[-1] is not _ANY_FOLDERS:
                segments.append(_ANY_FOLDERS)
            continue
        segment = _segment(name)
        if segment is None:
            return None
        segments.append(segment)
    if segments[-1] is _ANY_FOLDERS:  # ``a/**`` matches everything in ``a``, but not ``a``
        segments.append(re.compile("", re.DOTALL))
    return IgnoreRule(ignores, folders_only, anchored, tuple(segments))


def _match(segments: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    # Only the last ``**`` ever has to take one more part, so nothing is tried twice.
    index = part = 0
    retry: tuple[int, int] | None = None
    while part < len(parts):
        segment = segments[index] if index < len(segments) else None
        if index < len(segments) and segment is _ANY_FOLDERS:
            index += 1
            retry = (index, part)
        elif segment is not None and segment.match(parts[part]):
            index, part = index + 1, part + 1
        elif retry is not None:
            index, part = retry[0], retry[1] + 1
            retry = (index, part)
        else:
            return False
    return index == len(segments)


def _segment(glob: str) -> re.Pattern[str] | None:
    # The text between two stars takes its first match and is not tried again (an atomic group): a glob needs
    # no backtracking.
    pieces = [""]
    position = 0
    while position < len(glob):
        char = glob[position]
        position += 1
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "."
        elif char == "[":
            characters = _set(glob, position)
            if characters is None:
                return None
            pieces[-1] += characters[0]
            position = characters[1]
        elif char == "\\":
            if position == len(glob):
                return None
            pieces[-1] += re.escape(glob[position])
            position += 1
        else:
            pieces[-1] += re.escape(char)
    first, middle, last = pieces[0], [piece for piece in pieces[1:-1] if piece], pieces[-1]
    if len(pieces) == 1:
        return re.compile(f"{first}\\Z", re.DOTALL)
    gaps = "".join(f"(?>.*?{piece})" for piece in middle)
    tail = f"(?>.*?(?={last}\\Z)){last}" if last else ""
    return re.compile(first + gaps + tail, re.DOTALL)


def _set(glob: str, position: int) -> tuple[str, int] | None:
    # As in git: the first character may be ``]``, a range may be empty, ``[:alpha:]`` names a class.
    negated = glob[position : position + 1] in ("!", "^")
    position += negated
    items: list[str] = []
    range_start = ""
    first = True
    while first or glob[position : position + 1] != "]":
        first = False
        char, following = glob[position : position + 1], glob[position + 1 : position + 2]
        if char == "-" and range_start and following not in ("", "]"):
            position += 1 + (following == "\\")
            range_end = glob[position : position + 1]
            if range_end and range_start <= range_end:
                items.append(f"{_escaped(range_start)}-{_escaped(range_end)}")
            range_start = ""
        elif char == "[" and following == ":" and (names := _class(glob, position + 2)) is not None:
            if not names[0]:
                return None
            items.append(names[0])
            position, range_start = names[1], ""
        else:
            position += char == "\\"
            range_start = glob[position : position + 1]
            items.append(_escaped(range_start))
        if position >= len(glob):
            return None
        position += 1
    body = "".join(items)
    if not body:
        return ("." if negated else "(?!)"), position + 1
    return f"[{'^' if negated else ''}{body}]", position + 1


def _class(glob: str, position: int) -> tuple[str, int] | None:
    end = glob.find("]", position)
    if end <= position or glob[end - 1] != ":":
        return None
    # A pattern with an unknown class matches nothing, as in git.
    return _CLASSES.get(glob[position : end - 1], ""), end


def _escaped(char: str) -> str:
    return "\\" + char if char in "\\]^-[&~|" else char
