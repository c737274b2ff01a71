"""Several processes that are one server: real processes, one port, and what an operator does to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError
from conductor.server.access import SharedAddress, close
from conductor.server.workers import Supervisor
from conductor.settings import load_settings
from tests.conftest import ROOT, Main
from tests.end_to_end.phone import Phone, is_call
from tests.server.wires import http
from tests.test_app import log_line
from tests.test_cli import SECRET, START, Announced, is_one_sentence, line_of, run, server

ADMIN = "an-operator's-token"


class Workers:
    """A server of two processes."""

    def __init__(self, served: Announced, pids: list[int]) -> None:
        self.served, self.pids, self.url = served, pids, served.url
        self.port = int(served.url.rpartition(":")[2].partition("/")[0])

    async def log(self, event: str) -> dict[str, Any]:
        """Read the log until an event; give its fields."""
        return await log_line(self.served, event)

    async def rest(self) -> str:
        """Read the log until nobody is left who could write to it."""
        assert self.served.process.stderr is not None
        return (await asyncio.wait_for(self.served.process.stderr.read(), START)).decode()

    async def asked(self) -> set[int]:
        """Connect until two workers have answered; gives their numbers."""
        question = f"GET /admin/stats HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
        found: set[int] = set()
        for _ in range(100):  # the same one each time would be a chance of 1 in 2**99
            _, answer = await http(self.port, question)
            found.add(json.loads(answer.partition("\r\n\r\n")[2])["worker"])
            if len(found) > 1:
                break
        return found


@asynccontextmanager
async def workers(folder: Path, **values: str) -> AsyncIterator[Workers]:
    """Run a server of two processes, whose sessions are in ``folder``."""
    values = {"DATA_DIR": str(folder), "LOG_FORMAT": "json", "ADMIN_TOKEN": ADMIN, "WORKERS": "2", **values}
    async with server(folder, **values) as served:
        ready = await log_line(served, "workers ready")
        assert isinstance(ready["pids"], list)
        yield Workers(served, ready["pids"])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def command_line(pid: int) -> str:
    """Read what everybody on the machine may read of a process."""
    done = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, timeout=START
    )
    assert "conductor" in done.stdout
    return done.stdout


# -- serving


async def test_several_processes_serve_one_port_and_one_that_is_gone_is_replaced(tmp_path: Path) -> None:
    async with workers(tmp_path, AUTH_TOKENS=SECRET) as two:
        assert "  workers   2 processes" in two.served.lines
        assert sum("Conductor" in line for line in two.served.lines) == 1
        assert len(set(two.pids)) == 2 and await two.asked() == {1, 2}
        assert not any(SECRET in command_line(pid) for pid in two.pids)

        two.served.process.send_signal(signal.SIGHUP)
        await two.log("reloaded")
        await two.log("reloaded")

        for number, signum in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
            os.kill(two.pids[number - 1], signum)
            assert (await two.log("worker gone"))["worker"] == number
            assert await two.asked(), "the other one serves meanwhile"
            again = await two.log("worker ready")
            assert again["worker"] == number and again["pid"] not in two.pids
            assert await two.asked() == {1, 2}

        assert await two.served.end(signal.SIGTERM) == 0
        assert "Traceback" not in await two.rest()


async def test_a_signal_to_the_parent_ends_all_of_it_once_turns_have_ended(tmp_path: Path) -> None:
    async with workers(tmp_path) as two:
        async with Phone(two.url) as phone:
            await phone.say("count to 20")
            await phone.until(lambda e: e["type"] == "tool.call")
            assert await two.served.end(signal.SIGTERM) == 0
            await asyncio.wait_for(phone.closed.wait(), START)
            assert phone.close_code == 1012 and "20" in phone.finals()[-1]
        log = await two.rest()
        assert log.count('"stopping"') == 2 and "Traceback" not in log and "worker gone" not in log
        assert all(gone(pid) for pid in two.pids)
        with socket.create_server(("127.0.0.1", two.port)):
            pass  # the port is free again


async def test_a_second_signal_to_the_parent_stops_all_of_it_at_once(tmp_path: Path) -> None:
    async with workers(tmp_path) as two, Phone(two.url) as phone:
        await phone.say("list my repositories")
        await phone.until(is_call("repositories.list"))  # which this phone does not answer: the turn goes on
        two.served.process.send_signal(signal.SIGINT)
        said = await line_of(two.served, "Stopping")
        assert said == "Stopping: waiting up to 30 s for running turns. Ctrl-C again stops at once.\n"
        assert await two.served.end(signal.SIGINT) == 0
        await asyncio.wait_for(phone.closed.wait(), START)
        assert phone.close_code == 1006, "it was not drained"
        assert all(gone(pid) for pid in two.pids)


async def test_a_parent_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as two:
        two.served.process.kill()
        # The log ends when the last process that could write to it has.
        assert (await two.rest()).count('"stopping"') == 2
        with socket.create_server(("127.0.0.1", two.port)):
            pass


# -- rolling


class Dialler:
    """Connects again and again, and keeps what came of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: list[int] = []
        self.failures: list[str] = []

    async def run(self) -> None:
        while True:
            try:
                status, _ = await http(self._port, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            except (OSError, EOFError) as error:
                self.failures.append(repr(error))
            else:
                self.answers.append(status)
            await asyncio.sleep(0)


async def test_whoever_waits_for_a_worker_that_hangs_is_served_by_its_replacement(tmp_path: Path) -> None:
    async with workers(tmp_path) as two, contextlib.AsyncExitStack() as waiting:
        for pid in two.pids:
            os.kill(pid, signal.SIGSTOP)
        connections = []
        for _ in range(8):  # the system accepts for a process that does not run
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            waiting.callback(writer.transport.abort)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            connections.append((reader, writer))
        two.served.process.send_signal(signal.SIGUSR2)
        for number, pid in enumerate(two.pids, 1):
            assert (await two.log("worker ready"))["worker"] == number
            os.kill(pid, signal.SIGKILL)  # as the parent would in the end
        for reader, _ in connections:
            assert (await asyncio.wait_for(reader.readline(), START)).startswith(b"HTTP/1.1 200 ")
        await two.log("workers replaced")


async def test_workers_are_replaced_one_after_the_other_and_nobody_is_refused(tmp_path: Path) -> None:
    async with workers(tmp_path) as two:
        dialler = Dialler(two.port)
        dialling = asyncio.create_task(dialler.run())
        try:
            async with Phone(two.url) as phone:
                two.served.process.send_signal(signal.SIGUSR2)
                ready = [await two.log("worker ready") for _ in range(2)]
                assert (await two.log("workers replaced"))["workers"] == 2
                await asyncio.wait_for(phone.closed.wait(), START)
                assert phone.close_code == 1012
        finally:
            dialling.cancel()
            await asyncio.wait([dialling])
        assert [line["worker"] for line in ready] == [1, 2]
        assert not {line["pid"] for line in ready} & set(two.pids)
        assert all(gone(pid) for pid in two.pids)
        assert dialler.failures == [] and set(dialler.answers) == {200}
        assert await two.asked() == {1, 2}

        # One that does not start replaces nobody.
        (tmp_path / ".env").write_text("MODEL_PROVIDER=parrot\n")
        two.served.process.send_signal(signal.SIGUSR2)
        assert (await two.log("worker not replaced"))["exit_code"] == 2
        assert not any(gone(line["pid"]) for line in ready)
        assert await two.asked() == {1, 2}
        assert await two.served.end(signal.SIGINT) == 0


# -- mistakes


def test_sessions_in_memory_are_not_for_several_processes() -> None:
    with pytest.raises(SettingsError, match="^WORKERS is 2, but .*SESSION_STORE_URL"):
        Supervisor(load_settings(None, workers=2), {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--provider", "parrot"], "MODEL_PROVIDER 'parrot' is unknown"),
        (["--host", "203.0.113.7"], "HOST: 203.0.113.7 is no address of this machine"),
    ],
)
def test_a_mistake_is_told_once_not_by_each_worker(
    tmp_path: Path, conductor: Main, arguments: list[str], says: str
) -> None:
    values = {"DATA_DIR": str(tmp_path), "WORKERS": "3"}
    assert says in is_one_sentence(*conductor("--port", "0", *arguments, **values))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_mistakes_in_the_port_and_the_folder_are_one_sentence_whatever_the_number_of_processes(
    tmp_path: Path, conductor: Main, workers: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for values, says in (
            ({"PORT": port, "DATA_DIR": str(tmp_path)}, f"PORT: 127.0.0.1:{port} is taken"),
            ({"PORT": "abc", "DATA_DIR": str(tmp_path)}, "PORT is not valid"),
            ({"PORT": "0", "DATA_DIR": "/proc/none"}, "/proc/none/conductor.db cannot be made in /proc: "),
        ):
            assert says in is_one_sentence(*conductor(WORKERS=workers, **values))


def test_the_option_that_is_for_the_parent_alone_says_so(conductor: Main) -> None:
    assert "--workers N" in is_one_sentence(*conductor("serve", "--worker", "1"))


async def test_workers_that_die_as_soon_as_they_start_are_given_up(tmp_path: Path) -> None:
    dies = "import os, sys\nif '--worker' in sys.orig_argv:\n    os._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(dies)
    values = {"DATA_DIR": str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, out, err = await run(tmp_path, "--port", "0", "--workers", "2", **values)
    assert (code, out) == (1, "")
    assert err.count("worker gone") == 3 and "end as soon as they are started" in err


# -- the address


@pytest.fixture
def address() -> Iterator[SharedAddress]:
    """Keep a free port of loopback."""
    kept = SharedAddress("127.0.0.1", 0)
    yield kept
    kept.close()


def test_a_port_of_its_own_is_shared_by_all_sockets_of_one_server(address: SharedAddress) -> None:
    first, second = address.open(), address.open()
    try:
        for one in (*first, *second):
            one.listen()
            assert one.getsockname() == ("127.0.0.1", address.port)
    finally:
        close((*first, *second))


@pytest.mark.parametrize("listens", [True, False])
def test_a_second_server_of_the_same_user_is_refused(address: SharedAddress, listens: bool) -> None:
    sockets = address.open() if listens else ()
    try:
        for one in sockets:
            one.listen()
        with pytest.raises(SettingsError, match=f"^PORT: 127.0.0.1:{address.port} is taken"):
            SharedAddress("127.0.0.1", address.port)
    finally:
        close(sockets)


@pytest.mark.parametrize("shares", [True, False])
def test_a_port_that_another_program_listens_on_is_refused(shares: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match="is taken"):
            SharedAddress("127.0.0.1", port)


def test_a_port_whose_last_connections_are_not_forgotten_yet_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        port = before.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = before.accept()
            connection.close()  # who closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    kept = SharedAddress("127.0.0.1", port)
    try:
        close(kept.open())
    finally:
        kept.close()


def test_a_name_may_have_several_addresses_on_one_port() -> None:
    kept = SharedAddress("localhost", 0)
    try:
        sockets = kept.open()
        assert sockets and {one.getsockname()[1] for one in sockets} == {kept.port}
        close(sockets)
    finally:
        kept.close()


def test_a_name_that_is_none_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="^HOST: xxx.* is no known name"):
        SharedAddress("x" * 70, 0)
