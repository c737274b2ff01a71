"""Rules for tool calls: matching, description and JSON form."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import rfc8785
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec, matcher
from conductor.tools.predicates import PREDICATES, Argument, ComparisonBudget, Predicate, PredicateName

RuleEffect: TypeAlias = Literal["allow", "ask", "deny"]
Scope: TypeAlias = Literal["session", "always"]
Match: TypeAlias = Literal["no", "yes", "unclear"]


class RuleError(ValueError):
    """A rule that is not valid. The message says why in one clause."""


def parse_expiry(text: str) -> float:
    """Read an ISO 8601 time with its offset as epoch seconds. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a time such as 2030-01-31T18:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError("needs its offset, as in 2030-01-31T18:00:00Z")
    return time.timestamp()


def _expiry(text: str) -> str:
    parse_expiry(text)
    return text


def _predicates(predicates: Mapping[PredicateName, Any]) -> Mapping[PredicateName, Any]:
    if not predicates:
        raise ValueError(f"must have one or more of {', '.join(PREDICATES)}")
    for name, value in predicates.items():
        try:
            PREDICATES[name](value)
        except ValueError as error:
            raise ValueError(f"{name} must be {error}") from None
    return predicates


def _printable(text: str) -> str:
    if not text.isprintable():  # two different names would look the same
        raise ValueError(f"has a character that is not printable, {json.dumps(text[:80])}")
    return text


_Name: TypeAlias = Annotated[str, AfterValidator(_printable)]
_Text: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
_Predicates: TypeAlias = Annotated[Mapping[PredicateName, Any], AfterValidator(_predicates)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True))
class Rule:
    """Allows, asks about or denies calls of the tools that it matches.

    ``tool`` and ``source`` are globs over the whole dotted name and the source (``device``, ``builtin``,
    ``mcp:<server>``); ``*`` matches any characters, dots too. ``session`` limits the rule to one session id.
    ``args`` maps the name of an argument to predicates (`PREDICATES`) that must all match.
    ``arguments_digest`` limits it to exactly these arguments, ``fingerprint`` to one definition of the tool.
    The rule ends at ``expires``, an ISO 8601 time with offset. ``comment`` is not evaluated. Raises
    ValueError; `parse_rule` raises `RuleError` with the reason.
    """

    effect: RuleEffect
    tool: _Text
    source: _Text | None = None
    session: _Text | None = None
    args: Mapping[_Name, _Predicates] = Field(default_factory=dict)
    scope: Scope = "always"
    fingerprint: _Text | None = None
    expires: Annotated[str, AfterValidator(_expiry)] | None = None
    arguments_digest: _Text | None = None
    comment: str | None = None

    def __post_init__(self) -> None:
        _ = self.conditions  # compiled with the file, not on the first call: a long `eq` takes 0.1 s

    @property
    def unconditional(self) -> bool:
        return not self.args and self.arguments_digest is None

    @cached_property
    def conditions(self) -> Mapping[str, Sequence[Predicate]]:
        return {
            argument: [PREDICATES[name](value) for name, value in predicates.items()]
            for argument, predicates in self.args.items()
        }

    def expired(self, now: float) -> bool:
        """Return whether the rule has expired; ``now`` in epoch seconds."""
        return self._expires_at is not None and now >= self._expires_at

    def covers(self, spec: ToolSpec) -> bool:
        """Return whether the rule matches this tool with its present definition."""
        return (
            self._names(spec.name)
            and (self.source is None or self._sources(spec.source))
            and self.fingerprint in (None, spec.fingerprint)
        )

    @cached_property
    def _expires_at(self) -> float | None:
        return None if self.expires is None else parse_expiry(self.expires)

    @cached_property
    def _names(self) -> Callable[[str], bool]:
        return matcher(self.tool)

    @cached_property
    def _sources(self) -> Callable[[str], bool]:
        return matcher(self.source or "*")


class Arguments:
    """The arguments of one call. The forms that rules compare are computed once."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        work = ComparisonBudget()
        self.by_name = {name: Argument(value, work) for name, value in values.items()}


def match(rule: Rule, spec: ToolSpec, arguments: Arguments, now: float) -> Match:
    """Match a rule against a call; ``unclear`` if it matches only because an argument is undecidable.

    Allow rules are strict, and closed if they have predicates: an argument without a predicate means no
    match. Deny and ask rules are broad. Never raises.
    """
    if rule.expired(now) or not rule.covers(spec):
        return "no"
    if rule.arguments_digest not in (None, arguments_digest(spec.name, arguments.values)):
        return "no"
    strict = rule.effect == "allow"
    if strict and rule.args and not arguments.values.keys() <= rule.args.keys():
        return "no"
    unclear = False
    for name, predicates in rule.conditions.items():
        argument = arguments.by_name.get(name)
        if argument is None:
            return "no"
        for predicate in predicates:
            if not (predicate.matches(argument) if strict else predicate.may_match(argument)):
                return "no"
            unclear = unclear or not (strict or predicate.matches(argument))
    return "unclear" if unclear else "yes"


def arguments_digest(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of the tool's name, a line feed, and the arguments as canonical JSON (RFC 8785).

    1 and 1.0 give the same digest. Integers beyond 2^53 - 1, which RFC 8785 excludes, keep all digits.
    """
    return _digest(tool_name, json.dumps(arguments, sort_keys=True))


