"""The table of the API's endpoints."""

from __future__ import annotations

from typing import Any

from conductor.plugins.api.actions import add_context, decide, end_session, say
from conductor.plugins.api.openapi import openapi_of
from conductor.plugins.api.people import delete_person, delete_session, export_person, make_token, name_person
from conductor.plugins.api.reports import list_sessions, show_records, show_session
from conductor.plugins.api.requests import ApiCall, Route
from conductor.plugins.api.resources import (
    Accepted,
    ApprovalBody,
    ApprovalOutcome,
    Body,
    ContextBody,
    Ended,
    ListQuery,
    NameQuery,
    PersonExport,
    PersonName,
    Receipt,
    RecordedMoment,
    RecordsQuery,
    SessionDetail,
    SessionList,
    TextBody,
    Token,
    TokenBody,
)


async def show_openapi(call: ApiCall) -> Any:
    """Show this document."""
    return openapi_of(ROUTES)


_SESSION = "/v1/sessions/{id}"
_PERSON = "/v1/people/{person}"
ROUTES = (
    Route("GET", "/v1/openapi.json", "read", show_openapi, Any, Body),
    Route("GET", "/v1/sessions", "read", list_sessions, SessionList, ListQuery),
    Route("GET", _SESSION, "read", show_session, SessionDetail),
    Route("GET", f"{_SESSION}/records", "read", show_records, list[RecordedMoment], RecordsQuery),
    Route("POST", f"{_SESSION}/say", "say", say, Accepted, body=TextBody, acts=True),
    Route("POST", f"{_SESSION}/context", "say", add_context, Accepted, body=ContextBody, acts=True),
    Route(
        "POST",
        f"{_SESSION}/approvals/{{approval}}",
        "approve",
        decide,
        ApprovalOutcome,
        body=ApprovalBody,
        acts=True,
    ),
    Route("POST", f"{_SESSION}/end", "admin", end_session, Ended, acts=True),
    Route("DELETE", _SESSION, "admin", delete_session, Receipt),
    Route("GET", "/v1/people", "read", name_person, PersonName, NameQuery),
    Route("POST", "/v1/tokens", "admin", make_token, Token, Body, TokenBody),
    Route("GET", _PERSON, "admin", export_person, PersonExport, Body),
    Route("DELETE", _PERSON, "admin", delete_person, Receipt, Body),
)
