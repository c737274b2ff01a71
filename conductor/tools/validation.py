"""The step from the JSON text that a model wrote to arguments that a tool may be run with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.tools.argument_errors import explain, refusal
from conductor.tools.base import ToolOutcome, ToolSpec, failed
from conductor.tools.coercion import coerce
from conductor.tools.schema import SchemaError
from conductor.tools.schema_checker import Checker, TooMuchWork

MAX_ARGUMENT_BYTES = 64 * 1024
MAX_ARGUMENT_DEPTH = 32
MAX_CHECKERS = 1024

_COLLECTED_ERRORS = 20  # several may say the same; five are told
_WHOLE_FLOAT = re.compile(r"[0-9](?:\.0|[eE])")  # somewhere there may be a 3.0 where 3 is wanted
_TOO_DEEP = f"they are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
_TOO_INVOLVED = "they are too large to be checked against the tool's schema; send fewer or shorter values"


@dataclass(frozen=True, slots=True)
class Valid:
    """Arguments that fit their schema, and a note for each value that was changed without loss."""

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()


def validate(
    spec: ToolSpec, arguments_json: str, limit_bytes: int = MAX_ARGUMENT_BYTES
) -> Valid | ToolOutcome:
    """Check the arguments of a call; empty text stands for no arguments. Never raises.

    What a model got wrong comes back as an outcome, ``parse_error`` or ``validation_failed``, whose message
    tells it how to do better. ``internal_error`` means that the tool's own schema was never acceptable.
    """
    if len(arguments_json) > limit_bytes or len(arguments_json.encode(errors="replace")) > limit_bytes:
        return _invalid(spec, f"they are larger than {limit_bytes} bytes")
    try:
        arguments = msgspec.json.decode(arguments_json) if arguments_json.strip() else {}
    except RecursionError:
        return _invalid(spec, _TOO_DEEP)
    except ValueError as error:  # also half a surrogate pair, which is no Unicode
        reason = str(error) if isinstance(error, msgspec.MsgspecError) else "the text is no Unicode"
        return failed("parse_error", refusal(spec.name, [f"they are not valid JSON ({reason})"]))
    try:
        return _check(spec, arguments, arguments_json)
    except SchemaError as error:
        return failed("internal_error", f"{spec.name} cannot be called: {error}. Nothing was run.")
    except TooMuchWork:
        return _invalid(spec, _TOO_INVOLVED)
    except RecursionError:
        return _invalid(spec, _TOO_DEEP)


def _check(spec: ToolSpec, arguments: Any, text: str) -> Valid | ToolOutcome:
    checker = _checker(spec)
    if _too_deep(arguments, text):
        return _invalid(spec, _TOO_DEEP)
    notes: tuple[str, ...] = ()
    errors = checker.errors(arguments, _COLLECTED_ERRORS)
    if errors or _WHOLE_FLOAT.search(text):
        if arguments is None and not checker.errors({}, 1):
            return Valid({}, ("arguments: null was read as {}",))
        changed, notes = coerce(arguments, checker)
        if notes:
            if _too_deep(changed, text):
                return _invalid(spec, _TOO_DEEP)
            remaining = checker.errors(changed, _COLLECTED_ERRORS)
            if remaining and not errors:  # as they were they fitted
                return Valid(arguments)
            arguments, errors = changed, remaining
    if errors:
        return _invalid(spec, *explain(errors))
    return Valid(arguments, notes)


def _invalid(spec: ToolSpec, *errors: str) -> ToolOutcome:
    return failed("validation_failed", refusal(spec.name, errors))


def _too_deep(value: Any, text: str) -> bool:
    """Tell whether a value is nested too deep; as a rule the brackets in its text rule that out."""
    if text.count("{") + text.count("[") <= MAX_ARGUMENT_DEPTH:
        return False
    waiting = [(1, value)]
    while waiting:
        depth, each = waiting.pop()
        if isinstance(each, dict | list):
            if depth > MAX_ARGUMENT_DEPTH:
                return True
            below = each.values() if isinstance(each, dict) else each
            waiting.extend((depth + 1, inner) for inner in below)
    return False


# Built once for each definition, not for each call (15 µs and more) nor each session: fifty sockets of one
# app declare the same tools. Bounded, oldest out first, since clients choose what they declare.
_checkers: dict[str, Checker] = {}


def _checker(spec: ToolSpec) -> Checker:
    checker = _checkers.get(spec.fingerprint)
    if checker is None:
        checker = Checker(spec.input_schema)
        if len(_checkers) >= MAX_CHECKERS:
            _checkers.pop(next(iter(_checkers)), None)
        _checkers[spec.fingerprint] = checker
    return checker
