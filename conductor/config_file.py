"""Configuration files: reading, syntax, validation; each mistake is one sentence with the file and field."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from conductor.errors import SettingsError

MAX_BYTES = 1024 * 1024
_T = TypeVar("_T")


def read_text(
    path: Path,
    label: str = "",
    default: str | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    allow_pipe: bool = False,
) -> str:
    """Read a file of UTF-8 text; ``default`` if there is no file and it is not None.

    Raises `SettingsError`, which begins with ``label``, by default the path.
    """
    label = label or str(path)
    try:
        # Opening a pipe waits for a writer.
        if not allow_pipe and not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{label} is not a regular file.")
        with path.open("rb") as file:
            encoded = file.read(max_bytes + 1)
        if len(encoded) > max_bytes:
            raise SettingsError(f"{label} is larger than {max_bytes} bytes.")
        return encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{label} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        if default is not None and isinstance(error, FileNotFoundError):
            return default
        raise SettingsError(f"{label} cannot be read: {as_clause(error.strerror or str(error))}.") from None


def read_json(path: Path, label: str = "", default: str | None = None) -> Any:
    """Read a JSON file strictly, as `parse_json` does; parameters and errors as in `read_text`."""
    text, label = read_text(path, label, default), label or str(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise SettingsError(f"{label} is not valid JSON, {position}: {as_clause(error.msg)}.") from None
    except DuplicateField as error:
        raise SettingsError(f"{label} is not valid: {error}.") from None
    except (ValueError, RecursionError):  # thousands of digits or brackets
        raise SettingsError(f"{label} is not valid JSON: a number is too long, or lists too deep.") from None


def read_toml(path: Path, default: str | None = None) -> dict[str, Any]:
    """Read a TOML file; parameters and errors as in `read_text`."""
    try:
        return tomllib.loads(read_text(path, default=default))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {as_clause(str(error))}.") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"{path} is not valid TOML: a number is too long, or lists too deep.") from None


class DuplicateField(ValueError):
    """A JSON object has two fields of one name; the last would win silently."""


def parse_json(text: str) -> Any:
    """Parse JSON strictly.

    Raises ValueError, for a second field of one name `DuplicateField`, and RecursionError.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise DuplicateField(f"the field {max(names, key=names.count)!r} occurs twice")
    return dict(pairs)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def validate(kind: type[_T] | TypeAdapter[_T], values: Any, location: str) -> _T:
    """Validate a part of a file as a pydantic type.

    Raises `SettingsError`, which begins with ``location``, for the first mistake.
    """
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        raise SettingsError(f"{location}: {mistake(error)}.") from None


def check_fields(values: Mapping[str, Any], fields: Iterable[str], location: str) -> None:
    """Raise `SettingsError` for a name in ``values`` that is not one of ``fields``."""
    for name in values.keys() - set(fields):
        raise SettingsError(f"{location}: there is no {json.dumps(name)}; there are: {', '.join(fields)}.")


def check_url(url: str, label: str) -> None:
    """Raise `SettingsError`, which begins with ``label``, unless it is a web address without credentials."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        is_valid = False
    if not is_valid:
        raise SettingsError(f"{label} must begin with https:// or http:// and a host.")
    if parts.username is not None or parts.password is not None:
        raise SettingsError(f"{label} must not contain a user name or a password.")


_CLAUSES = {
    "missing": "is missing",
    "too_short": "is empty",
    "string_too_short": "is empty",
    "string_type": "must be a text; put it in quotes",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "dataclass_type"), "must be an object"),
}


_EXTRA = ("extra_forbidden", "unexpected_keyword_argument")


def mistake(error: ValidationError) -> str:
    """Describe the first mistake as a clause. Positions in lists count from 1."""
    # Of a misspelled name, the name says more than the field that is missing for it.
    first = min(
        error.errors(include_url=False, include_context=False), key=lambda found: found["type"] not in _EXTRA
    )
    # A mistake in the name of an item belongs to its parent.
    parts = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]
    field = ".".join(str(part + 1 if isinstance(part, int) else part) for part in parts)
    field = field if field.isprintable() else json.dumps(field)
    if first["type"] in _CLAUSES:
        return f"{field or 'it'} {_CLAUSES[first['type']]}"
    if first["type"] in _EXTRA:
        # In YAML a text with a colon is read as a field.
        return f"there is no {field}{'; put a text in quotes' if ' ' in field else ''}"
    text = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] != "value_error":
        text = as_clause(text).replace("input should be", "it must be", 1)
    return f"{field} is not valid: {text}" if field else text


def as_clause(text: str) -> str:
    """Return a sentence as a clause, without a capital, unless of an acronym, and without a stop."""
    return (text if text[1:2].isupper() else text[:1].lower() + text[1:]).rstrip(".")
