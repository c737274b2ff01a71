"""Calls to an MCP server with unusual HTTP answers: an outcome is unknown if the call may have run."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from structlog.testing import capture_logs

from conductor.messages import ToolCall
from conductor.tools.base import CallContext, ToolOutcome
from conductor.tools.executor import PreparedCall
from tests.server.wires import WAIT
from tests.stand_ins.odd_mcp_server import DONE, JSON, OddAnswer, OddMcpServer
from tests.system.mcp.test_toolset import Host, at, use

CONTEXT = CallContext("session", "call")
ERROR = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}}'


async def run(host: Host, tool: str) -> ToolOutcome:
    executor = host.executor()
    ready = executor.restore(ToolCall("call", tool, "{}"), ())
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
        *((OddAnswer(status), *UNKNOWN) for status in (202, 500, 502)),
        *((answer, *UNKNOWN) for answer in (OddAnswer(asks=True), OddAnswer(cut=True), HTML)),
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
