"""The wiring: from settings to a server that runs, and that ends whatever its parts do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from conductor.app import check_exposure, is_loopback, make_services, running, serve
from conductor.conversation.sentences import FAILURES
from conductor.errors import SettingsError
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta
from conductor.models.demo import DemoProvider
from conductor.models.scripted import ScriptedProvider
from conductor.server.listener import Listener
from conductor.settings import Settings, load_settings
from tests.end_to_end.phone import Phone
from tests.server.wires import WAIT


class Watched:
    """A provider whose start may fail or never end, and which says what was done to it."""

    name = "watched"

    def __init__(self, fails: bool = False, hangs: bool = False) -> None:
        self.fails, self.hangs = fails, hangs
        self.started = asyncio.Event()
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("Hi.")
        yield Finished("end_turn")

    async def start(self) -> None:
        self.started.set()
        if self.fails:
            raise RuntimeError("no such library")
        if self.hangs:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


def settings(**values: object) -> Settings:
    return load_settings(None, port=0, model_provider="demo", **values)


# -- what is put together


def test_the_services_are_what_the_settings_say(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("You are a parrot.")
    services = make_services(
        settings(system_prompt_file=prompt, interruption_mode="queue", max_turns=7, speak_errors=False)
    )
    assert services.system_prompt == "You are a parrot."
    assert services.interruption_mode == "queue"
    assert services.limits.max_turns == 7
    assert services.failures == {}
    assert isinstance(services.provider, DemoProvider)


def test_by_default_failures_are_spoken_and_the_device_has_tools() -> None:
    services = make_services(settings())
    assert services.failures is FAILURES
    assert services.catalog and services.system_prompt
    assert {"get_current_time", "calculator"} <= {
        spec.name for toolset in services.toolsets for spec in toolset.specs()
    }


def test_a_provider_may_stand_in_for_the_settings_one() -> None:
    provider = ScriptedProvider([])
    assert make_services(load_settings(None, model_provider="no such"), provider).provider is provider


@pytest.mark.parametrize("name", ["system_prompt_file", "device_tools_file"])
def test_a_file_that_is_not_there_is_a_mistake_of_the_user(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        make_services(settings(**{name: tmp_path / "none"}))
    assert "\n" not in str(caught.value)


# -- who may reach it


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.7", False),
        ("example.org", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_strangers_are_let_in_only_with_tokens_or_on_purpose(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    check_exposure(settings(host=host, auth_tokens="a-token"), insecure=False)
    check_exposure(settings(host=host), insecure=True)
    if loopback:
        check_exposure(settings(host=host), insecure=False)
    else:
        with pytest.raises(SettingsError, match=f"Listening on {host} lets anybody .* AUTH_TOKENS"):
            check_exposure(settings(host=host), insecure=False)


# -- a server that runs


async def test_a_running_server_answers_and_ends_with_its_block() -> None:
    provider = Watched()
    async with running(settings(), make_services(settings(), provider)) as listener:
        async with Phone(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
        port = listener.port
        await asyncio.wait_for(provider.started.wait(), WAIT)
    assert provider.closed
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free again


async def test_the_tokens_of_the_settings_are_asked_for() -> None:
    values = settings(auth_tokens="one,two")
    async with running(values, make_services(values, Watched())) as listener:
        async with Phone(f"ws://127.0.0.1:{listener.port}/ws?token=two") as phone:
            assert phone.shape() == ["session.started"]
        with pytest.raises(Exception, match="401"):
            await Phone(f"ws://127.0.0.1:{listener.port}/ws?token=three").open()


async def test_a_provider_that_cannot_start_is_logged_and_the_server_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    provider = Watched(fails=True)
    async with running(settings(), make_services(settings(), provider)) as listener:
        async with Phone(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
    assert provider.closed and unhandled == []
    assert "model provider not ready" in capsys.readouterr().out


async def test_a_provider_that_never_gets_ready_does_not_hold_the_end() -> None:
    provider = Watched(hangs=True)
    async with asyncio.timeout(WAIT):
        async with running(settings(), make_services(settings(), provider)):
            await provider.started.wait()
    assert provider.closed


async def test_a_port_that_is_taken_is_told_before_anything_is_started() -> None:
    provider = Watched()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = settings().model_copy(update={"port": taken.getsockname()[1]})
        with pytest.raises(SettingsError, match="Cannot listen"):
            async with running(values, make_services(values, provider)):
                raise AssertionError("it listens")
    assert not provider.started.is_set()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(signum: signal.Signals) -> None:
    announced: asyncio.Queue[Listener] = asyncio.Queue()
    serving = asyncio.create_task(serve(settings(), announced.put_nowait))
    try:
        listener = await asyncio.wait_for(announced.get(), WAIT)
        async with Phone(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            os.kill(os.getpid(), signum)
            await asyncio.wait_for(serving, WAIT)
            await asyncio.wait_for(phone.closed.wait(), WAIT)
            assert phone.close_code == 1012
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)


async def test_limits_of_the_services_hold() -> None:
    values = settings()
    services = make_services(values, Watched())
    services = replace(services, limits=replace(services.limits, ping_interval=0.01))
    async with running(values, services) as listener:
        async with Phone(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            await phone.until(lambda e: e["type"] == "session.ping")
