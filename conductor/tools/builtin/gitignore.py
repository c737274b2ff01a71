"""What a ``.gitignore`` leaves out, by git's own rules.

The file is a stranger's, so a match never backtracks, whatever the pattern. The ready-made translation to
regular expressions (pathspec 1.1) took 14 s for ``*a*a*a*a*b`` with the interpreter locked, raises on
``[z-a]``, and lets ``*`` win over a later ``!*/``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Bytes, rules and characters of a rule that are read: the file is a stranger's.
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
        """Tell whether the rule names this very path, not one above it."""
        if self.folders_only and not is_folder:
            return False
        if not self.anchored:
            segment = self.segments[0]
            return segment is not None and segment.match(parts[-1]) is not None
        return _match(self.segments, parts)


def parse(data: bytes) -> tuple[tuple[IgnoreRule, ...], int]:
    """Read a file's rules, and count the lines beyond the bounds that were left out.

    What git takes for no pattern at all is dropped. Names that are not UTF-8 are matched as `os.fsdecode`
    gives them.
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
    """Tell whether a path, in parts from the rules' folder on, is ignored; None if no rule matches.

    The last rule that matches decides. The caller must not enter an ignored folder: as in git, a later rule
    cannot show anything in it.
    """
    for rule in reversed(rules):
        if rule.matches(parts, is_folder):
            return rule.ignores
    return None


def _trimmed(line: str) -> str:
    kept = line.rstrip(" ")
    # An escaped blank at the end counts, and only that one.
    if len(kept) < len(line) and (len(kept) - len(kept.rstrip("\\"))) % 2:
        return kept + " "
    return kept


def _rule(line: str) -> IgnoreRule | None:
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    folders_only = pattern.endswith("/")
    pattern = pattern[:-1] if folders_only else pattern
    if not pattern:
        return None
    # To git an escaped slash is a slash, and divides names as any other.
    pattern = re.sub(r"\\(.)", lambda found: "/" if found[1] == "/" else found[0], pattern, flags=re.DOTALL)
    anchored = "/" in pattern
    names = pattern.removeprefix("/").split("/")
    segments: list[re.Pattern[str] | None] = []
    for name in names:
        if anchored and len(name) > 1 and not name.strip("*"):  # to git three stars are two
            if not segments or segments[-1] is not _ANY_FOLDERS:  # a second one adds nothing
                segments.append(_ANY_FOLDERS)
            continue
        segment = _segment(name)
        if segment is None:
            return None
        segments.append(segment)
    if segments[-1] is _ANY_FOLDERS:  # ``a/**`` is all that is in ``a``, but not ``a``
        segments.append(re.compile("", re.DOTALL))
    return IgnoreRule(ignores, folders_only, anchored, tuple(segments))


def _match(segments: Sequence[re.Pattern[str] | None], parts: Sequence[str]) -> bool:
    # Only the last ``**`` ever needs to take one part more, so this is no backtracking.
    at = part = 0
    retry: tuple[int, int] | None = None
    while part < len(parts):
        segment = segments[at] if at < len(segments) else None
        if at < len(segments) and segment is _ANY_FOLDERS:
            at += 1
            retry = (at, part)
        elif segment is not None and segment.match(parts[part]):
            at, part = at + 1, part + 1
        elif retry is not None:
            at, part = retry[0], retry[1] + 1
            retry = (at, part)
        else:
            return False
    return at == len(segments)


def _segment(glob: str) -> re.Pattern[str] | None:
    # Each stretch between two stars takes its first match and is never tried again (an atomic group): a glob
    # needs no more, and there is no backtracking.
    pieces = [""]
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "."
        elif char == "[":
            found = _set(glob, at)
            if found is None:
                return None
            pieces[-1] += found[0]
            at = found[1]
        elif char == "\\":
            if at == len(glob):
                return None
            pieces[-1] += re.escape(glob[at])
            at += 1
        else:
            pieces[-1] += re.escape(char)
    first, middle, last = pieces[0], [piece for piece in pieces[1:-1] if piece], pieces[-1]
    if len(pieces) == 1:
        return re.compile(f"{first}\\Z", re.DOTALL)
    gaps = "".join(f"(?>.*?{piece})" for piece in middle)
    tail = f"(?>.*?(?={last}\\Z)){last}" if last else ""
    return re.compile(first + gaps + tail, re.DOTALL)


def _set(glob: str, at: int) -> tuple[str, int] | None:
    # As git reads it: the first character may be ``]``, a range may be empty, ``[:alpha:]`` names a class.
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    items: list[str] = []
    previous = ""  # what a range may start from
    first = True
    while first or glob[at : at + 1] != "]":
        first = False
        char = glob[at : at + 1]
        if char == "-" and previous and glob[at + 1 : at + 2] not in ("", "]"):
            at += 1 + (glob[at + 1] == "\\")
            end = glob[at : at + 1]
            if end and previous <= end:
                items.append(f"{_escaped(previous)}-{_escaped(end)}")
            previous = ""
        elif char == "[" and glob[at + 1 : at + 2] == ":" and (named := _named(glob, at + 2)) is not None:
            if not named[0]:
                return None
            items.append(named[0])
            at, previous = named[1], ""
        else:
            at += char == "\\"
            previous = glob[at : at + 1]
            items.append(_escaped(previous))
        if at >= len(glob):
            return None
        at += 1
    body = "".join(items)
    if not body:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{body}]", at + 1


def _named(glob: str, at: int) -> tuple[str, int] | None:
    end = glob.find("]", at)
    if end <= at or glob[end - 1] != ":":
        return None
    # An unknown class makes a pattern that matches nothing, as in git.
    return _CLASSES.get(glob[at : end - 1], ""), end


def _escaped(char: str) -> str:
    return "\\" + char if char in "\\]^-[&~|" else char
