"""The process that nodes are forked from: it imports the server once, and starts it as often as it is told.

Each line of its standard input orders one: its ``port``, ``folder``, ``log``, ``settings``, what is broken in
it (``control``), and which process, ``before``, has to have ended by then. The answer is the child's process
id. When the input ends, it ends its children and itself. A child is a server as ``python -m conductor`` is
one, but for its start.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import signal
import sys
import traceback
from importlib import import_module
from typing import Any

from benchmarks.chaos_controls import CONTROLS
from conductor import cli
from conductor.events.envelope import IdGenerator

SERVER = (
    "conductor.app",
    "conductor.commands.lan",
    "conductor.models.anthropic",
    "conductor.models.anthropic_client",
    "conductor.stores.redis",
    "conductor.stores.redis_client",
    "conductor.stores.sqlite",
    "uvloop",
)
"""What a server imports in the course of its start."""


def main() -> None:
    """Fork servers."""
    for module in SERVER:
        import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sources = [one for one in gc.get_objects() if isinstance(one, IdGenerator)]
    gc.freeze()
    children: set[int] = set()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if order["before"] is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(order["before"], 0)
            children.discard(order["before"])
        child = os.fork()
        if child == 0:
            _serve(order, sources)
        children.add(child)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    for child in children:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _serve(order: dict[str, Any], sources: list[IdGenerator]) -> None:
    """Be a server until the end; never returns."""
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.chdir(order["folder"])
        os.environ.update(order["settings"])
        if order["control"] is not None:
            CONTROLS[order["control"]]()
        for ids in sources:  # two processes must never make the same id
            kind = ids._prefix.partition("_")[0]
            ids._prefix = f"{kind}_{secrets.token_hex(8)}"
        code = cli.main(["--port", str(order["port"])])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
