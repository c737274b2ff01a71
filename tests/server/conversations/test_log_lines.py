"""One log line a turn, with its content only if the operator wants it."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from conductor.app import make_services
from conductor.messages import ToolCall
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.models import Script, ScriptedProvider


async def lines_of_a_turn(log_content: bool) -> tuple[dict[str, Any], str]:
    """Hold a turn with a tool; returns its line, and everything that was logged."""
    scripts: list[Script] = [
        [ToolCall("", "agent.status", '{"id":"secret-id"}')],
        [TextDelta("The secret answer.")],
    ]
    services = make_services(
        load_settings(None, log_content=log_content, device_tools_file=IOS_CATALOG), ScriptedProvider(scripts)
    )
    listener = Listener(services, TokenAuthenticator(()))
    with capture_logs() as captured:
        await listener.start("127.0.0.1", 0)
        url = f"ws://127.0.0.1:{listener.port}/ws"
        async with App(url, tools={"agent.status": lambda a: "secret result"}) as phone:
            await phone.ask("the secret question")
        await listener.stop()
    (line,) = [entry for entry in captured if entry["event"] == "turn"]
    return dict(line), str(captured)


async def test_a_turn_is_one_line_with_its_trace_and_no_content() -> None:
    line, output = await lines_of_a_turn(log_content=False)
    assert line["trace"] == "transcript -> tool.call:agent.status -> final"
    assert (line["end"], line["rounds"], line["error"]) == ("answered", 1, None)
    assert "secret" not in output


async def test_content_is_logged_if_the_operator_wants_it() -> None:
    line, _ = await lines_of_a_turn(log_content=True)
    assert (line["transcript"], line["reply"]) == ("the secret question", "The secret answer.")
