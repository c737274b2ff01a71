"""The words that the recogniser is to listen for, as a session sends them."""

from __future__ import annotations

from dataclasses import replace

from conductor.events import client
from conductor.messages import ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.tools.base import ToolSpec
from tests.models import Script
from tests.session.helpers import SPOKEN, App, Stage, call, later, make_services, open_session

LAMP = ToolSpec(
    name="lamp.switch",
    description="Switches a lamp.",
    title="Switch a lamp",
    risk="medium",
    approval="ask",
    input_schema={"type": "object", "properties": {"room": {"enum": ["kitchen", "hall"]}}},
)
OF_LAMP = ["Switch a lamp", "kitchen", "hall"]


def switch(request: ModelRequest) -> Script:
    if isinstance(request.messages[-1], ToolResult):
        return [TextDelta("Done.")]
    return [call("lamp.switch", '{"room":"hall"}')]


async def stage_of(*capabilities: str) -> Stage:
    services = replace(make_services(switch), catalog=[LAMP])
    app = App(lambda name, call_id: '{"lamp":"Aunt Polly"}' if name == "lamp.switch" else SPOKEN)
    stage = Stage(await open_session(services), app, services)
    await start(stage, *capabilities)
    return stage


async def start(stage: Stage, *capabilities: str, resumed: bool = False) -> None:
    line = stage.app.open_line(stage.session)
    event = client.SessionStart(capabilities=list(capabilities))
    await stage.session.clients.start(event, line, resumed=resumed)
    await later(0.1)


def hinted(app: App) -> list[list[str]]:
    return [event["payload"]["phrases"] for event in app.events("stt.hints")]


async def test_a_session_names_the_words_of_its_tools_of_a_question_and_of_a_result() -> None:
    stage = await stage_of("hints")
    assert hinted(stage.app) == [OF_LAMP]
    stage.app.say("Light the hall")
    await later(1)
    assert hinted(stage.app)[1:] == [["yes", "no", "hall", "Switch a lamp", "kitchen"]]
    stage.app.say("yes")
    await stage.quiet()
    assert hinted(stage.app)[2:] == [OF_LAMP, ["Aunt Polly", *OF_LAMP]]


async def test_the_same_words_are_sent_once_to_a_connection() -> None:
    stage = await stage_of("hints")
    for _ in range(3):
        stage.app.say("Hello")
        await later(1)
        stage.app.say("no")
        await stage.quiet()
    sent = hinted(stage.app)
    assert all(before != after for before, after in zip(sent, sent[1:], strict=False))
    await start(stage, "hints", resumed=True)
    assert hinted(stage.app)[len(sent) :] == [OF_LAMP]


async def test_an_app_without_the_capability_gets_no_words() -> None:
    stage = await stage_of("turns")
    stage.app.say("Light the hall")
    await later(1)
    stage.app.say("yes")
    await stage.quiet()
    assert hinted(stage.app) == []
