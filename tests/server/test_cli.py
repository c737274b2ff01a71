"""The command line, as a user runs it: one sentence for every mistake, real processes and real sockets."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conductor.cli import COMMANDS, main
from conductor.plugins.models.demo import DemoProvider
from conductor.version import __version__
from tests.app import App
from tests.conftest import IOS_CATALOG, ROOT, Main, environment
from tests.models import Call, OpenAIService, Reply
from tests.serving import serving
from tests.stand_ins.programs import launched

START = 60.0
"""How long a process may take to start or end, in seconds: the machine may be busy with others."""
SECRET = "hunter2-hunter2"


@asynccontextmanager
async def process(
    directory: Path, *arguments: str, **values: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``python -m conductor``, and stop it in every case. FILES limits its descriptors."""
    files = values.pop("FILES", None)
    limited = ("bash", "-c", f'ulimit -n {files}; exec "$@"', "-") if files else ()
    pipe = asyncio.subprocess.PIPE
    async with launched(
        *(*limited, sys.executable, "-m", "conductor", *arguments),
        cwd=directory,
        env=environment(**values),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    ) as started:
        yield started


async def run(directory: Path, *arguments: str, **values: str) -> tuple[int, str, str]:
    """Run a command that ends by itself; returns its exit code and output."""
    async with process(directory, *arguments, **values) as started:
        out, err = await asyncio.wait_for(started.communicate(), START)
        assert started.returncode is not None
        return started.returncode, out.decode(), err.decode()


class Announced:
    """A server that has printed its address."""

    def __init__(self, started: asyncio.subprocess.Process, lines: list[str]) -> None:
        self.process = started
        self.lines = lines
        match = re.search(r"ws://\S+:(\d+)/ws", "\n".join(lines))
        assert match
        self.url = f"ws://127.0.0.1:{match[1]}/ws"

    async def end(self, signum: signal.Signals) -> int:
        self.process.send_signal(signum)
        return await asyncio.wait_for(self.process.wait(), START)


@asynccontextmanager
async def server(directory: Path, *arguments: str, **values: str) -> AsyncIterator[Announced]:
    """Run a server until the block ends."""
    async with process(directory, "--port", "0", *arguments, **values) as started:
        assert started.stderr is not None
        lines: list[str] = []
        while not lines or "/ws" not in lines[-1]:
            line = await asyncio.wait_for(started.stderr.readline(), START)
            assert line, f"it ended: {lines}"
            lines.append(line.decode().rstrip())
        yield Announced(started, lines)


class Terminal:
    """A server on a terminal of its own: ``lines`` are those until its banner is complete."""

    def __init__(self, started: asyncio.subprocess.Process, screen: int) -> None:
        self.process = started
        self.screen = screen
        self.lines: list[str] = []
        self._text = b""

    async def line(self, text: str) -> str:
        """Read the screen until a line with this text; returns the line."""
        loop = asyncio.get_running_loop()
        while True:
            *lines, self._text = self._text.split(b"\r\n")
            for number, line in enumerate(lines):
                self.lines.append(line.decode())
                if text.encode() in line:
                    self._text = b"\r\n".join([*lines[number + 1 :], self._text])
                    return self.lines[-1]
            readable = asyncio.Event()
            loop.add_reader(self.screen, readable.set)
            await asyncio.wait_for(readable.wait(), START)
            loop.remove_reader(self.screen)
            self._text += os.read(self.screen, 65_536)

    @property
    def url(self) -> str:
        (url,) = re.findall(r"ws://\S+/ws", "\n".join(self.lines))
        return str(url).replace("0.0.0.0", "127.0.0.1")

    def close(self) -> None:
        """Close the window."""
        os.close(self.screen)
        self.screen = -1


@asynccontextmanager
async def terminal(directory: Path, *arguments: str, **values: str) -> AsyncIterator[Terminal]:
    """Run a server on a terminal until the block ends."""
    master, slave = pty.openpty()
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "conductor", "--port", "0", *arguments),
        cwd=directory,
        env=environment(NO_COLOR="1", **values),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    window = Terminal(started, master)
    try:
        await window.line("  try  ")
        yield window
    finally:
        if started.returncode is None:
            started.kill()
        await asyncio.wait_for(started.wait(), START)
        if window.screen >= 0:
            window.close()


