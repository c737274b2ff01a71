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

from conductor.tools.mcp.bounds import MAX_MESSAGE_BYTES, is_dense
from conductor.tools.mcp.config import McpServerConfig

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = structlog.get_logger(__name__)

# Seconds for a program to end once its input is closed, and then after SIGTERM.
END_S = 2.0
# Seconds between two warnings about lines that are no message.
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
    from mcp.shared.message import SessionMessage

    assert config.command is not None
    process = await asyncio.create_subprocess_exec(
        config.command,
        *config.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=MAX_MESSAGE_BYTES,
        # It gets no more of this process's environment than PATH, HOME and the like.
        env=get_default_environment() | dict(config.env),
        cwd=config.cwd,
        start_new_session=True,
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None and stdout is not None and stderr is not None
    to_here, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_here = anyio.create_memory_object_stream[SessionMessage](0)
    parse = _parser(config.name)

    async def receive() -> None:
        async with to_here:
            try:
                while line := await stdout.readline():
                    if is_dense(line):
                        log.warning(
                            "mcp server ended: a line has more than 50,000 values", server=config.name
                        )
                        break
                    message = parse(line)
                    if message is not None:
                        await to_here.send(SessionMessage(message))
            except ValueError:
                log.warning("mcp server ended: a line is longer than 4 MiB", server=config.name)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the client has ended
        # A program that cannot write does not end.
        while await stdout.read(65_536):
            pass

    async def send() -> None:
        with suppress(OSError):
            async for item in from_here:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(f"{text}\n".encode())
                await stdin.drain()
        stdin.close()
        from_here.close()
        to_here.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        tasks.start_soon(read_errors, stderr)
        try:
            yield read, write
        finally:
            read.close()
            write.close()
            ending = asyncio.create_task(_end(process))
            with anyio.CancelScope(shield=True):
                # A second cancellation must not leave the program behind; the first goes on from here.
                while not ending.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([ending])
            tasks.cancel_scope.cancel()


def _parser(server: str) -> Callable[[bytes], Any]:
    from mcp.types import jsonrpc_message_adapter

    warned_at = float("-inf")

    def parse(line: bytes) -> Any:
        nonlocal warned_at
        try:
            return jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            now = asyncio.get_running_loop().time()
            if now - warned_at >= WARN_S:
                warned_at = now
                log.warning("mcp server wrote a line that is no message", server=server)
            return None

    return parse


async def _end(process: Process) -> None:
    # Waits for its pipes, too: a child of it that lives on is ended with its group.
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()
                break
    # Nothing public closes pipes that a process outside the group still holds.
    process._transport.close()  # type: ignore[attr-defined]
