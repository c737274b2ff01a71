"""What is said of a call: on each path a stand-in does the work of a call and dies at a step.

The words must fit. "Nothing was run" is said of no call that did its work, a success of no call that did not,
and where neither is known, it may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from conductor.errors import Conflict, StoreUnavailable
from conductor.events.client import ToolResultEvent
from conductor.messages import ToolCall
from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.tools.functions import PythonToolset, builtin_tool
from conductor.plugins.tools.http_tools import HttpToolConfig, HttpToolset
from conductor.plugins.tools.memory import remember
from conductor.plugins.tools.notes import note_writer
from conductor.plugins.tools.python_tools import python_tools
from conductor.plugins.tools.sandbox import Files, Roots
from conductor.plugins.tools.schedule import scheduler
from conductor.plugins.tools.tasks import add_task
from conductor.plugins.tools.write_file import file_creator, file_writer
from conductor.settings import Limits
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.outcomes import (
    NotStarted,
    ToolOutcome,
    cancelled_outcome,
    device_outcome,
    interrupted_outcome,
    succeeded,
    timeout_outcome,
    without_result,
)
from tests.stand_ins import odd_program
from tests.stand_ins.odd_mcp_server import DONE, JSON, OddAnswer, OddMcpServer
from tests.stand_ins.web_site import full_port
from tests.system.mcp.test_toolset import ROOT, at, use

# Seconds: of a call that hangs, and of any other one.
SHORT, LONG = 0.2, 30.0
Said: TypeAlias = tuple[ToolOutcome, bool]
"""What the model reads, and whether the work was done."""


def check(said: Said, step: str) -> None:
    outcome, did_it = said
    message = " ".join([outcome.error_message or "", *outcome.metadata.notes])
    ran = outcome.success
    is_open = "may have happened" in message or "It may have done its work" in message
    is_none = "Nothing was" in message or "nothing was written" in message
    assert [ran, is_open, is_none].count(True) <= 1, f"{step}: one thing is said: {outcome}"
    assert (ran or is_open) if did_it else not ran, f"{step}: a falsehood: {outcome}"
    assert (outcome.error_type == "unknown") == ("may have happened" in message), f"{step}: {outcome}"
    # What is proved is said, and not left open.
    if step.endswith("(proved)"):
        assert not is_open, f"{step}: it is known: {outcome}"


async def run(
    toolset: Toolset,
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    seconds: float = LONG,
    context: CallContext | None = None,
) -> ToolOutcome:
    executor = ToolExecutor([toolset], replace(Limits(), tool_timeout=seconds))
    ready = executor.restore(ToolCall("call_1", name, "{}"), arguments or {})
    assert isinstance(ready, PreparedCall)
    if seconds == SHORT:  # its own limit is longer
        ready = replace(ready, spec=replace(ready.spec, timeout_s=SHORT))
    async with asyncio.timeout(LONG):
        return await executor.run(ready, context or CallContext(session_id="s-1", call_id="call_1"))


# -- a toolset of a plugin


class Fake(Toolset):
    """Its tool does the work of a call and dies at a step."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.did_it = False

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name="pay", description="Pay.", input_schema={"type": "object"}, source="fake")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        if self.step == "waits in a queue (proved)":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise NotStarted("The queue is long.") from None
        self._die("before")
        self.did_it = True
        self._die("after")
        await asyncio.sleep(0)
        returned: Any = {"returns junk (proved)": {"paid": 5}, "returns nothing (proved)": None}
        return returned.get(self.step, succeeded("paid"))  # type: ignore[no-any-return]  # a mistake of the fake

    def _die(self, when: str) -> None:
        errors = {"raises": RuntimeError, "times out": TimeoutError, "loses its connection": ConnectionError}
        kind, _, moment = self.step.rpartition(" ")
        if moment == when and kind in errors:
            raise errors[kind]("secret")


async def plugin(step: str, folder: Path) -> Said:
    fake = Fake(step)
    return await run(fake, "pay", seconds=SHORT if "queue" in step else LONG), fake.did_it


PLUGIN = [
    *(
        f"{kind} {when}"
        for kind in ("raises", "times out", "loses its connection")
        for when in ("before", "after")
    ),
    "waits in a queue (proved)",
    "returns junk (proved)",
    "returns nothing (proved)",
    "answers (proved)",
]

# -- functions

