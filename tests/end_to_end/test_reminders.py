"""A reminder by voice: asked about, told when it is due, or at the start of the person's next session."""

from __future__ import annotations

from conductor.plugins.models.demo import DemoProvider
from tests.app import App
from tests.end_to_end.conftest import serving
from tests.shapes import Event

TOKEN = "a-token-of-one-person"


def words(event: Event) -> str:
    return str(event["payload"].get("text", "")) if event["type"] == "assistant.speech.final" else ""


async def schedule(phone: App, text: str) -> None:
    await phone.ask(text)
    prompt = phone.speeches()[-1]
    assert "reminder" in prompt and "call the bank" in prompt
    await phone.ask("yes please")
    assert phone.finals()[-1].startswith("I will remind you on")


async def test_a_reminder_is_told_in_a_turn_of_its_own() -> None:
    async with serving(DemoProvider(0.0), tokens=(TOKEN,)) as served:
        async with served.phone(headers={"Authorization": f"Bearer {TOKEN}"}) as phone:
            await schedule(phone, "remind me in 0.3 seconds to call the bank")
            news = await phone.until(lambda event: "Here is some news" in words(event))
            assert words(news) == "Here is some news. You asked me to remind you: call the bank."
            await phone.ask("list my reminders")
            assert phone.finals()[-1] == "There are no reminders."


async def test_a_reminder_of_who_was_away_is_told_in_the_next_session() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(DemoProvider(0.0), tokens=(TOKEN, "another-persons-token")) as served:
        async with served.phone("s-1", headers=headers) as phone:
            await schedule(phone, "remind me in 0.5 seconds to call the bank")
        await served.empty()
        stranger = {"Authorization": "Bearer another-persons-token"}
        async with (
            served.phone("s-2", headers=headers) as phone,
            served.phone("s-2", headers=stranger) as other,
        ):
            await phone.until(lambda event: "call the bank" in words(event))
            await other.ask("list my reminders")
            assert other.finals() == ["There are no reminders."]


async def test_without_tokens_a_reminder_stays_in_its_session() -> None:
    async with serving(DemoProvider(0.0)) as served, served.phone("s-1") as phone:
        await schedule(phone, "remind me in 1 hour to call the bank")
        await phone.ask("list my reminders")
        assert phone.finals()[-1] == "There is 1 reminder: call the bank."
        async with served.phone("s-2") as stranger:
            await stranger.ask("list my reminders")
            assert stranger.finals() == ["There are no reminders."]
