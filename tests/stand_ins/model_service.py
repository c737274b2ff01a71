"""The base of the stand-ins for model services: scripted answers over real HTTP on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import msgspec

from conductor.models.base import ModelProvider
from tests.stand_ins.anthropic_script import Answer, HttpFailure, JsonObject, Refused, Reply, ServiceScript
from tests.stand_ins.http_connection import Connection, HttpRequest

WAIT = 60.0
"""The longest time in seconds for a client to do what is waited for."""


class ModelService:
    """A stand-in; an async context manager.

    ``replies`` is answered from first; when it is empty, ``default`` answers. ``api_keys`` None accepts any
    key. ``keep_requests`` is how many accepted request bodies ``requests`` keeps.

    ``received`` counts requests, ``refused`` holds the reasons of refusals, ``completed`` counts scripted
    answers, ``open_streams`` the running ones; ``disconnects`` has the loop's time of each client
    that left before the end. A script's own exception is answered with status 500 and raised at the end.
    """

    def __init__(
        self,
        *,
        default: ServiceScript | None = None,
        api_keys: frozenset[str] | None = frozenset({"test-key"}),
        keep_requests: int = 200,
    ) -> None:
        self.replies: deque[ServiceScript] = deque()
        self.default: ServiceScript = default or Reply(text="All right.")
        self.requests: deque[JsonObject] = deque(maxlen=keep_requests)
        self.headers: deque[dict[str, str]] = deque(maxlen=keep_requests)
        self.paths: deque[str] = deque(maxlen=keep_requests)
        self.refused: deque[str] = deque(maxlen=200)
        self.disconnects: list[float] = []
        self.received = 0
        self.completed = 0
        self.open_streams = 0
        self.api_keys = api_keys
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._errors: list[Exception] = []
        self._changed = asyncio.Event()
        self._ids = itertools.count(1)

    def accept(self, request: HttpRequest) -> JsonObject:
        """Give the request's body, or raise `Refused`."""
        raise NotImplementedError

    def error_body(self, failure: HttpFailure, request_id: str) -> JsonObject:
        """Give the body of an error."""
        raise NotImplementedError

    def unscripted(self, body: JsonObject) -> Reply | None:
        """Give the reply to a request that no script is for, and that is counted nowhere; else None."""
        return None

    async def reply(
        self, connection: Connection, reply: Reply, request: HttpRequest, body: JsonObject, request_id: str
    ) -> None:
        """Send a scripted reply."""
        raise NotImplementedError

    def provider(self, **options: Any) -> ModelProvider:
        """Make the real provider of this service; the options are those of `HttpProvider`."""
        raise NotImplementedError

    def play(self, *scripts: ServiceScript) -> None:
        """Answer the next requests by these scripts."""
        self.replies.extend(scripts)

    def texts(self) -> str:
        """Give all texts of the last request's messages, one a line."""
        request = self.requests[-1]
        return "\n".join(_texts(request.get("messages") or request["input"]))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, "127.0.0.1", 0, backlog=1024)
        return self

    def _connection(self) -> Connection:
        connection = Connection(self._handle, self._on_close)
        self._connections.add(connection)
        return connection

    def _on_close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._changed.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._wait(lambda: not self._connections)
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

    def close_idle(self) -> None:
        """Close all connections; the clients have not seen it when this returns."""
        for connection in list(self._connections):
            connection.close()

    async def wait_disconnects(self, count: int) -> None:
        """Wait until ``count`` clients have left before the end of their answers."""
        await self._wait(lambda: len(self.disconnects) >= count)

    async def wait_open(self, count: int) -> None:
        """Wait until exactly ``count`` streams are open."""
        await self._wait(lambda: self.open_streams == count)

    async def wait_received(self, count: int) -> None:
        """Wait until ``count`` requests have come."""
        await self._wait(lambda: self.received >= count)

    async def wait_completed(self, count: int) -> None:
        """Wait until ``count`` requests are answered."""
        await self._wait(lambda: self.completed >= count)

    async def _wait(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
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
        if request.method == "GET" and request.path.endswith("/models"):  # an empty list
            self.received -= 1
            self._refuse(connection, HttpFailure(404, message="Not Found"), request_id)
            return
        try:
            body = self.accept(request)
            unscripted = self.unscripted(body)
            if unscripted is not None:
                self.received -= 1
                await self.reply(connection, unscripted, request, body, request_id)
                return
            self.requests.append(body)
            self.headers.append(dict(request.headers))
            self.paths.append(request.path)
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
                await self.reply(connection, answer, request, body, request_id)

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

    def _refuse(self, connection: Connection, failure: HttpFailure, request_id: str) -> None:
        body = failure.body
        if body is None:
            body = msgspec.json.encode(self.error_body(failure, request_id))
        headers = {"content-type": "application/json", "request-id": request_id, **failure.headers}
        connection.respond(failure.status, body, headers)


def provider_options(options: dict[str, Any]) -> dict[str, Any]:
    """Add the options of a provider in tests: no proxy, and retries without long waits."""
    return {"trust_env": False, "retry_s": 0.001, **options}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
