"""An endpoint, an authorised request to it, its errors, and the session that it names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.plugins.api.keys import ApiKey, KeyScope
from conductor.plugins.api.resources import Body, PersonQuery
from conductor.server.listener import Listener
from conductor.stores.base import SessionKey, Stored

# Sessions of one id, of different people, that are read to find the only one.
MAX_NAMESAKES = 16


class ApiError(Exception):
    """A request that fails with an HTTP ``status`` and a stable ``code``."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiCall:
    """An authorised request. ``query`` and ``body`` are of the route's types.

    ``event_id`` is the same for a repeated request with an Idempotency-Key.
    """

    listener: Listener
    key: ApiKey
    path: Mapping[str, str]
    query: Any
    body: Any
    event_id: str


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint; ``answer`` is the type of its JSON, and the docstring of ``work`` its summary.

    It ``acts`` in a session, which another process may own.
    """

    method: str
    path: str
    scope: KeyScope
    work: Callable[[ApiCall], Awaitable[Any]]
    answer: Any
    query: type[Body] = PersonQuery
    body: type[msgspec.Struct] | None = None
    acts: bool = False


async def find_session(call: ApiCall) -> tuple[SessionKey, Stored]:
    """Find the session of the path. Raises `ApiError`, `StoreUnavailable`."""
    store, session_id = call.listener.services.store, call.path["id"]
    if call.query.person is not None:
        keys = [SessionKey(call.query.person, session_id)]
    else:
        keys = await store.keys(None, session_id, None, MAX_NAMESAKES)
    keys = [key for key in keys if not key.never_expires]  # else a record of the server
    matches = [(key, stored) for key in keys if (stored := await store.read(key)) is not None]
    if not matches:
        raise ApiError(404, "not_found", "There is no such session.")
    if len(matches) > 1:
        raise ApiError(409, "ambiguous", "Several people have a session of this id; name the person.")
    return matches[0]