# -- mistakes


def is_one_sentence(code: int, out: str, err: str) -> str:
    """Check that a mistake ended with exit code 2, one line and no traceback; give the line."""
    assert code == 2, err
    assert out == ""
    assert err.startswith("conductor: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in err and SECRET not in err
    return err.removeprefix("conductor: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "values", "sentence"),
    [
        (["--provider", "parrot"], {}, "MODEL_PROVIDER 'parrot' is unknown"),
        (["--provider", "anthropic"], {}, "ANTHROPIC_API_KEY"),
        (["--port", "70000"], {}, "PORT is not valid"),
        (["--workers", "many"], {}, "WORKERS is not valid"),
        (["--log-level", "loud"], {}, "LOG_LEVEL is not valid"),
        ([], {"SESSION_STORE_URL": f"mysql://u:{SECRET}@h"}, "SESSION_STORE_URL is not valid"),
        ([], {"SESSION_STORE_URL": f"redis://u:{SECRET}@h:port"}, "SESSION_STORE_URL is no Redis address"),
        ([], {"SESSION_STORE_URL": "sqlite:///../"}, "cannot be used: unable to open database file"),
        (["--host", "0.0.0.0"], {}, "AUTH_TOKENS"),
        ([], {"DATA_DIR": "/proc/none"}, "/proc/none/conductor.db cannot be made: "),
        ([], {"SYSTEM_PROMPT_FILE": "none.md"}, "system prompt file"),
        ([], {"DEVICE_TOOLS_FILE": "none.json"}, "tool catalog none.json"),
        ([], {"POLICIES_FILE": "none.json"}, "none.json cannot be read: no such file"),
        ([], {"POLICIES_FILE": "x" * 5000}, "file name too long"),
        ([], {"ANTHROPIC_API_KEY": f"'{SECRET}'"}, "ANTHROPIC_API_KEY holds spaces, quotes"),
        ([], {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": "h"}, "ANTHROPIC_BASE_URL must begin with"),
        (
            [],
            {"MODELS_FILE": "models.toml"},
            "MODELS_FILE is gone: the value is the file models.toml in CONF",
        ),
        (
            [],
            {"OPENAI_API": "chat"},
            "OPENAI_API is gone: the value is the field endpoint of a profile",
        ),
        ([], {"CONFIG_DIR": "none"}, "CONFIG_DIR is not valid: it must be an existing folder."),
    ],
)
def test_a_mistake_is_one_sentence(
    conductor: Main, arguments: list[str], values: dict[str, str], sentence: str
) -> None:
    assert sentence in is_one_sentence(*conductor(*arguments, **values))


async def test_a_store_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    url = f"redis://u:{SECRET}@127.0.0.1:1/0"
    sentence = is_one_sentence(*await run(tmp_path, SESSION_STORE_URL=url))
    assert sentence.startswith("SESSION_STORE_URL names redis://127.0.0.1:1/0, which cannot be used")


def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, conductor: Main) -> None:
    (tmp_path / ".env").write_text("MAX_TURNS=many\n")
    assert "MAX_TURNS is not valid" in is_one_sentence(*conductor())


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["talk", "hello"],
        ["policy", "list"],
        ["sessions", "list"],
    ],
    ids=lambda command: str(command[0]),
)
def test_no_command_runs_with_a_file_that_it_cannot_read(
    tmp_path: Path, conductor: Main, command: list[str]
) -> None:
    (tmp_path / ".env").write_text(f'PORT=0\nAUTH_TOKENS="{SECRET}\n')
    line = is_one_sentence(*conductor(*command))
    assert line.startswith("Line 2 of .env cannot be read: ")


async def test_an_unknown_setting_is_one_line_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"AUTH_TOKEN={SECRET}\nCLOUD_KEY={SECRET}\n")
    (tmp_path / "models.toml").write_text(
        'default = "toy"\n[[profile]]\nname = "toy"\nprovider = "demo"\n[[profile]]\nname = "cloud"\n'
        'provider = "openai"\nmodel = "m"\napi_key_env = "CLOUD_KEY"\n'
    )
    async with server(tmp_path) as served:
        (line,) = [line for line in served.lines if "not a setting" in line]
        assert "AUTH_TOKEN" in line and "CLOUD_KEY" not in line
        assert SECRET not in "\n".join(served.lines)


