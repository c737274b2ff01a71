"""An MCP server over HTTP, written by hand, that answers calls of its tools as ``answer`` says.

It speaks the revision of 2025 with a session, and can forget it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.services.ports import free_port
from tests.stand_ins.http_connection import Connection, HttpRequest

JSON = {"content-type": "application/json"}
DONE = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "done"}]}}'
"""The reply to a call; an answer's body has the call's id in place of ``%s``."""
QUESTION = {
    "jsonrpc": "2.0",
    "id": "question",
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


@dataclass
class OddAnswer:
    """An answer to ``tools/call``; no status is no answer. ``cut``: its body is incomplete.

    ``asks``: it asks the person, then forgets the session and cuts the connection when the reply comes.
    ``forgets``: the first call is answered with 404, as of a session that was lost. ``dropped``: it runs the
    call and cuts the connection without an answer.
    """

    status: int | None = 200
    body: bytes = DONE
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    cut: bool = False
    asks: bool = False
    forgets: bool = False
    dropped: bool = False


class OddMcpServer:
    """The server; ``runs`` counts executed calls, ``calls`` received calls."""

    def __init__(self) -> None:
        self.url = ""
        self.answer = OddAnswer()
        self.sessions = 0
        self.calls = 0
        self.runs = 0
        self._connections: set[Connection] = set()
        self._asking: Connection | None = None

    def forget(self) -> None:
        """Answer requests of the session with 404 from now on."""
        self.sessions += 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[OddMcpServer]:
        """Listen during the block."""

        def connect() -> Connection:
            connection = Connection(self._handle, self._connections.discard)
            self._connections.add(connection)
            return connection

        port = free_port()  # a test may take the port once the block has ended
        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{port}/mcp"
        try:
            yield self
        finally:
            server.close()
            for connection in list(self._connections):
                connection.abort()

    async def _handle(self, connection: Connection, request: HttpRequest) -> None:
        if request.method != "POST":
            return connection.respond(405, b"", {})
        message = json.loads(request.body)
        if "method" not in message and self._asking is not None:
            connection.respond(404, b"", {})
            return self._asking.close()
        if message["method"] == "initialize":
            self.sessions += 1
        elif request.headers.get("mcp-session-id") != str(self.sessions):
            return connection.respond(404, b"", {})
        if "id" not in message:
            return connection.respond(202, b"", {})
        if message["method"] == "tools/call":
            return await self._call(connection, message["id"])
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            },
            "tools/list": {
                "tools": [
                    {
                        "name": "read",
                        "inputSchema": {"type": "object"},
                        "annotations": {"readOnlyHint": True},
                    },
                    {"name": "write", "inputSchema": {"type": "object"}},
                ]
            },
        }
        headers = {**JSON, "mcp-session-id": str(self.sessions)}
        connection.respond(200, _reply(message["id"], results[message["method"]]), headers)

    async def _call(self, connection: Connection, request_id: object) -> None:
        answer = self.answer
        self.calls += 1
        if answer.forgets and self.calls == 1:
            self.sessions += 1
            return connection.respond(404, b"", {})
        self.runs += answer.status == 200
        body = answer.body.replace(b"%s", json.dumps(request_id).encode())
        if answer.status is None:
            await asyncio.Event().wait()
        elif answer.dropped:
            connection.abort()
        elif answer.asks:
            self._asking = connection
            connection.start(200, {"content-type": "text/event-stream"})
            connection.write(b"data: %b\n\n" % json.dumps(QUESTION).encode())
        elif answer.cut:
            connection.start(answer.status, answer.headers)
            connection.write(body[: len(body) // 2])
            connection.close()
        else:
            connection.respond(answer.status, body, answer.headers)


def _reply(request_id: object, result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()
