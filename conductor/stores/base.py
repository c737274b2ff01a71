"""The interface of a session store, and the parts that its engines share."""

from __future__ import annotations

import asyncio
import os
import platform
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit
from uuid import uuid4

import structlog

from conductor.errors import Conflict, Fenced, Rollback, StoreUnavailable, TooManySessions, Unreadable
from conductor.identity import ANONYMOUS

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Sessions that a store keeps of one subject by default.
MAX_SESSIONS = 2_000
# This process in the tokens of its claims. Two containers may have the same host name and process id.
PROCESS = f"{platform.node() or 'node'}-{os.getpid()}-{uuid4().hex[:12]}"
# First character of the ids of the server's own records, which never expire. No client can use it.
NEVER_EXPIRES = "$"
# Seconds between two tries.
_PAUSE_S = 0.05
# Seconds by which a time limit ends late in a process that was suspended.
_LATE_S = 0.2


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The settings of every store, for its factory ``from_url(url, options)``.

    ``session_ttl_s`` are the seconds after which an unused session is deleted, ``max_sessions`` the
    sessions of a subject, ``replicas`` the copies that a commit waits for.
    """

    session_ttl_s: float = 86_400.0
    max_sessions: int = MAX_SESSIONS
    replicas: int = 0


def split_address(url: str) -> SplitResult:
    """Split the address of a store. Raises `ValueError`.

    `urlsplit` refuses several hosts of which another than the first is an IPv6 address, on newer Pythons.
    """
    scheme, separator, rest = url.partition("://")
    hosts = re.split(r"[/?#]", rest, maxsplit=1)[0]
    for host in hosts.rpartition("@")[2].split(","):
        urlsplit(f"//{host}")  # each must be well formed
    return urlsplit(f"{scheme}{separator}host{rest[len(hosts) :]}")._replace(netloc=hosts)


def describe(url: str) -> str:
    """Name the address of a store without user, password and parameters."""
    try:
        parts = split_address(url)
    except ValueError:
        parts = None
    # An @ in the path belongs to a password with a slash that is not encoded.
    if parts is None or "@" in parts.path:
        return url.partition("://")[0] + "://"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def passwords(url: str) -> list[str]:
    """List the passwords in the address of a store."""
    try:
        parts = split_address(url)
    except ValueError:
        return []  # no store takes it
    before_host = unquote(parts.netloc.rpartition("@")[0].partition(":")[2])
    in_query = [value for name, value in parse_qsl(parts.query) if "password" in name]
    return [password for password in (before_host, *in_query) if password]


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The id of a session within its subject."""

    subject: str
    session_id: str

    @property
    def never_expires(self) -> bool:
        """Whether it is one of the server's own records."""
        return self.session_id.startswith(NEVER_EXPIRES)

    @property
    def counted(self) -> bool:
        """Whether it counts towards the subject's limit of sessions."""
        return not self.never_expires and self.subject != ANONYMOUS


@dataclass(slots=True)
class Claim:
    """The right to append to a session's log, until another claim.

    ``epoch`` counts claims: 1 means that the session is new. ``revision`` grows with each commit. ``commits``
    are those from the last snapshot on, as of the claim. ``losses``: how often the store had lost commits by
    then, if it notices.
    """

    key: SessionKey
    token: str
    epoch: int
    revision: int
    commits: Sequence[bytes] = ()
    losses: int = 0


@dataclass(slots=True)
class Meta:
    """The fields of a stored session. ``token`` is empty without a claim; ``updated`` is epoch seconds."""

    token: str
    epoch: int
    revision: int
    commit_id: str
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class Attachments:
    """A commit's changes of the data beside the log, such as images: ``put`` by name, ``drop`` by name."""

    put: Mapping[str, bytes] = field(default_factory=dict)
    drop: Sequence[str] = ()


NO_ATTACHMENTS = Attachments()


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored session: its commits from the last snapshot on, by revision."""

    meta: Meta
    by_revision: Mapping[int, bytes]

    def commits(self) -> list[bytes]:
        """Return the commits in order. Raises `Unreadable` if some are missing."""
        revisions = sorted(self.by_revision)
        first = revisions[0] if revisions else self.meta.revision + 1
        if revisions != list(range(first, self.meta.revision + 1)):
            raise Unreadable("The store has lost a part of a conversation.")
        return [self.by_revision[revision] for revision in revisions]

    def claim(self, key: SessionKey) -> Claim:
        """Make the claim of ``meta``. Raises `StoreUnavailable`, as `commits` does."""
        meta = self.meta
        return Claim(key, meta.token, meta.epoch, meta.revision, self.commits())


def too_many(limit: int) -> TooManySessions:
    """Make the error for a new session beyond the subject's limit."""
    return TooManySessions(f"{limit} sessions of this person are stored; delete some, or let some expire.")


