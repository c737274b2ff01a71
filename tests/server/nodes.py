"""Several nodes with one store, and the common helpers of the takeover tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from conductor.app import make_services
from conductor.conversation.replay import replay
from conductor.conversation.state import Conversation
from conductor.errors import StoreUnavailable
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.listener import Listener
from conductor.session.fields import SubjectRecords
from conductor.session.session import Session
from conductor.settings import load_settings
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionKey, SessionLog
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.models import Script, ScriptedProvider
from tests.server.wires import WiredStore, until
from tests.serving import Served
from tests.shapes import Event

KEY = SessionKey("anonymous", "s-1")
Replies: TypeAlias = Callable[[ModelRequest], Script]

MOVE = {
    "name": "move_file",
    "description": "Moves a file.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "annotations": {"destructiveHint": False},
}


def move(request: ModelRequest) -> Script:
    """Move the notes, and return the outcome."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        result = json.loads(last.content)
        return [TextDelta(f"It said {result['data'] or result['error_type']}.")]
    return [ToolCall("c-1", "move_file", '{"path":"notes.txt"}')]


# -- stores


@dataclass
class Shelf:
    """A shared place for sessions; each node has its own store object for it."""

    make: Callable[[], SessionLog]
    path: Path | None = None


class LosesReplies(WiredStore):
    """A store that sometimes loses a reply: the commit is applied and seems to have failed.

    ``loses`` is asked about each commit, counted from 0.
    """

    def __init__(self, inner: SessionLog, loses: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__(inner)
        self.loses = loses
        self.commits = 0
        self.lost_replies = 0

    def lose(self, ahead: int = 0) -> None:
        """Lose one reply: the next commit's, or a later one's by number."""
        number = self.commits + ahead
        self.loses = lambda commit: commit == number

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        await self.append_gate.wait()
        self._reach()
        number, self.commits = self.commits, self.commits + 1
        if not self.loses(number):
            await self.inner.append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)
            return
        unanswered = deepcopy(claim)
        await self.inner.append(unanswered, commit_id, data, snapshot=snapshot, attachments=attachments)
        self.lost_replies += 1
        raise StoreUnavailable("The reply was lost.")


async def stored(shelf: Shelf) -> Conversation:
    """Read the stored commits; this claims the session, so no other owner may exist."""
    store = shelf.make()
    await store.open()
    try:
        return replay((await store.claim(KEY)).commits)
    finally:
        await store.aclose()


async def stored_log(shelf: Shelf) -> list[Any]:
    """Read the stored log, as `stored` does."""
    return list((await stored(shelf)).log)


# -- nodes


@dataclass
class Node(Served):
    """A server of several."""

    listener: Listener
    provider: ScriptedProvider
    store: SessionLog

    def __post_init__(self) -> None:
        super().__init__(self.listener)

    async def until_lost(self) -> None:
        """Wait until the node has noticed the loss of its session."""
        await until(lambda: not len(self.listener.registry))


@asynccontextmanager
async def node(
    store: SessionLog, replies: Replies | Sequence[Script], *, mode: str = "cancel", **limits: Any
) -> AsyncIterator[Node]:
    """Run a node; ``mode`` is the interruption mode; the others are fields of `Limits`."""
    provider = ScriptedProvider(replies)
    services = make_services(
        load_settings(None, interruption_mode=mode, device_tools_file=IOS_CATALOG), provider
    )
    limits = {"turns_per_minute": 1e6, "calls_per_minute": 1e6, "open_microphone": 0.0, **limits}
    services = replace(
        services,
        store=store,
        subject_records=SubjectRecords(store),
        limits=replace(services.limits, **limits),
    )
    listener = Listener(services, TokenAuthenticator(()))
    await store.open()
    try:
        await listener.start("127.0.0.1", 0)
        try:
            yield Node(listener, provider, store)
        finally:
            await listener.stop(drain_s=0)
    finally:
        await store.aclose()


@asynccontextmanager
async def two_nodes(
    shelf: Shelf,
    first: Replies | Sequence[Script] | None = None,
    second: Replies | Sequence[Script] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Node, Node]]:
    """Run two nodes that echo, or answer by a function; the options are those of `node`."""
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(node(shelf.make(), echo if first is None else first, **options))
        b = await stack.enter_async_context(node(shelf.make(), echo if second is None else second, **options))
        yield a, b


def words(request: ModelRequest) -> list[str]:
    """List the texts so far."""
    return [message.text for message in request.messages if isinstance(message, UserMessage)]


def echo(request: ModelRequest) -> Script:
    """Answer with all texts so far."""
    return [TextDelta(f"Heard {', '.join(words(request))}.")]


async def calm(served: Served) -> None:
    """Wait until no turn runs and everything is recorded, acknowledgements included."""
    await served.quiet()
    await recorded(served)


async def recorded(served: Served) -> None:
    """Wait until every call is answered and recorded; a turn may still wait for a person."""
    session = session_of(served)
    await session.settled()
    await session.commits.flush()
    await session.commits.verify()  # after the commits that are on their way


def session_of(served: Served) -> Session:
    """Return the only session of a node."""
    (session,) = served.listener.registry.sessions
    return session


# -- a client that changes nodes


async def moves(phone: App, to: Node, *, start: bool = True) -> Event:
    """Lose the network and reconnect to another node; returns the payload of ``session.started``."""
    await phone.cut()
    phone.url = to.url
    return await comes(phone, start=start)


async def comes(phone: App, *, start: bool = True) -> Event:
    """Connect; returns the payload of ``session.started``. A resumed session has an open microphone."""
    since = len(phone.log)
    await phone.open(start=start)
    if not start:
        return {}
    started = await phone.until("session.started", since=since)
    payload: Event = started["payload"]
    if payload["resumed"]:
        await phone.idle(since=since)
    return payload


async def still_open(phone: App) -> bool:
    """Tell whether a client is still connected, after a round trip to the server."""
    await phone.socket.ping()
    return not phone.closed.is_set()


def shapes_sent(phone: App, since: int) -> list[str]:
    """Name the events on which a client could act."""
    return [shape for shape in phone.shapes(since) if shape != "session.ping"]
