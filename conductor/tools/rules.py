"""Rules for tool calls: matching, description and JSON form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, TypeAlias

import rfc8785
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from conductor.config_file import check_fields, validate
from conductor.tools.base import ToolSpec, matcher
from conductor.tools.predicates import BROAD, PREDICATES, Argument, Predicate, PredicateName

RuleEffect: TypeAlias = Literal["allow", "ask", "deny"]
GrantScope: TypeAlias = Literal["session", "always"]


def parse_expiry(text: str) -> float:
    """Read an ISO 8601 time with its offset as epoch seconds. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it must be a time such as 2030-01-31T18:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError("it needs its offset, as in 2030-01-31T18:00:00Z")
    return time.timestamp()


def _expiry(text: str) -> str:
    parse_expiry(text)
    return text


def _predicates(predicates: Mapping[PredicateName, Any]) -> Mapping[PredicateName, Any]:
    if not predicates:
        raise ValueError(f"it must have one or more of {', '.join(PREDICATES)}")
    for name, value in predicates.items():
        try:
            PREDICATES[name](value)
        except ValueError as error:
            raise ValueError(f"{name} must be {error}") from None
    return predicates


def _printable(text: str) -> str:
    if not text.isprintable():  # two different names would look the same
        raise ValueError(f"it has a character that is not printable, {json.dumps(text[:80])}")
    return text


_Name: TypeAlias = Annotated[str, AfterValidator(_printable)]
_Text: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
_Predicates: TypeAlias = Annotated[Mapping[PredicateName, Any], AfterValidator(_predicates)]


@dataclass(
    frozen=True,
    config=ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True),
    kw_only=True,
)
class Rule:
    """Allows, asks about or denies calls of the tools that it matches.

    ``tool`` and ``source`` are globs over the whole dotted name and the source (``device``, ``builtin``,
    ``mcp:<server>``); ``*`` matches any characters, dots too. ``args`` maps the name of an argument to
    predicates (`PREDICATES`) that must all match; deny and ask rules have `BROAD` ones.
    ``arguments_digest`` limits it to exactly these arguments, ``fingerprint`` to one definition of the tool.
    The rule ends at ``expires``, an ISO 8601 time with offset. ``comment`` is not evaluated. Raises
    ValueError; `parse_rule` raises `SettingsError`.
    """

    effect: RuleEffect
    tool: _Text
    source: _Text | None = None
    args: Mapping[_Name, _Predicates] = Field(default_factory=dict)
    scope: GrantScope = "always"
    fingerprint: _Text | None = None
    expires: Annotated[str, AfterValidator(_expiry)] | None = None
    arguments_digest: _Text | None = None
    comment: str | None = None

    def __post_init__(self) -> None:
        names = {name for predicates in self.args.values() for name in predicates}
        if self.effect != "allow" and names - BROAD:
            raise ValueError(f"args of {self.effect} rules may have {', '.join(sorted(BROAD))}")
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


def matches(rule: Rule, spec: ToolSpec, arguments: Mapping[str, Argument], now: float) -> bool:
    """Return whether a rule matches a call. Never raises.

    Allow rules are exact, and closed if they have predicates: an argument without a predicate means no
    match. Deny and ask rules are broad.
    """
    if rule.expired(now) or not rule.covers(spec):
        return False
    if rule.arguments_digest is not None:
        values = {name: argument.value for name, argument in arguments.items()}
        if rule.arguments_digest != arguments_digest(spec.name, values):
            return False
    is_exact = rule.effect == "allow"
    if is_exact and rule.args and not arguments.keys() <= rule.args.keys():
        return False
    return rule.conditions.keys() <= arguments.keys() and all(
        predicate.matches(arguments[name]) if is_exact else predicate.may_match(arguments[name])
        for name, predicates in rule.conditions.items()
        for predicate in predicates
    )


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


def parse_rule(value: Any, location: str = "The rule") -> Rule:
    """Parse a rule's JSON form. Raises `SettingsError`, which begins with ``location``."""
    if isinstance(value, dict):
        check_fields(value, [to_camel(field.name) for field in fields(Rule)], location)
    return validate(_RULE, value, location)


def encode_rules(rules: Sequence[Rule]) -> str:
    """Encode rules for a session's field, without their defaults; without rules "", which drops the field."""
    json_form = _RULES.dump_python(tuple(rules), mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(json_form) if rules else ""


def decode_rules(text: str) -> tuple[Rule, ...]:
    """Decode `encode_rules`. Raises ValueError if any rule is not valid."""
    return _RULES.validate_json(text) if text else ()
