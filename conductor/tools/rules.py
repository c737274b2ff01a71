"""Rules about tool calls: what a rule says, when it applies, its words and its JSON form.

All of it is pure; the form is that of tools, "Permissions". A predicate that cannot be told for a value (a
path with backslashes, an address with a user name in it) counts as fulfilled for a deny or ask rule and as
not fulfilled for an allow rule, so that a trick never opens anything.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

from conductor.tools.base import ToolSpec, canonical_json

RuleEffect: TypeAlias = Literal["allow", "ask", "deny"]
Scope: TypeAlias = Literal["session", "always"]
Match: TypeAlias = Literal["no", "yes", "unclear"]

_FIELDS = {
    "effect": "effect",
    "tool": "tool",
    "source": "source",
    "args": "args",
    "scope": "scope",
    "fingerprint": "fingerprint",
    "expires": "expires",
    "argumentsDigest": "arguments_digest",
}
_MEANT = {"arg": "args", "argument": "args", "arguments": "args", "params": "args", "parameters": "args"} | {
    "predicates": "args", "expiry": "expires", "until": "expires", "digest": "argumentsDigest"
}  # fmt: skip


class RuleError(ValueError):
    """A rule that is not accepted; the message says why, in one clause."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to the calls of some tools.

    ``tool`` and ``source`` are globs over the whole dotted name and the source (``device``, ``builtin``,
    ``mcp:<server>``), in which ``*`` stands for any characters, dots too. ``args`` maps an argument's name to
    predicates (`PREDICATES`), all of which must hold. ``arguments_digest`` is that of exactly these arguments
    (`arguments_digest`). With ``fingerprint`` the rule applies only to that definition of the tool; from
    ``expires`` on, an ISO 8601 time with its offset, no longer at all. Raises `RuleError`.
    """

    effect: RuleEffect
    tool: str
    source: str | None = None
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scope: Scope = "always"
    fingerprint: str | None = None
    expires: str | None = None
    arguments_digest: str | None = None

    def __post_init__(self) -> None:
        if self.effect not in get_args(RuleEffect):
            raise RuleError("effect must be allow, ask or deny")
        if self.scope not in get_args(Scope):
            raise RuleError("scope must be session or always")
        if not isinstance(self.tool, str) or not self.tool:
            raise RuleError("tool must be a tool's name or a pattern for names")
        for name in ("source", "fingerprint", "arguments_digest"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RuleError(f"{_WIRE[name]} must be text")
        if self.expires is not None:
            parse_expiry(self.expires)
        _check_args(self.args)
        _check_json(rule_object(self))

    @property
    def unconditional(self) -> bool:
        """Tell whether it applies whatever the arguments are."""
        return not self.args and self.arguments_digest is None

    def expired(self, now: float) -> bool:
        """Tell whether its time is over; ``now`` in epoch seconds."""
        return self.expires is not None and now >= parse_expiry(self.expires)

    def covers(self, spec: ToolSpec) -> bool:
        """Tell whether it is about this tool, as it is defined now."""
        return (
            fnmatchcase(spec.name, self.tool)
            and (self.source is None or fnmatchcase(spec.source, self.source))
            and self.fingerprint in (None, spec.fingerprint)
        )


_WIRE = {attribute: name for name, attribute in _FIELDS.items()}


def parse_expiry(text: Any) -> float:
    """Read an ISO 8601 time with its offset as epoch seconds. Raises `RuleError`."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise RuleError("expires must be a time such as 2030-01-31T18:00:00Z") from None
    if time.tzinfo is None:
        raise RuleError("expires needs its offset, as in 2030-01-31T18:00:00Z")
    return time.timestamp()


# -- matching


