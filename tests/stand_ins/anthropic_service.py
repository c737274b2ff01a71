"""A strict stand-in for Anthropic's Messages API, over real HTTP on a loopback port.

It answers what a script says (`anthropic_script`) and refuses what the service refuses (`anthropic_rules`).
Alone, for benchmarks: ``python -m tests.stand_ins.anthropic_service --port 9000 --persona bench``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import msgspec

from tests.stand_ins.anthropic_http import Connection, HttpRequest
from tests.stand_ins.anthropic_message_rules import Refused
from tests.stand_ins.anthropic_persona import PERSONAS
from tests.stand_ins.anthropic_rules import MAX_BODY_BYTES, check_body, check_headers
from tests.stand_ins.anthropic_script import (
    Answer,
    HttpFailure,
    JsonObject,
    Reply,
    Script,
    content_of,
    stream_pieces,
    whole_message,
)
from tests.stand_ins.anthropic_writer import ReplyWriter

ISSUED_KEPT = 1000


class AnthropicService:
    """The stand-in; an async context manager.

    ``replies`` is answered from first; when it is empty, ``default`` answers. ``api_keys`` None accepts any
    key. ``keep_requests`` is how many accepted request bodies ``requests`` keeps. ``max_input_tokens`` (a
    token counted as four bytes of the body) is the context window.

    ``received`` counts requests, ``refused`` holds why some were, ``completed`` counts those answered as
    scripted, ``open_streams`` those being answered now; ``disconnects`` has the loop's time of each client
    that left before the end. A script's own exception is answered with status 500 and raised at the end.
    """

    def __init__(
        self,
        *,
        default: Script | None = None,
        api_keys: frozenset[str] | None = frozenset({"test-key"}),
        keep_requests: int = 200,
        max_input_tokens: int | None = None,
        port: int = 0,
    ) -> None:
        self.replies: deque[Script] = deque()
        self.default: Script = default or Reply(text="All right.")
        self.requests: deque[JsonObject] = deque(maxlen=keep_requests)
        self.headers: deque[dict[str, str]] = deque(maxlen=keep_requests)
        self.refused: deque[str] = deque(maxlen=200)
        self.disconnects: list[float] = []
        self.received = 0
        self.completed = 0
        self.open_streams = 0
        self._api_keys = api_keys
        self._max_input_tokens = max_input_tokens
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._errors: list[Exception] = []
        self._changed = asyncio.Event()
        self._ids = itertools.count(1)
        self._issued: dict[str, list[JsonObject]] = {}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, "127.0.0.1", self._port, backlog=1024)
        return self

    def _connection(self) -> Connection:
        connection = Connection(self._handle, self._gone)
        self._connections.add(connection)
        return connection

    def _gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._changed.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._wait(lambda: not self._connections, 5.0)
        if self._errors and error is None:
            raise self._errors[0]

    @property
    def base_url(self) -> str:
        """Where the service is, as a client's ``base_url``."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def wait_disconnects(self, count: int, seconds: float = 5.0) -> None:
        """Wait until so many clients have left before their answer's end; TimeoutError if they do not."""
        await self._wait(lambda: len(self.disconnects) >= count, seconds)

    async def wait_open(self, count: int, seconds: float = 5.0) -> None:
        """Wait until exactly so many streams are open; TimeoutError if that does not come."""
        await self._wait(lambda: self.open_streams == count, seconds)

    async def wait_received(self, count: int, seconds: float = 5.0) -> None:
        """Wait until so many requests have come; TimeoutError if they do not."""
        await self._wait(lambda: self.received >= count, seconds)

    async def wait_completed(self, count: int, seconds: float = 5.0) -> None:
        """Wait until so many requests are answered; TimeoutError if they are not."""
        await self._wait(lambda: self.completed >= count, seconds)

    async def _wait(self, true: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def _handle(self, connection: Connection, request: HttpRequest) -> None:
        self.received += 1
        self._changed.set()
        request_id = f"req_{next(self._ids):08d}"
        try:
            await self._answer(connection, request, request_id)
        except Exception as error:
            self._errors.append(error)
            self._refuse(connection, HttpFailure(500, message="The script failed"), request_id)

    async def _answer(self, connection: Connection, request: HttpRequest, request_id: str) -> None:
        try:
            body = self._accept(request)
        except Refused as refusal:
            self.refused.append(str(refusal))
            self._refuse(
                connection, HttpFailure(refusal.status, refusal.error_type, str(refusal)), request_id
            )
            return
        script = self.replies.popleft() if self.replies else self.default
        answer: Answer = script if isinstance(script, Reply | HttpFailure) else script(body)
        with self._counted():
            if isinstance(answer, HttpFailure):
                self._refuse(connection, answer, request_id)
            else:
                await self._reply(connection, answer, body, request_id, len(request.body))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.open_streams += 1
        self._changed.set()
        try:
            yield
            self.completed += 1
        except asyncio.CancelledError:
            self.disconnects.append(asyncio.get_running_loop().time())
        finally:
            self.open_streams -= 1
            self._changed.set()

    def _accept(self, request: HttpRequest) -> JsonObject:
        """Give the request's body, or raise `Refused`."""
        if request.path.partition("?")[0] != "/v1/messages":
            raise Refused("Not Found", 404, "not_found_error")
        if request.method != "POST":
            raise Refused("Method Not Allowed", 405)
        check_headers(request.headers, self._api_keys)
        if len(request.body) > MAX_BODY_BYTES:
            raise Refused("Request exceeds the maximum size", 413, "request_too_large")
        try:
            body = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"The request body is not valid JSON: {error}") from None
        accepted = check_body(body, self._issued)
        tokens = len(request.body) // 4
        if self._max_input_tokens is not None and tokens > self._max_input_tokens:
            raise Refused(f"prompt is too long: {tokens} tokens > {self._max_input_tokens} maximum")
        self.requests.append(accepted)
        self.headers.append(dict(request.headers))
        return accepted

    def _refuse(self, connection: Connection, failure: HttpFailure, request_id: str) -> None:
        error = {"type": failure.error_type, "message": failure.message}
        body = failure.body
        if body is None:
            body = msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
        headers = {"content-type": "application/json", "request-id": request_id, **failure.headers}
        connection.respond(failure.status, body, headers)

    async def _reply(
        self, connection: Connection, reply: Reply, body: JsonObject, request_id: str, size: int
    ) -> None:
        message_id = request_id.removeprefix("req_")
        self._remember_thinking(reply, message_id)
        usage = {"input_tokens": size // 4, "output_tokens": 1 + len(reply.text) // 4, **reply.usage}
        headers = {"request-id": request_id, "content-type": reply.content_type}
        if body.get("stream"):
            connection.start(200, headers)
            pieces = stream_pieces(reply, message_id, body["model"], usage)
            await ReplyWriter(connection, reply).send(pieces)
            return
        message = whole_message(reply, message_id, body["model"], usage)
        if reply.hold is not None:
            await reply.hold.wait()
        connection.respond(200, msgspec.json.encode(message), {**headers, "content-type": "application/json"})

    def _remember_thinking(self, reply: Reply, message_id: str) -> None:
        if reply.thinking is None and reply.redacted is None:
            return
        blocks = content_of(reply, message_id)
        thinking = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        for block in blocks:
            if block["type"] == "tool_use":
                self._issued[block["id"]] = thinking
        while len(self._issued) > ISSUED_KEPT:
            del self._issued[next(iter(self._issued))]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A strict stand-in for the Messages API.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, which is printed")
    parser.add_argument("--persona", choices=sorted(PERSONAS), default="bench")
    parser.add_argument("--rounds", type=int, default=3, help="tool rounds a turn")
    parser.add_argument("--tokens", type=int, default=40, help="tokens of the answer")
    parser.add_argument("--token-delay-ms", type=float, default=0.0)
    parser.add_argument("--first-token-delay-ms", type=float, default=0.0)
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    persona = PERSONAS[arguments.persona](
        rounds=arguments.rounds,
        tokens=arguments.tokens,
        delay_s=arguments.token_delay_ms / 1000,
        first_delay_s=arguments.first_token_delay_ms / 1000,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = AnthropicService(default=persona, api_keys=None, keep_requests=0, port=arguments.port)
    async with service:
        sys.stdout.write(f"{service.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(_serve(_arguments()))
    except ImportError:
        asyncio.run(_serve(_arguments()))
