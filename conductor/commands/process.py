"""The process of a server: signals, garbage collection, and the end of its terminal or supervisor."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

import structlog

from conductor.app import make_services, running
from conductor.commands.reload import reload, watch_policies
from conductor.commands.workers import Terminal, Worker
from conductor.server.listener import Listener
from conductor.settings import Settings

log = structlog.get_logger(__name__)

# Thresholds of the three gc generations, in new objects and in collections of the generation below. Reference
# counts free most of a turn's objects, so the collector may run rarely.
GC_THRESHOLDS = (10_000, 20, 50)


def settle_memory() -> None:
    """Exempt all imported objects from garbage collection, and collect less often.

    A full collection blocks the event loop for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def serve(
    settings: Settings,
    read: Callable[[], Settings],
    announce: Callable[[Listener], None],
    worker: Worker | None = None,
    on_stop: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running turns end. Raises `SettingsError`.

    ``read`` reads the settings again. ``announce`` is called once it is ready. ``on_stop`` gets the number of
    running turns. A second signal kills the process, except a ``worker``: its supervisor kills it. A worker
    also ends when its supervisor has ended.
    """
    stop, terminal = asyncio.Event(), Terminal()
    loop = asyncio.get_running_loop()

    def interrupt(signum: signal.Signals) -> None:
        if stop.is_set() and worker is None:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        stop.set()

    def hang_up() -> None:
        nonlocal settings
        if terminal.is_closed():
            stop.set()
        else:
            settings = reload(settings, services, listener, read)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, interrupt, signum)
    if worker is not None:
        worker.watch(stop.set)
    services = make_services(settings)
    async with running(settings, services, settle_memory, worker.number if worker else None) as listener:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        watching = asyncio.create_task(watch_policies(settings, listener))
        waits = [asyncio.create_task(event.wait()) for event in (listener.ready, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if listener.ready.is_set():
            announce(listener)
        await stop.wait()
        for task in (watching, *waits):
            task.cancel()
        turns = sum(session.busy for session in listener.registry.sessions)
        log.info("stopping", sessions=len(listener.registry), connections=listener.connections, turns=turns)
        on_stop(turns)
    log.info("stopped")
