"""The operator's rules: the file ``policies.json`` that keeps them, and what is wrong with them.

The file is a JSON object, ``{"version": 1, "rules": [...]}``. Fields that nobody here knows are kept, in the
file and in each rule (tools, "Permissions").
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.tools.base import ToolSpec, canonical_json
from conductor.tools.rules import Rule, RuleError, describe, holds, parse_json, parse_rule, rule_object

log = structlog.get_logger(__name__)

MAX_POLICIES_BYTES = 1024 * 1024
POLICIES_NAME = "policies.json"
VERSION = 1

ASK_ALL = Rule("ask", "*")


@dataclass(frozen=True, slots=True)
class Policies:
    """The operator's rules, in the order of the file, so that the first has the number 1.

    ``ask_all`` means that the file was damaged, so that nobody knows what it forbade: everything asks.
    ``notes`` are sentences about the file that its owner should read.
    """

    rules: tuple[Rule, ...] = ()
    ask_all: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gate_rules(self) -> tuple[Rule, ...]:
        """The rules as the gate is to keep them."""
        return (*self.rules, ASK_ALL) if self.ask_all and ASK_ALL not in self.rules else self.rules


def policies_path(settings: Settings) -> Path:
    """Say where the operator's rules are: POLICIES_FILE, or ``policies.json`` in the working folder."""
    return settings.policies_file or Path(POLICIES_NAME)


class _Damaged(Exception):
    """The file is no JSON; the message says how, in a clause."""


def load(path: Path, *, now: Callable[[], float] = time.time) -> Policies:
    """Read the operator's rules; a missing file is none.

    A file that is no JSON is moved aside, to ``<name>.corrupt-<UTC time>``, and a new one whose only rule
    asks for everything stands in its place, so that it is the same after a restart. Both that and a file that
    everybody may write are logged. ``now`` gives epoch seconds. Raises `SettingsError` for a file that cannot
    be read, is larger than 1 MiB, or has a rule that is not accepted; that is never moved.
    """
    path = Path(os.path.realpath(path))
    try:
        document, notes, ask_all = _read(path), _notes(path), False
    except _Damaged:
        document, notes, ask_all = _recover(path, now)
    for note in notes:
        log.warning("policies", note=note)
    return Policies(_rules(document, path.name), ask_all, notes)


def add(path: Path, rule: Rule, *, now: Callable[[], float] = time.time) -> int:
    """Write a rule at the end of the file, which is made if need be; returns the rule's number.

    Others who change the file at the same time wait. Raises `SettingsError`.
    """
    path = Path(os.path.realpath(path))
    with _locked(path):
        document = _read_or_recover(path, now)
        rules = _rule_list(document, path.name)
        _rules(document, path.name)  # nothing is built upon a file that would not load
        document["rules"] = [*rules, rule_object(rule)]
        _write(path, document)
        return len(rules) + 1


