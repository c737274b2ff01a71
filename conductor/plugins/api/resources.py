"""The bodies of the API, as JSON in camel case; the OpenAPI document is made of them."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from conductor.events.client import ContextAdd
from conductor.events.server import ApprovalRequest
from conductor.tools.outcomes import Outcome, Scope

MAX_PAGE = 100
# Characters of a text: speech of some minutes.
MAX_TEXT_CHARS = 4_000
# A person and a session.
CURSOR = r"^[^\0]+/[A-Za-z0-9$._:-]{1,128}$"


class Resource(msgspec.Struct, frozen=True, rename="camel"):
    """An answer. Times are ISO 8601 in UTC."""


class Body(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request's body or query."""


# -- answers


class Problem(Resource, frozen=True):
    """Why a request failed: ``code`` is stable, ``message`` is for people."""

    code: str
    message: str


class Failure(Resource, frozen=True):
    """The body of every answer from 400 on."""

    error: Problem


class StoredSession(Resource, frozen=True):
    """A session of a ``person``, named by a hash; ``open``: a process serves it, or has died."""

    person: str
    id: str
    updated: str
    open: bool


class SessionSummary(StoredSession, frozen=True, kw_only=True):
    """A session in a list; ``approvals`` counts the questions that wait for the person.

    ``title`` is what the person said first, cut after 120 characters. ``tools`` are the names of the called
    tools in order, ``failures`` counts the calls whose result is an error: all three as far as the messages
    are still stored. ``cost`` is in the currency of the model's prices. Without ``readable`` this version
    cannot read what is stored of it.
    """

    messages: int = 0
    approvals: int = 0
    title: str = ""
    tools: list[str] = []
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    readable: bool = True


class SessionList(Resource, frozen=True):
    """A page of sessions, ordered by person and id; ``next`` is the ``after`` of the next page."""

    sessions: list[SessionSummary]
    next: str | None = None


class HistoryMessage(Resource, frozen=True):
    """A message as the model reads it: a cut speech has the text that was heard, and a mark.

    ``note``: the server tells the model something. ``calls`` are the ids of the calls of a reply.
    """

    position: int
    role: Literal["user", "assistant", "note"]
    text: str
    calls: list[str] = []


class CallReport(Resource, frozen=True):
    """A tool call.

    ``consent`` and ``decided_by`` (``voice``, ``card`` or ``api:NAME``) are those of the person or the
    backend; null if no record of them is stored any more. ``result`` is the text for the model.
    """

    id: str
    name: str
    arguments: str
    outcome: Literal["open", "succeeded", "failed", "unknown"] = "open"
    error_type: str = "none"
    consent: str | None = None
    decided_by: str | None = None
    result: str | None = None
    ms: int | None = None


class SessionDetail(StoredSession, frozen=True):
    """A session with its history.

    ``approvals`` are the questions that wait, as an app gets them. ``running``: a turn runs. ``waiting``
    counts the texts that wait to be told. ``cost`` is in the currency of the model's prices.
    """

    running: bool
    waiting: int
    history: list[HistoryMessage]
    calls: list[CallReport]
    approvals: list[ApprovalRequest]
    input_tokens: int
    output_tokens: int
    cost: float


class RecordedMoment(Resource, frozen=True):
    """A stored record and the events that it showed the client; ``state`` only with a ``number``."""

    time: str
    number: int
    name: str
    record: dict[str, Any] | None
    acked: list[str]
    events: list[dict[str, Any]]
    state: dict[str, Any] | None = None


class Accepted(Resource, frozen=True):
    """A text was taken; ``repeated``: it was taken before, under the same Idempotency-Key."""

    event_id: str
    repeated: bool


class ApprovalOutcome(Resource, frozen=True):
    """A question was decided."""

    id: str
    outcome: Outcome


class Ended(Resource, frozen=True):
    """A session was ended."""

    id: str


class Receipt(Resource, frozen=True):
    """How much of each kind was ``deleted`` of a person; why each other kind is ``remaining``."""

    person: str
    deleted: dict[str, int]
    remaining: dict[str, str]


class PersonExport(Resource, frozen=True):
    """What is stored of a person; ``fields`` are the tools', by name, as text that is often JSON.

    ``unreadable`` are the ids of what this version cannot read.
    """

    person: str
    sessions: list[SessionDetail]
    fields: dict[str, str]
    unreadable: list[str]


class PersonName(Resource, frozen=True):
    """A person by the hash that sessions have."""

    person: str


class Token(Resource, frozen=True):
    """A token that connects one client once, until ``expires``."""

    token: str
    person: str
    session: str | None
    expires: str


# -- queries and bodies


class PersonQuery(Body, frozen=True):
    """``person`` is needed where several people have a session of this id."""

    person: str | None = None


class ListQuery(PersonQuery, frozen=True):
    """A page of ``limit`` sessions, after the cursor ``after``; with a filter it may be shorter.

    ``since`` and ``until`` are days in UTC, both included, of a session's last change. ``tool`` is a part of
    the name of a called tool. ``failed``: with, or without, a call whose result is an error.
    """

    open: bool | None = None
    since: datetime.date | None = None
    until: datetime.date | None = None
    tool: str | None = None
    failed: bool | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    after: Annotated[str, Meta(pattern=CURSOR)] | None = None


class RecordsQuery(PersonQuery, frozen=True):
    """With a ``number``, only the records of this number, with their states."""

    number: str | None = None


class NameQuery(Body, frozen=True):
    """A person by names that the backend knows: with AUTH=jwt, the issuer and the claim ``sub``."""

    issuer: str
    id: Annotated[str, Meta(min_length=1)]


class TokenBody(Body, frozen=True):
    """Whom a token is for: a ``person`` of a list, or an ``issuer`` and an ``id``; and for which session.

    ``role``: an app's token opens the WebSocket of apps, a program's the one of MCP.
    """

    person: Annotated[str, Meta(min_length=1, pattern="^[^$]")] | None = None
    issuer: str = ""
    id: Annotated[str, Meta(min_length=1)] | None = None
    session: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    seconds: Annotated[int, Meta(ge=10, le=7_200)] = 60
    role: Literal["app", "program"] = "app"


class TextBody(Body, frozen=True):
    """A text of the app."""

    text: Annotated[str, Meta(max_length=MAX_TEXT_CHARS, pattern=r"\S")]


class ContextBody(ContextAdd, frozen=True, forbid_unknown_fields=True):
    """A fact for the model, as in the event ``context.add``; without a word about it, others wrote it."""

    untrusted: bool = True


class ApprovalBody(Body, frozen=True):
    """A decision, bound to the arguments that were shown. The model reads the ``message``."""

    decision: Literal["allow", "deny"]
    arguments_digest: str
    scope: Scope = "once"
    message: Annotated[str, Meta(max_length=2_000)] | None = None
