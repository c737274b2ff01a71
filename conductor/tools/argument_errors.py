"""What is wrong with a call's arguments, in words by which a model can correct them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jsonschema.exceptions import ValidationError, best_match

from conductor.tools.schema import required_choice

ENDING = "Nothing was run. Call it again with corrected arguments."
MAX_ERRORS = 5

_VALUE_CHARS = 80
_LISTED_NAMES = 12
_LISTED_FORMS = 3
_HINT_CHARS = 160


def refusal(tool: str, errors: Iterable[str]) -> str:
    """Put errors into the one message for the model: which tool, up to five errors, what to do."""
    return f"Invalid arguments for {tool}: {'; '.join(list(errors)[:MAX_ERRORS])}. {ENDING}"


def explain(errors: Sequence[ValidationError]) -> list[str]:
    """Say each error once, in the order of the schema; each is a clause without a full stop."""
    return list(dict.fromkeys(_explain(error) for error in errors))


def suggestion(name: str, names: Iterable[str]) -> str:
    """Say " (did you mean ...?)" where one of the names is near enough, else nothing."""
    lowered = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name[:64].lower(), lowered, n=1, cutoff=0.6)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def _explain(error: ValidationError) -> str:
    if error.validator == "additionalProperties" and error.path:
        return _unknown_name(error)
    where = _where(error)
    wording = _WORDINGS.get(str(error.validator))
    if wording is not None:
        return f"{where} {wording(_rule(error))}, got {_shown(_value(error))}"
    special = _SPECIAL.get(str(error.validator))
    if special is not None:
        return special(error, where)
    if error.schema is False:
        return f"{_inside(where)}{_shown(_value(error))} is not allowed"
    return f"{where} does not fit its {error.validator}"


def _rule(error: ValidationError) -> Any:
    """Give the keyword's value: any error that comes from a keyword has one."""
    return error.validator_value


def _value(error: ValidationError) -> Any:
    return error.instance


def _where(error: ValidationError) -> str:
    path = ""
    for step in error.absolute_path:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path[:_VALUE_CHARS] or "the arguments"


def _shown(value: Any) -> str:
    # Cut before encoding: a value may be as long as all arguments may be.
    if isinstance(value, str):
        value = value[:_VALUE_CHARS]
    elif isinstance(value, dict):
        return f"an object with {len(value)} fields"
    elif isinstance(value, list):
        return f"a list of {len(value)}"
    return json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]


def _inside(where: str) -> str:
    return "" if where == "the arguments" else f"{where}: "


def _unknown_name(error: ValidationError) -> str:
    name = str(error.path[-1])
    parent = ".".join(map(str, list(error.absolute_path)[:-1]))
    names = list(error.schema.get("properties", {})) if isinstance(error.schema, dict) else []
    hint = suggestion(name, names)
    if not hint:
        listed = ", ".join(names[:_LISTED_NAMES]) + (", …" if len(names) > _LISTED_NAMES else "")
        hint = f" (allowed: {listed})" if names else " (none is taken)"
    return f"{parent + ': ' if parent else ''}unknown argument {name[:_VALUE_CHARS]!r}{hint}"


def _required(error: ValidationError, where: str) -> str:
    missing = [name for name in _rule(error) if name not in _value(error)]
    plural = "s" if len(missing) > 1 else ""
    return (
        f"{_inside(where)}missing required argument{plural} {', '.join(map(repr, missing[:_LISTED_NAMES]))}"
    )


def _enum(error: ValidationError, where: str) -> str:
    allowed = _rule(error)
    listed = ", ".join(_shown(each) for each in allowed[:_LISTED_NAMES])
    more = f" (and {len(allowed) - _LISTED_NAMES} more)" if len(allowed) > _LISTED_NAMES else ""
    hint = ""
    if isinstance(_value(error), str):
        hint = suggestion(_value(error), [each for each in allowed if isinstance(each, str)])
    return f"{where} must be one of {listed}{more}, got {_shown(_value(error))}{hint}"


def _pattern(error: ValidationError, where: str) -> str:
    hint = error.schema.get("description", "") if isinstance(error.schema, dict) else ""
    said = f" ({hint[:_HINT_CHARS]})" if hint else ""
    return f"{where} must match {_rule(error)}, got {_shown(_value(error))}{said}"


def _dependent(error: ValidationError, where: str) -> str:
    missing = [
        f"{name!r} needs {needed!r} too"
        for name, others in _rule(error).items()
        if name in _value(error)
        for needed in others
        if needed not in _value(error)
    ]
    return f"{_inside(where)}{', '.join(missing)}"


def _branches(error: ValidationError, where: str) -> str:
    """Explain anyOf and oneOf: a choice of names, a choice of types, or the branch that came nearest."""
    names = required_choice(_rule(error))
    if not error.context:  # oneOf, and more than one fits
        which = f"exactly one of {names}" if names else "exactly one of its forms"
        return f"{_inside(where)}needs {which}, but more than one fits"
    if names:
        return f"{_inside(where)}needs {names}"
    wrong_types = [each for each in error.context if each.validator == "type" and not each.relative_path]
    if len(wrong_types) == len(error.context):
        types = [_type(_rule(each)) for each in wrong_types]
        return f"{where} must be {' or '.join(dict.fromkeys(types))}, got {_shown(_value(error))}"
    nearest = best_match([error])
    if nearest is not None and nearest is not error:
        return _explain(nearest)
    # No branch came nearer than another. Branches inside branches are left out: they can be very many.
    forms = [_explain(each) for each in error.context if not each.context]
    return ", or ".join(list(dict.fromkeys(forms))[:_LISTED_FORMS]) or f"{where} fits none of its forms"


def _type(types: str | list[str]) -> str:
    return types if isinstance(types, str) else " or ".join(types)


def _count(noun: str, bound: str) -> Callable[[Any], str]:
    return lambda number: f"must have {bound} {number} {noun}{'' if number == 1 else 's'}"


_WORDINGS: dict[str, Callable[[Any], str]] = {
    "type": lambda types: f"must be {_type(types)}",
    "const": lambda value: f"must be {_shown(value)}",
    "minimum": lambda bound: f"must be at least {bound}",
    "maximum": lambda bound: f"must be at most {bound}",
    "exclusiveMinimum": lambda bound: f"must be more than {bound}",
    "exclusiveMaximum": lambda bound: f"must be less than {bound}",
    "multipleOf": lambda step: f"must be a multiple of {step}",
    "minLength": _count("character", "at least"),
    "maxLength": _count("character", "at most"),
    "minItems": _count("item", "at least"),
    "maxItems": _count("item", "at most"),
    "minProperties": _count("field", "at least"),
    "maxProperties": _count("field", "at most"),
    "minContains": _count("fitting item", "at least"),
    "maxContains": _count("fitting item", "at most"),
    "uniqueItems": lambda _: "must not have the same item twice",
    "contains": lambda _: "has no item that fits",
    "items": lambda _: "has too many items",
    "not": lambda _: "has a form that is not allowed",
}
_SPECIAL: dict[str, Callable[[ValidationError, str], str]] = {
    "required": _required,
    "enum": _enum,
    "pattern": _pattern,
    "dependentRequired": _dependent,
    "anyOf": _branches,
    "oneOf": _branches,
}
