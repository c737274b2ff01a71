"""The server with a way to look inside: SIGUSR1 adds a line of JSON to the file that OBSERVE_FILE names."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import uvloop

from conductor.commands.process import serve
from conductor.logs import configure_logs
from conductor.server.listener import Listener
from conductor.settings import load_settings

WANTED = ("Session", "Turn", "Connection", "Socket", "Claim", "Outbox", "Frame")


def observe(file: Path) -> None:
    """Count the tasks, the objects of our classes, and all objects but for those of histories.

    A history is cut by several turns at once, so that the size of all histories swings.
    """
    gc.collect()
    objects = gc.get_objects()
    counts = Counter(
        kind.__qualname__
        for kind in map(type, objects)
        if str(getattr(kind, "__module__", "")).partition(".")[0] == "conductor"
    )
    answers = counts["AssistantMessage"]  # each with the tuple of its calls; other messages are not counted
    sample = {"tasks": len(asyncio.all_tasks()), "objects": len(objects) - 2 * answers, "answers": answers}
    sample.update({name: counts[name] for name in WANTED if counts[name]})
    with file.open("a") as lines:
        lines.write(json.dumps(sample) + "\n")


def announce(file: Path, listener: Listener) -> None:
    """Say where to connect, and answer the signal from now on."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, observe, file)
    print(f"ws://127.0.0.1:{listener.port}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve as `python -m conductor` does, on a free port."""
    settings = load_settings(None, port=0)
    configure_logs(settings.log_level, settings.log_format)
    uvloop.run(serve(settings, lambda: settings, partial(announce, Path(os.environ["OBSERVE_FILE"]))))


if __name__ == "__main__":
    main()
