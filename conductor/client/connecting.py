"""Making a client: `connect`, which takes all that an app may say about it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from conductor.client.approvals import ApprovalHandler
from conductor.client.calls import SpeakHandler, speaking_for
from conductor.client.client import Client
from conductor.client.options import ClientLimits, ClientOptions
from conductor.client.reconnect import Reconnect
from conductor.client.runs import ToolHandler


def connect(
    url: str,
    session_id: str | None = None,
    *,
    token: str | None = None,
    github_token: str | None = None,
    locale: str | None = None,
    time_zone: str | None = None,
    instructions: str | None = None,
    capabilities: Sequence[str] | None = None,
    resume: bool = True,
    tools: Sequence[Any] = (),
    handlers: Mapping[str, ToolHandler] | None = None,
    speak: SpeakHandler | None = None,
    on_approval: ApprovalHandler | None = None,
    speaking_s: float = 0.0,
    serial: bool = True,
    limits: ClientLimits | None = None,
    reconnect: Reconnect | None = None,
    proxy: str | None = None,
) -> Client:
    """Make a client; ``async with`` (or `Client.start`) connects it.

    ``handlers`` are tools by name, for those who resume a session and may be called at once; `Client.on_tool`
    adds more. ``speak`` is the voice; the one that stands in for it takes ``speaking_s`` seconds a speech.
    ``on_approval`` asks the person about calls (see `Client.on_approval`). ``capabilities`` None names all
    that the library serves, ``()`` is a client of the base protocol; ``tools`` and ``approval`` are added
    where there are tools and a handler. ``resume`` False leaves that capability out: no server is told then
    what was done before a reconnect, or says what it has recorded. ``serial`` handles inbound events one at a
    time, each call to its end, as the shipped app does; without, tools and speech run beside each other. A
    ``session_id`` is made up if none is given. ``proxy`` is a URL.
    With ``reconnect`` a connection that was once there and is lost is opened anew by itself.
    """
    options = ClientOptions(
        url=url,
        session_id=session_id or f"session-{secrets.token_hex(8)}",
        token=token,
        github_token=github_token,
        locale=locale,
        time_zone=time_zone,
        instructions=instructions,
        capabilities=None if capabilities is None else tuple(capabilities),
        resume=resume,
        tools=tuple(tools),
        serial=serial,
        proxy=proxy,
        limits=limits or ClientLimits(),
        reconnect=reconnect,
    )
    client = Client(options, speak or speaking_for(speaking_s))
    for name, handler in (handlers or {}).items():
        client.on_tool(name, handler)
    if on_approval is not None:
        client.on_approval(on_approval)
    return client
