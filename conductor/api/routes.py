"""The endpoints of the API: a table of routes, and what each does."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.api.reports import detail_of, summary_of
from conductor.api.resources import (
    Body,
    ListQuery,
    PersonQuery,
    RecordedMoment,
    RecordsQuery,
    SessionDetail,
    SessionList,
)
from conductor.server.api_keys import ApiKey, Scope
from conductor.server.listener import Listener
from conductor.server.page import read_replay
from conductor.stores.base import SessionKey, Stored


class ApiError(Exception):
    """A request that fails with an HTTP ``status`` and a stable ``code``."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiCall:
    """An authorised request. ``query`` and ``body`` are of the route's types."""

    listener: Listener
    key: ApiKey
    path: Mapping[str, str]
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint; ``answer`` is the type of its JSON. Its docstring is its summary."""

    method: str
    path: str
    scope: Scope
    work: Callable[[ApiCall], Awaitable[Any]]
    answer: Any
    query: type[Body] = PersonQuery
    body: type[Body] | None = None


def no_session() -> ApiError:
    """Make the error for a session that does not exist."""
    return ApiError(404, "not_found", "There is no such session.")


async def find_session(call: ApiCall) -> tuple[SessionKey, Stored]:
    """Find the session of the path. Raises `ApiError`, `StoreUnavailable`."""
    store, session_id = call.listener.services.store, call.path["id"]
    # The server's own records are of no session.
    if SessionKey("", session_id).never_expires:
        raise no_session()
    if call.query.person is not None:
        keys = [SessionKey(call.query.person, session_id)]
    else:
        keys = await store.keys(None, session_id, None, MAX_NAMESAKES)
    found = [(key, stored) for key in keys if (stored := await store.read(key)) is not None]
    if not found:
        raise no_session()
    if len(found) > 1:
        raise ApiError(409, "ambiguous", "Several people have a session of this id; name the person.")
    return found[0]


# Sessions of one id, of different people, that are read to find the only one.
MAX_NAMESAKES = 16


async def list_sessions(call: ApiCall) -> SessionList:
    """List sessions, of a person or of all."""
    store, query, sessions = call.listener.services.store, call.query, []
    keys = await store.keys(query.person, None, _position(query.after), query.limit)
    for key in keys:
        stored = None if key.never_expires else await store.read(key)
        # Else it is a record of the server, or was deleted after the listing.
        if stored is not None and query.open in (None, bool(stored.meta.token)):
            sessions.append(await asyncio.to_thread(summary_of, key, stored))
    return SessionList(sessions, _cursor(keys[-1]) if len(keys) == query.limit else None)


def _cursor(key: SessionKey) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((key.subject, key.session_id))).decode()


def _position(cursor: str | None) -> SessionKey | None:
    try:
        place = None if cursor is None else base64.urlsafe_b64decode(cursor.encode())
        return None if place is None else SessionKey(*msgspec.json.decode(place, type=tuple[str, str]))
    except (binascii.Error, UnicodeEncodeError, msgspec.MsgspecError):
        raise ApiError(400, "invalid_request", "after is no cursor of this server.") from None


async def show_session(call: ApiCall) -> SessionDetail:
    """Show a session: its history, calls, open questions and cost."""
    # In a thread: a long history would block the event loop for too long.
    return await asyncio.to_thread(detail_of, *await find_session(call))


async def show_records(call: ApiCall) -> msgspec.Raw:
    """Show the stored records of a session, for a replay."""
    _, stored = await find_session(call)
    return msgspec.Raw(await asyncio.to_thread(read_replay, stored, call.query.number))


ROUTES = (
    Route("GET", "/v1/sessions", "read", list_sessions, SessionList, ListQuery),
    Route("GET", "/v1/sessions/{id}", "read", show_session, SessionDetail),
    Route("GET", "/v1/sessions/{id}/records", "read", show_records, list[RecordedMoment], RecordsQuery),
)
