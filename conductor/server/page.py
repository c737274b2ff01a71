"""The page at ``/`` and the viewer at ``/sessions``: the package's files, and the records of a session.

Its headers allow no other host.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from conductor import __version__
from conductor.conversation.ledger import moments, plain_moment
from conductor.settings import Settings
from conductor.stores.base import Stored

FOLDER = Path(__file__).resolve().parent.parent / "web"
# Only this server's own files; no inline script or style, and no text that becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
REPLAY_PATH = "/replay.json"
_PATHS = {"index.html": "/", "sessions.html": "/sessions"}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Page:
    """The files by path, read once at the start.

    ``/page.json`` contains whether the server needs a ``token``, and its ``version``.
    """

    def __init__(self, *, token_needed: bool, folder: Path = FOLDER) -> None:
        self._files = {
            _PATHS.get(path.name, f"/{path.name}"): (_TYPES[path.suffix], path.read_bytes())
            for path in folder.iterdir()
            if path.suffix in _TYPES and path.is_file()
        }
        facts = json.dumps({"token": token_needed, "version": __version__})
        self._files["/page.json"] = ("application/json", facts.encode())

    def file(self, path: str) -> tuple[str, bytes] | None:
        """Return the content type and the content of a request's path, or None."""
        return self._files.get(path)


def make_page(settings: Settings) -> Page | None:
    """Make the page of the settings; None if it is not served."""
    return Page(token_needed=settings.authenticates) if settings.serves_page else None


def read_replay(stored: Stored, number: str | None) -> bytes:
    """Give a session's records as JSON: all without their states, or those of a ``number`` with them.

    A state for each record would take megabytes. Raises `StoreUnavailable`.
    """
    steps = moments(stored.commits(), stored.meta.revision)
    if number is None:
        return msgspec.json.encode([plain_moment(step, with_state=False) for step in steps])
    return msgspec.json.encode([plain_moment(step) for step in steps if str(step.number) == number])
