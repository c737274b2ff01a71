"""``conductor protocol``: the wire, described for tools and for people, from the code that speaks it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from conductor.errors import SettingsError

if TYPE_CHECKING:
    from conductor.events.reference import Facts

FORMATS = ("asyncapi", "schema", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="an AsyncAPI 3.0 document (the default), JSON Schemas, or a reference for people",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of printing")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Print or write the description; returns the exit code. Raises `SettingsError` for a bad file."""
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
    """Describe the wire in one of `FORMATS`."""
    from conductor.events.reference import read_reference

    reference = read_reference(facts())
    if output_format == "markdown":
        from conductor.events.reference_markdown import markdown

        return markdown(reference)
    if output_format == "schema":
        from conductor.events.reference_schema import json_schema

        return _json(json_schema(reference))
    from conductor.events.reference_asyncapi import asyncapi

    return _json(asyncapi(reference))


def facts() -> Facts:
    """Collect what lies above the events: the defaults of the settings, the server's ways, capabilities."""
    from conductor import __version__
    from conductor.conversation.profile import CAPABILITIES
    from conductor.events.reference import Facts
    from conductor.server.auth import SUBPROTOCOL
    from conductor.settings import Limits, Settings

    limits = Limits()
    return Facts(
        version=__version__,
        path="/ws",
        host=Settings.model_fields["host"].get_default(),
        port=Settings.model_fields["port"].get_default(),
        subprotocol=SUBPROTOCOL,
        max_event_bytes=limits.max_event_bytes,
        hard_event_bytes=limits.hard_event_bytes,
        ping_interval=limits.ping_interval,
        tool_timeout=limits.tool_timeout,
        session_grace=limits.session_grace,
        capabilities=CAPABILITIES,
    )


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
