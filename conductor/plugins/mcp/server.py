"""A supervised connection to one MCP server, which lists its tools and is restored after a loss."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import structlog

from conductor.errors import SettingsError
from conductor.lines import in_line
from conductor.plugins.addresses import is_local_host
from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.mcp.specs import clean, make_question, make_specs
from conductor.plugins.mcp.stdio import stdio_streams
from conductor.plugins.mcp.streams import CURRENT_CALL, Ask
from conductor.tools.base import ToolSpec
from conductor.tools.redaction import Redactor

if TYPE_CHECKING:
    from httpx2 import Auth
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp.client._transport import TransportStreams
    from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, Tool

log = structlog.get_logger(__name__)

McpState: TypeAlias = Literal["connecting", "ready", "down"]

# Seconds to start a server, which npx and uvx may have to download, and to list its tools.
CONNECT_S = 120.0
LIST_S = 30.0
# Seconds between two lists: at most, which shows whether an HTTP server is still there, and at least, since a
# server may announce changes without end.
RELIST_S = 60.0
RELIST_PAUSE_S = 1.0
RETRY_S = 1.0
MAX_RETRY_S = 60.0
# Pages of a list, and tools that are read, of which `MAX_TOOLS` may be offered.
MAX_PAGES = 50
MAX_LISTED = 1_000
_PROBLEM_CHARS = 300


def check_installed() -> None:
    """Raise `SettingsError` if the package ``mcp`` is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError("MCP servers need the package mcp: pip install 'conductor-voice[mcp]'.")


