"""``conductor protocol``: describe the wire protocol, generated from the code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from conductor.errors import SettingsError

FORMATS = ("asyncapi", "schema", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="an AsyncAPI 3.0 document (the default), JSON Schemas, or a reference for people",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Print or write the description; returns the exit code. Raises `SettingsError` for a file error."""
    text = render(options.format)
    if options.output is None:
        (stdout or sys.stdout).write(text)
        return 0
    try:
        options.output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SettingsError(f"{options.output} cannot be written: {error.strerror}.") from None
    return 0


def render(output_format: str) -> str:
    """Describe the protocol in one of `FORMATS`."""
    # Imported here, because the schemas of all events are slow to build.
    from conductor.events.docs import markdown
    from conductor.events.schema import asyncapi, json_schema

    match output_format:
        case "markdown":
            return markdown()
        case "schema":
            return _json(json_schema())
        case _:
            return _json(asyncapi())


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