class SessionLog(Protocol):
    """Stores session logs: bytes whose meaning is not its business.

    ``durable``: a log outlives the process, and an append may await.
    """

    @property
    def durable(self) -> bool:
        """Whether sessions outlive the process."""
        ...

    async def open(self) -> None:
        """Open the file or connect to the server, before any other method.

        Raises `SettingsError` for an address that is no store, `StoreUnavailable` if it cannot be reached.
        """
        ...

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session, creating it if there is none; the former owner is fenced.

        Raises `StoreUnavailable`, and `TooManySessions` for a new session beyond the subject's limit.
        """
        ...

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        """Append a commit, and advance ``claim.revision``; a snapshot replaces all earlier commits.

        Its ``attachments`` are stored, and dropped, with the commit or not at all; a snapshot leaves them.
        Repeating the session's last commit id records nothing. Raises `Fenced`, `Conflict`, `Rollback` or
        `StoreUnavailable`; after the last one the commit may be recorded.
        """
        ...

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read the attachments of a session that have these names. Raises `StoreUnavailable`.

        A deleted session has none, and they expire with their session.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Release a session without a connection."""
        ...

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        """List sessions in order by subject and id, after ``after``; None matches all.

        ``since``: only those that were claimed or written then (epoch seconds) or later. Deleted sessions may
        be among them. Raises `StoreUnavailable`, as `read` and `delete` do; the three make no claims.
        """
        ...

    async def read(self, key: SessionKey) -> Stored | None:
        """Read a session; None if there is none."""
        ...

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session or all sessions of a subject, and fence the owners; return their number."""
        ...

    async def warnings(self) -> list[str]:
        """List the properties of the open store that may lose sessions; the server logs them at its start."""
        ...

    async def aclose(self) -> None:
        """Close files and connections."""
        ...


def settle(claim: Claim, commit_id: str, meta: Meta | None) -> None:
    """Raise the reason why an engine did not append a commit, or accept an earlier append of it.

    ``meta`` are the session's fields, None for no session. Raises `Fenced`, `Rollback` and `Conflict`.
    """
    if meta is None:
        raise Rollback("The store has lost this session.")
    if not meta.token:
        raise Fenced("This session was deleted or released.", gone=True)
    if meta.token != claim.token:
        raise Fenced("Another claim owns this session.")
    # A retry after a lost reply. Checked before the revision, which the first try has advanced.
    if meta.commit_id == commit_id:
        claim.revision = meta.revision
        return
    # A failover lost acknowledged commits.
    if meta.revision < claim.revision:
        raise Rollback(f"The session is back at revision {meta.revision}; it was at {claim.revision}.")
    if meta.revision > claim.revision:
        raise Conflict(f"The session is at revision {meta.revision}, not {claim.revision}.", meta.revision)
    raise StoreUnavailable("The session store refuses the commit.")


def new_token() -> str:
    """Make a claim's token. A failover could issue a counter's number twice."""
    return f"{PROCESS}:{uuid4().hex}"


def process_of(token: str) -> str:
    """Name the process of a claim's token."""
    return token.rpartition(":")[0]


async def retry(
    send: Callable[[], Awaitable[_T]],
    seconds: float,
    failures: tuple[type[Exception], ...],
    explain: Callable[[Exception], str],
) -> _T:
    """Repeat a command until it has an answer: a reply may be lost. Raises `StoreUnavailable` in the end."""
    reason = "it did not answer in time"
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    answer = await send()
                    break
                except failures as error:
                    reason = explain(error)
                if task.cancelling() > cancellations:
                    raise asyncio.CancelledError  # which redis-py may swallow, ours and the timeout's
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        if loop.time() - end > _LATE_S:  # this process was suspended, and has not read what came since
            return await retry(send, seconds, failures, explain)
        raise StoreUnavailable(f"The session store cannot be used: {reason}.") from None
    if task.cancelling() > cancellations:
        raise asyncio.CancelledError  # swallowed, too, where the answer came at the same moment
    return answer


async def sweep_regularly(sweep: Callable[[], Awaitable[int]], seconds: float) -> None:
    """Delete expired sessions for ever, with pauses in between."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await sweep()
        except StoreUnavailable:
            log.warning("expired sessions not deleted; will retry")
