"""The page's files over HTTP and their headers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.plugins.page import FOLDER, LIBRARY_PATHS, read_files
from conductor.settings import Settings, load_settings
from tests.models import ScriptedProvider
from tests.server.wires import get, http

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NOT_FOUND = "Connect a WebSocket to /ws."


def settings(**values: Any) -> Settings:
    return load_settings(None, **{"port": 0, **values})


@asynccontextmanager
async def served(**values: Any) -> AsyncIterator[int]:
    """Run a server with these settings; yields its port."""
    loaded = settings(**values)
    async with running(loaded, make_services(loaded, ScriptedProvider([]))) as listener:
        yield listener.port


async def test_every_file_of_the_package_is_served_with_its_type() -> None:
    async with served() as port:
        for path in FOLDER.iterdir():
            address = {"index.html": "/", "sessions.html": "/sessions"}.get(path.name, f"/{path.name}")
            status, answer = await http(port, get(address))
            head, _, body = answer.partition("\r\n\r\n")
            assert status == 200 and body == path.read_text(encoding="utf-8"), path.name
            assert f"Content-Type: {TYPES[path.suffix]}" in head
            assert f"Content-Length: {path.stat().st_size}" in head


async def test_the_headers_allow_no_inline_script_and_no_other_host() -> None:
    async with served() as port:
        _, answer = await http(port, get("/"))
    policy = re.search(r"Content-Security-Policy: (.*)\r\n", answer)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in policy[1] and "http" not in policy[1] and "*" not in policy[1]
    assert rules["require-trusted-types-for"] == "'script'" and rules["trusted-types"] == "'none'"
    for header in (
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Opener-Policy: same-origin",
        "Cache-Control: no-store",
    ):
        assert header in answer


async def test_the_libraries_alone_may_be_used_by_pages_of_other_origins() -> None:
    async with served() as port:
        for path in (
            "/",
            "/main.js",
            "/conductor.js",
            "/conductor-elements.js",
            "/openai-live.js",
            "/utterances.js",
            "/page.json",
        ):
            for method in ("GET", "HEAD"):
                request = get(path, "Origin: https://app.example").replace("GET", method, 1)
                _, answer = await http(port, request)
                is_library = path in LIBRARY_PATHS
                assert ("Access-Control-Allow-Origin: *\r\n" in answer) is is_library
                policy = "cross-origin" if is_library else "same-origin"
                assert f"Cross-Origin-Resource-Policy: {policy}\r\n" in answer


async def test_the_page_knows_whether_a_token_is_needed() -> None:
    for tokens, token_needed in ((None, False), ("a-token", True)):
        async with served(auth_tokens=tokens) as port:
            status, answer = await http(port, get("/page.json"))
            assert status == 200 and json.loads(answer.partition("\r\n\r\n")[2])["token"] is token_needed
            assert "a-token" not in answer
            assert (await http(port, get("/")))[0] == 200


async def test_head_gets_the_headers_alone_and_another_method_is_refused() -> None:
    async with served() as port:
        _, page = await http(port, get("/"))
        status, answer = await http(port, get("/").replace("GET", "HEAD", 1))
        head, _, body = answer.partition("\r\n\r\n")
        assert status == 200 and body == ""
        length = re.search("Content-Length: [1-9].*", head)
        assert length is not None and length[0] in page
        status, answer = await http(port, get("/").replace("GET", "DELETE", 1))
        assert status == 405 and "Allow: GET, HEAD" in answer


PATHS = """\
/index.html /../settings.py /%2e%2e/settings.py /..%2fsettings.py //main.js /./main.js /main.js/ /main.js%00
/web/main.js /MAIN.JS /.env main.js"""


async def test_no_other_path_leads_to_a_file() -> None:
    async with served() as port:
        for path in PATHS.split():
            status, answer = await http(port, get(path))
            assert status == 404 and NOT_FOUND in answer, path


async def test_web_off_removes_only_the_page() -> None:
    async with served(web="off") as port:
        for path in ("/", "/main.js", "/page.json"):
            assert (await http(port, get(path)))[0] == 404
        assert (await http(port, get("/healthz")))[0] == 200


@pytest.mark.parametrize(
    ("values", "serves"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1", "auth_tokens": "t"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "auth_tokens": "t"}, True),
        ({"host": "0.0.0.0", "auth_tokens": "t", "web": "off"}, False),
        ({"web": "OFF"}, False),
    ],
)
def test_beyond_this_machine_it_is_served_only_with_tokens(values: dict[str, str], serves: bool) -> None:
    assert settings(**values).serves_page is serves


def test_only_files_of_known_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    (tmp_path / "notes.txt").write_text("not for the web")
    (tmp_path / "folder.js").mkdir()
    (tmp_path / "gone.js").symlink_to(tmp_path / "nowhere.js")
    assert read_files(tmp_path) == {"/": ("text/html; charset=utf-8", b"hello")}


def test_the_page_contains_no_other_host_and_no_markup_from_text() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://(?!127\.0\.0\.1)", text), path.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
        ), path.name
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert " style=" not in html and not re.search(r"\son\w+=", html) and "<style" not in html
