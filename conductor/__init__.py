"""Conductor: a WebSocket server between a voice app and a language model.

`load_settings`, `make_services` and `running` embed it in a program or a test; docs/embedding.md shows their
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.version import __version__

if TYPE_CHECKING:
    from conductor.app import make_services, running
    from conductor.settings import load_settings

__all__ = ["__version__", "load_settings", "make_services", "running"]


def __getattr__(name: str) -> Any:
    # On demand: a client of the library does not load the server.
    if name in ("make_services", "running"):
        from conductor import app

        return getattr(app, name)
    if name == "load_settings":
        from conductor.settings import load_settings

        return load_settings
    raise AttributeError(f"module 'conductor' has no attribute {name!r}")
