"""Conductor: a WebSocket server between a voice app and a language model.

`load_settings`, `make_services` and `running` embed it in a program or a test; docs/embedding.md shows their
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conductor.app import make_services, running
    from conductor.settings import load_settings
    from conductor.version import __version__

__all__ = ["__version__", "load_settings", "make_services", "running"]

_MODULES = {"__version__": "version", "load_settings": "settings", "make_services": "app", "running": "app"}


def __getattr__(name: str) -> Any:
    # On demand: a client of the library does not load the server.
    if name not in _MODULES:
        raise AttributeError(f"module 'conductor' has no attribute {name!r}")
    return getattr(import_module(f"conductor.{_MODULES[name]}"), name)