class McpConnection:
    """One server, connected between `start` and `stop`; ``on_change`` is called when state or tools change.

    ``specs`` are the tools offered now, empty while the server is down; ``problem`` is the reason it is down.
    ``warnings`` are sentences about omitted tools. ``running`` calls wait for their results.
    ``folder`` stores tokens; ``auth`` replaces the stored tokens.
    With ``local_only`` a URL must be of this machine or the local network.
    """

    def __init__(
        self,
        config: McpServerConfig,
        on_change: Callable[[], None] = lambda: None,
        *,
        local_only: bool = False,
        retry_s: float = RETRY_S,
        folder: Path | None = None,
        auth: Auth | None = None,
    ) -> None:
        self.config = config
        self.specs: tuple[ToolSpec, ...] = ()
        self.state: McpState = "connecting"
        self.problem = ""
        self._on_change = on_change
        self._local_only = local_only
        self._retry_s = retry_s
        self._folder = folder
        self._auth = auth
        self._attempt_ended = asyncio.Event()
        self._redactor = Redactor(config.secrets)
        self._client: Client | None = None
        self._wake = asyncio.Event()
        self._is_lost = self._is_noisy = False
        self._is_renewed = False
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""
        self.warnings: list[str] = []
        self.asks: list[Ask] = []
        self.running = 0

    @property
    def client(self) -> Client | None:
        """The connected client; None if a call cannot be sent."""
        return None if self._is_lost else self._client

    async def wait_for_attempt(self) -> None:
        """Wait until the server is connected, or an attempt to connect has failed."""
        await self._attempt_ended.wait()

    def check(self) -> None:
        """List the tools again soon, which shows whether the server is still there."""
        self._wake.set()

    async def renew(self, client: Client) -> None:
        """Replace ``client``, whose session is lost, by a new connection, and wait for it. The tools stay."""
        if self.client is client:
            self._is_renewed = True
            self._note_end()
        await self.wait_for_attempt()

    def start(self) -> None:
        """Connect in the background, and again after each loss, with growing pauses."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> asyncio.Task[None] | None:
        """Disconnect; returns the task that ends the server."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._retry_s
        # A cancellation alone may be lost: while a connection ends, the package cancels this task too.
        while not self._stopped.is_set():
            started = loop.time()
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
            log.warning("mcp server down", server=self.config.name, error=self.problem)
            if loop.time() - started > RELIST_S:
                pause = self._retry_s
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, MAX_RETRY_S)

    @asynccontextmanager
    async def connected(self, seconds: float = CONNECT_S) -> AsyncIterator[Client]:
        """Connect for the block within ``seconds``, and list the tools.

        Raises exceptions of the package and of the system.
        """
        # In a thread: the import takes a second.
        await asyncio.to_thread(importlib.import_module, "conductor.plugins.mcp.http")
        from mcp import Client

        self._is_lost = self._is_noisy = False
        self._last_error = ""
        self._wake.clear()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(seconds):
                client = await stack.enter_async_context(
                    Client(
                        self._transport(),
                        message_handler=self._on_message,
                        elicitation_callback=self._elicit,
                        cache=None,
                        mode="legacy" if self.config.revision == "2025-11-25" else "auto",
                    )
                )
                # The package checks results against the tool's output schema with Python's regular
                # expressions, which a pattern of the server can make run for years.
                client.session.validate_tool_result = _accept  # type: ignore[method-assign]
                await self._list(client)
            self._client = client
            self._attempt_ended.set()
            try:
                yield client
            finally:
                self._client = None
                self._attempt_ended.clear()

    async def _on_message(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._wake.set()
        elif isinstance(message, ValueError) and not self._is_noisy:
            self._is_noisy = True
            log.warning("mcp server wrote a line that is not a message", server=self.config.name)

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        from mcp.types import ElicitRequestFormParams, ElicitResult

        # A server of the 2025 revision does not name the call that asks: with several, it is declined.
        call = CURRENT_CALL.get()
        ask = call.ask if call else self.asks[0] if len(self.asks) == 1 else None
        if ask is None or not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        question = make_question(self.config.name, params)
        answer = None if question is None else await ask(question)
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict(answer))

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
                    try:
                        async with asyncio.timeout(LIST_S):
                            await self._list(client)
                    except TimeoutError:
                        if not self.running:  # else the server may be busy with a call
                            raise
                    await asyncio.sleep(RELIST_PAUSE_S)
            finally:
                listening.cancel()

    async def _listen(self, client: Client) -> None:
        # The 2026 revision announces changes to subscribers, the 2025 revision to the message handler.
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._wake.set()  # earlier changes are not announced
                    async for _ in changes:
                        self._wake.set()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                self._wake.set()
            await asyncio.sleep(RELIST_PAUSE_S)

    async def _list(self, client: Client) -> None:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES) if client.server_capabilities.tools is not None else ():
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or len(tools) > MAX_LISTED:
                break
        warnings = ["the list of tools does not end; only the first tools were read."] if cursor else []
        # In a thread: compiling the schemas of a hundred tools would block the event loop.
        specs, more = await asyncio.to_thread(make_specs, self.config, tools[:MAX_LISTED])
        warnings += more
        if warnings != self.warnings:
            self.warnings = warnings
            for warning in warnings[:20]:
                log.warning("mcp tool list incomplete", server=self.config.name, problem=warning)
        self._set("ready", "", specs)

    def _set(self, state: McpState, problem: str, specs: tuple[ToolSpec, ...]) -> None:
        changed = state != self.state or specs != self.specs
        self.state, self.problem, self.specs = state, problem, specs
        if state == "down":
            self._attempt_ended.set()
        if changed:
            self._on_change()

    # -- the transport

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[TransportStreams, None]:
        url, use_proxy = self.config.url or "", not self._local_only
        if url and self._local_only and not await is_local_host(urlsplit(url).hostname or ""):
            raise OSError("LOCAL_ONLY is set, and its address is not in the local network")
        if self.config.type == "stdio":
            transport = stdio_streams(self.config, self._log_errors, self._note_end)
        else:
            from conductor.plugins.mcp.http import http_streams

            auth, permits = await self._login(url)
            transport = http_streams(url, self.config.headers, auth, use_proxy=use_proxy, permits=permits)
        async with transport as streams:
            yield streams

    async def _log_errors(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(4096):
            for line in chunk.decode(errors="replace").splitlines():
                text = self._redactor.text(clean(line).strip())[:_PROBLEM_CHARS]
                if text:
                    self._last_error = text
                    log.debug("mcp stderr", server=self.config.name, line=text)

    async def _login(self, url: str) -> tuple[Auth | None, Callable[[str], bool] | None]:
        # The authentication, and the check of addresses.
        if self._auth is None and not self.config.oauth:
            return None, None
        from conductor.plugins.mcp.oauth import permitted_addresses, with_tokens

        auth = self._auth
        if auth is None:
            if self._folder is None:
                raise OSError("its login needs DATA_DIR for the tokens, and DATA_DIR is not set")
            auth = with_tokens(url, tokens_path(self._folder, self.config.name))
        return auth, await permitted_addresses(url, local_only=self._local_only)

    def describe(self, error: BaseException) -> str:
        """Describe for people why the connection failed."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = str(error) or type(error).__name__
        if type(error).__name__ == "OAuthFlowError":
            text = f"it needs a login: conductor mcp login {self.config.name}"
        if isinstance(error, TimeoutError):
            text = "it did not answer in time"
        if self._last_error:
            text = f"{text}; standard error: {self._last_error}"
        return self._redactor.text(in_line(clean(text)))[:_PROBLEM_CHARS]

    def _note_end(self) -> None:
        self._is_lost = True
        self._attempt_ended.clear()
        self._wake.set()


async def _accept(name: str, result: CallToolResult) -> None:
    pass


def tokens_path(folder: Path, server: str) -> Path:
    """Return the file of a server's tokens."""
    return folder / f"{server}.oauth.json"
