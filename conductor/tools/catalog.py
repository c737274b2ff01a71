"""Catalog files: the device tools of clients that cannot declare them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.declarations import parse_declarations

MAX_CATALOG_BYTES = 1024 * 1024

_PACKAGED = "ios.json"


def load_catalog(path: Path | None) -> tuple[ToolSpec, ...]:
    """Read a catalog: a JSON object whose ``tools`` is a list of declarations. None is the shipped iOS app's.

    Raises `SettingsError` for a file that cannot be read, and for the first tool that is not accepted: a
    catalog is written by hand, and half of one would be hard to notice.
    """
    name = path.name if path else _PACKAGED
    catalog = _read(path, name)
    declarations = catalog.get("tools") if isinstance(catalog, dict) else None
    if not isinstance(declarations, list):
        raise SettingsError(f'the tool catalog {name} must be a JSON object with a list under "tools"')
    accepted, rejected = parse_declarations(declarations)
    if rejected:
        tool, reason = rejected[0]
        raise SettingsError(
            f"the tool catalog {name} has a tool that is not accepted, {tool or '?'}: {reason}"
        )
    # The operator's own choice of tools is trusted; what a client declares is not.
    return tuple(replace(spec, untrusted=False) for spec in accepted)


def _read(path: Path | None, name: str) -> Any:
    try:
        if path is None:
            encoded = resources.files("conductor").joinpath("catalogs", _PACKAGED).read_bytes()
        else:
            with path.open("rb") as file:
                encoded = file.read(MAX_CATALOG_BYTES + 1)
        if len(encoded) > MAX_CATALOG_BYTES:
            raise SettingsError(f"the tool catalog {name} is larger than {MAX_CATALOG_BYTES} bytes")
        return json.loads(encoded.decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"the tool catalog {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the tool catalog {name} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SettingsError(f"the tool catalog {name} is not valid JSON: {error.msg}, {where}") from None
    except RecursionError:
        raise SettingsError(f"the tool catalog {name} is nested too deep") from None
