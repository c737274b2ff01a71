"""Nodes for chaos: forks of a process that has imported the server, for a fast start.

They may be broken on purpose (`CONTROLS`).

``python -m benchmarks.chaos_nodes`` is that process. Each line of its standard input orders a node: ``port``,
``folder``, ``log``, ``settings``, the broken part (``control``), and the process that must have ended first
(``before``). The answer is the child's process id. At the end of its input it ends its children and itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

from benchmarks.chaos_book import Column
from benchmarks.nodes import START_S, DidNotStart, Node, Running, clean_environment
from conductor import cli
from conductor.conversation import apply, interruptions, receive
from conductor.conversation.apply import advance
from conductor.conversation.heard import HEARD_NOTHING
from conductor.conversation.records import Commit, Record, SpeechCut
from conductor.conversation.turns import is_pending
from conductor.conversation.view import View
from conductor.events.envelope import IdGenerator, encode_frame
from conductor.plugins.stores import postgres, redis_scripts, sqlite
from conductor.session.commits import Commits
from conductor.session.outbox import Outbox
from conductor.session.transport import Frame

SCRIPTS = Path(__file__).resolve().parents[1]
SERVER = (
    "conductor.app",
    "conductor.commands.banner",
    "conductor.commands.serve",
    "conductor.plugins.models.anthropic_client",  # with the SDK, whose import takes a second
    "conductor.plugins.models.http",
    "conductor.plugins.stores.postgres",
    "conductor.plugins.stores.redis",
    "conductor.plugins.stores.sqlite",
    "uvloop",
)
"""The modules that a server imports at its start and for its first turn."""


class Parent:
    """The process that nodes are forked from; a context manager, of any event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**clean_environment(), "PYTHONPATH": os.pathsep.join(map(str, (SCRIPTS.parent, SCRIPTS)))},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=START_S)

    def fork(self, order: Mapping[str, Any]) -> int:
        """Start a node, and give its process id; blocks until the parent has imported the server."""
        assert self._process is not None
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class _Fork:
    """A child of the parent. The parent reaps it only at the next order, so that its id stays unique."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        status = Path(f"/proc/{self.pid}/stat")
        ended = not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
        return 0 if ended else None

    async def wait(self) -> int:
        while self.returncode is None:  # noqa: ASYNC110 -- another process: there is nothing to wait on
            await asyncio.sleep(0.02)
        return 0

    def send_signal(self, signal: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal)


class ChaosNode(Node):
    """A node that is a fork; ``control`` names its broken part."""

    def __init__(
        self, name: str, parent: Parent, folder: Path, settings: Mapping[str, str], control: str | None
    ) -> None:
        super().__init__(name, folder, settings=settings)
        self._parent = parent
        self._order = {"folder": str(folder), "settings": settings, "control": control}

    async def start(self) -> None:
        """Start it until it is ready; it ends at once while its store is away."""
        async with asyncio.timeout(START_S):
            while self.state != "up":
                await self.wait()
                with contextlib.suppress(DidNotStart):
                    await super().start()

    async def _launch(self) -> Running:
        before = self.pid if self._process is not None else None
        order = {**self._order, "port": self.port, "log": str(self.log), "before": before}
        return _Fork(await asyncio.to_thread(self._parent.fork, order))


# -- parts broken on purpose: a run must find each of them

_HEAD_START_S = 0.005
"""How long before its commit an event leaves; a slow disk would give it as much."""


def _patch(owner: object, name: str, value: object) -> None:
    """Replace a private part of the server."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this control breaks nothing any more")
    setattr(owner, name, value)


def emit_first() -> None:
    """Send events before the commit that records them."""
    record: Callable[..., Any] = Commits._record
    write: Callable[..., None] = Outbox._write
    early: set[str] = set()

    async def recorded(commits: Any, records: Sequence[Record]) -> None:
        key, transport = commits._claim.key, commits._outbox.transport
        commit = Commit(claim=commits._claim.token, at=commits._view.now(), records=tuple(records))
        events = advance(deepcopy(commits._view.state), commit)
        for event in events if transport is not None else ():
            if event.kind != "flash":
                early.add(event.id)
                data = encode_frame(event.id, event.type, key.session_id, event.payload)
                transport.send(Frame(data))
        if events:
            await asyncio.sleep(_HEAD_START_S)
        await record(commits, records)

    def write_unless_early(outbox: Any, entry: Any) -> None:
        entry.frame.withdrawn = was_early = entry.event.id in early
        write(outbox, entry)
        if was_early:
            early.discard(entry.event.id)
            entry.frame = replace(entry.frame, is_written=True, withdrawn=False)

    _patch(Commits, "_record", recorded)
    _patch(Outbox, "_write", write_unless_early)


