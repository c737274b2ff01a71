"""Tokens that change while the server runs: an edited ``.env`` and SIGHUP."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conductor.app import make_services, running
from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.server.address import check_exposure
from conductor.settings import Settings, load_settings
from tests.app import App
from tests.server.test_app import log_line
from tests.server.test_cli import server
from tests.server.wires import WAIT, get, http, until, upgrade

OLD, KEPT, NEW = "an-old-token-of-ann", "a-token-that-stays", "a-new-token"
ADMIN, NEW_ADMIN = "an-operators-token", "another-operators-token"


def settings(*tokens: str, **values: object) -> Settings:
    return load_settings(None, port=0, model_provider="demo", auth_tokens=tokens, **values)


def phone(url: str, token: str) -> App:
    return App(f"{url}?token={token}", session_id=f"s-{len(token)}")


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.extended)])
async def test_a_removed_token_is_out_within_a_second_and_a_new_one_is_in(
    tmp_path: Path, workers: int
) -> None:
    file = tmp_path / ".env"
    file.write_text(f"AUTH_TOKENS={OLD},{KEPT}\n")
    values = {"LOG_FORMAT": "json", "WORKERS": str(workers), "DATA_DIR": "data"}
    async with server(tmp_path, **values) as served:
        async with phone(served.url, OLD) as outsider, phone(served.url, KEPT) as insider:
            file.write_text(f"AUTH_TOKENS={KEPT},{NEW}\nMAX_TURNS=7\n")
            served.process.send_signal(signal.SIGHUP)
            lines = [await log_line(served, "reloaded") for _ in range(workers)]
            async with asyncio.timeout(WAIT):
                await outsider.closed.wait()
            assert (outsider.close_code, insider.closed.is_set()) == (1008, False)
            await insider.ask("say hello")
            async with phone(served.url, NEW) as newcomer:
                await newcomer.ask("say hello")
            with pytest.raises(Exception, match="401"):
                await phone(served.url, OLD).open()
        for line in lines:
            assert (line["changed"], line["needs_restart"]) == (["tokens"], ["MAX_TURNS"])
            assert (line["tokens_added"], line["tokens_removed"]) == (1, 1)
        assert [
            sum(int(str(line[name])) for line in lines) for name in ("connections_closed", "sessions")
        ] == [1, 2]
        assert await served.end(signal.SIGTERM) == 0
        assert served.process.stderr is not None
        log = json.dumps(lines) + (await served.process.stderr.read()).decode()
        assert [token for token in (OLD, KEPT, NEW) if token in log] == [], log


async def test_a_client_that_does_not_answer_the_close_is_cut_within_a_second() -> None:
    services = make_services(settings(OLD, KEPT))
    async with running(settings(OLD, KEPT), services) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(upgrade(f"/ws?token={OLD}").encode())
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: listener.connections == 1)
        reload(settings(KEPT), services, listener)
        async with asyncio.timeout(WAIT):
            received = await reader.read()  # until the connection ends
        assert received[-40:].endswith(b"the token is no longer valid")
        await until(lambda: listener.connections == 0)
        writer.close()


async def test_events_of_a_revoked_client_are_not_read() -> None:
    services = make_services(settings(OLD, KEPT))
    async with running(settings(OLD, KEPT), services) as listener:
        async with phone(f"ws://127.0.0.1:{listener.port}/ws", OLD) as outsider:
            (session,) = listener.registry.sessions
            outsider.say("say hello")
            reload(settings(KEPT), services, listener)
            await asyncio.wait_for(outsider.closed.wait(), WAIT)
        assert not session.state.log and not session.busy


@pytest.mark.parametrize(("before", "after"), [((), (NEW,)), ((OLD,), ())])
async def test_anonymous_clients_and_clients_with_a_token_never_meet(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    services = make_services(settings(*before))
    async with running(settings(*before), services) as listener:
        url = f"ws://127.0.0.1:{listener.port}/ws"
        async with phone(url, OLD) as outsider:
            reload(settings(*after), services, listener)
            await asyncio.wait_for(outsider.closed.wait(), WAIT)
            assert outsider.close_code == 1008
        _, facts = await http(listener.port, get("/page.json"))
        assert f'"token": {"true" if after else "false"}' in facts


async def test_the_operators_token_is_replaced() -> None:
    before, after = settings(admin_token=ADMIN), settings(admin_token=NEW_ADMIN)
    services = make_services(before)
    async with running(before, services) as listener:

        async def status(token: str) -> int:
            return (await http(listener.port, get("/metrics", f"Authorization: Bearer {token}")))[0]

        assert (await status(ADMIN), await status(NEW_ADMIN)) == (200, 401)
        reload(before, services, listener, lambda: after)
        assert (await status(ADMIN), await status(NEW_ADMIN)) == (401, 200)


@pytest.mark.parametrize(("before", "after", "warned"), [((OLD,), (), 1), ((OLD,), (NEW,), 0), ((), (), 0)])
async def test_a_reload_that_opens_the_server_is_a_warning(
    before: tuple[str, ...], after: tuple[str, ...], warned: int
) -> None:
    services = make_services(settings(*before))
    async with running(settings(*before), services) as listener:
        with capture_logs() as captured:
            reload(settings(*before), services, listener, lambda: settings(*after))
        warnings = [line["event"] for line in captured if line["log_level"] == "warning"]
        assert warnings == ["no token is needed any more: every client of this machine may connect"] * warned
        status, _ = await http(listener.port, upgrade("/ws"))
        assert status == (401 if after else 101)


async def test_a_mistake_in_the_file_leaves_the_tokens_as_they_are() -> None:
    before = settings(OLD, host="0.0.0.0")

    def exposed() -> Settings:
        check_exposure(settings(host="0.0.0.0"), insecure=False)
        raise AssertionError("it was accepted")

    def unreadable() -> Settings:
        raise SettingsError("Line 1 of .env cannot be read.")

    services = make_services(before)
    async with running(before, services) as listener:
        async with phone(f"ws://127.0.0.1:{listener.port}/ws", OLD) as insider:
            for read in (exposed, unreadable, lambda: settings(OLD, admin_token=OLD)):
                with capture_logs() as captured:
                    assert reload(before, services, listener, read) is before
                (line,) = captured
                assert line["event"] == "reload failed" and OLD not in str(line)
            await insider.ask("say hello")


async def test_the_line_names_the_changes(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("You are a parrot.")
    before = settings(system_prompt_file=prompt)
    services = make_services(before)
    async with running(before, services) as listener:
        for text, changed in (("You are a goldfish.", ["prompt"]), ("You are a goldfish.", [])):
            prompt.write_text(text)
            with capture_logs() as captured:
                reload(before, services, listener)
            assert [line["changed"] for line in captured if line["event"] == "reloaded"] == [changed]