CODE = """
import asyncio, threading, time
from conductor.tools import tool

DONE = []
GO = threading.Event()
ALL = threading.Barrier(33)
STEP = ""

def die(when):
    if STEP == f"raises {when}":
        raise RuntimeError("secret")
    if STEP == f"times out {when}":
        raise TimeoutError

def result():
    around = []
    around.append(around)
    return {"returns bytes (proved)": b"\\xff", "returns half a character (proved)": "\\ud83d",
            "returns itself (proved)": around, "returns an object (proved)": GO,
            "returns NaN (proved)": float("nan")}.get(STEP, "paid")

@tool()
def pay():
    "Pay."
    if STEP == "takes a thread":
        ALL.wait()
    if STEP in ("hangs before", "takes a thread"):
        GO.wait()
    die("before")
    DONE.append(1)
    die("after")
    if STEP == "hangs after":
        GO.wait()
    return result()

@tool()
async def pay_async():
    "Pay."
    if STEP == "hangs before":
        await asyncio.Event().wait()
    die("before")
    DONE.append(1)
    die("after")
    if STEP == "hangs after":
        await asyncio.Event().wait()
    return result()
"""


def functions(name: str) -> Callable[[str, Path], Awaitable[Said]]:
    async def path(step: str, folder: Path) -> Said:
        file = folder / "mine.py"
        file.write_text(CODE)
        tools = python_tools(file)
        own = tools[0].function.__globals__
        toolset = PythonToolset(tools)
        busy = None
        if step == "gets no thread (proved)":
            own["STEP"] = "takes a thread"
            calls = [asyncio.create_task(run(toolset, name)) for _ in range(32)]
            busy = asyncio.gather(*calls)
            await asyncio.to_thread(own["ALL"].wait)
        else:
            own["STEP"] = step
        try:
            said = await run(toolset, name, seconds=SHORT if "hangs" in step or busy else LONG)
            did_it = bool(own["DONE"])
        finally:
            own["GO"].set()
            if busy is not None:
                await busy
        return said, did_it

    return path


FUNCTION = [
    *(f"{kind} {when}" for kind in ("raises", "times out", "hangs") for when in ("before", "after")),
    *(f"returns {what} (proved)" for what in ("bytes", "half a character", "itself", "an object", "NaN")),
    "answers (proved)",
]

# -- HTTP

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
HTTP_ANSWERS = {
    # step: bytes of the answer, and whether the work was done
    "closes before reading": (b"", False),
    "closes after": (b"", True),
    "dies in the status line after": (b"HTTP/1.1 2", True),
    "dies in the headers after": (HEAD, True),
    "dies in the body after (proved)": (HEAD + b"Content-Length: 9\r\n\r\n{", True),
    "answers no JSON after (proved)": (HEAD + b"Content-Length: 2\r\n\r\nOK", True),
    "answers nothing after (proved)": (b"HTTP/1.1 204 No\r\n\r\n", True),
    "answers junk after": (b"\x00\x01\r\n\r\n", True),
    "redirects to nowhere after": (
        b"HTTP/1.1 303 See\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        True,
    ),
    **{
        f"answers {status} after": (b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status, True)
        for status in (408, 500, 502, 504, 520)
    },
    **{
        f"answers {status} before": (b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status, False)
        for status in (408, 500, 502, 504)
    },
    **{
        f"answers {status} before (proved)": (b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status, False)
        for status in (400, 401, 403, 404, 409, 429, 501, 503)
    },
    "hangs before": (b"", False),
    "hangs after": (b"", True),
}


class Raw:
    """An HTTP server that writes bytes and closes; it does its work once it has the whole request."""

    def __init__(self, answer: bytes, *, works: bool, hangs: bool) -> None:
        self.answer, self.works, self.hangs = answer, works, hangs
        self.did_it = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if self.works or self.answer or self.hangs:
                await reader.readuntil(b"\r\n\r\n")
                self.did_it = self.works
            if self.hangs:
                await reader.read()
            writer.write(self.answer)


def http_tool(url: str, seconds: float) -> HttpToolset:
    config = HttpToolConfig(
        name="pay", description="Pay.", method="POST", url=url, allow=["127.0.0.0/8"], timeout=seconds
    )
    return HttpToolset({"pay": config}, ())


