"""A reminder by voice: asked about, told when it is due, or at the start of the person's next session."""

from __future__ import annotations

from conductor.plugins.models.demo import DemoProvider
from tests.app import App
from tests.serving import serving
from tests.shapes import Event

TOKEN = "a-token-of-one-person"


def words(event: Event) -> str:
    return str(event["payload"].get("text", "")) if event["type"] == "assistant.speech.final" else ""


async def schedule(phone: App, text: str) -> None:
    await phone.ask(text)
    prompt = phone.speeches()[-1]
    assert "reminder" in prompt and "call the bank" in prompt
    await phone.ask("yes please")
    assert phone.finals()[-1].startswith("Schedule task answered: ")


async def test_a_reminder_is_told_in_a_turn_of_its_own() -> None:
    async with serving(DemoProvider(0.0), tokens=(TOKEN,)) as served:
        async with served.phone(headers={"Authorization": f"Bearer {TOKEN}"}) as phone:
            await schedule(phone, "remind me in 0.3 seconds to call the bank")
            news = await phone.until(lambda event: "Here is some news" in words(event))
            assert words(news) == "Here is some news. You asked me to remind you: call the bank."
            await phone.ask("list my reminders")
            assert phone.finals()[-1] == "List scheduled tasks answered: reminders is none."


async def test_a_reminder_is_told_by_a_device_that_was_idle_before_it_was_set() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    # Without a timer of the kitchen's first turn, which would look, too.
    async with serving(DemoProvider(0.0), tokens=(TOKEN,), ui_timeout=600.0, speech_timeout=600.0) as served:
        async with served.phone("kitchen", headers=headers) as kitchen:
            await kitchen.ask("hello")
            async with served.phone("pocket", headers=headers) as pocket:
                await schedule(pocket, "remind me in 0.6 seconds to call the bank")
            news = await kitchen.until(lambda event: "Here is some news" in words(event))
            assert words(news) == "Here is some news. You asked me to remind you: call the bank."
