"""Inputs that once held the event loop for seconds do so no longer: a session plays them in virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import pytest

from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.conversation.state import Conversation
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.messages import ToolCall
from conductor.models.base import ModelRequest, TextDelta
from conductor.rate_limit import Admission
from conductor.settings import Limits
from conductor.stores.base import SessionKey
from conductor.stores.memory import MemoryStore
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, succeeded
from conductor.tools.declarations import read_declarations
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule, parse_rule
from tests.app import App
from tests.conversation.helpers import VirtualLoop
from tests.cpu import RUNS
from tests.links import Pipe
from tests.models import Script, ScriptedProvider
from tests.shapes import Call, Event

BOUND_S = 0.25
"""Five times the CPU time that one callback may take: machines differ."""
PATIENCE = 400
"""Seconds of virtual time that a session has to come to rest."""
LIMITS = replace(Limits(), turns_per_minute=1e9, calls_per_minute=1e9)
SECRETS = ("a-key-of-a-service-00001", "a-token-of-a-service-00002")
APP_TASKS = ("App._work", "deliver_to_app")


@dataclass(frozen=True)
class Scene:
    """A turn that calls a tool.

    ``tool``: fields of its declaration. ``outcome``: the device's answer. ``local.get`` gives ``data`` after
    it has held the loop for ``busy_s``. ``edits`` are decisions on the first card.
    """

    tool: Mapping[str, Any] = field(default_factory=dict)
    arguments: Any = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=lambda: {"result": "ok"})
    data: Any = None
    busy_s: float = 0.0
    edits: Sequence[Any] = ()
    rules: Sequence[Rule] = ()


# -- a session and its app


@dataclass
class Longest:
    """The callback with the most CPU time."""

    seconds: float = 0.0
    name: str = ""


@contextmanager
def watched() -> Iterator[Longest]:
    """Time every callback of the event loop, except those of the app."""
    longest, run = Longest(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        start = time.thread_time()
        run(handle)
        seconds = time.thread_time() - start
        if seconds > longest.seconds and (name := name_of(handle)) not in APP_TASKS:
            longest.seconds, longest.name = seconds, name

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment] # asyncio has no hook for it
    try:
        yield longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign] # as it was


def name_of(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback")  # noqa: B009 -- no public attribute leads to it
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", "a task")).rpartition("<locals>.")[2]
    return str(getattr(callback, "__qualname__", repr(callback)))


class LocalTool:
    """The tool ``local.get`` of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def specs(self) -> Sequence[ToolSpec]:
        schema = {"type": "object"}
        return (ToolSpec("local.get", "Gets it.", schema, source="builtin", risk="safe", effect="read"),)

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        start = time.thread_time()
        while time.thread_time() - start < self.scene.busy_s:
            pass
        return succeeded(self.scene.data)


class Connection(Pipe):
    """Reads the declarations of ``session.start`` as the server's connection does."""

    async def deliver(self, inbound: Inbound) -> None:
        if isinstance(inbound.event, client.SessionStart):
            readings = await read_declarations(inbound.event.tools or (), Admission())
            await self.session.clients.start(inbound.event, self, resumed=False, readings=readings)
        else:
            await super().deliver(inbound)


class SceneApp(App):
    """Answers the calls and cards of a scene."""

    def __init__(self, scene: Scene) -> None:
        capabilities = ["tools", "approval"] if scene.edits else ["tools"]
        tool = {"name": "device.do", "description": "Does it.", **scene.tool}
        start = {"capabilities": capabilities, "tools": [tool]}
        super().__init__(answer=self.answer_call, start_fields=start, wait_s=PATIENCE)
        self.scene = scene

    def answer_call(self, call: Call) -> str | None:
        if call.is_interface:
            return "{}"
        self.send("tool.result", {"callId": call.call_id, **self.scene.outcome})
        return None

    async def handle(self, event: Event) -> None:
        if event["type"] == "approval.request":
            card = {name: event["payload"][name] for name in ("approvalId", "argumentsDigest")}
            edits = [{**card, "decision": "edit", "editedArguments": edit} for edit in self.scene.edits]
            self.send("approval.response", {"decisions": edits})
            self.decide_card(event, "deny")
        await super().handle(event)


