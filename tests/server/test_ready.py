"""Ready means warm: what the first turn needs is loaded before ``/readyz`` and the log say so."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog

from conductor.app import make_services, running
from conductor.plugins.judges import LANGUAGES
from conductor.plugins.judges.page import load_page
from conductor.server.listener import Listener
from conductor.settings import Settings, load_settings
from tests.app import App
from tests.conftest import ROOT
from tests.models import ScriptedProvider
from tests.server.nodes import Shelf, calm, node
from tests.server.test_cli import START, process, server
from tests.server.wires import WAIT, get, http, until
from tests.services.ports import free_port

FIRST_TURN = """
import asyncio, sys
from conductor.app import make_services, running
from conductor.logs import configure_logs
from conductor.settings import load_settings
from tests.app import App
from tests.models import AnthropicService, Reply

async def main():
    configure_logs("error", "json")
    async with AnthropicService(api_keys=None) as service:
        service.play(Reply("Hello."))
        settings = load_settings(
            None,
            port=0,
            model_provider="anthropic",
            anthropic_api_key="k",
            anthropic_base_url=service.base_url,
        )
        async with running(settings, make_services(settings)) as listener:
            await listener.ready.wait()
            before = set(sys.modules)
            async with App(f"ws://127.0.0.1:{listener.port}/ws") as app:
                await app.ask("Hello.")
                assert app.finals() == ["Hello."]
            packages = {name.partition(".")[0] for name in set(sys.modules) - before}
            print(sorted(packages - {"encodings"}))

asyncio.run(main())
"""


class Slow(ScriptedProvider):
    """A model that is loaded once ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__([])
        self.gate = asyncio.Event()

    async def start(self) -> None:
        await self.gate.wait()


def settings() -> Settings:
    return load_settings(None, port=0)


async def status(listener: Listener, path: str) -> int:
    return (await http(listener.port, get(path)))[0]


async def test_a_server_is_ready_once_its_model_is_loaded() -> None:
    provider = Slow()
    async with running(settings(), make_services(settings(), provider)) as listener:
        assert [await status(listener, path) for path in ("/healthz", "/readyz")] == [200, 503]
        provider.gate.set()
        await asyncio.wait_for(listener.ready.wait(), WAIT)
        assert await status(listener, "/readyz") == 200


async def test_a_model_that_does_not_load_in_time_delays_only_the_first_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conductor.app.WARM_UP_S", 0.01)
    async with running(settings(), make_services(settings(), Slow())) as listener:
        await asyncio.wait_for(listener.ready.wait(), WAIT)
        assert await status(listener, "/readyz") == 200


async def test_the_words_of_spoken_questions_are_read_before_a_server_is_ready() -> None:
    load_page.cache_clear()
    async with running(settings(), make_services(settings(), ScriptedProvider([]))) as listener:
        await asyncio.wait_for(listener.ready.wait(), WAIT)
        assert load_page.cache_info().currsize == len(LANGUAGES)


def test_the_first_turn_with_claude_imports_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_TURN], cwd=ROOT, capture_output=True, text=True, timeout=4 * START
    )
    assert done.stdout.strip() == "[]", done.stderr


async def test_a_server_that_is_ready_serves_mcp(tmp_path: Path) -> None:
    port = free_port()
    async with process(tmp_path, "--port", str(port), MCP_SERVER="true"), asyncio.timeout(2 * START):
        while True:  # another process: there is nothing to wait on
            try:
                if (await http(port, get("/readyz")))[0] == 200:
                    break
            except OSError:
                await asyncio.sleep(0.005)
        assert (await http(port, get("/mcp")))[0] != 404


async def test_a_server_that_is_not_ready_yet_ends_at_sigterm(tmp_path: Path) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1"
    port = free_port()
    values = {"MODEL_PROVIDER": "openai", "OPENAI_BASE_URL": address, "OPENAI_MODEL": "m"}
    async with process(tmp_path, "--port", str(port), **values) as started:
        async with asyncio.timeout(2 * START):
            while True:  # likewise
                try:
                    if (await http(port, get("/healthz")))[0] == 200:
                        break
                except OSError:
                    await asyncio.sleep(0.005)
        assert (await http(port, get("/readyz")))[0] == 503
        started.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(started.wait(), START) == 0
    silent.close()


# -- a late event loop


async def test_a_busy_event_loop_is_not_said_to_be_suspended(file_shelf: Shelf) -> None:
    with structlog.testing.capture_logs() as lines:
        async with node(file_shelf.make(), []) as served, served.phone() as phone:
            await phone.ask("Hello.")
            await calm(served)
            lines.clear()
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                pass
            await until(lambda: any("verifying" in line["event"] for line in lines))
    assert [line["event"] for line in lines if "verifying" in line["event"]] == [
        "event loop was late; verifying sessions"
    ]


async def test_a_process_that_stood_still_says_so(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        async with App(served.url) as phone:
            await phone.ask("Hello.")
            served.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)  # it is suspended for as long
            served.process.send_signal(signal.SIGCONT)
            assert served.process.stderr is not None
            async with asyncio.timeout(START):
                while b"process was suspended" not in await served.process.stderr.readline():
                    pass
