"""Calls to an MCP server with unusual HTTP answers: an outcome is unknown if the call may have run."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from structlog.testing import capture_logs

from conductor.messages import ToolCall
from conductor.tools.base import CallContext
from conductor.tools.executor import PreparedCall
from conductor.tools.outcomes import ToolOutcome
from tests.server.wires import WAIT
from tests.stand_ins.odd_mcp_server import DONE, JSON, OddAnswer, OddMcpServer
from tests.stand_ins.web_site import full_port
from tests.system.mcp.test_toolset import Host, at, use

CONTEXT = CallContext(session_id="session", call_id="call")
ERROR = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}}'


async def run(host: Host, tool: str) -> ToolOutcome:
    executor = host.executor()
    ready = executor.restore(ToolCall("call", tool, "{}"), {})
    assert isinstance(ready, PreparedCall)
    async with asyncio.timeout(WAIT):
        return await executor.run(ready, CONTEXT)


REFUSED = ("io_error", "refused")
UNKNOWN = ("unknown", "connection_lost", "may have happened")
HTML = OddAnswer(body=b"<html>", headers={"content-type": "text/html"})
GZIP = {**JSON, "content-encoding": "gzip"}
EVENTS = {**JSON, "content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("answer", "error_type", "reason", "words"),
    [
        *((OddAnswer(status), *REFUSED, f"HTTP {status}") for status in (400, 401, 404, 413, 429, 503)),
        (OddAnswer(400, ERROR), *REFUSED, "HTTP 400: Session not found"),
        (OddAnswer(307, b"", {"location": "http://127.0.0.2:9/"}), *REFUSED, "HTTP 307"),
        (OddAnswer(302, b"", {"location": "/login"}), *REFUSED, "HTTP 302"),
        (OddAnswer(303, b"", {"location": "/done"}), *UNKNOWN),
        *((OddAnswer(status), *UNKNOWN) for status in (202, 408, 500, 502, 504)),
        *(
            (answer, *UNKNOWN)
            for answer in (OddAnswer(asks=True), OddAnswer(dropped=True), OddAnswer(cut=True), HTML)
        ),
        (OddAnswer(body=b"<%!"), *UNKNOWN),
        (OddAnswer(body=gzip.compress(DONE.replace(b"%s", b"3")), headers=GZIP), *UNKNOWN),
        (OddAnswer(body=DONE + b" " * 2**22, headers=JSON), *UNKNOWN),
        (OddAnswer(body=b"data: " + DONE + b" " * 2**22 + b"\n\n", headers=EVENTS), *UNKNOWN),
        (OddAnswer(None), "unknown", "tool_result_timeout", "may have happened"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, OddAnswer) else "",
)
async def test_a_refused_call_did_not_run_and_any_other_may_have_run(
    answer: OddAnswer, error_type: str, reason: str, words: str
) -> None:
    timeout = 0.3 if answer.status is None else 5.0
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25", timeout=timeout), ready="s.write") as host:
            server.answer = answer
            outcome = await run(host, "s.write")
    assert (outcome.error_type, outcome.metadata.reason) == (error_type, reason), outcome
    message = outcome.error_message or ""
    assert words in message, message
    assert ("Nothing was run" in message) is (reason == "refused")
    # Only after 404, which means a lost session, the call is sent again.
    assert server.calls == (2 if answer.status == 404 else 1)


@pytest.mark.parametrize("answer", [OddAnswer(dropped=True, forgets=True), OddAnswer(500, forgets=True)])
async def test_a_repeated_call_that_breaks_may_have_run_although_the_first_was_refused(
    answer: OddAnswer,
) -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as host:
            server.answer = answer
            outcome = await run(host, "s.write")
    assert (outcome.error_type, outcome.metadata.reason, server.calls) == ("unknown", "connection_lost", 2)
    assert "Nothing was run" not in (outcome.error_message or "")


RESULT = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "'
RESULT += b"caf\\u00e9 \\ud83d\\ude00 "


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (RESULT + b'\\ud83d."}]}}', "café 😀 \ufffd."),
        (RESULT + b'\xff."}]}}', "café 😀 \ufffd."),
        (RESULT + b'\\\\ud83d."}]}}', "café 😀 \\ud83d."),
    ],
)
@pytest.mark.parametrize("headers", [JSON, EVENTS], ids=["json", "events"])
async def test_half_a_surrogate_in_a_result_is_replaced(
    body: bytes, text: str, headers: dict[str, str]
) -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as host:
            server.answer = OddAnswer(
                body=b"data: " + body + b"\n\n" if headers is EVENTS else body, headers=headers
            )
            outcome = await run(host, "s.write")
    assert (outcome.success, outcome.data) == (True, text)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b'{"jsonrpc": "2.0", "id": %s, "result": {"content": 7}}', None),
        (
            b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [], "structuredContent": {"n": NaN}}}',
            {"n": "NaN"},
        ),
    ],
)
async def test_a_result_that_cannot_be_read_is_of_a_call_that_ran(body: bytes, data: object) -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as host:
            server.answer = OddAnswer(body=body)
            outcome = await run(host, "s.write")
    assert (outcome.success, outcome.data) == (True, data) and outcome.metadata.notes


async def test_a_call_in_a_lost_session_is_sent_again_in_a_new_one() -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as host:
            server.forget()
            with capture_logs() as logs:
                first, second = await asyncio.gather(run(host, "s.write"), run(host, "s.write"))
            assert (first.data, second.data, server.runs) == ("done", "done", 2)
            assert "mcp server down" not in [entry["event"] for entry in logs]


async def test_a_call_that_could_not_be_sent_did_not_run() -> None:
    server = OddMcpServer()
    async with server.serving():
        toolset = use(at("s", server.url, revision="2025-11-25"), ready="s.write")
        host = await toolset.__aenter__()
    try:
        outcome = await run(host, "s.write")
        assert (outcome.error_type, server.calls) == ("io_error", 0)
        assert "Nothing was run" in (outcome.error_message or "")
    finally:
        await toolset.__aexit__(None, None, None)


async def test_a_call_whose_connection_is_not_made_in_time_did_not_run() -> None:
    server = OddMcpServer()
    async with server.serving():
        toolset = use(at("s", server.url, revision="2025-11-25", timeout=0.3), ready="s.write")
        host = await toolset.__aenter__()
        port = int(server.url.split(":")[2].split("/")[0])
    try:
        with full_port(port):
            outcome = await run(host, "s.write")
        assert (outcome.error_type, outcome.metadata.reason) == ("cancelled", "not_started")
        assert "Nothing was run" in (outcome.error_message or "")
    finally:
        await toolset.__aexit__(None, None, None)


@pytest.mark.parametrize("answer", [OddAnswer(body=b"<%!"), OddAnswer(body=b"data: <%!\n\n", headers=EVENTS)])
async def test_an_answer_that_cannot_be_read_is_the_outcome_of_its_call_and_no_error_of_the_package(
    answer: OddAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as host:
            server.answer = answer
            assert (await run(host, "s.write")).error_type == "unknown"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
