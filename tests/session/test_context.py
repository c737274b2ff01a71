"""Facts of the app in virtual time: they end by the clock, also in another process."""

from __future__ import annotations

from conductor.events import client
from conductor.models.base import TextDelta
from tests.session.helpers import Disk, Stage, die, later, make_services, open_session, open_stage


async def declare(stage: Stage, *, resumed: bool) -> None:
    """Start the session as an app that tells facts."""
    start = client.SessionStart(capabilities=["resume", "context"])
    await stage.session.clients.start(start, stage.app.line, resumed=resumed)


async def told(stage: Stage) -> str:
    """Ask something; gives the request's messages as a text."""
    await stage.ask(f"Well? {len(stage.app.log)}")
    return str(stage.provider.requests[-1].messages)


async def test_a_fact_ends_after_its_seconds_which_go_on_while_no_process_has_the_session() -> None:
    stage = await open_stage(make_services([[TextDelta("Well.")]] * 4, store=Disk()))
    await declare(stage, resumed=False)
    for fact in (
        {"text": "It rains.", "ttlS": 60},
        {"text": "Snow is near.", "ttlS": 600},
        {"text": "It is cold."},
    ):
        stage.app.send("context.add", fact)
    await stage.quiet()
    await later(50)
    assert "It rains." in await told(stage)
    die(stage.session, stage.app)
    await later(20)
    stage.session = await open_session(stage.services)
    await stage.app.connect(stage.session, resumed=True)
    await declare(stage, resumed=True)
    text = await told(stage)
    assert "It rains." not in text and "Snow is near." in text and "It is cold." in text
    await later(600)
    text = await told(stage)
    assert "Snow is near." not in text and "It is cold." in text
    assert len(stage.session.state.facts) == 1