@lru_cache(maxsize=16)  # rfc8785 takes up to 25 ms for 64 KiB, and a call's digest is read several times
def _digest(tool_name: str, text: str) -> str:
    try:
        canonical = rfc8785.dumps(json.loads(text))
    except ValueError:
        canonical = text.encode()
    return hashlib.sha256(tool_name.encode() + b"\n" + canonical).hexdigest()


_WORDS = {
    "eq": "is",
    "in": "is one of",
    "glob": "matches",
    "under": "is under",
    "host": "is at",
    "max": "is at most",
}


def describe(rule: Rule) -> str:
    """Describe a rule on one line."""
    conditions = [
        f"{name} {_WORDS[predicate]} {_value(value)}"
        for name, predicates in rule.args.items()
        for predicate, value in predicates.items()
    ]
    if rule.arguments_digest is not None:
        conditions.append("the arguments are exactly the approved ones")
    parts = (
        (f"{rule.effect} {rule.tool}", True),
        (f" from {rule.source}", rule.source),
        (f" in session {rule.session}", rule.session),
        (f" where {' and '.join(conditions)}", conditions),
        (", as the tool was defined then", rule.fingerprint),
        (f", until {rule.expires}", rule.expires),
        (", for this session", rule.scope == "session"),
    )
    return "".join(text for text, applies in parts if applies)


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


_RULE = TypeAdapter(Rule)
_RULES = TypeAdapter(tuple[Rule, ...])


def rule_object(rule: Rule) -> dict[str, Any]:
    """Return a rule's JSON form without fields that have their default."""
    json_form: dict[str, Any] = _RULE.dump_python(rule, mode="json", by_alias=True, exclude_defaults=True)
    return json_form


def parse_rule(value: Any) -> Rule:
    """Parse a rule's JSON form. Raises `RuleError`."""
    if not isinstance(value, dict):
        raise RuleError("a rule must be a JSON object")
    try:
        return _RULE.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    parts = [str(part) for part in first["loc"]]
    is_key = parts[-1] == "[key]"
    path = ".".join(parts[:-2] if is_key else parts)
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("dictionary", "object")
    match first["type"]:
        case "missing":
            message = "is missing"
        case "unexpected_keyword_argument":
            names = ", ".join(to_camel(field.name) for field in fields(Rule))
            raise RuleError(f"there is no field {path!r}, only {names}")
        case "literal_error" if is_key:
            message = f"has the unknown predicate {parts[-2]!r}, not one of {', '.join(PREDICATES)}"
    raise RuleError(f"{path} {message[:1].lower()}{message[1:]}")


def read_json(path: Path, label: str, limit_bytes: int, default: Any = None) -> Any:
    """Read a JSON file strictly; ``default`` if there is no file and it is not None.

    Raises `SettingsError`: one sentence that begins with ``label``.
    """
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{label} is not a regular file.")
        with path.open("rb") as file:
            encoded = file.read(limit_bytes + 1)
        if len(encoded) > limit_bytes:
            raise SettingsError(f"{label} is larger than {limit_bytes} bytes.")
        return parse_json(encoded.decode("utf-8-sig"))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and default is not None:
            return default
        raise SettingsError(f"{label} cannot be read: {error.strerror}.") from None
    except RuleError as error:
        raise SettingsError(f"{label} is not valid: {error}.") from None
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise SettingsError(f"{label} is not valid JSON, {position}: {error.msg.lower()}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{label} is not UTF-8 text.") from None
    except (ValueError, RecursionError):  # thousands of digits or brackets
        raise SettingsError(f"{label} is not valid JSON.") from None


def parse_json(text: str) -> Any:
    """Parse JSON strictly.

    Raises `RuleError` for a duplicate name, NaN and infinity, and another ValueError or RecursionError for
    invalid JSON.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        # The last of two would win silently, and a reader may see only the first.
        raise RuleError(f"the field {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return dict(pairs)


def _constant(name: str) -> Any:
    raise RuleError(f"{name} is not valid JSON")


def encode_rules(rules: Sequence[Rule]) -> str:
    """Encode rules for a session's field; an empty string, which drops the field, if there are no rules."""
    return json.dumps([rule_object(rule) for rule in rules]) if rules else ""


def decode_rules(text: str) -> tuple[Rule, ...]:
    """Decode `encode_rules`. Raises ValueError if any rule is not valid."""
    return _RULES.validate_json(text) if text else ()