def new_ids() -> None:
    """Replay events under another id."""
    attach: Callable[..., None] = Outbox.attach

    def renamed(self: Any, *arguments: Any, **options: Any) -> None:
        for entry in self._entries.values():
            entry.frame = _renamed(entry.frame, entry.event.id.encode())
        attach(self, *arguments, **options)

    _patch(Outbox, "attach", renamed)


def _renamed(frame: Frame, old: bytes) -> Frame:
    return replace(frame, data=frame.data.replace(old, f"evt_{secrets.token_hex(8)}".encode()))


def no_fence() -> None:
    """Accept the commits of an owner whose session was taken over."""
    owned = "token=?3 AND token<>'' AND revision=?5"
    _patch(sqlite, "_ADVANCE", _without(sqlite._ADVANCE, owned, "?3<>'' AND ?5>=0"))
    owned = "token=$3 AND token<>'' AND revision=$5"
    _patch(postgres, "_APPEND", _without(postgres._APPEND, owned, "$3::text<>'' AND $5::bigint>=0"))
    script = _without(redis_scripts.COMMIT, "found[1] == ARGV[1] and ARGV[1] ~= ''", "true")
    script = _without(script, "revision ~= ARGV[3] or", "")
    _patch(redis_scripts, "COMMIT", script)


def _without(text: str, check: str, instead: str) -> str:
    if check not in text:
        raise AttributeError(f"there is no such check as {check}: this control breaks nothing")
    return text.replace(check, instead)


def no_facts() -> None:
    """Forget the facts of the app when a turn begins."""
    _patch(apply, "_turn_facts", lambda state, position: None)


def old_pictures() -> None:
    """Show pictures to the model for good."""
    _patch(apply, "_age_images", lambda state: None)


def over_questions() -> None:
    """Take a murmur for no answer, though the assistant asks something."""
    _patch(interruptions, "question_stands", lambda view: False)


def cut_sent() -> None:
    """Withdraw speeches that were sent, too, when the next words come."""

    def withdrawn(view: View) -> list[Record]:
        speeches = view.state.speeches.values()
        return [SpeechCut(s.id, HEARD_NOTHING) for s in speeches if s.position >= 0 and is_pending(view, s)]

    _patch(receive, "withdrawn_speeches", withdrawn)


def cut_by_murmurs() -> None:
    """Take a murmur for an interruption."""
    _patch(receive, "backchannel", lambda *_: [])


CONTROLS: Mapping[str, Callable[[], None]] = {
    "emit-first": emit_first,
    "new-ids": new_ids,
    "no-fence": no_fence,
    "no-facts": no_facts,
    "old-pictures": old_pictures,
    "over-questions": over_questions,
    "cut-sent": cut_sent,
    "cut-by-murmurs": cut_by_murmurs,
}
"""Name -> what patches the classes of this process before it serves."""

SHOWN_BY: Mapping[str, Sequence[Column]] = {
    "emit-first": ("doubled", "lost"),
    "new-ids": ("shown twice",),
    # Two owners write one log: what either has recorded may be overwritten, or hold the other up.
    "no-fence": ("zombie", "history", "doubled", "shown twice", "lost", "unknown?", "stuck"),
    "no-facts": ("facts",),
    "old-pictures": ("pictures",),
    "over-questions": ("over a question",),
    "cut-sent": ("history",),
    "cut-by-murmurs": ("cut off",),
}
"""Control -> columns, of which one must have a finding."""


# -- the parent


def main() -> None:
    """Fork servers."""
    for module in SERVER:
        import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sources = [item for item in gc.get_objects() if isinstance(item, IdGenerator)]
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


def _serve(order: dict[str, Any], sources: list[IdGenerator]) -> NoReturn:
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
