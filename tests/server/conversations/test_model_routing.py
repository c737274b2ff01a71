"""Models that stand in for each other, over real connections: killed before and in the middle of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conductor.app import running
from conductor.settings import load_settings
from tests.app import App
from tests.models import AnthropicService, Break, HttpFailure, Reply
from tests.shapes import PLAIN_TURN

SILENT_MS = 1_000
NEVER_MS = 600_000
"""No test waits for so long: a model that is not silent is not waited for."""
MODELS = """
default = "home"
allowed = ["home", "cloud"]
health_check_s = 0

[[profile]]
name = "home"
provider = "anthropic"
base_url = "{home}"
model = "small"
api_key_env = "TEST_KEY"
fallback = ["cloud"]

[[profile]]
name = "cloud"
provider = "anthropic"
base_url = "{cloud}"
model = "large"
api_key_env = "TEST_KEY"
prices = {{ input = 1, output = 5 }}
"""


@asynccontextmanager
async def started(default: str) -> AsyncIterator[AnthropicService]:
    async with AnthropicService(default=Reply(text=default)) as service:
        yield service


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_KEY", "test-key")
    return tmp_path / "models.toml"


def write(models: Path, home: AnthropicService, cloud: AnthropicService) -> None:
    models.write_text(MODELS.format(home=home.base_url, cloud=cloud.base_url))


@asynccontextmanager
async def phone_of(
    models: Path,
    home: AnthropicService,
    cloud: AnthropicService,
    silence_ms: int = NEVER_MS,
    **start: object,
) -> AsyncIterator[App]:
    """Run a server with both models; give a phone."""
    write(models, home, cloud)
    settings = load_settings(
        None,
        config_dir=models.parent,
        port=0,
        turn_timeout_ms=NEVER_MS,
        model_timeout_ms=silence_ms,
        local_only=True,
    )
    async with running(settings) as listener:
        async with App(f"ws://127.0.0.1:{listener.port}/ws", "s-1", start_fields=start) as phone:
            yield phone


def started_event(phone: App) -> dict[str, object]:
    payload: dict[str, object] = phone.log[0]["payload"]
    return payload


async def test_a_server_that_is_killed_in_the_middle_of_a_turn_is_replaced(models: Path) -> None:
    hold = asyncio.Event()
    async with started("The cloud replies.") as cloud, started("home") as home:
        async with phone_of(models, home, cloud) as phone:
            home.default = Reply(text="I am at home and I ", hold=hold, hold_at=3)
            phone.say("hello?")
            await phone.until("assistant.speech.partial")
            await home.__aexit__(None, None, None)
            hold.set()
            await phone.until("assistant.speech.final")
            assert phone.finals() == ["The cloud replies."] and not phone.errors()


HOLD = asyncio.Event()
WORDS = "I am at home and I say"


@pytest.mark.parametrize(
    ("failure", "silence_ms"),
    [
        (HttpFailure(500), NEVER_MS),
        (HttpFailure(401, "authentication_error"), NEVER_MS),
        (Reply(text=WORDS, hold=HOLD), SILENT_MS),
        (Reply(text=WORDS, broken=Break("cut", 3)), NEVER_MS),
        (Reply(text=WORDS, broken=Break("stall", 3)), SILENT_MS),
        (Reply(text=WORDS, broken=Break("garbage", 3)), NEVER_MS),
        (Reply(text=WORDS, broken=Break("garbage")), NEVER_MS),
    ],
    ids=["500", "401", "hang", "cut after words", "stall after words", "garbage after words", "garbage"],
)
async def test_the_second_model_answers_however_the_first_one_breaks(
    models: Path, failure: Reply | HttpFailure, silence_ms: int
) -> None:
    async with started("The cloud replies.") as cloud, started("home") as home:
        async with phone_of(models, home, cloud, silence_ms) as phone:
            home.default = failure
            await phone.ask("hello?")
            assert phone.finals() == ["The cloud replies."] and not phone.errors()
            assert (home.received, cloud.received) == (1, 1)
            # One that was silent is not waited for again.
            home.default = Reply(text="home")
            await phone.ask("hello again")
            last = home.received == 1
            assert last is (silence_ms == SILENT_MS)


async def test_a_model_that_names_a_long_rest_is_replaced_at_once_and_left_alone(models: Path) -> None:
    async with started("The cloud replies.") as cloud, started("home") as home:
        async with phone_of(models, home, cloud) as phone:
            home.replies.append(HttpFailure(429, "rate_limit_error", headers={"retry-after": "40"}))
            await phone.ask("hello?")
            await phone.ask("hello again")
            assert phone.finals() == ["The cloud replies."] * 2 and home.received == 1
            cloud.default = HttpFailure(529, "overloaded_error", headers={"retry-after": "60"})
            await phone.ask("and now?")
            await phone.ask("and now?")
            assert all("Please try again in about" in words for words in phone.finals()[2:])
            assert (home.received, cloud.received) == (1, 3)


async def test_a_client_chooses_its_model(models: Path) -> None:
    async with started("cloud") as cloud, started("home") as home:
        async with phone_of(models, home, cloud, model="cloud") as phone:
            assert started_event(phone)["model"] == "cloud"
            await phone.ask("hello?")
            assert phone.finals() == ["cloud"] and phone.shapes(1) == PLAIN_TURN
            mark = len(phone.log)
            phone.send("session.start", {})
            phone.say("hello again")
            await phone.until("assistant.speech.final", since=mark)
            assert phone.finals() == ["cloud", "cloud"] and home.received == 0


async def test_a_client_that_chooses_another_is_told(models: Path) -> None:
    async with started("cloud") as cloud, started("home") as home:
        async with phone_of(models, home, cloud, model="secret", capabilities=["diagnostics"]) as phone:
            await phone.ask("hello?")
            (diagnostic,) = [event["payload"] for event in phone.log if event["type"] == "diagnostic"]
            assert diagnostic["code"] == "unknown_model" and "'secret' is no model" in diagnostic["message"]
            assert started_event(phone)["model"] == "home" and phone.finals() == ["home"]