async def play_turn(scene: Scene) -> None:
    calls = [ToolCall("m", "device.do", json.dumps(scene.arguments)), ToolCall("m", "local.get", "{}")]
    replies = iter([calls])

    def reply(_: ModelRequest) -> Script:
        return next(replies, [TextDelta("Done.")])

    services = Services(
        MemoryStore(),
        ScriptedProvider(reply),
        (LocalTool(scene),),
        (),
        "Be brief.",
        LIMITS,
        rules=scene.rules,
        redactor=Redactor(SECRETS, paths=True),
    )
    claim = await services.store.claim(SessionKey("ann", "s-1"))
    session = Session(services, services.store, claim, Conversation())
    frames: asyncio.Queue[bytes] = asyncio.Queue()
    app = SceneApp(scene)
    app.attach(Connection(frames.put_nowait, session))

    async def deliver_to_app() -> None:
        while True:
            app.receive(await frames.get())

    delivering = asyncio.create_task(deliver_to_app())
    app.start()
    app.say("Go.")
    await app.idle()
    await session.close()
    await app.close()
    delivering.cancel()


def play(scene: Scene) -> Longest:
    """Play a scene; gives the longest callback."""
    gc.collect()
    with watched() as longest, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play_turn(scene))
    return longest


# -- the inputs

READ = {"annotations": {"readOnlyHint": True}}
ANY = {"inputSchema": {"type": "object"}, **READ}
NAMES = [f"{'n' * 59}{number:05}" for number in range(900)]
OF_900 = {"type": "object", "properties": dict.fromkeys(NAMES, {}), "additionalProperties": False}
ANY_OF_900 = {"type": "object", "$defs": {"d": OF_900}, "anyOf": [{"$ref": "#/$defs/d"}] * 8}
MISSPELT = {f"{'n' * 58}{number:05}": 1 for number in range(20)}
COUNTED = {
    "type": "object",
    "properties": dict.fromkeys("abc", {"type": "string", "pattern": "(?:ab){15000}c"}),
}


def under_etc(path: str) -> Scene:
    """Make a call whose path is compared with a folder's."""
    rule = {"tool": "device.*", "args": {"path": {"under": "/etc"}}}
    rules = [parse_rule({**rule, "effect": effect}) for effect in ("deny", "ask")]
    return Scene(ANY, {"path": path}, rules=rules)


def result(text: str) -> Scene:
    """Make a call whose result is redacted."""
    return Scene(ANY, outcome={"result": text}, data=text)


SCENES = {
    "misspelt arguments among 900 names": Scene({"inputSchema": OF_900, **READ}, MISSPELT),
    "misspelt arguments under an anyOf": Scene({"inputSchema": ANY_OF_900, **READ}, MISSPELT),
    "thirty edits": Scene({"inputSchema": OF_900}, edits=[MISSPELT] * 30),
    "counted repeats": Scene({"inputSchema": COUNTED, **READ}, dict.fromkeys("abc", "ab" * 10_600)),
    "jwt=:": result("jwt=:" * 13_107),
    "secret==": result("secret==" * 8_192),
    "password=//x": result("password=//x" * 5_461),
    "pwd=/a": result("pwd=/a" * 10_900),
    "auth=aaa:aa": result("auth=aaa:aa" * 5_900),
    "cookie:aaaaaa": result("cookie:aaaaaa" * 5_000),
    "marks of class 0": under_etc("\u0f73" * 20_000),
    "combining marks": under_etc("/etc/" + "\u0323\u0301" * 15_500),
}


@pytest.mark.parametrize("name", SCENES)
def test_an_input_that_once_held_the_loop_for_seconds_does_not_hold_it(name: str) -> None:
    play(under_etc("/etc/hosts"))  # imports the modules of a turn
    runs = (play(SCENES[name]) for _ in range(RUNS))
    slow = list(takewhile(lambda longest: longest.seconds >= BOUND_S, runs))
    assert len(slow) < RUNS, slow


def test_a_session_that_holds_the_loop_is_noticed() -> None:
    longest = play(Scene(ANY, busy_s=2 * BOUND_S))
    assert longest.seconds > BOUND_S and longest.name not in APP_TASKS
