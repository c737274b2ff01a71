"""The session store as ``conductor sessions`` uses it: opened beside a server, listed and searched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.stores.admin import SessionAdmin, SessionInfo
from conductor.stores.base import SessionKey
from conductor.stores.registry import describe_store, make_session_admin, make_store

_T = TypeVar("_T")
_PAGE = 1000


class NoSuchSession(Exception):
    """What was named is not in the store; the message is a sentence."""


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[SessionAdmin]:
    """Open the store, beside a server that may be using it."""
    store = make_store(settings)
    admin = make_session_admin(settings, store)
    try:
        await store.open()
        yield admin
    finally:
        await store.aclose()


def with_admin(settings: Settings, work: Callable[[SessionAdmin], Coroutine[Any, Any, _T]]) -> _T:
    """Open the store for some work; gives what that gives. A SQLite file that is not there is not made.

    Raises `SettingsError` and `StoreUnavailable`.
    """
    if settings.store_scheme == "sqlite" and not os.path.exists(settings.store_path):
        raise SettingsError(f"There is no session store yet: {describe_store(settings)} is not there.")

    async def whole() -> _T:
        async with _opened(settings) as admin:
            return await work(admin)

    return asyncio.run(whole())


async def list_all(admin: SessionAdmin, subject: str | None, limit: int) -> list[SessionInfo]:
    """List up to ``limit`` sessions, by pages."""
    found: list[SessionInfo] = []
    while len(found) < limit:
        after = SessionKey(found[-1].subject, found[-1].session_id) if found else None
        size = min(_PAGE, limit - len(found))
        page = await admin.sessions(subject, after=after, limit=size)
        found += page
        if len(page) < size:
            break
    return found


async def find(admin: SessionAdmin, session_id: str, subject: str | None) -> SessionKey:
    """Find whose session it is, where nobody said it.

    Raises `NoSuchSession`, and `SettingsError` where several have one with this id.
    """
    if subject is not None:
        return SessionKey(subject, session_id)
    subjects = await admin.subjects(session_id)
    if not subjects:
        raise NoSuchSession(f"There is no session {session_id!r}.")
    if len(subjects) > 1:
        raise SettingsError(
            f"{len(subjects)} subjects have a session {session_id!r}: say whose with --subject."
        )
    return SessionKey(subjects[0], session_id)
