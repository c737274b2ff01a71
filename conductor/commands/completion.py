"""``conductor completion``: print the completion of a shell."""

from __future__ import annotations

import argparse

from conductor.commands.output import write
from conductor.errors import SettingsError


def run(options: argparse.Namespace) -> None:
    """Print the script that completes what the ``parser`` knows. Raises `SettingsError` without shtab."""
    try:
        import shtab
    except ImportError:
        raise SettingsError(
            "completion needs the package shtab: pip install 'conductor-voice[terminal]'."
        ) from None
    write(shtab.complete(options.parser, shell=options.shell).rstrip())