def match(rule: Rule, spec: ToolSpec, arguments: Mapping[str, Any], now: float) -> Match:
    """Tell whether a rule applies to a call; ``unclear`` if a predicate cannot be told and all others hold.

    An allow rule with predicates is closed: an argument that it does not mention means no match, and
    ``unclear`` is ``no``. For the other two ``unclear`` is to be taken for a match. Never raises.
    """
    if rule.expired(now) or not rule.covers(spec):
        return "no"
    closed = rule.effect == "allow"
    if closed and rule.args and not arguments.keys() <= rule.args.keys():
        return "no"
    found: list[Match] = []
    if rule.arguments_digest is not None:
        found.append(_match_digest(rule.arguments_digest, spec, arguments))
    for name, predicates in rule.args.items():
        if name not in arguments:
            return "no"
        found.extend(holds(each, wanted, arguments[name]) for each, wanted in predicates.items())
    if "no" in found or (closed and "unclear" in found):
        return "no"
    return "unclear" if "unclear" in found else "yes"


def _match_digest(digest: str, spec: ToolSpec, arguments: Mapping[str, Any]) -> Match:
    try:
        return "yes" if arguments_digest(spec.name, arguments) == digest else "no"
    except (ValueError, RecursionError):
        return "unclear"


def arguments_digest(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """Give the hex SHA-256 of the tool's name, a line feed, and the arguments as canonical JSON.

    The order of keys does not matter, at any depth; the way a number is written does: 1 and 1.0 are two
    digests, so that two calls that a tool might tell apart are never one. Raises ValueError for what is no
    JSON (NaN, infinity, half a surrogate pair) and RecursionError for what is nested too deep.
    """
    _check_finite(arguments)
    return hashlib.sha256(tool_name.encode() + b"\n" + canonical_json(arguments)).hexdigest()


def _check_finite(value: Any) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
        elif isinstance(each, float) and not math.isfinite(each):
            raise ValueError("NaN and infinity are not JSON")  # the encoder would write null


# -- predicates


def holds(predicate: str, wanted: Any, value: Any) -> Match:
    """Tell whether an argument's value fulfils a predicate. A wrong type is ``no``. Never raises."""
    return PREDICATES[predicate](wanted, value)


def _is(condition: bool) -> Match:
    return "yes" if condition else "no"


def _eq(wanted: Any, value: Any) -> Match:
    """Equal as JSON: 1 is 1.0, true is not 1. Without recursion, since a value may be nested deep."""
    waiting = [(wanted, value)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one.keys() != other.keys():
                return "no"
            waiting.extend((one[key], other[key]) for key in one)
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return "no"
            waiting.extend(zip(one, other, strict=True))
        elif _number(one) and _number(other):
            if one != other:
                return "no"
        elif type(one) is not type(other) or one != other:
            return "no"
    return "yes"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in(wanted: Any, value: Any) -> Match:
    return _is(any(_eq(each, value) == "yes" for each in wanted))


def _glob(wanted: Any, value: Any) -> Match:
    return _is(isinstance(value, str) and fnmatchcase(value, wanted))


def _max(wanted: Any, value: Any) -> Match:
    return _is(_number(value) and value <= wanted)


_EXPANDED = re.compile(r"[\\$%]|\A~|\A[A-Za-z][A-Za-z0-9+.-]*:")
"""What some program would make another path of: Windows, a shell, an address, a drive."""


def _under(wanted: Any, value: Any) -> Match:
    """Compare a path with a folder, by the text alone: the folder itself counts, links are the tools' affair.

    ``..`` is worked out first. It cannot be told where only one of the two is relative, where a path leaves
    the working folder, where only letter case is in the way, and where a program may read the text otherwise.
    """
    if not isinstance(value, str) or not value:
        return "no"
    if not _plain_path(value) or value.startswith("/") != wanted.startswith("/"):
        return "unclear"
    path, folder = _parts(value), _parts(wanted)
    if path[:1] == [".."]:
        return "unclear"
    start = path[: len(folder)]
    if start == folder:
        return "yes"
    return "unclear" if [_folded(each) for each in start] == [_folded(each) for each in folder] else "no"


def _plain_path(path: str) -> bool:
    if not path.isprintable() or _EXPANDED.search(path):
        return False
    if any(part not in (".", "..") and part != part.rstrip(". ") for part in path.split("/")):
        return False  # Windows leaves them out: "secret. " is secret
    same = path if path.isascii() else unicodedata.normalize("NFKC", path)
    return all(same.count(sign) == path.count(sign) for sign in "/.:~\\")


def _parts(path: str) -> list[str]:
    """Work out ``.`` and ``..``; a relative path keeps those that lead out of the working folder."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part == ".." and not path.startswith("/"):
            parts.append(part)
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts


def _folded(part: str) -> str:
    return unicodedata.normalize("NFKC", part).casefold()


_URL = re.compile(r"(?:https?|wss?)://([^/?#\\]+)(?:[/?#]|\Z)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?)(?::([0-9]{1,5}))?\Z")
_NUMERIC = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")


def _host(wanted: Any, value: Any) -> Match:
    """Compare a web address with a host: names below it count, the port does not.

    Programs read odd addresses in different ways, so only a plain one is told: a web scheme, a host of ASCII
    letters, no user name, no backslash or percent sign in the host, no control character or space anywhere.
    """
    if not isinstance(value, str) or not value:
        return "no"
    host, wanted = _host_of(value), _plain_host(wanted)
    if host is None or wanted is None:
        return "unclear"
    if _is_address(host) or _is_address(wanted):
        mixed = _is_address(host) and _is_address(wanted) and (":" in host) != (":" in wanted)
        return "unclear" if mixed else _is(host == wanted)
    return _is(host == wanted or host.endswith("." + wanted))


def _host_of(url: str) -> str | None:
    if "\\" in url or " " in url or not url.isprintable():
        return None
    found = _URL.match(url)
    authority = _AUTHORITY.match(found[1]) if found else None
    if authority is None or int(authority[2] or 0) > 65_535:
        return None
    return _plain_host(authority[1])


def _plain_host(host: str) -> str | None:
    """Give the host in lower case, an address in its usual form; None for an address in another form."""
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


PREDICATES: Mapping[str, Callable[[Any, Any], Match]] = {
    "eq": _eq,
    "in": _in,
    "glob": _glob,
    "under": _under,
    "host": _host,
    "max": _max,
}
"""What can be said of an argument: equal to, one of, a pattern for the whole text, a path inside a folder,
an address at a host or below it, a number of at most."""


def _check_json(value: Any) -> None:
    try:
        _check_finite(value)
        canonical_json(value)
    except (TypeError, ValueError, RecursionError):
        raise RuleError("a value is no JSON, or nested too deep") from None


def _check_args(args: Any) -> None:
    if not isinstance(args, Mapping):
        raise RuleError("args must be an object of argument names")
    for name, predicates in args.items():
        if not isinstance(name, str):
            raise RuleError("args must be an object of argument names")
        if not isinstance(predicates, Mapping) or not predicates:
            raise RuleError(f"args.{name} must be an object with one or more of {', '.join(PREDICATES)}")
        for predicate, wanted in predicates.items():
            if predicate not in PREDICATES:
                raise RuleError(
                    f"args.{name} has the unknown predicate {predicate!r}; there are {', '.join(PREDICATES)}"
                )
            problem = _problem(predicate, wanted)
            if problem:
                raise RuleError(f"args.{name}.{predicate} must be {problem}")


def _problem(predicate: str, wanted: Any) -> str:
    """Say what a predicate's value must be, if it is not."""
    if predicate == "in" and not isinstance(wanted, list | tuple):
        return "a list"
    if predicate == "max" and not (_number(wanted) and math.isfinite(wanted)):
        return "a number"
    if predicate == "glob" and not isinstance(wanted, str):
        return "text"
    if predicate == "under":
        plain = isinstance(wanted, str) and wanted != "" and _plain_path(wanted)
        if not plain or _parts(wanted)[:1] == [".."]:
            return "a folder, written out, with slashes and without ~, $ and %"
    if predicate == "host" and not _plain_rule_host(wanted):
        return "a host such as example.org, without scheme and port (xn--... for other letters)"
    return ""


def _plain_rule_host(wanted: Any) -> bool:
    if not isinstance(wanted, str):
        return False
    host = f"[{wanted}]" if wanted.count(":") > 1 and not wanted.startswith("[") else wanted
    found = _AUTHORITY.match(host)
    return found is not None and found[2] is None and _plain_host(host) is not None


# -- words and JSON

_WORDS = {
    "eq": "is",
    "in": "is one of",
    "glob": "matches",
    "under": "is under",
    "host": "is at",
    "max": "is at most",
}


def describe(rule: Rule) -> str:
    """Say a rule in words, on one line."""
    said = f"{rule.effect} {_shown(rule.tool)}"
    if rule.source is not None:
        said += f" from {_shown(rule.source)}"
    conditions = [
        f"{_shown(name)} {_WORDS[predicate]} {_value(wanted)}"
        for name, predicates in rule.args.items()
        for predicate, wanted in predicates.items()
    ]
    if rule.arguments_digest is not None:
        conditions.append("the arguments are exactly those once decided on")
    if conditions:
        said += f" where {' and '.join(conditions)}"
    if rule.fingerprint is not None:
        said += ", as the tool was defined then"
    if rule.expires is not None:
        said += f", until {rule.expires}"
    return said + (", for this session" if rule.scope == "session" else "")


def _shown(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)


def _value(wanted: Any) -> str:
    text = json.dumps(wanted, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(wanted)


def rule_object(rule: Rule) -> dict[str, Any]:
    """Give a rule's JSON form; what is left at its default is left out."""
    values = {name: getattr(rule, attribute) for name, attribute in _FIELDS.items()}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value != {} and (name, value) != ("scope", "always")
    }


def parse_rule(value: Any) -> Rule:
    """Read a rule's JSON form. Unknown fields are passed over, unless they look like a known one misspelt.

    A misspelt ``args`` would make an allow rule wide open. Raises `RuleError`.
    """
    if not isinstance(value, dict):
        raise RuleError("a rule must be a JSON object")
    for name in value.keys() - _FIELDS.keys():
        plain = re.sub(r"[^a-z]", "", name.lower())
        near = get_close_matches(plain, {known.lower(): known for known in _FIELDS}, 1, 0.8)
        meant = _MEANT.get(plain) or next((k for k in _FIELDS if near == [k.lower()]), None)
        if meant is not None:
            raise RuleError(f"unknown field {name!r}; did you mean {meant!r}?")
    for name in ("effect", "tool"):
        if name not in value:
            raise RuleError(f"{name} is missing")
    given = {_FIELDS[name]: each for name, each in value.items() if name in _FIELDS and each is not None}
    return Rule(**given)


def parse_json(text: str) -> Any:
    """Read JSON strictly.

    Raises `RuleError` for a name that is there twice and for NaN and infinity, another ValueError or
    RecursionError for what is no JSON.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RuleError(f"the field {twice!r} is there twice")
    return made


def _constant(name: str) -> Any:
    raise RuleError(f"{name} is no JSON number")


def encode_rules(rules: Sequence[Rule]) -> str:
    """Write rules as text for a session's field; no rules are an empty text, which drops the field."""
    return canonical_json([rule_object(rule) for rule in rules]).decode() if rules else ""


def decode_rules(text: str) -> tuple[Rule, ...]:
    """Read what `encode_rules` wrote.

    Raises ValueError for anything else, one bad rule among good ones too. Whoever keeps grants there goes on
    with none: then more is asked, never less.
    """
    if not text:
        return ()
    try:
        rules = parse_json(text)
    except RecursionError:
        raise RuleError("the rules are nested too deep") from None
    if not isinstance(rules, list):
        raise RuleError("the rules must be a JSON list")
    return tuple(parse_rule(each) for each in rules)
