"""The endpoints that read: lists of sessions, a session, its records."""

from __future__ import annotations

import asyncio
import base64
import binascii

import msgspec

from conductor.api.reports import detail_of, summary_of
from conductor.api.requests import ApiCall, ApiError, find_session
from conductor.api.resources import SessionDetail, SessionList
from conductor.server.page import read_replay
from conductor.stores.base import NEVER_EXPIRES, SessionKey


async def list_sessions(call: ApiCall) -> SessionList:
    """List sessions, of a person or of all."""
    store, query, sessions = call.listener.services.store, call.query, []
    keys = await store.keys(query.person, None, _position(query.after), query.limit)
    for key in keys:
        is_own = key.never_expires or key.subject.startswith(NEVER_EXPIRES)
        stored = None if is_own else await store.read(key)
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