async def http(step: str, folder: Path) -> Said:
    if step == "waits for a connection (proved)":
        with full_port() as port:
            return await run(http_tool(f"http://127.0.0.1:{port}/", SHORT), "pay"), False
    urls = {"no server (proved)": "http://127.0.0.1:1/", "no name (proved)": "http://nosuch.invalid/"}
    if step in urls:
        return await run(http_tool(urls[step], LONG), "pay"), False
    answer, works = HTTP_ANSWERS[step]
    raw = Raw(answer, works=works, hangs="hangs" in step)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        return await run(http_tool(url, SHORT if raw.hangs else LONG), "pay"), raw.did_it


HTTP = [*HTTP_ANSWERS, "waits for a connection (proved)", "no server (proved)", "no name (proved)"]

# -- MCP

EVENTS = {**JSON, "content-type": "text/event-stream"}
BROKEN = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": 7}}'
HALF = DONE.replace(b"done", b"\\ud83d")
MCP_ANSWERS = {
    # step: answer, and whether the work was done
    "answers (proved)": (OddAnswer(), True),
    "drops after": (OddAnswer(dropped=True), True),
    "is cut after": (OddAnswer(cut=True), True),
    "answers a broken result after (proved)": (OddAnswer(body=BROKEN), True),
    "answers half a character after (proved)": (OddAnswer(body=HALF), True),
    "loses the session, then drops after": (OddAnswer(dropped=True, forgets=True), True),
    "loses the session, then answers (proved)": (OddAnswer(forgets=True), True),
    "loses the session twice (proved)": (OddAnswer(404), False),
    "hangs": (OddAnswer(None), False),
    **{f"answers {status} after": (OddAnswer(status), True) for status in (202, 408, 500, 502, 504)},
    **{f"answers {status} before (proved)": (OddAnswer(status), False) for status in (400, 401, 429, 503)},
}


def as_events(answer: OddAnswer) -> OddAnswer:
    if answer.status != 200 or answer.dropped:
        return answer
    return replace(answer, body=b"data: " + answer.body + b"\n\n", headers=EVENTS)


def mcp_http(form: Callable[[OddAnswer], OddAnswer]) -> Callable[[str, Path], Awaitable[Said]]:
    async def path(step: str, folder: Path) -> Said:
        answer, did_it = MCP_ANSWERS.get(step, (OddAnswer(), False))
        server = OddMcpServer()
        async with contextlib.AsyncExitStack() as stack:
            running = await stack.enter_async_context(contextlib.AsyncExitStack())
            await running.enter_async_context(server.serving())
            config = at("s", server.url, revision="2025-11-25", timeout=LONG)
            host = await stack.enter_async_context(use(config, ready="s.write"))
            server.answer = form(answer)
            if step == "is gone (proved)":
                await running.aclose()
            seconds = SHORT if step == "hangs" else LONG
            return await run(host.toolset, "s.write", seconds=seconds), did_it

    return path


MCP_HTTP = [*MCP_ANSWERS, "is gone (proved)"]
# What a program answers at these steps tells how far it came.
PROVED = ("answers", "answers half a surrogate", "answers no result")


async def mcp_program(step: str, folder: Path) -> Said:
    step, file = step.removesuffix(" (proved)"), folder / "done"
    config = McpServerConfig(
        name="s",
        type="stdio",
        command=sys.executable,
        args=(odd_program.__file__, step, str(file)),
        cwd=str(ROOT),
        trust=True,
        revision="2025-11-25",
    )
    async with use(config, ready="s.write") as host:
        outcome = await run(host.toolset, "s.write", seconds=SHORT if "hangs" in step else LONG)
    return outcome, file.exists()


MCP_PROGRAM = [
    f"{step} (proved)" if step in PROVED else step for step in odd_program.STEPS if step != "refuses"
]

# -- files


