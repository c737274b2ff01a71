"""Several processes that are one server: a parent starts them, keeps them running, and rolls and ends them.

Each has a slot with sockets of its own on the shared address. A worker that is replaced hands its sockets to
the replacement, so that nobody who is connecting meanwhile is refused.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from conductor.errors import SettingsError
from conductor.server.address import SharedAddress, close
from conductor.server.child import Child, start_child
from conductor.server.worker import write_whole_lines
from conductor.settings import Settings

log = structlog.get_logger(__name__)

MISTAKE = 2
"""The exit code of a worker that said in one sentence what the user has to mend."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long workers may take, and how soon one is started again; in seconds."""

    start: float = 30.0  # until it listens
    stop: float = 30.0  # from SIGTERM on; a worker lets turns end for 25 s
    early: float = 10.0  # one that lives shorter died at once
    pause: float = 0.2  # after the first early death, and twice as long after each one more ...
    longest_pause: float = 15.0  # ... up to this
    tries: int = 4  # early deaths in a row until a server that is just starting gives up


class _GaveUp(Exception):
    """The server cannot start; ``exit_code`` is what its process ends with."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code


@dataclass(eq=False, slots=True)
class _Slot:
    """The place of one worker; ``lock`` is held while a worker is started for it."""

    number: int
    child: Child | None = None
    sockets: tuple[socket.socket, ...] = ()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    served: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        """Close the parent's side of the sockets; the system drops them once their worker has, too."""
        close(self.sockets)
        self.sockets = ()


class Supervisor:
    """Runs WORKERS processes with the command line's ``options``, which go to each through a pipe.

    Raises `SettingsError` if several cannot share the session store, or the address cannot be had.
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any], pace: Pace | None = None) -> None:
        if settings.store_scheme == "memory":
            raise SettingsError(
                f"WORKERS is {settings.workers}, but sessions that are kept in memory belong to one process: "
                "set SESSION_STORE_URL or DATA_DIR."
            )
        self._address = SharedAddress(settings.host, settings.port)
        self._options = {**options, "host": settings.host, "port": self._address.port}
        self._pace = pace or Pace()
        self._slots = [_Slot(number) for number in range(1, settings.workers + 1)]
        self._children: set[Child] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._rolling = asyncio.Event()
        self._announced = False

    async def run(self, announce: Callable[[int], None]) -> int:
        """Run until SIGTERM or SIGINT; returns the exit code. ``announce`` is told the port.

        SIGHUP goes to all workers, SIGUSR2 replaces them one after the other.
        """
        write_whole_lines()
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._rolling.set)
        working, stopped = asyncio.create_task(self._work(announce)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else 0
        finally:
            working.cancel()
            stopped.cancel()
            await asyncio.wait([working, stopped], timeout=self._pace.stop)
            await self._end()

    async def _work(self, announce: Callable[[int], None]) -> int:
        """Never returns, but when the server cannot start."""
        first, *others = self._slots
        exit_code = 1
        try:
            async with asyncio.TaskGroup() as group:
                # Alone: what all would say is said once.
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
        """Start a worker again each time that it is gone."""
        deaths, now = 0, asyncio.get_running_loop().time
        while True:
            began = now()
            exit_code = await self._serve(slot)
            deaths = deaths + 1 if now() - began < self._pace.early else 0
            if not self._announced:
                self._check_start(exit_code, deaths)
            pause = min(self._pace.pause * 2 ** (deaths - 1), self._pace.longest_pause) if deaths else 0.0
            log.warning("worker gone", worker=slot.number, exit_code=exit_code, again_in_s=pause)
            await asyncio.sleep(pause)

    async def _serve(self, slot: _Slot) -> int | None:
        """Have a worker in a slot, and those that replace it, until the last one takes no more connections.

        Returns its exit code; None if it could not be started, or if its turns are still ending.
        """
        try:
            async with slot.lock:
                slot.sockets = self._address.open()
                slot.child = child = await self._start(slot)
                if await child.becomes_ready(self._pace.start):
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
        """Wait until a slot has nobody who takes connections; gives the last one, who left unasked."""
        while True:
            await child.left()
            async with slot.lock:
                if slot.child is child:
                    slot.child = None
                    slot.close()
                    return child
                assert slot.child is not None
                child = slot.child  # which replaced the one that left

    def _check_start(self, exit_code: int | None, deaths: int) -> None:
        """Raise `_GaveUp` if there is no hope that the server starts."""
        if exit_code == MISTAKE:
            raise _GaveUp(MISTAKE)
        if deaths >= self._pace.tries:
            log.error("the workers end as soon as they are started", exit_code=exit_code)
            raise _GaveUp(1)

    async def _start(self, slot: _Slot) -> Child:
        child = await start_child(slot.number, self._options, slot.sockets)
        self._children.add(child)
        return child

    # -- rolling, reloading, ending

    async def _roll(self) -> None:
        """Replace all workers, one after the other, each time that it is asked for."""
        while True:
            await self._rolling.wait()
            self._rolling.clear()
            log.info("replacing the workers", workers=len(self._slots))
            for slot in self._slots:
                if not await self._replace(slot):
                    break  # the others would fare no better
            else:
                log.info("workers replaced", workers=len(self._slots))

    async def _replace(self, slot: _Slot) -> bool:
        """Start a worker beside the one that is there, then end that; False if the new one does not run."""
        async with slot.lock:
            old = slot.child
            if old is None:
                return True  # it is gone, and started anew in a moment
            try:
                new = await self._start(slot)
            except OSError as error:
                log.error("worker not replaced", worker=slot.number, why=error.strerror)
                return False
            if not await new.becomes_ready(self._pace.start):
                self._reap(new)
                log.error("worker not replaced", worker=slot.number, exit_code=await new.ended(1.0))
                return False
            slot.child = new
        self._ready(slot, new)
        old.send(signal.SIGTERM)
        await self._reaped(old)
        return True

    def _reload(self) -> None:
        for child in self._children:
            child.reload()

    def _reap(self, child: Child) -> None:
        """See a worker off that leaves, without waiting for it."""
        task = asyncio.create_task(self._reaped(child))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    async def _reaped(self, child: Child) -> None:
        if await child.ended(self._pace.stop) is None:
            log.error("worker killed, which did not end", pid=child.pid)
            child.send(signal.SIGKILL)
            await child.ended(self._pace.stop)
        self._children.discard(child)

    async def _end(self) -> None:
        """Give the address up, and let all workers end."""
        self._address.close()
        for slot in self._slots:
            slot.close()
        children = list(self._children)
        for child in children:
            child.send(signal.SIGTERM)
        await asyncio.gather(*(self._reaped(child) for child in children))
        for task in list(self._reaping):
            task.cancel()
