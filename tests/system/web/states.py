"""The page's sizes and states, of which ``scripts/screenshots --matrix`` takes pictures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.system.web.browser import MEDIA, PageUser

SIZES = [(1280, 800), (390, 844), (844, 390)]
SCHEMES = ("light", "dark")
SUM = "What is 17% of 2,340?"
LAMP = "Switch on the lamp in the hall"
NOTE = "Delete the note Milk"


class Line:
    """The page's way to the server, which a test cuts."""

    def __init__(self) -> None:
        self.is_up = True

    async def lead(self, socket: Any) -> None:
        """Connect a socket of the page, or refuse it."""
        if self.is_up:
            socket.connect_to_server()
        else:
            await socket.close()

    async def cut(self, user: PageUser) -> None:
        """Cut the socket, and refuse others."""
        self.is_up = False
        await user.page.locator("#fault-cut").evaluate("(button) => button.click()")


async def arrive(user: PageUser, address: str) -> Line:
    """Open the page with speech services that a test plays, and with a line that a test cuts."""
    line = Line()
    await user.page.add_init_script(MEDIA)
    await user.page.route_web_socket("**/ws", line.lead)
    await user.open(address)
    return line


async def allow(user: PageUser, text: str, answer: str) -> None:
    """Say something that a card asks about, allow it, and wait for the answer."""
    await user.say(text)
    await user.page.get_by_role("button", name="Allow once").click()
    await user.answer(answer)


async def idle(user: PageUser, line: Line) -> None:
    """Leave the page as it is first seen."""


async def speaking(user: PageUser, line: Line) -> None:
    """Let the voice read an answer, some of whose words are lit."""
    await user.page.locator("#microphone").evaluate("(button) => button.click()")
    await user.page.evaluate(f"recognitions[0].hear({SUM!r}, true)")
    await user.page.locator(".message.assistant:not(.partial)").wait_for()
    await user.state("speaking")


async def card(user: PageUser, line: Line) -> None:
    """Get a card about a call of high risk."""
    await user.ask(SUM, "397.8")
    await user.say(NOTE)
    await user.page.locator(".card").wait_for()


async def away(user: PageUser, line: Line) -> None:
    """Lose the server, and say something that waits for it."""
    await allow(user, LAMP, "is on")
    await line.cut(user)
    await user.page.locator("#away").wait_for()
    await user.say(SUM)
    await user.page.get_by_text("Will be sent", exact=True).wait_for()


async def five(user: PageUser, line: Line) -> None:
    """Talk for five turns."""
    await user.ask(SUM, "397.8")
    await allow(user, LAMP, "hall is on")
    await allow(user, NOTE, "Milk is deleted")
    await user.ask("What time is it in Tokyo?", "Tokyo")
    await allow(user, "Switch on the lamp in the kitchen", "kitchen is on")


STATES: dict[str, Callable[[PageUser, Line], Awaitable[None]]] = {
    "idle": idle,
    "speaking": speaking,
    "card": card,
    "away": away,
    "five": five,
}