@pytest.mark.parametrize("arguments", [["--port", "eighty"], ["bogus"], ["--bogus"], ["serve", "bogus"]])
def test_unknown_arguments_are_one_sentence(conductor: Main, arguments: list[str]) -> None:
    code, out, err = conductor(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("conductor: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["sreve"], "no such command: sreve; did you mean serve?"),
        (["tools", "lst"], "no such command: tools lst; did you mean list?"),
        (["xyzzy"], "no such command: xyzzy; see conductor --help."),
        (["tools", "list", "--jsn"], "unrecognized arguments: --jsn; see conductor --help."),
        (
            ["sessions", "show"],
            "the following arguments are required: SESSION; see conductor sessions show --help.",
        ),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    conductor: Main, arguments: list[str], error: str
) -> None:
    assert conductor(*arguments) == (2, "", f"conductor: {error}\n")


def test_help_is_a_command_and_completion_knows_every_command(
    conductor: Main, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (["help"], ["help", "tools", "list"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    help_text, of_list = capfd.readouterr().out.split("usage: ")[1:]
    assert (
        help_text.index("serve ")
        < help_text.index("talk ")
        < help_text.index("check ")
        < help_text.index("tools ")
    )
    assert of_list.startswith("conductor tools list") and "talk" not in of_list
    with pytest.raises(SystemExit):
        main(["talk", "--help"])
    assert "print the server's events as JSON" in " ".join(capfd.readouterr().out.split())
    code, out, _ = conductor("completion", "bash")
    assert code == 0 and all(name.split()[-1] in out for name in COMMANDS)


def test_completion_without_its_package_names_the_extra(
    conductor: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    message = "conductor: completion needs the package shtab: pip install 'conductor-voice[terminal]'.\n"
    assert conductor("completion", "bash") == (2, "", message)


def test_a_key_without_the_sdk_ends_the_start_with_the_command_that_installs_it(
    conductor: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    missing = "but its SDK is missing: pip install 'conductor-voice[claude]'.\n"
    by_key = conductor("serve", ANTHROPIC_API_KEY="sk-ant-a-key")
    assert by_key == (2, "", f"conductor: ANTHROPIC_API_KEY is set, {missing}")
    by_token = conductor("serve", ANTHROPIC_AUTH_TOKEN="a-token", MODEL_PROVIDER="anthropic")
    assert by_token == (2, "", f"conductor: The provider anthropic is selected, {missing}")


@pytest.mark.parametrize("command", ["tools list", "policy list", "check --offline"])
def test_a_list_is_printed_as_json(conductor: Main, command: str) -> None:
    code, out, _ = conductor(*command.split(), "--json")
    assert code == 0
    for line in [out] if "list" in command else out.splitlines():
        assert isinstance(json.loads(line), list if "list" in command else dict)


def test_a_closed_pipe_causes_no_traceback(tmp_path: Path) -> None:
    line = f"{sys.executable} -m conductor check --offline | true; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(PORT="0"), capture_output=True, encoding="utf-8"
    )
    assert completed.stderr == ""
    assert completed.stdout in ("0\n", "141\n"), "0 where it had written all before that"


async def test_the_option_lan_refuses_a_host_that_no_phone_reaches(tmp_path: Path) -> None:
    async with process(
        tmp_path, "--lan", "--host", "127.0.0.1", "--port", "0", "--provider", "demo"
    ) as started:
        assert started.stderr is not None
        line = (await asyncio.wait_for(started.stderr.readline(), START)).decode()
        assert line.startswith("conductor: --lan: "), line


# -- help


def test_the_version_is_printed(conductor: Main) -> None:
    assert conductor("--version") == (0, f"conductor {__version__}\n", "")


# -- a server


async def test_a_terminal_shows_a_banner(tmp_path: Path) -> None:
    async with terminal(tmp_path, SESSION_STORE_URL="memory://") as window:
        port = window.url.split(":")[2].removesuffix("/ws")
        assert window.lines[0] == f"Conductor {__version__}"
        assert window.lines[1] == f"  open      http://127.0.0.1:{port}/"
        assert window.lines[2].startswith("  model     demo") and "ANTHROPIC_API_KEY" in window.lines[2]
        assert window.lines[3] == "  sessions  in memory: they end with the server"
        assert window.lines[4] == f"  connect   {window.url}  (no token needed)"
        assert window.lines[5] == f"  try       {sys.executable} -m conductor talk --port {port}"


async def test_a_server_logs_its_address_answers_and_ends_on_a_signal(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        (line,) = served.lines
        assert "started" in line and f"version={__version__}" in line and "models=['demo']" in line
        page = served.url.replace("ws://", "http://").removesuffix("ws")
        assert f"page={page} " in line
        async with App(served.url) as phone:
            await phone.ask("say hello")
            assert len(phone.finals()) == 1
            assert await served.end(signal.SIGTERM) == 0
            await asyncio.wait_for(phone.closed.wait(), START)
            assert phone.close_code == 1012
        assert served.process.stderr is not None
        log = (await asyncio.wait_for(served.process.stderr.read(), START)).decode()
        assert "stopping" in log and "Traceback" not in log and "hello" not in log


async def test_the_first_signal_drains_and_the_second_stops_at_once(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text(f"DEVICE_TOOLS_FILE={IOS_CATALOG}\n")
    async with terminal(tmp_path) as window, App(window.url) as phone:
        phone.say("call repositories.list")
        await phone.until("repositories.list")  # which this phone does not answer: the turn goes on
        os.write(window.screen, b"\x03")
        line = await window.line("Stopping")
        assert line == "Stopping: waiting up to 30 s for 1 running turn. Ctrl-C again stops at once."
        assert window.process.returncode is None
        os.write(window.screen, b"\x03")
        assert await asyncio.wait_for(window.process.wait(), START) == -signal.SIGINT
        await asyncio.wait_for(phone.closed.wait(), START)


async def test_a_closed_terminal_ends_its_server_and_another_hangup_reloads(tmp_path: Path) -> None:
    async with terminal(tmp_path, WORKERS="2", DATA_DIR="data") as window:
        for _ in range(2):
            window.process.send_signal(signal.SIGHUP)
            await window.line("reloaded")
        async with App(window.url) as phone:
            phone.say("count to 20")
            await phone.until("tool.call")
            window.close()
            assert await asyncio.wait_for(window.process.wait(), START) == 0
            await asyncio.wait_for(phone.closed.wait(), START)
            assert phone.close_code == 1012 and "20" in phone.finals()[-1]


@pytest.mark.parametrize(
    ("file", "values"),
    [
        (f"AUTH_TOKENS={SECRET},other\n", {}),
        ("HOST=0.0.0.0\nPORT=1\n", {"AUTH_TOKENS": SECRET}),
    ],
)
async def test_the_printed_talk_command_works_in_another_terminal(
    tmp_path: Path, file: str, values: dict[str, str]
) -> None:
    (tmp_path / ".env").write_text(file)
    async with terminal(tmp_path, **values) as window:
        command = shlex.split(window.lines[-1].removeprefix("  try"))
        assert command[:4] == [sys.executable, "-m", "conductor", "talk"]
        assert SECRET not in "\n".join(window.lines)
        assert ("--token=TOKEN" in command) == ("AUTH_TOKENS" in values), "the file's token is known there"
        command = [word.replace("=TOKEN", f"={SECRET}") for word in command]
        code, out, err = await run(tmp_path, *command[3:], "say hello")
        assert (code, err) == (0, "") and "hello" in out.lower()


async def test_talk_sends_the_settings_token_to_no_other_server(tmp_path: Path) -> None:
    async with serving(DemoProvider(0.0), tokens=(SECRET,)) as served:
        code, _, _ = await run(tmp_path, "talk", "--url", served.url, "say hello", AUTH_TOKENS=SECRET)
        assert code == 2


@pytest.mark.parametrize(
    ("arguments", "values", "sentence"),
    [
        (["--port", "0"], {}, "give the port"),
        (["--url", "ws://127.0.0.1:1/ws", "--port", "1"], {}, "--url cannot be combined"),
    ],
)
def test_a_mistake_of_talk_is_one_sentence(
    conductor: Main, arguments: list[str], values: dict[str, str], sentence: str
) -> None:
    assert sentence in is_one_sentence(*conductor("talk", *arguments, "hello", **values))


async def test_with_tokens_other_machines_need_a_token(tmp_path: Path) -> None:
    values = {"HOST": "0.0.0.0", "AUTH_TOKENS": SECRET, "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
    async with server(tmp_path, **values) as served:
        (started,) = map(json.loads, served.lines)
        assert started["tokens"] == 1 and "ws://0.0.0.0:" in started["address"]
        with pytest.raises(Exception, match="401"):
            await App(served.url).open()
        async with App(f"{served.url}?token={SECRET}") as phone:
            await phone.ask("say something quite personal")
        assert await served.end(signal.SIGTERM) == 0
        assert served.process.stderr is not None
        log = (await served.process.stderr.read()).decode()
        assert SECRET not in "\n".join(served.lines) + log
        assert "event in" in log and "quite personal" not in log


# -- where sessions are kept


async def test_sessions_outlive_the_server_in_the_folder_that_it_names(tmp_path: Path) -> None:
    async with server(tmp_path, DATA_DIR="kept") as served:
        assert "store=kept/conductor.db" in served.lines[-1]
        async with App(served.url, session_id="s-1") as phone:
            await phone.ask("say hello")
        assert await served.end(signal.SIGTERM) == 0
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    for file in (tmp_path / "kept").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, out, err = await run(tmp_path, "sessions", "list", DATA_DIR="kept")
    assert (code, err) == (0, "") and "s-1" in out


def test_the_script_decides_nothing_that_the_program_does_not() -> None:
    script = (ROOT / "scripts" / "run").read_text(encoding="utf-8")
    assert script.endswith('exec .venv/bin/python -m conductor "$@"\n') and "DATA_DIR" not in script


@pytest.mark.parametrize("command", [("talk", "hello"), ("rehearse", "run", "rehearsal.yaml")])
async def test_a_terminal_without_a_letter_shows_its_number(tmp_path: Path, command: tuple[str, ...]) -> None:
    text = "model: scripted\nreplies: [Grüße]\nsteps:\n  - say: hello\n    expect: {said: nothing}\n"
    (tmp_path / "rehearsal.yaml").write_text(text, encoding="utf-8")
    async with serving(DemoProvider(0.0)) as served:
        words = (*command, "--url", served.url) if command[0] == "talk" else command
        code, out, err = await run(tmp_path, *words, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "Traceback" not in err and code == (0 if command[0] == "talk" else 1), err
    assert command[0] == "talk" or "Gr\\xfc\\xdfe" in out


HANGS = """
import time
from conductor.tools import tool

@tool(risk="safe", effect="read")
def nap() -> str:
    \"\"\"Sleeps.\"\"\"
    time.sleep(600)
    return "awake"
"""


async def test_a_tool_that_hangs_in_its_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(HANGS)
    async with OpenAIService(api_keys=None) as model:
        model.play(Reply(calls=(Call("nap", {}),)), Reply("It sleeps."))
        values = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "m", "MODEL_PROVIDER": "openai"}
        values |= {"TOOLS_PATH": "tools.py", "TOOL_TIMEOUT_MS": "1000"}
        async with server(tmp_path, **values) as served:
            async with App(served.url) as phone:
                await phone.ask("Take a nap.")
                assert phone.finals() == ["It sleeps."]
            assert await served.end(signal.SIGTERM) == 0


HANGING_STOP = """
import asyncio
from conductor.commands import serve
from conductor.plugins.models.demo import DemoProvider

async def hang(self):
    await asyncio.Event().wait()

DemoProvider.aclose, serve.STOP_S = hang, 0.5
"""


async def test_a_stop_that_hangs_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(HANGING_STOP)
    async with server(tmp_path, TOOLS_PATH="tools.py", MODEL_PROVIDER="demo") as served:
        async with App(served.url) as phone:
            await phone.ask("what is 6 times 7?")
        assert await served.end(signal.SIGTERM) == 1
