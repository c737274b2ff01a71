"""What is stored of a person, and its deletion with a receipt."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import msgspec

from conductor.conversation.events import iso_time
from conductor.conversation.replay import replay
from conductor.errors import Unreadable
from conductor.identity import ANONYMOUS
from conductor.plugins.api.reports import detail_of
from conductor.plugins.api.requests import ApiCall, ApiError, find_session
from conductor.plugins.api.resources import PersonExport, PersonName, Receipt, SessionDetail, Token
from conductor.plugins.auth.one_time import OneTimeTokens
from conductor.server.auth import ONE_TIME, Principal, person_id
from conductor.session.fields import PREFIX
from conductor.stores.base import SessionKey, Stored

# Sessions of one page.
PAGE = 200
# Sessions of an export: more would not fit into one answer.
MAX_EXPORTED = 500
_KINDS = {"grants": "always rules"}
REMAINING = {
    "audit lines": "They are evidence, with the person's hash, tools and digests, and no arguments.",
    "backups": "They are the operator's, with what was stored at their time.",
    "log lines": "They have the person's hash and, unless LOG_CONTENT is set, no texts.",
    "dead webhooks": "They have the person's hash and the session's id, and no texts.",
    "notes": "They are files: a named person's notes are in the folder of NOTES_DIR with the person's hash.",
}


async def name_person(call: ApiCall) -> PersonName:
    """Name a person by the hash under which sessions are listed."""
    return PersonName(person_id(call.query.issuer, call.query.id))


async def make_token(call: ApiCall) -> Token:
    """Make a token with which one client of a person connects once."""
    body, access = call.body, call.listener.access
    if (body.person is None) == (body.id is None) or body.person == ANONYMOUS:
        raise ApiError(400, "invalid_request", "Give either person, or issuer and id.")
    person = body.person or person_id(body.issuer, body.id)
    if not access.authenticator.admits(Principal(person, authenticator=ONE_TIME)):
        raise ApiError(400, "invalid_request", "AUTH does not list one_time.")
    one_time = OneTimeTokens(call.listener.services.store)
    token, expires = await one_time.make(person, body.session, body.seconds, body.role)
    return Token(token, person, body.session, iso_time(round(expires * 1000)))


async def export_person(call: ApiCall) -> PersonExport:
    """Export what is stored of a person: sessions with their histories, and the fields of tools."""
    stored = await _stored_of(call, call.path["person"])
    if len(stored) > MAX_EXPORTED:
        raise ApiError(413, "too_large", f"More than {MAX_EXPORTED} sessions; read them one by one.")
    sessions: list[SessionDetail] = []
    fields: dict[str, str] = {}
    unreadable: list[str] = []
    for key, value in stored.items():
        try:
            if not key.never_expires:
                sessions.append(await asyncio.to_thread(detail_of, key, value))
            fields |= _fields(value)
        except Unreadable:
            unreadable.append(key.session_id)
    return PersonExport(call.path["person"], sessions, fields, unreadable)


async def delete_person(call: ApiCall) -> Receipt:
    """Delete everything that is stored of a person; the receipt counts it, and says what stays."""
    return await _delete(call, call.path["person"], None, await _stored_of(call, call.path["person"]))


async def delete_session(call: ApiCall) -> Receipt:
    """Delete a session."""
    key, stored = await find_session(call)
    return await _delete(call, key.subject, key.session_id, {key: stored})


async def _delete(
    call: ApiCall, person: str, session_id: str | None, stored: dict[SessionKey, Stored]
) -> Receipt:
    services, counts = call.listener.services, Counter[str]()
    for key, value in stored.items():
        counts["sessions"] += not key.never_expires
        with suppress(Unreadable):  # it is deleted all the same
            if not key.never_expires:
                counts["messages"] += len(replay(value.commits(), value.meta.revision).log)
            for name, text in _fields(value).items():
                counts[name] += _items(text)
    # First, so that nothing of this process is written behind the deletion.
    await call.listener.registry.end(person, session_id)
    if services.budget is not None and session_id is None:
        await services.budget.forget(person)
    await services.store.delete(person, session_id)
    if services.subject_records is not None:
        await services.subject_records.load(person)  # again: of a deleted record nothing stays in memory
    return Receipt(person, dict(sorted((+counts).items())), REMAINING)


async def _stored_of(call: ApiCall, person: str) -> dict[SessionKey, Stored]:
    store, stored, after = call.listener.services.store, dict[SessionKey, Stored](), None
    while keys := await store.keys(person, None, after, PAGE):
        for after in keys:
            value = await store.read(after)
            if value is not None:
                stored[after] = value
    if not stored:
        raise ApiError(404, "not_found", "Nothing is stored of this person.")
    return stored


def _fields(stored: Stored) -> dict[str, str]:
    """Return the fields of tools, and the "always" rules, by what they are for people."""
    fields = replay(stored.commits(), stored.meta.revision).fields
    return {_KINDS.get(name, name.removeprefix(PREFIX)): text for name, text in fields.items()}


def _items(text: str) -> int:
    """Count the items of a field: the length of a list, else one."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return 1
    return len(value) if isinstance(value, list) else 1