def remove(path: Path, number: int, *, now: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """Take a rule out by its number, which starts at 1; returns its JSON form.

    A rule that is not accepted can be taken out too. Raises `SettingsError`.
    """
    path = Path(os.path.realpath(path))
    with _locked(path):
        document = _read_or_recover(path, now)
        rules = list(_rule_list(document, path.name))
        if not 1 <= number <= len(rules):
            there = f"has rules 1 to {len(rules)}" if rules else "has no rules"
            raise SettingsError(f"There is no rule {number}: {path.name} {there}.")
        removed = rules.pop(number - 1)
        document["rules"] = rules
        _write(path, document)
        return removed if isinstance(removed, dict) else {}


# -- reading


def _read(path: Path) -> dict[str, Any]:
    """Read the file as a JSON object with a version that is known; a missing one is empty."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{path.name} is no regular file.")
        with path.open("rb") as file:
            encoded = file.read(MAX_POLICIES_BYTES + 1)
    except FileNotFoundError:
        return {"version": VERSION, "rules": []}
    except OSError as error:
        raise SettingsError(f"{path.name} cannot be read: {error.strerror}.") from None
    if len(encoded) > MAX_POLICIES_BYTES:
        raise SettingsError(f"{path.name} is larger than {MAX_POLICIES_BYTES} bytes.")
    try:
        document = parse_json(encoded.decode("utf-8-sig"))
    except RuleError as error:
        raise SettingsError(f"{path.name} is not valid: {error}.") from None
    except (ValueError, RecursionError):
        raise _Damaged from None
    if not isinstance(document, dict):
        raise SettingsError(f'{path.name} must be a JSON object with a list under "rules".')
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise SettingsError(f'{path.name} must have "version": {VERSION}; it may be from another release.')
    _rule_list(document, path.name)
    return document


def _rule_list(document: Mapping[str, Any], name: str) -> Sequence[Any]:
    rules = document.get("rules")
    if not isinstance(rules, list):
        raise SettingsError(f'{name} must be a JSON object with a list under "rules".')
    return rules


def _rules(document: Mapping[str, Any], name: str) -> tuple[Rule, ...]:
    rules = []
    for number, value in enumerate(_rule_list(document, name), 1):
        try:
            rules.append(parse_rule(value))
        except RuleError as error:
            raise SettingsError(f"Rule {number} of {name} is not valid: {error}.") from None
    return tuple(rules)


def _notes(path: Path) -> tuple[str, ...]:
    with suppress(FileNotFoundError):
        if path.stat().st_mode & stat.S_IWOTH:
            return (f"Everybody on this machine may write {path.name}: chmod 600 keeps others out.",)
    return ()


# -- a damaged file


def _recover(path: Path, now: Callable[[], float]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """Move the file aside and put another in its place, unless somebody else has just done so."""
    fallback = _asking("")
    try:
        with _locked(path):
            try:
                return _read(path), _notes(path), True
            except _Damaged:
                return _move_aside(path, now)
    except OSError as error:
        note = f"{path.name} is damaged and cannot be moved aside ({error.strerror}): everything asks."
    except SettingsError:
        note = f"{path.name} is damaged, and nothing can be written beside it: everything asks."
    return fallback, (note,), True


def _move_aside(path: Path, now: Callable[[], float]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    at = datetime.fromtimestamp(now(), UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.corrupt-{at}")
    count = 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.corrupt-{at}-{count}")
    try:
        aside.hardlink_to(path)  # so that there is no moment, and no crash, without a file in its place
    except OSError:
        path.rename(aside)
    document = _asking(f"{path.name} was damaged; the rules that it had are in {aside.name}")
    _write(path, document)
    note = f"{path.name} was damaged and is now {aside.name}: everything asks until its rules are back."
    return document, (note,), True


def _asking(comment: str) -> dict[str, Any]:
    return {"version": VERSION, "rules": [{**rule_object(ASK_ALL), "comment": comment}]}


def _read_or_recover(path: Path, now: Callable[[], float]) -> dict[str, Any]:
    """Read the file under the lock; a damaged one is moved aside first."""
    try:
        return _read(path)
    except _Damaged:
        try:
            document, notes, _ = _move_aside(path, now)
        except OSError as error:
            raise SettingsError(f"{path.name} is damaged and cannot be moved: {error.strerror}.") from None
    for note in notes:
        log.warning("policies", note=note)
    return document


# -- writing


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others from changing the file, by a lock on a file beside it; the file itself is replaced."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where nobody else is kept from it
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    except OSError as error:
        raise SettingsError(f"{path.name}.lock cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file as a whole: after a crash there is the old one or the new one."""
    # Half a surrogate pair, kept from an unknown field, is written as JSON's own escape.
    encoded = (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode(errors="backslashreplace")
    if len(encoded) > MAX_POLICIES_BYTES:
        raise SettingsError(f"{path.name} would be larger than {MAX_POLICIES_BYTES} bytes.")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(encoded)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise SettingsError(f"{path.name} cannot be written: {error.strerror}.") from None


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- what is wrong with rules

_ORDER = ("deny", "ask", "allow")


def lint(
    rules: Sequence[Rule], specs: Sequence[ToolSpec], *, now: float, complete: Collection[str] = ()
) -> list[str]:
    """Find rules that can never match and rules that are dangerously wide; one sentence each.

    ``specs`` are the tools that are known. ``complete`` are the sources of which these are all: a rule about
    no known tool is only reported where its source is among them, or all are, ``*``; tools of the others may
    still come. Rules are called by their number, from 1. ``now`` is in epoch seconds.
    """
    return [
        f"Rule {number} ({describe(rule)}) {problem}."
        for number, rule in enumerate(rules, 1)
        for problem in _problems(rule, rules, specs, now, complete)
    ]


def _problems(
    rule: Rule, rules: Sequence[Rule], specs: Sequence[ToolSpec], now: float, complete: Collection[str]
) -> Iterator[str]:
    if rule.expired(now):
        yield "has expired"
        return
    covered = [spec for spec in specs if rule.covers(spec)]
    if not covered and ("*" in complete or rule.source in complete):
        yield "can never match: it covers no tool"
    yield from _argument_problems(rule, covered)
    for name, predicates in rule.args.items():
        yield from _contradictions(name, predicates)
    for number, other in enumerate(rules, 1):
        if _shadows(other, rule, now):
            yield f"can never decide: rule {number} is to {other.effect} all that it covers"
            break
    if rule.effect == "allow" and rule.unconditional and not rule.tool.strip("*?."):
        yield "is dangerously wide: it allows every tool that no other rule stops"
    if rule.effect != "allow" and any("max" in predicates for predicates in rule.args.values()):
        yield "stops small numbers and lets large ones through; max is meant for allow rules"


def _argument_problems(rule: Rule, covered: Sequence[ToolSpec]) -> Iterator[str]:
    """Find argument names that no covered tool takes, and a closed rule that leaves out a required one."""
    if not rule.args or not covered:
        return
    unknown = [name for name in rule.args if not any(_takes(spec, name) for spec in covered)]
    if unknown:
        yield f"can never match: no known tool that it covers takes the argument {', '.join(unknown)}"
    elif not any(all(_takes(spec, name) for name in rule.args) for spec in covered):
        yield "can never match: no known tool that it covers takes all of its arguments"
    elif rule.effect == "allow":
        missing = [set(spec.input_schema.get("required", ())) - rule.args.keys() for spec in covered]
        if all(missing):
            names = ", ".join(sorted(missing[0]))
            yield f"can never match: it does not mention {names}, which each call has"


def _takes(spec: ToolSpec, name: str) -> bool:
    """Tell whether a tool has an argument, or names some in a way that is not looked into here."""
    schema = spec.input_schema
    elsewhere = {key: value for key, value in schema.items() if key not in ("properties", "$defs")}
    hidden = b'roperties":' in canonical_json(elsewhere).replace(b'"additionalProperties":', b"")
    return name in schema.get("properties", {}) or hidden or b'"$ref":' in canonical_json(elsewhere)


def _contradictions(name: str, predicates: Mapping[str, Any]) -> Iterator[str]:
    if predicates.get("in", True) in ([], ()):
        yield f"can never match: the list of values for {name} is empty"
        return
    for fixed in ("eq", "in"):
        if fixed not in predicates:
            continue
        values = predicates["in"] if fixed == "in" else [predicates["eq"]]
        others = [(each, wanted) for each, wanted in predicates.items() if each != fixed]
        if not any(all(holds(each, wanted, value) != "no" for each, wanted in others) for value in values):
            yield f"can never match: its predicates for {name} contradict each other"
            return


def _shadows(other: Rule, rule: Rule, now: float) -> bool:
    """Tell whether an unconditional rule of an earlier step takes all calls that a rule is about."""
    return (
        _ORDER.index(other.effect) < _ORDER.index(rule.effect)
        and other.unconditional
        and not other.expired(now)
        and (other.expires is None or other.expires == rule.expires)
        and other.fingerprint in (None, rule.fingerprint)
        and _wider(other.tool, rule.tool)
        and (other.source is None or (rule.source is not None and _wider(other.source, rule.source)))
    )


def _wider(wide: str, narrow: str) -> bool:
    """Tell whether a glob certainly matches all that another one does."""
    if wide in ("*", narrow):
        return True
    if not any(sign in narrow for sign in "*?["):
        return fnmatchcase(narrow, wide)
    # With * as its only sign, the wide one takes the narrow one's signs for what they stand for.
    return not any(sign in wide for sign in "?[") and "[" not in narrow and fnmatchcase(narrow, wide)
