"""Worker processes and their supervisor, which starts, restarts, replaces and stops them.

Each worker has a slot with its own sockets on the shared address. A replaced worker passes its sockets to its
replacement, so that no connection is refused during the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from conductor.errors import SettingsError
from conductor.server.access import SharedAddress, close
from conductor.settings import Settings
from conductor.stores.registry import check_shared

log = structlog.get_logger(__name__)


READY = b"ready\n"
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several server processes.

    ``descriptors`` are those of the inherited sockets. ``options`` are the command line's, with the bound
    port.
    """

    number: int
    options: Mapping[str, Any]
    descriptors: tuple[int, ...]

    def sockets(self) -> list[socket.socket]:
        """Make socket objects of the descriptors; call it once."""
        return [socket.socket(fileno=descriptor) for descriptor in self.descriptors]

    def watch(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` when the parent process has ended for any reason."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            if not os.read(_STDIN, 1024):
                loop.remove_reader(_STDIN)
                stop()

        loop.add_reader(_STDIN, read)

    def ready(self) -> None:
        """Tell the parent that this worker listens."""
        os.write(_STDOUT, READY)

    def leave(self) -> None:
        """Tell the parent that this worker accepts no more connections, so that it starts another."""
        # The pipe's last writing end closes, and the parent reads its end.
        os.dup2(_STDERR, _STDOUT)


def order(options: Mapping[str, Any], sockets: tuple[socket.socket, ...]) -> bytes:
    """Encode what a parent writes to its worker's standard input; the sockets are inherited."""
    descriptors = [one.fileno() for one in sockets]
    return json.dumps({"options": dict(options), "sockets": descriptors}).encode() + b"\n"


def join(number: int) -> Worker:
    """Read the parent's order. Raises `SettingsError` if there is none."""
    # SIGUSR2 to all processes is meant for the parent, which replaces the workers.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    write_whole_lines()
    try:
        given = json.loads(sys.stdin.buffer.readline())
        return Worker(number, given["options"], tuple(given["sockets"]))
    except (ValueError, KeyError, TypeError, OSError):
        raise SettingsError("--worker is for the server's own use; --workers N starts several.") from None


def write_whole_lines() -> None:
    """Write each line to standard error at once: the lines of several processes would mix otherwise."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)


class Child:
    """A worker's process, from the parent's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ready = False
        self._reload_due = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def becomes_ready(self, timeout: float) -> bool:
        """Wait until it listens; False if it ended first, or was killed after ``timeout`` seconds."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                async for line in self._process.stdout:
                    if line == READY:
                        self._ready = True
                        break
        except TimeoutError:
            self.send(signal.SIGKILL)
        if self._ready and self._reload_due:
            self.send(signal.SIGHUP)
        return self._ready

    async def left(self) -> None:
        """Wait, without a time limit, until it accepts no more connections or has ended."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(4_096):
            pass

    async def ended(self, timeout: float) -> int | None:
        """Wait up to ``timeout`` seconds for its end; returns its exit code, or None."""
        try:
            return await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            return None

    def reload(self) -> None:
        """Make it reload; a starting worker has no handler yet, so it gets the signal when it is ready."""
        if self._ready:
            self.send(signal.SIGHUP)
        self._reload_due = True

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.returncode is None:
            self._process.send_signal(signum)


async def start_child(number: int, options: Mapping[str, Any], sockets: tuple[socket.socket, ...]) -> Child:
    """Start a worker that inherits ``sockets``; its options, which may be secret, go through a pipe.

    It gets its own process group: Ctrl-C reaches only the parent, which forwards it. Raises OSError.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "conductor", "serve", "--worker", str(number)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=[one.fileno() for one in sockets],
        process_group=0,
    )
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended already: `ended` will report that
        # It fits into the pipe's buffer, so this does not wait for the worker to read.
        process.stdin.write(order(options, sockets))
    return Child(process)


# The exit code of a worker that ended because of a user's mistake, after one sentence about it.
MISTAKE = 2


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """Time limits of workers, and the backoff of restarts; in seconds."""

    start: float = 30.0  # until it listens
    stop: float = 30.0  # from SIGTERM on; a worker lets turns end for 25 s
    early: float = 10.0  # a worker that ends sooner than this died early
    pause: float = 0.2  # after the first early death, doubled for each further one ...
    longest_pause: float = 15.0  # ... up to this
    tries: int = 4  # early deaths in a row until a starting server gives up


class _GaveUp(Exception):
    # The server cannot start; its process ends with ``exit_code``.
    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code


@dataclass(eq=False, slots=True)
class _Slot:
    # The sockets and the process of one worker; ``lock`` is held while a process starts for it.
    number: int
    child: Child | None = None
    sockets: tuple[socket.socket, ...] = ()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    served: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        close(self.sockets)
        self.sockets = ()


class Supervisor:
    """Runs WORKERS processes with the command line's ``options``, passed to each through a pipe.

    Raises `SettingsError` if several cannot share the session store, or the address cannot be bound.
    """

    def __init__(
        self, settings: Settings, options: Mapping[str, Any], backoff: RestartBackoff | None = None
    ) -> None:
        check_shared(settings)
        self._address = SharedAddress(settings.host, settings.port)
        self._options = {**options, "host": settings.host, "port": self._address.port}
        self._backoff = backoff or RestartBackoff()
        self._slots = [_Slot(number) for number in range(1, settings.workers + 1)]
        self._children: set[Child] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._rolling = asyncio.Event()
        self._announced = False

    async def run(self, announce: Callable[[int], None], on_stop: Callable[[], None]) -> int:
        """Run until SIGTERM or SIGINT; returns the exit code. ``announce`` gets the port.

        ``on_stop`` is called when the workers start to stop; a second signal kills them. SIGHUP goes to all
        workers, SIGUSR2 replaces them one after the other.
        """
        write_whole_lines()
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            if stop.is_set():
                for child in self._children:
                    child.send(signal.SIGKILL)
            else:
                on_stop()
            stop.set()

        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._rolling.set)
        working, stopped = asyncio.create_task(self._work(announce)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else 0
        finally:
            working.cancel()
            stopped.cancel()
            await asyncio.wait([working, stopped], timeout=self._backoff.stop)
            await self._end()

    async def _work(self, announce: Callable[[int], None]) -> int:
        first, *others = self._slots
        exit_code = 1
        try:
            async with asyncio.TaskGroup() as group:
                # The first one alone: a mistake that all would report is reported once.
                group.create_task(self._keep(first))
                await first.served.wait()
                for slot in others:
                    group.create_task(self._keep(slot))
                for slot in others:
                    await slot.served.wait()
                self._announced = True
                announce(self._address.port)
                log.info("workers ready", pids=[slot.child.pid for slot in self._slots if slot.child])
                group.create_task(self._roll())
        except* _GaveUp as errors:
            exit_code = max(error.exit_code for error in errors.exceptions if isinstance(error, _GaveUp))
        return exit_code

    async def _keep(self, slot: _Slot) -> None:
        deaths, now = 0, asyncio.get_running_loop().time
        while True:
            began = now()
            exit_code = await self._serve(slot)
            deaths = deaths + 1 if now() - began < self._backoff.early else 0
            if not self._announced:
                self._check_start(exit_code, deaths)
            pause = (
                min(self._backoff.pause * 2 ** (deaths - 1), self._backoff.longest_pause) if deaths else 0.0
            )
            log.warning("worker gone", worker=slot.number, exit_code=exit_code, again_in_s=pause)
            await asyncio.sleep(pause)

    # Serves a slot until its last worker leaves. Returns that worker's exit code; None if it could not be
    # started, or if its turns are still ending.
    async def _serve(self, slot: _Slot) -> int | None:
        try:
            async with slot.lock:
                slot.sockets = self._address.open()
                slot.child = child = await self._start(slot)
                if await child.becomes_ready(self._backoff.start):
                    self._ready(slot, child)
        except OSError as error:
            slot.close()
            log.error("worker not started", worker=slot.number, why=error.strerror)
            return None
        child = await self._gone(slot, child)
        self._reap(child)
        return await child.ended(1.0)

    def _ready(self, slot: _Slot, child: Child) -> None:
        slot.served.set()
        if self._announced:
            log.info("worker ready", worker=slot.number, pid=child.pid)

    async def _gone(self, slot: _Slot, child: Child) -> Child:
        while True:
            await child.left()
            async with slot.lock:
                if slot.child is child:
                    slot.child = None
                    slot.close()
                    return child
                assert slot.child is not None
                child = slot.child  # the replacement of the one that left

    def _check_start(self, exit_code: int | None, deaths: int) -> None:
        if exit_code == MISTAKE:
            raise _GaveUp(MISTAKE)
        if deaths >= self._backoff.tries:
            log.error("the workers end as soon as they are started", exit_code=exit_code)
            raise _GaveUp(1)

    async def _start(self, slot: _Slot) -> Child:
        child = await start_child(slot.number, self._options, slot.sockets)
        self._children.add(child)
        return child

    # -- rolling, reloading, ending

    async def _roll(self) -> None:
        while True:
            await self._rolling.wait()
            self._rolling.clear()
            log.info("replacing the workers", workers=len(self._slots))
            for slot in self._slots:
                if not await self._replace(slot):
                    break  # the others would fail the same way
            else:
                log.info("workers replaced", workers=len(self._slots))

    async def _replace(self, slot: _Slot) -> bool:
        async with slot.lock:
            old = slot.child
            if old is None:
                return True  # it has ended, and `_keep` restarts it
            try:
                new = await self._start(slot)
            except OSError as error:
                log.error("worker not replaced", worker=slot.number, why=error.strerror)
                return False
            if not await new.becomes_ready(self._backoff.start):
                self._reap(new)
                log.error("worker not replaced", worker=slot.number, exit_code=await new.ended(1.0))
                return False
            slot.child = new
        self._ready(slot, new)
        # Only now: the new one listens on the same sockets, and no connection is refused.
        old.send(signal.SIGTERM)
        await self._reaped(old)
        return True

    def _reload(self) -> None:
        for child in self._children:
            child.reload()

    def _reap(self, child: Child) -> None:
        task = asyncio.create_task(self._reaped(child))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    async def _reaped(self, child: Child) -> None:
        if await child.ended(self._backoff.stop) is None:
            log.error("worker killed, which did not end", pid=child.pid)
            child.send(signal.SIGKILL)
            await child.ended(self._backoff.stop)
        self._children.discard(child)

    async def _end(self) -> None:
        self._address.close()
        for slot in self._slots:
            slot.close()
        children = list(self._children)
        for child in children:
            child.send(signal.SIGTERM)
        await asyncio.gather(*(self._reaped(child) for child in children))
        for task in list(self._reaping):
            task.cancel()
