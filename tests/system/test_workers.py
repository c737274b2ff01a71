"""Several processes that are one server: real processes, one port, and an operator's signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from conductor.commands.workers import Supervisor, reserve
from conductor.errors import SettingsError
from conductor.settings import load_settings
from tests.app import App
from tests.conftest import IOS_CATALOG, ROOT, Main
from tests.server.test_app import log_line
from tests.server.test_cli import SECRET, START, Announced, is_one_sentence, run, server
from tests.server.wires import get, http
from tests.services.ports import free_port

ADMIN = "an-operator's-token"


class Workers:
    """A server of two processes."""

    def __init__(self, served: Announced, pids: list[int]) -> None:
        self.served, self.pids, self.url = served, pids, served.url
        self.port = int(served.url.rpartition(":")[2].partition("/")[0])

    async def log(self, event: str) -> dict[str, Any]:
        """Read the log until an event; give its fields."""
        return await log_line(self.served, event)

    async def remaining_log(self) -> str:
        """Read the log until the last process that could write to it has ended."""
        assert self.served.process.stderr is not None
        return (await asyncio.wait_for(self.served.process.stderr.read(), START)).decode()

    async def numbers(self) -> set[str]:
        """Connect until two workers have answered; gives their numbers."""
        numbers: set[str] = set()
        for _ in range(100):  # the chance of the same one each time is 1 in 2**99
            _, answer = await http(self.port, get("/metrics", f"Authorization: Bearer {ADMIN}"))
            numbers |= set(re.findall(r'conductor_info{.*worker="(\d)"', answer))
            if len(numbers) > 1:
                break
        return numbers


@asynccontextmanager
async def workers(folder: Path, **values: str) -> AsyncIterator[Workers]:
    """Run a server of two processes, whose sessions are in ``folder``."""
    values = {"DATA_DIR": str(folder), "LOG_FORMAT": "json", "ADMIN_TOKEN": ADMIN, "WORKERS": "2", **values}
    # A port that stays free once the server has ended.
    async with server(folder, "--port", str(free_port()), **values) as served:
        pids = dict(re.findall(r'"worker": (\d), "pid": (\d+)', "\n".join(served.lines)))
        yield Workers(served, [int(pids["1"]), int(pids["2"])])


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def command_line(pid: int) -> str:
    """Read the part of a process that every user of the machine may read."""
    command = ["ps", "-o", "args=", "-p", str(pid)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=START).stdout
    assert "conductor" in output
    return output


# -- serving


async def test_several_processes_serve_one_port_and_a_dead_one_is_restarted(tmp_path: Path) -> None:
    async with workers(tmp_path, AUTH_TOKENS=SECRET) as two:
        (started,) = [line for line in map(json.loads, two.served.lines) if line["event"] == "started"]
        assert started["workers"] == 2
        assert await two.numbers() == {"1", "2"}
        assert not any(SECRET in command_line(pid) for pid in two.pids)

        two.served.process.send_signal(signal.SIGHUP)
        await two.log("reloaded")
        await two.log("reloaded")

        for number, signum in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
            os.kill(two.pids[number - 1], signum)
            assert (await two.log("worker ended"))["worker"] == number
            assert await two.numbers(), "the other worker serves"
            ready = await two.log("worker ready")
            assert ready["worker"] == number and ready["pid"] not in two.pids
            assert await two.numbers() == {"1", "2"}

        assert await two.served.end(signal.SIGTERM) == 0
        assert "Traceback" not in await two.remaining_log()


async def test_a_signal_to_the_supervisor_ends_all_workers_once_turns_have_ended(tmp_path: Path) -> None:
    async with workers(tmp_path) as two:
        async with App(two.url) as phone:
            phone.say("count to 20")
            await phone.until("tool.call")
            assert await two.served.end(signal.SIGTERM) == 0
            await asyncio.wait_for(phone.closed.wait(), START)
            assert phone.close_code == 1012 and "20" in phone.finals()[-1]
        log = await two.remaining_log()
        assert log.count('"stopping"') == 2 and "Traceback" not in log and "worker ended" not in log
        assert all(has_ended(pid) for pid in two.pids)
        with socket.create_server(("127.0.0.1", two.port)):
            pass  # the port is free again


async def test_the_output_of_a_tool_goes_to_the_standard_error_and_blocks_no_worker(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "from conductor.tools import tool\n"
        '@tool(risk="safe", effect="read")\n'
        "def noisy() -> str:\n"
        '    """Prints 400 KB."""\n'
        '    print(("x" * 1023 + "\\n") * 400)\n'
        '    return "done"\n'
    )
    async with workers(tmp_path, TOOLS_PATH=str(tmp_path / "noisy.py")) as two, App(two.url) as phone:
        log = asyncio.create_task(two.log("turn"))
        await phone.ask("call noisy")
        assert "done" in phone.finals()[-1]
        await log
        ended = asyncio.create_task(two.served.end(signal.SIGTERM))
        await two.remaining_log()
        assert await ended == 0


async def test_a_second_signal_to_the_supervisor_stops_all_workers_at_once(tmp_path: Path) -> None:
    async with workers(tmp_path, DEVICE_TOOLS_FILE=str(IOS_CATALOG)) as two, App(two.url) as phone:
        phone.say("call repositories.list")
        await phone.until("repositories.list")  # which this phone does not answer: the turn goes on
        two.served.process.send_signal(signal.SIGINT)
        await two.log("stopping")
        assert await two.served.end(signal.SIGINT) == 0
        await asyncio.wait_for(phone.closed.wait(), START)
        assert phone.close_code == 1006, "it was not drained"
        assert all(has_ended(pid) for pid in two.pids)


async def test_a_supervisor_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as two:
        two.served.process.kill()
        assert (await two.remaining_log()).count('"stopping"') == 2
        with socket.create_server(("127.0.0.1", two.port)):
            pass


# -- rolling


async def test_workers_roll_one_after_another_and_the_port_is_always_served(tmp_path: Path) -> None:
    statuses: set[int] = set()

    async def dial() -> None:
        while True:
            try:
                statuses.add((await http(two.port, get("/healthz")))[0])
            except (ConnectionResetError, EOFError):
                pass  # not yet accepted when its worker stopped
            await asyncio.sleep(0)

    async with workers(tmp_path) as two:
        dialling = asyncio.create_task(dial())
        async with App(two.url) as phone:
            two.served.process.send_signal(signal.SIGUSR2)
            ready = [await two.log("worker ready") for _ in range(2)]
            assert (await two.log("workers replaced"))["workers"] == 2
            await asyncio.wait_for(phone.closed.wait(), START)
            assert phone.close_code == 1012
        assert not dialling.done(), "a connection was refused"
        dialling.cancel()
        await asyncio.wait([dialling])
        assert statuses == {200}
        assert [line["worker"] for line in ready] == [1, 2]
        assert not {line["pid"] for line in ready} & set(two.pids)
        assert all(has_ended(pid) for pid in two.pids)
        assert await two.numbers() == {"1", "2"}

        # A replacement that does not start replaces no worker.
        (tmp_path / ".env").write_text("MODEL_PROVIDER=parrot\n")
        two.served.process.send_signal(signal.SIGUSR2)
        assert (await two.log("worker not replaced"))["exit_code"] == 2
        assert not any(has_ended(line["pid"]) for line in ready)
        assert await two.numbers() == {"1", "2"}
        assert await two.served.end(signal.SIGINT) == 0


# -- mistakes


def test_sessions_in_memory_are_not_for_several_processes() -> None:
    with pytest.raises(SettingsError, match="^WORKERS is 2, but .*SESSION_STORE_URL"):
        Supervisor(load_settings(None, workers=2), {})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"MODEL_PROVIDER": "parrot"}, "MODEL_PROVIDER 'parrot' is unknown"),
        (
            {"HOST": "203.0.113.7", "AUTH_TOKENS": SECRET},
            "HOST: 203.0.113.7 is not an address of this machine",
        ),
        ({"HOST": "x" * 70, "AUTH_TOKENS": SECRET}, "is not a known name"),
        ({"DATA_DIR": "/proc/none"}, "/proc/none/conductor.db cannot be made: "),
    ],
)
def test_a_mistake_is_reported_once_not_by_each_worker(
    tmp_path: Path, conductor: Main, values: dict[str, str], sentence: str
) -> None:
    values = {"PORT": "0", "DATA_DIR": str(tmp_path), "WORKERS": "3", **values}
    assert sentence in is_one_sentence(*conductor(**values))


@pytest.mark.parametrize("count", ["1", "2"])
@pytest.mark.parametrize("shares", [True, False])
def test_a_port_in_use_is_one_sentence(tmp_path: Path, conductor: Main, count: str, shares: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as server:
        port = str(server.getsockname()[1])
        values = {"PORT": port, "DATA_DIR": str(tmp_path), "WORKERS": count}
        assert f"PORT: 127.0.0.1:{port} is in use" in is_one_sentence(*conductor(**values))


def test_a_reserved_port_is_refused_to_a_second_server_even_while_no_worker_listens() -> None:
    (reserved,) = reserve("127.0.0.1", 0)
    with closing(reserved):
        address = reserved.getsockname()
        with pytest.raises(SettingsError, match=f"^PORT: 127.0.0.1:{address[1]} is in use"):
            reserve(*address)
        with socket.create_server(address, reuse_port=True), socket.create_server(address, reuse_port=True):
            pass  # as its workers do


def test_a_port_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as former:
        address = former.getsockname()
        with socket.create_connection(address) as client:
            connection, _ = former.accept()
            connection.close()  # the side that closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    for reserved in reserve(*address):
        reserved.close()


def test_the_worker_option_is_not_for_users(conductor: Main) -> None:
    assert "use --workers N" in is_one_sentence(*conductor("serve", "--worker", "1"))


async def test_a_server_whose_first_worker_dies_ends(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif '--worker' in sys.orig_argv:\n    os._exit(3)\n"
    )
    values = {"DATA_DIR": str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, out, err = await run(tmp_path, "--port", "0", "--workers", "2", **values)
    assert (code, out) == (3, "") and err.count("worker did not start") == 1
