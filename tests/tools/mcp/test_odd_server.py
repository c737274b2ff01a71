"""Calls at an MCP server whose HTTP is odd: what is told is never more, nor less, than what is known."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from structlog.testing import capture_logs

from conductor.messages import ToolCall
from conductor.tools.base import CallContext, ToolOutcome
from conductor.tools.executor import PreparedCall
from tests.stand_ins.odd_mcp_server import DONE, JSON, OddAnswer, OddMcpServer
from tests.tools.mcp.test_toolset import Used, at, use

CONTEXT = CallContext("session", "call")
ERROR = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}}'


async def run(used: Used, tool: str) -> ToolOutcome:
    executor = used.executor()
    ready = executor.restore(ToolCall("call", tool, "{}"), ())
    assert isinstance(ready, PreparedCall)
    async with asyncio.timeout(5):
        return await executor.run(ready, CONTEXT)


@pytest.mark.parametrize(
    ("answer", "error_type", "reason", "words"),
    [
        *(
            (OddAnswer(status), "io_error", "refused", f"HTTP {status}")
            for status in (400, 401, 403, 404, 405, 408, 413, 429, 503)
        ),
        (OddAnswer(400, ERROR), "io_error", "refused", "HTTP 400: Session not found"),
        (OddAnswer(307, b"", {"location": "http://127.0.0.2:9/"}), "io_error", "refused", "HTTP 307"),
        (OddAnswer(302, b"", {"location": "/login"}), "io_error", "refused", "HTTP 302"),
        (OddAnswer(303, b"", {"location": "/done"}), "unknown", "connection_lost", "may have happened"),
        *(
            (OddAnswer(status), "unknown", "connection_lost", "may have happened")
            for status in (202, 500, 502, 504)
        ),
        (OddAnswer(asks=True), "unknown", "connection_lost", "may have happened"),
        (OddAnswer(cut=True), "unknown", "connection_lost", "may have happened"),
        (OddAnswer(body=b"<%!"), "unknown", "connection_lost", "may have happened"),
        (
            OddAnswer(body=b"<html>", headers={"content-type": "text/html"}),
            "unknown",
            "connection_lost",
            "may have happened",
        ),
        *(
            (
                OddAnswer(body=body, headers={**JSON, **headers}),
                "unknown",
                "connection_lost",
                "may have happened",
            )
            for body, headers in (
                (gzip.compress(DONE.replace(b"%s", b"3")), {"content-encoding": "gzip"}),
                (DONE + b" " * 2**22, {}),
                (b"data: " + DONE + b" " * 2**22 + b"\n\n", {"content-type": "text/event-stream"}),
            )
        ),
        (OddAnswer(None), "unknown", "tool_result_timeout", "may have happened"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, OddAnswer) else "",
)
async def test_a_refusal_ran_nothing_and_all_else_may_have_happened(
    answer: OddAnswer, error_type: str, reason: str, words: str
) -> None:
    timeout = 0.3 if answer.status is None else 5.0
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25", timeout=timeout), ready="s.write") as used:
            server.answer = answer
            outcome = await run(used, "s.write")
    assert (outcome.error_type, outcome.metadata.reason) == (error_type, reason), outcome
    message = outcome.error_message or ""
    assert words in message, message
    assert ("Nothing was run" in message) is (reason == "refused")
    # Only 404, which means a lost session, is sent once more.
    assert server.calls == (2 if answer.status == 404 else 1)


async def test_a_call_in_a_session_that_the_server_has_forgotten_is_sent_once_more_in_a_new_one() -> None:
    async with OddMcpServer().serving() as server:
        async with use(at("s", server.url, revision="2025-11-25"), ready="s.write") as used:
            server.forget()
            with capture_logs() as logs:
                first, second = await asyncio.gather(run(used, "s.write"), run(used, "s.write"))
            assert (first.data, second.data, server.runs) == ("done", "done", 2)
            assert "mcp server down" not in [entry["event"] for entry in logs]


async def test_a_call_that_could_not_be_sent_was_not_run() -> None:
    server = OddMcpServer()
    async with server.serving():
        toolset = use(at("s", server.url, revision="2025-11-25"), ready="s.write")
        used = await toolset.__aenter__()
    try:
        outcome = await run(used, "s.write")
        assert (outcome.error_type, server.calls) == ("io_error", 0)
        assert "Nothing was run" in (outcome.error_message or "")
    finally:
        await toolset.__aexit__(None, None, None)
