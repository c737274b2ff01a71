"""Worker processes that share one port by SO_REUSEPORT, their supervisor, and its terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from conductor.errors import SettingsError
from conductor.server.address import not_bound
from conductor.settings import Settings
from conductor.stores.registry import check_shared

log = structlog.get_logger(__name__)

READY = b"ready\n"
_STDIN, _STDOUT = 0, 1
# Seconds until a worker must be ready, warm or not: `conductor.app.WARM_UP_S` and its start.
START_S = 90.0
# Seconds from SIGTERM to SIGKILL; a worker lets running turns end for 25 s.
STOP_S = 30.0
# A worker that ends within this many seconds died quickly: the supervisor pauses before it starts another.
QUICK_S = 10.0
# The first pause, which doubles with each further quick death, and the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0


class Terminal:
    """The standard streams that are a terminal now, at the start."""

    def __init__(self) -> None:
        self._streams = [stream for stream in (0, 1, 2) if os.isatty(stream)]

    def is_closed(self) -> bool:
        """Return whether there was a terminal and it is gone, for the handler of SIGHUP.

        The kernel ends the terminal before it sends the signal. The streams then lead nowhere, since writing
        to them would fail.
        """
        if not self._streams or any(map(os.isatty, self._streams)):
            return False
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in self._streams:
            os.dup2(nowhere, stream)
        os.close(nowhere)
        return True


def reserve(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of ``host``, for a server of several processes; port 0 is any free one.

    With SO_REUSEPORT alone, two servers of one user would share a port silently. These sockets are bound
    without it and get it afterwards, so that only this server's workers can join. Raises `SettingsError`.
    """
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                reserved = on_error.enter_context(socket.socket(family, kind, protocol))
                if family == socket.AF_INET6:
                    reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for ports in TIME_WAIT
                try:
                    reserved.bind((address[0], port, *address[2:]))
                except OSError as error:
                    if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL and sockets:
                        continue  # localhost on a machine without IPv6
                    raise
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                port = int(reserved.getsockname()[1])
                sockets.append(reserved)
        except (OSError, UnicodeError) as error:
            raise not_bound(host, port, error) from None
        on_error.pop_all()
    return sockets


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several server processes. ``options`` are the command line's, with the bound port."""

    number: int
    options: Mapping[str, Any]

    def watch(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` when the supervisor has ended for any reason."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            if not os.read(_STDIN, 1024):
                loop.remove_reader(_STDIN)
                stop()

        loop.add_reader(_STDIN, read)

    def ready(self) -> None:
        """Tell the supervisor that this worker is ready; later output goes to the standard error."""
        os.write(_STDOUT, READY)
        os.dup2(2, _STDOUT)  # the supervisor reads no further line, and an unread pipe would fill


def join(number: int) -> Worker:
    """Read the options from the supervisor. Raises `SettingsError` without options."""
    # A SIGUSR2 to all processes is meant for the supervisor.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        return Worker(number, dict(json.loads(sys.stdin.buffer.readline())))
    except (ValueError, TypeError, OSError):
        raise SettingsError("--worker is for the server's own use; use --workers N.") from None


@dataclass(eq=False, slots=True)
class _Slot:
    # One of WORKERS processes, and its successors; ``lock`` is held while a process starts for it.
    number: int
    process: Process | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Supervisor:
    """Runs WORKERS processes with the command line's ``options``, which each gets through a pipe.

    Raises `SettingsError` if several cannot share the session store, or the address cannot be bound.
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any]) -> None:
        check_shared(settings)
        # Held to the end: no other server gets the port, even while no worker listens.
        self._reserved = reserve(settings.host, settings.port)
        self._port = int(self._reserved[0].getsockname()[1])
        self._options = json.dumps({**options, "host": settings.host, "port": self._port})
        self._slots = [_Slot(number) for number in range(1, settings.workers + 1)]
        self._processes: set[Process] = set()
        self._reloads = 0
        self._rolling = asyncio.Event()

    async def run(self, announce: Callable[[int], None], on_stop: Callable[[], None]) -> int:
        """Run until SIGTERM or SIGINT; returns the exit code. ``announce`` gets the port.

        ``on_stop`` is called when the workers start to drain; a second signal kills them. SIGHUP reloads all
        workers, or stops them if the terminal is closed; SIGUSR2 replaces them one after another.
        """
        loop, work = asyncio.get_running_loop(), asyncio.create_task(self._work(announce))
        terminal = Terminal()

        def interrupt() -> None:
            if work.cancelling():
                for process in self._processes:
                    _send(process, signal.SIGKILL)
            else:
                on_stop()
                work.cancel()

        def hang_up() -> None:
            if not terminal.is_closed():
                self._reload()
            elif not work.cancelling():
                interrupt()

        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, interrupt)
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        loop.add_signal_handler(signal.SIGUSR2, self._rolling.set)
        try:
            await asyncio.wait([work])
        finally:
            await asyncio.gather(*map(_terminate, self._processes))
            for reserved in self._reserved:
                reserved.close()
        if not work.cancelled():
            return work.result()
        log.info("stopped")
        return 0

    async def _work(self, announce: Callable[[int], None]) -> int:
        first, *followers = self._slots
        # The first one alone: a mistake that all workers would report is reported once.
        exit_codes = [await self._start(first)]
        if exit_codes == [0]:
            exit_codes = await asyncio.gather(*map(self._start, followers))
        if any(exit_codes):
            return max(exit_codes)
        announce(self._port)
        await asyncio.gather(self._roll(), *map(self._keep, self._slots))
        return 0

    async def _start(self, slot: _Slot) -> int:
        """Start a worker for a slot; returns 0 once it is ready, else an exit code."""
        reloads = self._reloads
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "conductor", "serve", "--worker", str(slot.number)),
                stdin=PIPE,
                stdout=PIPE,
                process_group=0,  # Ctrl-C reaches only the supervisor, which forwards it
            )
        except OSError as error:
            log.error("worker did not start", worker=slot.number, reason=error.strerror)
            return 1
        self._processes = {running for running in self._processes if running.returncode is None} | {process}
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended
            process.stdin.write(self._options.encode() + b"\n")
        if not await _is_ready(process):
            exit_code = await process.wait()
            if exit_code != SettingsError.exit_code:  # else it has printed a sentence
                log.error("worker did not start", worker=slot.number, exit_code=exit_code)
            return max(exit_code, 1)
        slot.process = process
        if reloads != self._reloads:
            _send(process, signal.SIGHUP)
        log.info("worker ready", worker=slot.number, pid=process.pid)
        return 0

    async def _keep(self, slot: _Slot) -> None:
        pause, now = 0.0, asyncio.get_running_loop().time
        while True:
            started_at, process = now(), slot.process
            exit_code = None if process is None else await process.wait()
            async with slot.lock:
                if slot.process is not process:
                    continue  # it was replaced
                slot.process = None
                quick = now() - started_at < QUICK_S
                pause = min(2 * pause or FIRST_PAUSE_S, LONGEST_PAUSE_S) if quick else 0.0
                log.warning("worker ended", worker=slot.number, exit_code=exit_code, restart_in_s=pause)
                await asyncio.sleep(pause)
                await self._start(slot)

    async def _roll(self) -> None:
        while True:
            await self._rolling.wait()
            self._rolling.clear()
            log.info("replacing workers", workers=len(self._slots))
            for slot in self._slots:
                async with slot.lock:
                    former = slot.process
                    exit_code = await self._start(slot)
                if exit_code:
                    log.error("worker not replaced", worker=slot.number, exit_code=exit_code)
                    break  # the others would fail in the same way
                if former is not None:
                    await _terminate(former)
            else:
                log.info("workers replaced", workers=len(self._slots))

    def _reload(self) -> None:
        # A worker that is starting has no handler yet: it gets the signal once it is ready.
        self._reloads += 1
        for slot in self._slots:
            if slot.process is not None:
                _send(slot.process, signal.SIGHUP)


async def _is_ready(process: Process) -> bool:
    """Wait until a worker is ready; False if it ended, or was killed after START_S."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if line == READY:
                    return True
    except TimeoutError:
        _send(process, signal.SIGKILL)
    return False


async def _terminate(process: Process) -> None:
    """Let a worker drain, and kill it after STOP_S."""
    _send(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        log.error("worker did not exit; killed", pid=process.pid)
        _send(process, signal.SIGKILL)
        await process.wait()


def _send(process: Process, signum: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(signum)
