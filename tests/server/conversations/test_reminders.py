"""A reminder by voice: asked about, told when it is due, or at the start of the person's next session."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from conductor.app import make_services, running
from conductor.plugins.models.demo import DemoProvider
from conductor.settings import load_settings
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


async def test_a_reminder_that_another_process_set_is_listed(tmp_path: Path) -> None:
    settings = load_settings(
        None,
        port=0,
        auth_tokens=TOKEN,
        session_store_url=f"sqlite:///{tmp_path}/s.db",
        device_tools_file="none",
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with AsyncExitStack() as stack:
        phones = []
        for name in ("kitchen", "pocket"):
            provider = DemoProvider(0.0)
            process = await stack.enter_async_context(running(settings, make_services(settings, provider)))
            url = f"ws://127.0.0.1:{process.port}/ws"
            phones.append(await stack.enter_async_context(App(url, name, headers=headers)))
        kitchen, pocket = phones
        await kitchen.ask("list my reminders")
        assert kitchen.finals() == ["List scheduled tasks answered: reminders is none."]
        await schedule(pocket, "remind me in 600 minutes to call the bank")
        await kitchen.ask("list my reminders")
        assert "call the bank" in kitchen.finals()[-1]
