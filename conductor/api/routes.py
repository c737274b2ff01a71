"""The table of the API's endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from conductor.api.actions import add_context, decide, end_session, say
from conductor.api.openapi import openapi_of
from conductor.api.people import delete_person, delete_session, export_person, make_token, name_person
from conductor.api.reading import list_sessions, show_records, show_session
from conductor.api.requests import ApiCall
from conductor.api.resources import (
    Accepted,
    ApprovalBody,
    ApprovalOutcome,
    Body,
    Ended,
    ListQuery,
    NameQuery,
    NoQuery,
    Person,
    PersonExport,
    PersonQuery,
    Receipt,
    RecordedMoment,
    RecordsQuery,
    SessionDetail,
    SessionList,
    TextBody,
    Token,
    TokenBody,
)
from conductor.server.api_keys import Scope


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint; ``answer`` is the type of its JSON, and the docstring of ``work`` its summary."""

    method: str
    path: str
    scope: Scope
    work: Callable[[ApiCall], Awaitable[Any]]
    answer: Any
    query: type[Body] = PersonQuery
    body: type[Body] | None = None


async def show_openapi(call: ApiCall) -> Any:
    """Show this document."""
    return openapi_of(ROUTES)


_SESSION = "/v1/sessions/{id}"
_PERSON = "/v1/people/{person}"
ROUTES = (
    Route("GET", "/v1/openapi.json", "read", show_openapi, Any, NoQuery),
    Route("GET", "/v1/sessions", "read", list_sessions, SessionList, ListQuery),
    Route("GET", _SESSION, "read", show_session, SessionDetail),
    Route("GET", f"{_SESSION}/records", "read", show_records, list[RecordedMoment], RecordsQuery),
    Route("POST", f"{_SESSION}/say", "say", say, Accepted, body=TextBody),
    Route("POST", f"{_SESSION}/context", "say", add_context, Accepted, body=TextBody),
    Route(
        "POST", f"{_SESSION}/approvals/{{approval}}", "approve", decide, ApprovalOutcome, body=ApprovalBody
    ),
    Route("POST", f"{_SESSION}/end", "admin", end_session, Ended),
    Route("DELETE", _SESSION, "admin", delete_session, Receipt),
    Route("GET", "/v1/people", "read", name_person, Person, NameQuery),
    Route("POST", "/v1/tokens", "admin", make_token, Token, NoQuery, TokenBody),
    Route("GET", _PERSON, "admin", export_person, PersonExport, NoQuery),
    Route("DELETE", _PERSON, "admin", delete_person, Receipt, NoQuery),
)
