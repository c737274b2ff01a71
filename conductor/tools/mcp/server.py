"""A supervised connection to one MCP server: connect, list its tools, notice changes, and connect again."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import structlog
from websockets.typing import Subprotocol

from conductor.errors import SettingsError
from conductor.tools.addresses import is_local
from conductor.tools.base import ToolSpec
from conductor.tools.mcp.bounds import MAX_MESSAGE_BYTES
from conductor.tools.mcp.config import McpServerConfig
from conductor.tools.mcp.http import CURRENT_CALL, Ask, http_streams
from conductor.tools.mcp.specs import clean, make_question, make_specs
from conductor.tools.mcp.stdio import stdio_streams
from conductor.tools.redaction import Redactor
from conductor.tools.schema import SchemaError
from conductor.tools.schema_checker import Checker

if TYPE_CHECKING:
    from httpx2 import Auth
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp.client._transport import TransportStreams
    from mcp.types import Tool

log = structlog.get_logger(__name__)

McpState: TypeAlias = Literal["connecting", "ready", "down"]

# Seconds to start and list a server: npx and uvx may have to download it.
CONNECT_S = 120.0
LIST_S = 30.0
# Seconds until a list is read again without being asked to: it shows whether an HTTP server is still there.
RELIST_S = 60.0
# Seconds between two readings: a server may announce changes without end.
RELIST_PAUSE_S = 1.0
RETRY_S = 1.0
MAX_RETRY_S = 60.0
# Pages of a list that are read.
MAX_PAGES = 50
# Tools that are looked at, of which `MAX_TOOLS` may be offered.
MAX_LISTED = 1_000
_PROBLEM_CHARS = 300
# Bytes of a log of what a program says.
MAX_LOG_BYTES = 1024 * 1024


def check_installed() -> None:
    """Raise `SettingsError` if the package ``mcp`` is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError("MCP servers need the package mcp: pip install 'conductor-voice[mcp]'.")


