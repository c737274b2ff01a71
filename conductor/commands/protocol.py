"""``conductor protocol``: describe the wire protocol, generated from the code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from conductor.errors import SettingsError


def run(options: argparse.Namespace) -> None:
    """Print or write the description. Raises `SettingsError` for a file error."""
    text = render(options.format)
    if options.output is None:
        sys.stdout.write(text)
        return
    try:
        options.output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SettingsError(f"{options.output} cannot be written: {error.strerror}.") from None


def render(output_format: str) -> str:
    """Describe the protocol as ``asyncapi``, ``schema`` or ``markdown``."""
    # Imported here, because the schemas of all events are slow to build.
    from conductor.commands.protocol_reference import markdown
    from conductor.commands.protocol_schema import asyncapi, json_schema

    match output_format:
        case "markdown":
            return markdown()
        case "schema":
            return _json(json_schema())
        case _:
            return _json(asyncapi())


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
