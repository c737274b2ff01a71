"""The page at ``/`` and the viewer at ``/sessions``: the package's files, and the records of a session.

Its headers allow no other host.
"""

from __future__ import annotations

import asyncio
import http
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from websockets.http11 import Request, Response

from conductor.conversation.replay import moments, plain_moment
from conductor.errors import StoreUnavailable
from conductor.server.access import Refusal
from conductor.server.listener import Listener, Route, response, text_response
from conductor.settings import Settings
from conductor.stores.base import SessionKey, Stored
from conductor.version import PACKAGE, __version__

FOLDER = PACKAGE / "web"
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
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# The libraries are for the pages of any origin; who may connect is another matter.
LIBRARY_PATHS = ("/conductor.js", "/conductor-elements.js", "/openai-live.js", "/utterances.js")
LIBRARY_HEADERS = {
    **HEADERS,
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
REPLAY_PATH = "/replay.json"
_PATHS = {"index.html": "/", "sessions.html": "/sessions"}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def serve(listener: Listener, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Serve the page while the settings allow it."""

    def prepare(settings: Settings) -> Callable[[], None]:
        routes: dict[str, Route | None] = dict(make_routes(listener, settings))
        if not settings.serves_page:
            routes = dict.fromkeys(routes)
        return lambda: listener.routes.update(routes)

    listener.configure(prepare, settings)
    return nullcontext()


def make_routes(listener: Listener, settings: Settings) -> dict[str, Route]:
    """Make a route for each file; ``/page.json`` has the ``version``, and whether a ``token`` is needed."""
    facts = json.dumps({"token": settings.authenticates, "version": __version__})
    files = {**read_files(), "/page.json": ("application/json", facts.encode())}
    routes: dict[str, Route] = {
        path: partial(_answer_file, file, LIBRARY_HEADERS if path in LIBRARY_PATHS else HEADERS)
        for path, file in files.items()
    }
    return {**routes, REPLAY_PATH: partial(_answer_replay, listener)}


def read_files(folder: Path = FOLDER) -> dict[str, tuple[str, bytes]]:
    """Read the content type and the content of each file, by its path in a request."""
    return {
        _PATHS.get(path.name, f"/{path.name}"): (_TYPES[path.suffix], path.read_bytes())
        for path in folder.iterdir()
        if path.suffix in _TYPES and path.is_file()
    }


async def _answer_file(
    file: tuple[str, bytes], headers: Mapping[str, str], request: Request, peer: str
) -> Response:
    if request.method not in ("GET", "HEAD"):
        return text_response(http.HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.\n", {"Allow": "GET, HEAD"})
    return response(http.HTTPStatus.OK, file[1], {"Content-Type": file[0], **headers})


async def _answer_replay(listener: Listener, request: Request, peer: str) -> Response:
    if request.method != "GET":
        return text_response(http.HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.\n", {"Allow": "GET"})
    client = await listener.access.decide_read(request, peer)
    if isinstance(client, Refusal):
        return text_response(client.status, f"{client.text}\n")
    query = parse_qs(request.path.partition("?")[2])
    key = SessionKey(client.subject, query.get("session", [""])[0])
    await listener.services.admission.enter()
    try:
        # The server's own records are of no session.
        stored = None if key.never_expires else await listener.services.store.read(key)
        if stored is None:
            return text_response(http.HTTPStatus.NOT_FOUND, "There is no such session.\n")
        # In a thread: a long history would block the event loop for too long.
        body = await asyncio.to_thread(read_replay, stored, query.get("number", [None])[0])
    except StoreUnavailable as error:
        return text_response(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
    return response(http.HTTPStatus.OK, body, {"Content-Type": "application/json", **HEADERS})


def read_replay(stored: Stored, number: str | None) -> bytes:
    """Return a session's records as JSON: all without their states, or the records of a ``number`` with them.

    A state for each record would take megabytes. Raises `StoreUnavailable`.
    """
    steps = moments(stored.commits(), stored.meta.revision)
    if number is None:
        return msgspec.json.encode([plain_moment(step, with_state=False) for step in steps])
    return msgspec.json.encode([plain_moment(step) for step in steps if str(step.number) == number])