class McpConnection:
    """One server, kept connected between `start` and `stop`; ``on_change`` is called for what changed.

    ``specs`` are the tools offered now, none while the server is down; ``problem`` says why it is.
    ``warnings`` are sentences about tools that were left out.
    ``folder`` keeps what programs say on standard error, and tokens; ``auth`` replaces the kept ones.
    ``roots`` are the folders that the server is told of. With ``local_only`` a URL must be this machine's or
    the local network's.
    """

    def __init__(
        self,
        config: McpServerConfig,
        on_change: Callable[[], None] = lambda: None,
        *,
        roots: Sequence[Path] = (),
        local_only: bool = False,
        retry_s: float = RETRY_S,
        relist_pause_s: float = RELIST_PAUSE_S,
        folder: Path | None = None,
        auth: Auth | None = None,
    ) -> None:
        self.config = config
        self.specs: tuple[ToolSpec, ...] = ()
        self.state: McpState = "connecting"
        self.problem = ""
        self._on_change = on_change
        self._roots = roots
        self._local_only = local_only
        self._retry_s = retry_s
        self._relist_pause_s = relist_pause_s
        self._folder = folder
        self._auth = auth
        self._answered = asyncio.Event()
        self._redactor = Redactor(config.secrets)
        self._client: Client | None = None
        self._wake = asyncio.Event()
        self._is_lost = False
        self._is_renewed = False
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        self._outputs: dict[str, Any] = {}
        self._checkers: dict[str, Checker | None] = {}
        self.warnings: list[str] = []
        self.asking: list[Ask] = []

    @property
    def client(self) -> Client | None:
        """The connected client; None if a call cannot be sent."""
        return None if self._is_lost else self._client

    async def answered(self) -> None:
        """Wait until the server is connected, or could not be."""
        await self._answered.wait()

    def check(self) -> None:
        """List the tools again soon, which shows whether the server is still there."""
        self._wake.set()

    async def renew(self, client: Client) -> None:
        """Connect anew in place of ``client``, whose session is lost; its tools stay. Waits for the end."""
        if self.client is client:
            self._is_renewed = True
            self.note_end()
        await self.answered()

    def start(self) -> None:
        """Connect in the background, and again after each loss, with growing pauses."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> asyncio.Task[None] | None:
        """Let go of the server; returns the task to wait for, since a program needs time to end."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._retry_s
        # A cancellation alone may be swallowed: while a connection ends, the package cancels this task too.
        while not self._stopped.is_set():
            began = loop.time()
            try:
                await self._serve()
                problem = "the connection was lost"
            except Exception as error:
                problem = self.describe(error)
            if self._stopped.is_set():
                return
            if self._is_renewed:
                self._is_renewed = False
                continue
            self._set("down", problem, ())
            log.warning("mcp server down", server=self.config.name, why=self.problem)
            if loop.time() - began > RELIST_S:
                pause = self._retry_s
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_RETRY_S)

    @asynccontextmanager
    async def connected(self, seconds: float = CONNECT_S) -> AsyncIterator[Client]:
        """Connect for the block within ``seconds``, and list the tools.

        Raises what the package or the system raises.
        """
        # In a thread: the import takes a second.
        await asyncio.to_thread(importlib.import_module, "mcp.client.streamable_http")
        from mcp import Client, types

        async def on_message(message: object) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                self._wake.set()

        async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:
            return types.ListRootsResult(
                roots=[types.Root.model_validate({"uri": root.resolve().as_uri()}) for root in self._roots]
            )

        async def elicit(
            context: ClientRequestContext, params: types.ElicitRequestParams
        ) -> types.ElicitResult:
            # A server of the 2025 revision does not say which call asks: with several under way nobody does.
            call = CURRENT_CALL.get()
            ask = call.ask if call else self.asking[0] if len(self.asking) == 1 else None
            if ask is None or not isinstance(params, types.ElicitRequestFormParams):
                return types.ElicitResult(action="decline")
            question = make_question(self.config.name, params)
            answer = None if question is None else await ask(question)
            if answer is None:
                return types.ElicitResult(action="decline")
            return types.ElicitResult(action="accept", content=dict(answer))

        self._is_lost, self._said = False, ""
        self._wake.clear()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(seconds):
                client = await stack.enter_async_context(
                    Client(
                        self._transport(),
                        message_handler=on_message,
                        list_roots_callback=list_roots if self._roots else None,
                        elicitation_callback=elicit,
                        cache=None,
                        mode="legacy" if self.config.revision == "2025-11-25" else "auto",
                    )
                )
                await self._list(client)
            self._client = client
            self._answered.set()
            try:
                yield client
            finally:
                self._client = None
                self._answered.clear()

    async def _serve(self) -> None:
        async with self.connected() as client:
            log.info("mcp server ready", server=self.config.name, tools=len(self.specs))
            listening = asyncio.create_task(self._listen(client))
            try:
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RELIST_S):
                            await self._wake.wait()
                    if self._is_lost:
                        return
                    self._wake.clear()
                    async with asyncio.timeout(LIST_S):
                        await self._list(client)
                    await asyncio.sleep(self._relist_pause_s)
            finally:
                listening.cancel()

    async def _listen(self, client: Client) -> None:
        # The revision of 2026 announces changes to those who ask; that of 2025 to the message handler.
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._wake.set()  # what changed before this was heard is not announced again
                    async for _ in changes:
                        self._wake.set()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                self._wake.set()
            await asyncio.sleep(self._relist_pause_s)

    async def _list(self, client: Client) -> None:
        tools: list[Tool] = []
        cursors: set[str | None] = {None}
        cursor: str | None = None
        warnings: list[str] = []
        while client.server_capabilities.tools is not None:
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
            if cursor in cursors or len(cursors) == MAX_PAGES or len(tools) > MAX_LISTED:
                warnings.append("its list does not end; the rest was not read.")
                break
            cursors.add(cursor)
        # In a thread: compiling the schemas of a hundred tools takes longer than others should wait.
        specs, more = await asyncio.to_thread(make_specs, self.config, tools[:MAX_LISTED])
        self._checkers.clear()
        warnings += more
        if warnings != self.warnings:
            self.warnings = warnings
            for warning in warnings[:20]:
                log.warning("mcp tools", server=self.config.name, note=warning)
        self._set("ready", "", specs)

    def _set(self, state: McpState, problem: str, specs: tuple[ToolSpec, ...]) -> None:
        changed = state != self.state or specs != self.specs
        self.state, self.problem, self.specs = state, problem, specs
        if state == "down":
            self._answered.set()
        if changed:
            self._on_change()

    def output_checker(self, tool: str) -> Checker | None:
        """Return the check of a tool's structured results, if it has one that can be made."""
        if tool not in self._checkers:
            self._checkers[tool] = None
            with suppress(SchemaError):
                schema = self._outputs.get(tool)
                if schema is not None:
                    self._checkers[tool] = Checker(schema)
        return self._checkers[tool]

    # -- the transport

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[TransportStreams, None]:
        kinds = {"stdio": self._stdio, "http": self._http, "ws": self._websocket}
        streams = kinds[self.config.type]
        async with streams() as (read, write):
            yield _Inbound(read, self), write

    @asynccontextmanager
    async def _stdio(self) -> AsyncGenerator[TransportStreams, None]:
        async with stdio_streams(self.config, self._log_errors) as streams:
            yield streams

    async def _log_errors(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(4096):
            for line in chunk.decode(errors="replace").splitlines():
                said = self._redactor.text(clean(line).strip())[:_PROBLEM_CHARS]
                if said:
                    self._said = said
                    log.debug("mcp stderr", server=self.config.name, line=said)
                    if self._folder is not None:
                        append_line(self._folder / f"{self.config.name}.log", said)

    @asynccontextmanager
    async def _http(self) -> AsyncGenerator[TransportStreams, None]:
        url, auth = await self._url(), self._auth or self._tokens()
        if auth is not None:
            from conductor.tools.mcp.oauth import CheckedAuth

            auth = CheckedAuth(auth, url, local_only=self._local_only)
        async with http_streams(
            url,
            self.config.headers,
            auth,
            use_proxy=not self._local_only,
        ) as streams:
            yield streams

    @asynccontextmanager
    async def _websocket(self) -> AsyncGenerator[TransportStreams, None]:
        from websockets.asyncio.client import connect

        from conductor.tools.mcp.websocket import socket_streams

        async with (
            connect(
                await self._url(),
                additional_headers=dict(self.config.headers),
                subprotocols=[Subprotocol("mcp")],
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                proxy=None if self._local_only else True,
            ) as socket,
            socket_streams(socket) as streams,
        ):
            yield streams

    def _tokens(self) -> Auth | None:
        if not self.config.oauth:
            return None
        if self._folder is None:
            raise OSError("the tokens of its login are kept in DATA_DIR, which is not set")
        from conductor.tools.mcp.oauth import with_tokens

        return with_tokens(str(self.config.url), tokens_path(self._folder, self.config.name))

    async def _url(self) -> str:
        assert self.config.url is not None
        if self._local_only and not await is_local(urlsplit(self.config.url).hostname or ""):
            raise OSError("LOCAL_ONLY is set, and its address is not of the local network")
        return self.config.url

    def describe(self, error: BaseException) -> str:
        """Say in words for people why the connection failed."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = str(error) or type(error).__name__
        if type(error).__name__ == "OAuthFlowError":
            text = f"it needs a login: conductor mcp login {self.config.name}"
        if isinstance(error, TimeoutError):
            text = "it did not answer in time"
        if self._said:
            text = f"{text}; it said: {self._said}"
        return self._redactor.text(clean(text).replace("\n", " "))[:_PROBLEM_CHARS]

    # -- called by the transport

    def note_end(self) -> None:
        """Note that the server has closed the connection."""
        self._is_lost = True
        self._answered.clear()
        self._wake.set()

    def take_output_schemas(self, result: Mapping[str, Any]) -> None:
        """Keep the output schemas of a list's result, and take them out of it.

        The package would check results with Python's regular expressions, which a server's pattern can make
        run for ever.
        """
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                self._outputs[tool["name"]] = tool.pop("outputSchema", None)


def tokens_path(folder: Path, server: str) -> Path:
    """Return the file of a server's tokens."""
    return folder / f"{server}.oauth.json"


def append_line(path: Path, line: str) -> None:
    """Add a line with its time to a log, which begins anew when it is long; errors are ignored."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = "a" if not path.exists() or path.stat().st_size < MAX_LOG_BYTES else "w"
        with open(path, mode, encoding="utf-8", opener=_private) as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Inbound:
    """A transport's stream of messages, which tells the connection of its end and its lists."""

    def __init__(self, stream: Any, connection: McpConnection) -> None:
        self._stream = stream
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _Inbound:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._seen(await self._stream.__anext__())
        except Exception:  # the end, or a stream that was closed
            self._connection.note_end()
            raise

    async def receive(self) -> Any:
        return self._seen(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Inbound:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *how: Any) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(*how)
        return ended

    def _seen(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            self._connection.take_output_schemas(result)
        return item
