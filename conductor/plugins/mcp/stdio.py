"""MCP over a program's standard input and output: a message is a line of at most 4 MiB."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog

from conductor.config_file import as_clause
from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.mcp.streams import MAX_MESSAGE_BYTES, message_streams

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = structlog.get_logger(__name__)

# Seconds for a program to exit after its input is closed, and again after SIGTERM.
END_S = 2.0


@asynccontextmanager
async def stdio_streams(
    config: McpServerConfig,
    read_errors: Callable[[asyncio.StreamReader], Coroutine[Any, Any, None]],
    on_end: Callable[[], None],
) -> AsyncGenerator[TransportStreams, None]:
    """Start a program and make the streams of its client; ``read_errors`` reads its standard error.

    The package's own transport has no limit on a line, and takes quadratic time for a long one.
    Raises OSError if the program cannot be started.
    """
    from mcp.client.stdio import get_default_environment

    assert config.command is not None
    try:
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
    except OSError as error:
        reason = as_clause(error.strerror or str(error))
        raise OSError(f"its program {config.command} cannot be started: {reason}") from error
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None and stdout is not None and stderr is not None

    async def lines() -> AsyncIterator[bytes]:
        try:
            while line := await stdout.readline():
                yield line
        except ValueError:
            log.warning("mcp server ended: a line is longer than 4 MiB", server=config.name)

    async def send(text: str) -> None:
        stdin.write(f"{text}\n".encode())
        await stdin.drain()

    reading = asyncio.create_task(read_errors(stderr))
    try:
        async with message_streams(lines(), send, on_end) as streams:
            yield streams
    finally:
        ending = asyncio.create_task(_end(process, stdin, stdout))
        # A second cancellation must not leave the program running; the first one is raised again.
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        reading.cancel()


async def _end(process: Process, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
    """Wait for the program and its pipes to end; a child that lives on is ended with its group."""

    async def drain() -> None:
        # A program exits only if it can write its output.
        while await stdout.read(65_536):
            pass

    draining = asyncio.create_task(drain())
    stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
                break
    draining.cancel()
    # No public method closes pipes that a process outside the group still holds.
    process._transport.close()  # type: ignore[attr-defined]
