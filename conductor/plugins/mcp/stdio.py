"""MCP over a program's standard input and output: a message is a line of at most 4 MiB."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog

from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.mcp.inbound import MAX_MESSAGE_BYTES, is_dense

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = structlog.get_logger(__name__)

# Seconds for a program to exit after its input is closed, and again after SIGTERM.
END_S = 2.0
# Seconds between two warnings about lines that are not messages.
WARN_S = 60.0


@asynccontextmanager
async def stdio_streams(
    config: McpServerConfig, read_errors: Callable[[asyncio.StreamReader], Coroutine[Any, Any, None]]
) -> AsyncGenerator[TransportStreams, None]:
    """Start a program and make the streams of its client; ``read_errors`` reads its standard error.

    Raises OSError if it cannot be started.
    """
    import anyio
    from mcp.client.stdio import get_default_environment

    assert config.command is not None
    process = await asyncio.create_subprocess_exec(
        config.command,
        *config.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=MAX_MESSAGE_BYTES,
        # Of this process's environment only PATH, HOME and the like.
        env=get_default_environment() | dict(config.env),
        cwd=config.cwd,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    program = _Program(config.name, process, process.stdin, process.stdout)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(program.receive)
        tasks.start_soon(program.send)
        tasks.start_soon(read_errors, process.stderr)
        try:
            yield program.inbound, program.outbound
        finally:
            program.inbound.close()
            program.outbound.close()
            ending = asyncio.create_task(program.end())
            with anyio.CancelScope(shield=True):
                # A second cancellation must not leave the program running; the first one is raised again.
                while not ending.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([ending])
            tasks.cancel_scope.cancel()


class _Program:
    """A running program; ``inbound`` and ``outbound`` are the client's ends of its streams."""

    def __init__(
        self, name: str, process: Process, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader
    ) -> None:
        import anyio
        from mcp.shared.message import SessionMessage

        self._name = name
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._received, self.inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outbound, self._to_send = anyio.create_memory_object_stream[SessionMessage](0)
        self._warned_at = float("-inf")

    async def receive(self) -> None:
        """Pass messages to the client until the program closes its output."""
        from anyio import BrokenResourceError, ClosedResourceError

        async with self._received:
            with suppress(BrokenResourceError, ClosedResourceError):  # the client has ended
                await self._receive()
        # A program exits only if it can write its output.
        while await self._stdout.read(65_536):
            pass

    async def _receive(self) -> None:
        from mcp.shared.message import SessionMessage

        try:
            while line := await self._stdout.readline():
                if is_dense(line):
                    log.warning("mcp server ended: a line has more than 50,000 values", server=self._name)
                    return
                message = self._parse(line)
                if message is not None:
                    await self._received.send(SessionMessage(message))
        except ValueError:
            log.warning("mcp server ended: a line is longer than 4 MiB", server=self._name)

    def _parse(self, line: bytes) -> Any:
        from mcp.types import jsonrpc_message_adapter

        try:
            return jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            now = asyncio.get_running_loop().time()
            if now - self._warned_at >= WARN_S:
                self._warned_at = now
                log.warning("mcp server wrote a line that is not a message", server=self._name)
            return None

    async def send(self) -> None:
        """Write the client's messages to the program."""
        with suppress(OSError):
            async for item in self._to_send:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._stdin.write(f"{text}\n".encode())
                await self._stdin.drain()
        self._stdin.close()
        self._to_send.close()
        self._received.close()

    async def end(self) -> None:
        """Wait for the program and its pipes to end; a child that lives on is ended with its group."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._process.wait()
                    break
        # No public method closes pipes that a process outside the group still holds.
        self._process._transport.close()  # type: ignore[attr-defined]
