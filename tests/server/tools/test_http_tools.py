"""Tools that are HTTP requests: requests, answers, and mistakes in the file."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from conductor.app import make_services
from conductor.errors import SettingsError
from conductor.messages import ToolCall
from conductor.plugins.tools.http_tools import from_settings, make_body, make_url
from conductor.settings import Limits, load_settings
from conductor.tools import ToolError
from conductor.tools.base import CallContext
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.permissions import Gate, GateOptions
from conductor.tools.rules import Rule
from tests.models import ScriptedProvider
from tests.stand_ins.web_site import full_port, site

DOCS = Path(__file__).parents[3] / "docs" / "tools.md"
SCHEMA = """
[tool.input_schema]
type = "object"
additionalProperties = false
required = ["city"]
properties.city.type = "string"
properties.units.type = "string"
properties.days.type = "integer"
properties.tags.type = "array"
properties.tags.items.type = "string"
"""


def write(folder: Path, text: str) -> Any:
    path = folder / "tools.toml"
    path.write_text(text)
    return load_settings(None, config_dir=path.parent)


def tool(
    name: str = "weather", url: str = "http://h.example/{city}", more: str = "", schema: str = SCHEMA
) -> str:
    entry = f'[[tool]]\nname = "{name}"\ndescription = "Weather."\nurl = "{url}"\n'
    return f'{entry}allow = ["127.0.0.0/8"]\n{more}{schema}'


async def call(settings: Any, name: str, **arguments: Any) -> ToolOutcome:
    toolset = from_settings(settings)
    gate = Gate(rules=[Rule(effect="allow", tool="*")], options=GateOptions())
    executor = ToolExecutor([toolset], Limits(), gate)
    ready = executor.prepare(ToolCall("call_1", name, json.dumps(arguments)))
    assert isinstance(ready, PreparedCall), ready
    return await executor.run(ready, CallContext(session_id="s", call_id="call_1"))


# -- requests


async def test_a_reading_tool_sends_its_arguments_in_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_KEY", "key-123456")
    more = 'headers = {Authorization = "Bearer ${WEATHER_KEY}"}\nresponse = "days.0.sky"\n'
    async with site(lambda request: {"days": [{"sky": "blue"}]}) as server:
        settings = write(tmp_path, tool(url=server.url("/v1/{city}/now?u={units}"), more=more))
        outcome = await call(settings, "weather", city="Köln/../x?y#z", days=2, tags=["a", "b&c"])
        assert outcome.data == "blue"
        ((method, path, headers, body),) = server.asked
        assert (method, body) == ("GET", "")
        assert path == "/v1/K%C3%B6ln%2F..%2Fx%3Fy%23z/now?days=2&tags=a&tags=b%26c"
        assert headers["Authorization"] == "Bearer key-123456"
        assert from_settings(settings).secrets() == ("key-123456",)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('method = "POST"\n', {"days": 2, "tags": ["a"]}),
        (
            'method = "PUT"\nbody = {text = "In {city}: {days}", n = "{days}", unit = "{units}", '
            'fixed = [1, "{tags}"]}\n',
            {"text": "In Rome: 2", "n": 2, "fixed": [1, ["a"]]},
        ),
    ],
)
async def test_a_writing_tool_sends_json(tmp_path: Path, more: str, expected: Any) -> None:
    more += 'idempotency_header = "Idempotency-Key"\n'
    async with site() as server:
        settings = write(tmp_path, tool(url=server.url("/{city}"), more=more))
        assert (await call(settings, "weather", city="Rome", days=2, tags=["a"])).success
        ((_, path, headers, body),) = server.asked
        assert (path, json.loads(body)) == ("/Rome", expected)
        assert (headers["Idempotency-Key"], headers["Content-Type"]) == ("call_1", "application/json")


PAYEE = """
[tool.input_schema]
type = "object"
properties.payee.type = "string"
properties.amount.type = "integer"
"""


@pytest.mark.parametrize(
    ("method", "url", "body", "expected"),
    [
        ("GET", "/pay?payee=anna", None, "/pay?payee=anna&amount=5"),
        ("POST", "/pay", '{payee = "anna"}', {"payee": "anna", "amount": 5}),
        ("POST", "/pay?payee=anna", None, {"amount": 5}),
    ],
)
async def test_no_argument_replaces_a_constant(
    tmp_path: Path, method: str, url: str, body: str | None, expected: Any
) -> None:
    more = f'method = "{method}"\n' + (f"body = {body}\n" if body else "")
    async with site() as server:
        settings = write(tmp_path, tool(url=server.url(url), more=more, schema=PAYEE))
        assert (await call(settings, "weather", payee="mallory", amount=5)).success
        ((_, path, _, received),) = server.asked
        assert (path if method == "GET" else json.loads(received)) == expected
        outcome = await call(settings, "weather", amount=5, currency="EUR")
        assert outcome.error_type == "validation_failed" and "'currency'" in (outcome.error_message or "")
        assert len(server.asked) == 1


def test_bodies_and_urls_by_themselves() -> None:
    assert make_url("https://h/a?x={x}&y=1", {}, {}) == "https://h/a?y=1"
    assert make_url("https://h/?a=b%20c%26&d=e+f", {}, {}) == "https://h/?a=b+c%26&d=e+f"
    assert make_url("https://h?x={x}-{y}", {"x": 1, "y": True}, {}) == "https://h?x=1-true"
    assert make_url("https://h/{a}{b}", {"a": "x", "b": 2}, {"c": None or "d"}) == "https://h/x2?c=d"
    assert make_url("https://h/?{key}={value}&{other}", {"key": "a b", "value": 1}, {}) == "https://h/?a+b=1"
    assert make_body({"a": "{missing}", "b": 1}, {}) == {"b": 1}
    assert make_body({"a": "Call {n}!", "b": "{n}"}, {"n": None}) == {"a": "Call !"}
    for bad in ({}, {"a": ""}, {"a": ["x"]}, {"a": ".."}, {"a": "."}):
        with pytest.raises(ToolError):
            make_url("https://h/x/{a}/y", bad, {})


# -- answers


JSON = "application/json"
EMPTY = "its answer is empty"
BROKEN = "not valid JSON"
ANSWERS: list[tuple[int, str, str, str, Any, str]] = [
    # status, body, content type, ``response``; data and note
    (200, '{"a": {"b": [1, 2]}}', JSON, "a.b.1", 2, ""),
    (200, "plain", "text/plain", "", "plain", ""),
    (200, "OK", "text/plain", "", "OK", ""),
    (200, "OK", JSON, "", "OK", BROKEN),
    (200, "OK", "text/plain", "id", "OK", BROKEN),
    (200, "", JSON, "", "", EMPTY),
    (200, "", JSON, "id", "", EMPTY),
    (200, " \r\n ", JSON, "", "", EMPTY),
    (200, "\ufeff", JSON, "", "", EMPTY),
    (200, '\ufeff{"id": 7}', JSON, "id", 7, ""),
    (201, "", "text/plain", "", "", EMPTY),
    (202, '{"queued": true}', JSON, "", {"queued": True}, ""),
    (204, "", JSON, "id", "", EMPTY),
    (200, "{broken", JSON, "", "{broken", BROKEN),
    (200, '{"n": NaN}', JSON, "", '{"n": NaN}', BROKEN),
    (200, '{"n": 1}\n{"n": 2}\n', "application/x-ndjson", "n", '{"n": 1}\n{"n": 2}\n', BROKEN),
    (200, '{"a": 1}', JSON, "a.b", {"a": 1}, "has no a.b"),
    (200, "[1]", JSON, "7", [1], "has no 7"),
    (200, "null", JSON, "id", None, "has no id"),
    (200, "<html>Sign in</html>", "text/html", "", "<html>Sign in</html>", ""),
    (304, "", JSON, "", "", EMPTY),
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(("status", "text", "kind", "path", "data", "note"), ANSWERS)
async def test_a_status_below_400_is_a_success_whatever_the_body(
    tmp_path: Path, method: str, status: int, text: str, kind: str, path: str, data: Any, note: str
) -> None:
    def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=text.encode(), headers={"Content-Type": kind})

    more = f'response = "{path}"\nmethod = "{method}"\n'
    async with site(answer) as server:
        outcome = await call(write(tmp_path, tool(url=server.url("/{city}"), more=more)), "weather", city="x")
    assert (outcome.success, outcome.data, outcome.error_type) == (True, data, "none")
    assert note in " ".join(outcome.metadata.notes) and bool(note) == bool(outcome.metadata.notes)


async def test_a_long_answer_is_a_success_without_its_part(tmp_path: Path) -> None:
    async with site(lambda request: {"text": "word " * 300_000, "id": 7}) as server:
        more = 'response = "id"\nmethod = "POST"\n'
        outcome = await call(write(tmp_path, tool(url=server.url("/{city}"), more=more)), "weather", city="x")
    assert outcome.success and outcome.metadata.notes == ("The answer is cut; there is more.",)


REFUSED = ("io_error", "Nothing was run.")
MAY_BE = ("unknown", "may have happened")
PARTLY = ("io_error", "It may have done its work, or a part of it.")


@pytest.mark.parametrize(
    ("status", "error_type", "says"),
    [
        *((status, *REFUSED) for status in (400, 401, 403, 404, 409, 422, 429, 501, 503)),
        *((status, *MAY_BE) for status in (408, 502, 504, 524)),
        (500, *PARTLY),
    ],
)
async def test_an_error_status_tells_whether_a_write_may_have_happened(
    tmp_path: Path, status: int, error_type: str, says: str
) -> None:
    async with site(lambda request: web.Response(status=status, text="no such city")) as server:
        text = tool("look", server.url("/{city}")) + tool("book", server.url("/{city}"), 'method = "POST"\n')
        settings = write(tmp_path, text)
        book = await call(settings, "book", city="x")
        look = await call(settings, "look", city="x")
    assert (book.success, book.error_type) == (False, error_type)
    message = book.error_message or ""
    assert message.startswith(f"The service answered {status}: no such city. ") and says in message
    assert [words in message for _, words in (REFUSED, MAY_BE, PARTLY)].count(True) == 1
    assert (look.error_type, look.error_message) == (
        "io_error",
        f"The service answered {status}: no such city.",
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (b"", MAY_BE),
        (b"HTTP/1.1 20", MAY_BE),
        (b"nonsense\r\n\r\n", MAY_BE),
        (HEAD + b"Content-Length: 9\r\n\r\n{", ("none", "could not be read")),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{", ("none", "could not be read")),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", ("none", "could not be read")),
        (b"HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\n{", REFUSED),
        (b"HTTP/1.1 502 No\r\nContent-Length: 9\r\n\r\n{", MAY_BE),
        (b"HTTP/1.1 303 See\r\nLocation: http://other.example/\r\nContent-Length: 0\r\n\r\n", MAY_BE),
    ],
)
async def test_an_answer_that_breaks_off(tmp_path: Path, answer: bytes, fate: tuple[str, str]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{{city}}"
        outcome = await call(write(tmp_path, tool(url=url, more='method = "POST"\n')), "weather", city="x")
    error_type, says = fate
    assert outcome.error_type == error_type
    assert says in (outcome.error_message or " ".join(outcome.metadata.notes))


@pytest.mark.parametrize(
    "url", ["http://nosuch.invalid/{city}", "http://a..b/{city}", "http://127.0.0.1:1/{city}"]
)
async def test_a_request_that_no_service_got_was_not_made(tmp_path: Path, url: str) -> None:
    outcome = await call(write(tmp_path, tool(url=url, more='method = "POST"\n')), "weather", city="x")
    assert outcome.error_type == "io_error" and "Nothing was run" in (outcome.error_message or "")


async def test_a_connection_that_is_not_made_in_time_was_not_made(tmp_path: Path) -> None:
    with full_port() as port:
        url = f"http://127.0.0.1:{port}/{{city}}"
        more = 'method = "POST"\ntimeout = 0.3\n'
        outcome = await call(write(tmp_path, tool(url=url, more=more)), "weather", city="x")
    assert (outcome.error_type, outcome.error_message) == (
        "io_error",
        "It did not answer in time. Nothing was run.",
    )


async def test_a_write_without_an_answer_is_unknown(tmp_path: Path) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with site(hang_up) as server:
        look = tool("look", server.url("/{city}"))
        book = tool("book", server.url("/{city}"), 'method = "POST"\n')
        outcome = await call(write(tmp_path, look.replace('allow = ["127.0.0.0/8"]\n', "")), "look", city="x")
        assert outcome.error_type == "io_error" and "not public" in (outcome.error_message or "")
        assert server.asked == []
        settings = write(tmp_path, look + book)
        assert (await call(settings, "look", city="x")).error_type == "io_error"
        assert (await call(settings, "book", city="x")).error_type == "unknown"
    assert (await call(settings, "book", city="x")).error_type == "io_error"  # the server is gone


def test_risks_follow_the_method_and_are_the_operators(tmp_path: Path) -> None:
    book, safe = 'method = "POST"\n', 'risk = "safe"\nuntrusted = false\n'
    text = tool("look") + tool("book", more=book) + tool("safe", more=safe)
    specs = {spec.name: spec for spec in from_settings(write(tmp_path, text)).specs()}
    assert (specs["look"].risk, specs["look"].effect, specs["look"].untrusted) == ("medium", "read", True)
    assert (specs["book"].risk, specs["book"].effect) == ("high", "write")
    assert (specs["safe"].risk, specs["safe"].untrusted) == ("safe", False)
    assert all(spec.open_world and spec.source == "http" for spec in specs.values())
    local = Gate(rules=(), options=GateOptions(local_only=True))
    assert not any(local.offers(spec) for spec in specs.values())


# -- mistakes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tool = 1", "must be a list of tables"),
        ("[[tols]]", 'there is no "tols"'),
        ("= 1", "is not valid TOML"),
        ('[[tool]]\nname = "x"', 'tool "x": description is missing'),
        (tool(url="ftp://h/"), "url must begin with"),
        (tool(url="https://{city}.example/"), "path and its query only"),
        (tool(url="https://u:p@h/"), "url must not contain a user name"),
        (tool(url="https://h/{town}"), 'has no "town"'),
        (tool(more='headers = {A = "${NOT_SET_ANYWHERE}"}\n'), "NOT_SET_ANYWHERE is not set"),
        (tool("tts.speak"), "needs another name"),
        (tool() + tool(), "the name weather belongs"),
        (tool(more='method = "FETCH"\n'), "method is not valid"),
        (tool(schema='[tool.input_schema]\ntype = "text"'), "input_schema is not valid"),
        (tool(more="colour = 1\n"), "there is no colour"),
        (tool().replace("127.0.0.0/8", "home"), "allow"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_services(write(tmp_path, text), ScriptedProvider([]))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert "tools.toml" in str(caught.value)
    assert from_settings(load_settings(None)).specs() == (), "the file is optional"


def test_the_http_tools_of_the_documents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_KEY", "key")
    (block,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.S)
    path = tmp_path / "tools.toml"
    path.write_text(block)
    specs = {spec.name: spec for spec in from_settings(load_settings(None, config_dir=path.parent)).specs()}
    assert list(specs) == ["weather.today", "lights.set"]
    assert specs["lights.set"].spoken == "set the lights in the {room} to {level} percent"