class Disk:
    """Lets one function of the system fail, before or after it did its work, as on a network's disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        name, _, when = step.partition(" ")
        original = getattr(os, name, None)

        def failing(*args: Any, **options: Any) -> Any:
            if when == "after":
                original(*args, **options)  # type: ignore[misc]  # it is a function of os
            raise OSError(errno.EIO, "input/output error")

        if original is not None:
            monkeypatch.setattr(os, name, failing)


FILE = [
    "fsync before",
    "link before",
    "link after",
    "rename before",
    "rename after",
    "unlink before",
    "answers (proved)",
]


def files(make: Callable[[Files], Any], arguments: Mapping[str, str], *, exists: bool = False) -> Any:
    async def path(step: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
        root = folder / "root"
        root.mkdir()
        if exists:
            (root / "a.txt").write_text("old")
        toolset = PythonToolset([builtin_tool(make(Files(Roots([root]))))])
        (spec,) = toolset.specs()
        with monkeypatch.context() as patch:
            Disk(patch, step)
            outcome = await run(toolset, spec.name, arguments)
        texts = [file.read_text() for file in root.rglob("*") if file.suffix in (".txt", ".md")]
        return outcome, any("new" in text for text in texts)

    return path


# -- stored fields


class StoredField:
    """Fields of a session or a person whose store fails, before or after it has written."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.text: str | None = None

    def get(self, name: str) -> str | None:
        return self.text

    async def refresh(self) -> None:
        """Nothing else writes it."""

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        text = change(self.text)
        if self.step == "is away before":
            raise StoreUnavailable("away")
        if self.step == "was overtaken before (proved)":
            raise Conflict("moved")
        self.text = text
        if self.step == "is away after":
            raise StoreUnavailable("away")


def stored(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> Callable[[str, Path], Awaitable[Said]]:
    async def path(step: str, folder: Path) -> Said:
        field = StoredField(step)
        context = CallContext(session_id="s-1", call_id="call_1", fields=field, person=field)
        tool = builtin_tool(function)
        outcome = await run(PythonToolset([tool]), tool.spec.name, arguments, context=context)
        return outcome, field.text is not None

    return path


STORE = ["is away before", "is away after", "was overtaken before (proved)", "answers (proved)"]

# -- the device, by the facts that the server has of its call

DEVICE: dict[str, Callable[[], Said]] = {
    "was not connected (proved)": lambda: (timeout_outcome("write", 1.0, was_sent=False), False),
    "dies before": lambda: (timeout_outcome("write", 1.0), False),
    "dies after": lambda: (timeout_outcome("write", 1.0), True),
    "was not sent when the turn ended (proved)": lambda: (
        interrupted_outcome("write", was_sent=False, reason="interrupted"),
        False,
    ),
    "is interrupted after": lambda: (interrupted_outcome("write", was_sent=True, reason="interrupted"), True),
    "answers (proved)": lambda: (device_outcome(ToolResultEvent("call_1", "done"), 1.0), True),
    "answers what cannot be read (proved)": lambda: (
        without_result("ran", "it is not UTF-8", effect="write", reason="unreadable"),
        True,
    ),
    "was cancelled after (proved)": lambda: (cancelled_outcome("complete", "done", 1.0), True),
    "was cancelled before (proved)": lambda: (cancelled_outcome("none", None, 1.0), False),
}


async def device(step: str, folder: Path) -> Said:
    return DEVICE[step]()


NEW = {"path": "a.txt", "content": "new"}
PATHS: dict[str, tuple[Any, Sequence[str]]] = {
    "a plugin": (plugin, PLUGIN),
    "a function": (functions("pay"), [*FUNCTION, "gets no thread (proved)"]),
    "an async function": (functions("pay_async"), FUNCTION),
    "HTTP": (http, HTTP),
    "MCP over HTTP, JSON": (mcp_http(lambda answer: answer), MCP_HTTP),
    "MCP over HTTP, events": (mcp_http(as_events), MCP_HTTP),
    "MCP over a program": (mcp_program, MCP_PROGRAM),
    "create_file": (files(file_creator, NEW), FILE),
    "write_file": (files(file_writer, NEW, exists=True), FILE),
    "write_file, a new one": (files(file_writer, NEW), FILE),
    "notes_create": (files(note_writer, {"title": "Milk", "text": "new"}), FILE),
    "add_task": (stored(add_task, {"title": "milk"}), STORE),
    "schedule_task": (stored(scheduler(), {"text": "milk", "in_minutes": 5}), STORE),
    "remember": (stored(remember, {"text": "milk"}), STORE),
    "the device": (device, list(DEVICE)),
}
# A program that hangs is given two seconds to end.
SLOW = {("MCP over a program", step): pytest.mark.extended for step in ("hangs before", "hangs after")}
CASES = [
    pytest.param(path, step, marks=SLOW.get((path, step), ()))
    for path, (_, steps) in PATHS.items()
    for step in steps
]


@pytest.mark.parametrize(("path", "step"), CASES)
async def test_the_words_about_a_call_fit_at_each_step(
    path: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    does, steps = PATHS[path]
    more = (monkeypatch,) if steps is FILE else ()
    check(await does(step, tmp_path, *more), step)


def test_all_paths_are_played() -> None:
    assert len(PATHS) >= 12
