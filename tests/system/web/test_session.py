"""The page in a browser: who answers, which tools there are, and connections that end for good."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.system.web.browser import PageUser, serving, visiting
from tests.system.web.test_inspect import FakeServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODELS = """
default = "home"
allowed = ["home", "cloud"]

[[profile]]
name = "home"
provider = "demo"
model = "demo"
prices = { input = 2.00, output = 10.00 }

[[profile]]
name = "cloud"
provider = "demo"
model = "demo"
"""


async def test_a_badge_names_the_demo_model_and_how_to_use_claude(user: PageUser) -> None:
    badge = user.page.locator("#who")
    await badge.get_by_text("demo model · use Claude").wait_for()
    await badge.click()
    assert await user.page.get_by_text("ANTHROPIC_API_KEY=your-key scripts/run").is_visible()
    await user.page.get_by_text("System prompt: voice").click()
    assert "How to speak" in await user.page.inner_text("#prompt-text")
    assert not await user.page.is_visible("#profile")
    await user.page.keyboard.press("Escape")
    assert not await user.page.is_visible("#prompt-text")
    await user.ask("say hello", "hello")
    await badge.get_by_text("tokens").wait_for()
    used = await badge.inner_text()
    await user.page.reload()
    await user.connected()
    assert await badge.inner_text() == used
    await user.page.click("#new-session")
    await user.connected()
    assert "tokens" not in await badge.inner_text()


async def test_instructions_are_added_to_the_prompt_and_stay_over_a_reload(user: PageUser) -> None:
    await user.page.locator("#who").click()
    await user.page.get_by_text("System prompt: voice").click()
    added = user.page.get_by_label("Add to it")
    await added.fill("ä" * 2_100)
    await user.page.get_by_role("button", name="Use", exact=True).click()
    await user.page.get_by_text("more than 4,096 bytes").wait_for()
    await added.fill("Talk like a pirate.")
    await user.page.get_by_role("button", name="Use", exact=True).click()
    await user.page.locator("#prompt-text", has_text="Talk like a pirate.").wait_for()
    assert await user.axe() == []
    await user.page.reload()
    await user.page.locator("#prompt-text", has_text="Talk like a pirate.").wait_for(state="attached")
    await user.page.locator("#who").click()
    await user.page.get_by_text("System prompt: voice").click()
    await added.fill("")
    await user.page.get_by_role("button", name="Use", exact=True).click()
    await user.page.locator("#prompt-text").filter(has_not_text="pirate").wait_for()


async def test_a_model_is_chosen_where_the_operator_allows_it(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(MODELS)
    async with serving(models=path) as address, visiting(browser) as user:
        await user.open(address)
        badge = user.page.locator("#who")
        await badge.get_by_text("home").wait_for()
        await user.ask("say hello", "hello")
        await badge.get_by_text("tokens, cost 0.").wait_for()
        await badge.click()
        await user.page.get_by_label("Model", exact=True).select_option("cloud")
        await badge.get_by_text("cloud").wait_for()
        await user.ask("what did I just say?", "You said: say hello")  # in the same session
        assert [start["model"] for start in (await user.outgoing("session.start"))[1:]] == ["cloud"]


async def test_all_tools_of_the_session_are_listed_with_their_decisions(user: PageUser) -> None:
    await user.tab("tools")
    tools = user.page.locator(".tool summary")
    await tools.filter(has_text="calculator").get_by_text("safe · runs at once").wait_for()
    lamp = "changes something · medium risk · a person is asked · offered to the model"
    await tools.filter(has_text="lamp.switch").get_by_text(lamp).wait_for()
    await user.say('call lamp.switch with {"room":"hall","on":true}')
    await user.page.get_by_role("button", name="For this session").click()
    await user.answer("The lamp in the hall is on.")
    await tools.filter(has_text="lamp.switch").get_by_text("runs at once").wait_for()


async def test_a_session_that_another_tab_has_taken_is_used_again_here(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        await user.open(address)
        await user.ask("say hello", "hello")
        session = await user.session()
        other = PageUser(await user.page.context.new_page())
        await other.page.add_init_script(f"sessionStorage['conductor.session'] = '\"{session}\"'")
        await other.open(address)
        await user.page.get_by_text("This session is open in another tab").wait_for()
        assert await user.page.locator("#composer").get_attribute("inert") is not None
        assert await user.axe() == []
        await other.ask("say goodbye", "goodbye")
        await user.page.keyboard.press("Enter")  # the focus is on "Use it here"
        await user.connected()
        await user.page.locator(".message.assistant", has_text="goodbye").wait_for()
        assert await user.page.locator(".message").all_inner_texts() == [
            *("say hello", "hello"),
            *("say goodbye", "goodbye"),
        ]
        assert await user.page.locator("#composer").get_attribute("inert") is None
        await other.page.get_by_text("This session is open in another tab").wait_for()
        await user.ask("what did I just say?", "You said: say goodbye")
        await other.page.locator("#ending").get_by_role("button", name="New session").click()
        await other.connected()
        assert await other.session() != session
        await user.ask("say bye", "bye")
        assert other.problems == []


async def test_a_refused_token_is_asked_for_again(browser: Any) -> None:
    async with serving("t") as address, visiting(browser) as user:
        server = FakeServer(refusal="unauthorized")
        await user.page.route_web_socket("**/ws", server.serve)
        await user.page.goto(f"{address}#token=t")
        await user.page.get_by_text("The server does not accept this tab's token").wait_for()
        await user.page.get_by_role("button", name="Enter a token").click()
        await user.page.locator("#token-dialog[open]").wait_for()
        user.problems.clear()  # the browser's line about the check of the token


async def test_a_token_that_is_removed_while_the_page_is_open_is_named(browser: Any) -> None:
    async with serving("t") as address, visiting(browser) as user:
        connections = itertools.count()

        async def serve(socket: Any) -> None:
            if next(connections):
                await socket.close()
            else:
                socket.connect_to_server()

        await user.page.route_web_socket("**/ws", serve)
        await user.open(f"{address}#token=t")
        await user.page.route("**/ws", lambda route: route.fulfill(status=401))
        await user.tab("faults")
        await user.page.click("#fault-cut")
        await user.page.get_by_text("The server does not accept this tab's token").wait_for()
        user.problems.clear()  # the browser's lines about the check of the token


async def test_a_turn_that_ends_in_silence_is_named(browser: Any, address: str) -> None:
    async with visiting(browser) as user:
        server = FakeServer()
        await user.page.route_web_socket("**/ws", server.serve)
        await user.page.clock.install()
        await user.open(address)
        await user.say("hello")
        await user.state("thinking")
        await user.page.clock.fast_forward(9_000)
        await user.page.get_by_text(re.compile(r"Thinking for \d+ s")).wait_for()
        server.call("convo.appendMessage", role="user", text="hello", isPartial=False)
        server.call("convo.setState", state="idle")
        await user.page.get_by_text("The turn ended without an answer.").wait_for()
        await user.state("idle")
