"""Mistakes that were made once: a reload during a claim, repeated headers, costs above a burst."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from conductor.app import make_services
from conductor.models.base import TextDelta
from conductor.rate_limit import TokenBucket
from conductor.server.access import Authenticator
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.app import App
from tests.end_to_end.conftest import serving
from tests.models import ScriptedProvider
from tests.server.wires import WiredStore, http, until, upgrade
from tests.test_cli import START, process


async def test_a_session_that_is_being_claimed_during_a_reload_uses_what_was_reloaded() -> None:
    store = WiredStore()
    provider = ScriptedProvider(lambda _: [TextDelta("Hi.")])
    services = replace(make_services(load_settings(None), provider), store=store)
    listener = Listener(services, Authenticator([]))
    await listener.start("127.0.0.1", 0)
    store.claim_gate.clear()
    phone = App(f"ws://127.0.0.1:{listener.port}/ws")
    await phone.open(start=False)
    phone.start()
    await until(store.claiming.is_set)
    listener.reload(replace(services, system_prompt="You are a goldfish."))
    store.claim_gate.set()
    await phone.ask("hi")
    await listener.stop(drain_s=0)
    assert provider.requests[0].system.startswith("You are a goldfish.")


@pytest.mark.parametrize("header", ["Origin: http://localhost\r\nOrigin: http://evil.com", "Host: other"])
async def test_a_header_that_comes_twice_is_refused_and_no_mistake_of_ours(header: str) -> None:
    async with serving(ScriptedProvider([])) as served:
        status, _ = await http(served.listener.port, upgrade("/ws", header))
        assert status in (400, 403)


def test_a_cost_above_the_burst_empties_the_bucket() -> None:
    bucket = TokenBucket(1.0, 5.0, now=0.0)
    assert bucket.take(0.0, 52.0) == 0.0
    assert bucket.take(0.0) > 0.0


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "8.8.8.8"])
async def test_lan_with_a_host_that_no_phone_reaches_says_so(tmp_path: Path, host: str) -> None:
    async with process(tmp_path, "--lan", "--host", host, "--port", "0", "--provider", "demo") as started:
        assert started.stderr is not None
        line = (await asyncio.wait_for(started.stderr.readline(), START)).decode()
        assert line.startswith("conductor: --lan: "), line
