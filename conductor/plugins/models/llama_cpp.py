"""The model provider for GGUF files in this process, by llama.cpp (the extra ``local``).

xllamacpp contains llama.cpp's server with its chat templates, parsing of calls, prompt cache and slots.
Requests and replies have the form of ``/chat/completions``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from conductor.errors import ModelError, SettingsError
from conductor.models.base import ModelEvent, ModelRequest, may_call
from conductor.plugins.models.checked import checked
from conductor.plugins.models.openai_request import chat_body
from conductor.plugins.models.openai_stream import ChatDecoder
from conductor.plugins.models.rendering import encode, for_eyes, names_of, without_marks
from conductor.plugins.models.thought_filter import ThoughtHabits

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

DEFAULT_CONTEXT = 8192
# Requests that wait for a slot: more would wait for minutes.
MAX_WAITING = 8
# Tokens of a prompt between two checks for a closed request.
_BATCH = 128
_CLOSE_S = 10.0
_MAGIC = b"GGUF"

log = structlog.get_logger(__name__)

_Chunk = bytes | Exception | None


class LlamaCppProvider:
    """One model file in this process.

    ``slots`` requests run at once, each with a context of ``context`` tokens and ``threads`` threads of the
    CPU; up to ``max_waiting`` wait in order. `start` loads the file.
    """

    name = "llama_cpp"

    def __init__(
        self,
        path: Path,
        max_tokens: int,
        *,
        context: int = DEFAULT_CONTEXT,
        slots: int = 1,
        threads: int | None = None,
        max_waiting: int = MAX_WAITING,
        verbose: bool = False,
    ) -> None:
        self._path = path
        self._max_tokens = max_tokens
        self._load: Callable[[], _Server] = lambda: _Server(
            path, context, slots, threads or _threads(), verbose
        )
        self._server: _Server | None = None
        self._loading = asyncio.Lock()
        self._workers = ThreadPoolExecutor(slots, "llama.cpp")
        self._slots = slots
        self._max_waiting = max_waiting
        self._running: set[threading.Event] = set()
        self._habits = ThoughtHabits()

    async def start(self) -> None:
        """Load the file. Raises `ModelError`."""
        await self._loaded()

    async def _loaded(self) -> _Server:
        async with self._loading:
            if self._server is None:
                log.info("loading model", file=self._path.name, mb=self._path.stat().st_size >> 20)
                started = time.monotonic()
                try:
                    self._server = await asyncio.to_thread(self._load)
                except RuntimeError:
                    raise ModelError(
                        "protocol", "The model could not be loaded; LOG_LEVEL=debug shows why."
                    ) from None
                seconds = round(time.monotonic() - started, 1)
                log.info("model loaded", file=self._path.name, seconds=seconds)
            return self._server

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply (`base.ModelProvider`). Raises `ModelError`: ``overloaded`` if too many wait."""
        return checked(self._reply(request), request)

    async def _reply(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        server = self._server or await self._loaded()
        request = for_eyes(without_marks(request), sees=False)
        names = names_of(request)
        limit = request.max_tokens or self._max_tokens
        source = f"{self.name} {self._path.name}"
        body = chat_body(request, names, model=self.name, max_tokens=limit, official=False, source=source)
        habit = self._habits.of(request.cache_key)
        decoder = ChatDecoder(names, source, habit, offers_tools=may_call(request))
        # One that was given up no longer counts, though a thread has yet to take it.
        waiting = sum(not stop.is_set() for stop in self._running) - self._slots
        if waiting >= self._max_waiting:
            requests = f"{waiting} request{' waits' if waiting == 1 else 's wait'}"
            raise ModelError("overloaded", f"The local model is busy, and {requests} for it.")
        chunks: asyncio.Queue[_Chunk] = asyncio.Queue()
        stop = threading.Event()
        self._running.add(stop)
        loop = asyncio.get_running_loop()
        encoded = encode(body | {"return_progress": True}).decode()

        def put(chunk: _Chunk) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        # A request in llama.cpp's own queue cannot be stopped.
        work = loop.run_in_executor(self._workers, _generate, server, encoded, put, stop)
        work.add_done_callback(lambda _: self._running.discard(stop))
        limit_s: float | None = None  # for a slot: the caller's
        try:
            while not decoder.finished:
                try:
                    async with asyncio.timeout(limit_s):
                        chunk = await chunks.get()
                except TimeoutError:
                    raise ModelError("timeout", "The local model did not answer in time.") from None
                limit_s = request.silence_s
                if isinstance(chunk, Exception):
                    log.warning("local model failed", error=type(chunk).__name__)
                    raise ModelError("protocol", "The local model cannot take this request.")
                for event in decoder.end() if chunk is None else decoder.feed(chunk):
                    yield event
        finally:
            stop.set()

    async def aclose(self) -> None:
        """Stop the running requests, and free the model."""
        for stop in self._running:
            stop.set()
        async with self._loading:
            server, self._server = self._server, None
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.to_thread(self._workers.shutdown)
                if server is not None:
                    await asyncio.to_thread(server.close)
        except TimeoutError:
            log.warning("model not freed in time", file=self._path.name)


def _generate(server: _Server, body: str, put: Callable[[_Chunk], None], stop: threading.Event) -> None:
    def take(event: str) -> bool:
        put(b"data: %s\n\n" % event.encode())
        return stop.is_set()

    put(b"")  # the slot is free
    try:
        if not stop.is_set():
            server.generate(body, take)
        put(None)
    except Exception as error:
        put(error)


class _Server:
    """llama.cpp's server; its calls block, and may be made from any thread."""

    def __init__(self, path: Path, context: int, slots: int, threads: int, verbose: bool) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = slots
        params.n_ctx = context * slots
        params.n_batch = params.n_ubatch = _BATCH
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = 3 if verbose else 0
        # It always listens: here only this user can connect, and the key is secret.
        self._folder = tempfile.mkdtemp(prefix="conductor-llama-")
        params.hostnames = [os.path.join(self._folder, "server.sock")]
        params.api_keys = [secrets.token_urlsafe()]
        params.ui = False
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        # A server that was never used may hang when it is freed.
        self.generate(
            '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"stream":true}', lambda _: False
        )

    def generate(self, body: str, take: Callable[[str], bool]) -> None:
        """Answer a request; ``take`` gets each event and returns whether to stop."""
        self._server.handle_chat_completions(body, take)

    def close(self) -> None:
        """Free the model."""
        self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _threads() -> int:
    # Hyper-threads do not help, and the event loop needs a core.
    return max(1, (os.cpu_count() or 1) // 2)


def from_profile(profile: ModelProfile, settings: Settings) -> LlamaCppProvider:
    """Make the provider of a profile, whose ``model`` is a file. Raises `SettingsError`."""
    path = Path(profile.required_model()).expanduser()
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(
            f"{profile.label('model')} names {path}, which cannot be read: {reason}."
        ) from None
    if not is_gguf:
        raise SettingsError(f"{profile.label('model')} names {path}, which is not a GGUF file.")
    if find_spec("xllamacpp") is None:
        raise SettingsError(
            "The provider llama_cpp needs the extra local: pip install 'conductor-voice[local]'."
        )
    return LlamaCppProvider(
        path,
        profile.max_tokens,
        context=profile.context_window or DEFAULT_CONTEXT,
        slots=profile.slots,
        threads=profile.threads,
        verbose=settings.log_level == "debug",
    )
