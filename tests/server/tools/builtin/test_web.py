"""Web pages and search results: readable text of limited length; SearXNG is a stand-in."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from aiohttp import web

from conductor.errors import SettingsError
from conductor.plugins.tools.web import MAX_ELEMENTS, MAX_TEXT_CHARS, search_engine, web_reader
from conductor.settings import load_settings
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.stand_ins.searxng import searxng
from tests.stand_ins.web_site import site
from tests.unit.tools.builtin.conftest import run

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
CONTEXT = CallContext(session_id="s", call_id="c")
PAGE = f"""<html><head><title>Herons</title><script>alert("gotcha")</script></head><body>
<nav><a href="/">Home</a> <a href="/shop">Shop</a></nav>
<article><h1>Herons</h1><p>{"Herons stand still and eat fish. " * 20}</p></article>
<footer>Cookies and other things</footer></body></html>"""


async def fetch(url: str, **more: Any) -> ToolOutcome:
    return await run(web_reader(LOOPBACK), {"url": url, **more}, CONTEXT)


async def test_a_page_is_read_without_menus_and_footers() -> None:
    async with site(lambda request: web.Response(text=PAGE, content_type="text/html")) as server:
        data = (await fetch(server.url("/herons"))).data
    assert data["title"] == "Herons" and data["url"] == server.url("/herons")
    assert "Herons stand still" in data["text"]
    assert "gotcha" not in data["text"] and "Shop" not in data["text"]
    assert data["truncated"] is False


async def test_a_long_text_comes_in_parts() -> None:
    text = "".join(f"{number} " for number in range(5_000))
    async with site(lambda request: web.Response(text=text)) as server:
        part = (await fetch(server.url())).data
        read = str(part["text"])
        assert part["next_offset"] == MAX_TEXT_CHARS
        while "next_offset" in part:
            part = (await fetch(server.url(), offset=part["next_offset"])).data
            read += part["text"]
    assert read == text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=404, text="gone"), "status 404"),
        (web.Response(body=b"\x89PNG", content_type="image/png"), "not text but image/png"),
    ],
)
async def test_a_page_that_is_not_text_is_refused(answer: web.Response, words: str) -> None:
    async with site(lambda request: answer) as server:
        outcome = await fetch(server.url())
    assert not outcome.success and words in (outcome.error_message or "")


async def test_a_private_address_is_refused() -> None:
    async with site() as server:
        outcome = await run(web_reader(), {"url": server.url()}, CONTEXT)
        assert "not public" in (outcome.error_message or "") and server.asked == []


async def test_a_page_with_very_many_elements_is_read_as_plain_text() -> None:
    page = PAGE.replace("<footer>", "<p>more</p>" * MAX_ELEMENTS + "<footer>")
    async with site(lambda request: web.Response(text=page, content_type="text/html")) as server:
        data = (await fetch(server.url())).data
    assert data["title"] == "Herons" and data["text"].startswith("Home Shop Herons Herons stand")
    assert "gotcha" not in data["text"]


@pytest.mark.parametrize("html", ["", "<", "<html>" * 2_000, "\x00\x01", "<p>" * 20_000])
async def test_a_broken_page_is_not_an_error(html: str) -> None:
    async with site(lambda request: web.Response(text=html, content_type="text/html")) as server:
        outcome = await fetch(server.url())
    assert outcome.success and len(outcome.data["text"]) < 10_000


async def test_a_search_gives_numbered_results() -> None:
    async with site(searxng()) as server:
        outcome = await run(search_engine(server.url("/")), {"query": "grey herons & co"}, CONTEXT)
        assert server.asked[0][1] == "/search?q=grey+herons+%26+co&format=json"
    results = outcome.data["results"]
    assert [result["number"] for result in results] == list(range(1, 9))
    assert results[0]["url"] == "https://e.example/0" and len(results[0]["text"]) == 400


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=403), "add json to its search.formats"),
        (web.Response(status=500), "no readable results"),
        (web.Response(text="<html>"), "no readable results"),
        (web.json_response({"results": 7}), "no readable results"),
        (web.json_response(["x"]), "no readable results"),
    ],
)
async def test_a_failed_search_reports_the_reason(answer: web.Response, words: str) -> None:
    async with site(lambda request: answer) as server:
        outcome = await run(search_engine(server.url("/")), {"query": "x"}, CONTEXT)
    assert outcome.error_type == "io_error" and words in (outcome.error_message or "")


def test_an_unknown_search_engine_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(SettingsError, match="WEB_SEARCH"):
        load_settings(None, web_search="google")
