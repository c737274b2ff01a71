"""WebSocket clients that others wrote hold a conversation: Node's ``ws`` and a browser's own.

Node, its package ``ws`` and Chromium may be missing on a machine: then their tests are skipped and say so.
``.ci/run`` installs them and sets ``CI_REQUIRE_CLIENTS=1``, with which a skip is a failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.conftest import IOS_CATALOG
from tests.models import Script, ScriptedProvider
from tests.serving import Served, serving
from tests.system.clients.browser import STRANGER, Page
from tests.system.clients.conversation import QUESTION, RESULT_LENGTH
from tests.system.clients.programs import node

TOKEN = "a-token-for-clients"
REFUSED = {"failed": "Error: the connection failed"}
"""What a page learns of a refused upgrade; a browser tells it no more."""
SEEN = [
    "session.started",
    *("state thinking", "convo.appendMessage"),
    *("assistant.speech.final", "convo.appendMessage", "agent.status"),
    *("assistant.speech.final", "convo.appendMessage"),
    *("state speaking", "tts.speak", "state idle"),
]


def model() -> ScriptedProvider:
    """Look something up with a tool of the device, then answer."""
    scripts: list[Script] = [
        [TextDelta("Let me look."), ToolCall("", "agent.status", '{"id":"a-5"}')],
        [TextDelta("It runs, "), TextDelta("müde 😴.")],
    ]
    return ScriptedProvider(scripts)


@asynccontextmanager
async def serving_pages(
    provider: ScriptedProvider, *origins: str, tokens: tuple[str, ...] = (TOKEN,)
) -> AsyncIterator[Served]:
    """Run a server that wants one of ``tokens`` and lets pages of ``origins`` in."""
    services = make_services(load_settings(None, device_tools_file=IOS_CATALOG), provider)
    listener = Listener(services, TokenAuthenticator(tokens), origins)
    await listener.start("127.0.0.1", 0)
    try:
        yield Served(listener)
    finally:
        await listener.stop(drain_s=0)


def check(observations: Mapping[str, Any], provider: ScriptedProvider) -> None:
    """Compare a client's observations and the model's requests with the conversation."""
    assert "failed" not in observations, observations["failed"]
    assert observations["events"] == SEEN
    assert observations["finals"] == ["Let me look.", "It runs, müde 😴."]
    assert observations["spoken"] == ["It runs, müde."]  # speech is without emoji
    assert observations["runs"] == [["agent.status", {"id": "a-5"}]]
    assert observations["foreign"] == []
    assert (observations["subprotocol"], observations["extensions"]) == ("conductor.v1", "")
    assert (observations["closeCode"], observations["wasClean"]) == (1000, True)
    messages = provider.requests[-1].messages
    assert [message.text for message in messages if isinstance(message, UserMessage)] == [QUESTION]
    result = messages[-1]
    assert isinstance(result, ToolResult)
    assert "ü" * 1_000 in result.content
    assert f"{2 * RESULT_LENGTH:,}" in result.content  # the marker says how much there was


@pytest.mark.parametrize("pieces", [False, True], ids=["whole messages", "fragments and pings between"])
async def test_node_holds_a_conversation(pieces: bool) -> None:
    provider = model()
    async with serving(provider, tokens=(TOKEN,)) as served:
        observations = await node(served.url, TOKEN, pieces=pieces)
        check(observations, provider)
        assert (observations["pongs"] > 0) is pieces
        await served.empty()


async def test_a_browser_holds_a_conversation(tmp_path: Path) -> None:
    provider = model()
    async with Page().served() as page, serving_pages(provider, page.origin, tokens=()) as served:
        check(await page.visit(tmp_path, served.url), provider)
        await served.empty()


async def test_a_page_of_another_port_of_this_machine_is_not_let_in(tmp_path: Path) -> None:
    async with serving(model()) as served, Page().served() as page:
        assert await page.visit(tmp_path, served.url) == REFUSED
        assert not served.listener.registry.sessions


async def test_a_browser_brings_its_token_as_a_subprotocol_that_is_not_echoed(tmp_path: Path) -> None:
    provider = model()
    async with Page().served() as page, serving_pages(provider, page.origin) as served:
        check(await page.visit(tmp_path, served.url, token=TOKEN), provider)


async def test_a_browser_with_a_wrong_token_is_not_let_in(tmp_path: Path) -> None:
    async with Page().served() as page, serving_pages(model(), page.origin) as served:
        assert await page.visit(tmp_path, served.url, token="wrong") == REFUSED
        assert not served.listener.registry.sessions


async def test_a_page_of_an_origin_that_is_not_allowed_is_not_let_in_with_a_token(tmp_path: Path) -> None:
    async with Page().served() as page, serving_pages(model(), "https://other.example") as served:
        assert await page.visit(tmp_path, served.url, token=TOKEN) == REFUSED
        assert not served.listener.registry.sessions


async def test_a_page_of_a_strange_name_that_resolves_to_this_machine_is_not_let_in(tmp_path: Path) -> None:
    async with serving(model()) as served, Page().served() as page:
        strange = served.url.replace("127.0.0.1", STRANGER)
        assert await page.visit(tmp_path, strange, name=STRANGER) == REFUSED
        assert not served.listener.registry.sessions
