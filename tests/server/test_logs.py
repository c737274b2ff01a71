"""The log: one line an event, in either format, and no content that an exception may carry."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conductor.version import __version__
from tests.app import App
from tests.conftest import Main
from tests.server.test_cli import START, process

SECRET = "hunter2-hunter2"

PROGRAM = """
import logging, sys
import structlog
from conductor.logs import configure_logs

configure_logs({level!r}, {log_format!r}, content={content})
log = structlog.get_logger("test")
log.debug("quiet", number=1)
log.info("spoken", number=2)
log.warning("warned", session="s-1")
logging.getLogger("websockets.server").error("handshake of a stranger")
logging.getLogger("asyncio").error("a library's error")

def deeper(text):
    raise ValueError(text)

def fail():
    words = "{secret}"
    try:
        deeper(words)
    except ValueError as error:
        raise RuntimeError("about " + words) from error

try:
    fail()
except RuntimeError:
    log.exception("tool failed", tool="x")
"""


def lines(level: str = "info", log_format: str = "json", content: bool = False) -> list[str]:
    program = PROGRAM.format(level=level, log_format=log_format, content=content, secret=SECRET)
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "", "the log goes to standard error"
    return completed.stderr.splitlines()


def test_json_lines_hold_level_time_event_and_fields() -> None:
    events = [json.loads(line) for line in lines()]
    names = ["spoken", "warned", "a library's error", "tool failed"]
    assert [event["event"] for event in events] == names
    assert events[1]["level"] == "warning" and events[1]["session"] == "s-1"
    assert events[1]["timestamp"].endswith("Z")
    assert events[2]["level"] == "error" and events[2]["logger"] == "asyncio"
    assert events[3]["exception"].startswith("Traceback") and events[3]["tool"] == "x"


@pytest.mark.parametrize(
    ("level", "first"),
    [("debug", "quiet"), ("info", "spoken"), ("warning", "warned"), ("error", "a library's error")],
)
def test_lines_below_the_level_are_left_out(level: str, first: str) -> None:
    events = [json.loads(line)["event"] for line in lines(level) if line.startswith("{")]
    assert events[0] == first and events[-1] == "tool failed"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_contains_locations_and_classes_without_messages(log_format: str) -> None:
    text = "\n".join(lines(log_format=log_format))
    assert SECRET not in text
    for part in ("RuntimeError", "ValueError", "in fail", "in deeper"):
        assert part in text


def test_a_traceback_begins_a_line_of_its_own() -> None:
    text = lines(log_format="console")
    assert "tool=x" in text[text.index("Traceback (most recent call last):") - 1]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_content_is_logged_on_request(log_format: str) -> None:
    assert SECRET in "\n".join(lines(log_format=log_format, content=True))


def test_failed_handshakes_are_not_logged_and_errors_of_libraries_are() -> None:
    text = "\n".join(lines(log_format="console"))
    assert "handshake of a stranger" not in text
    assert "a library's error" in text and "asyncio" in text
    assert "\x1b" not in text, "a pipe gets no colours"


# -- a server

NOISY = """
import gc, logging, threading, warnings
from conductor.tools import tool

class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")

@tool(risk="safe", effect="read")
def noisy() -> str:
    \"\"\"Make everything that Python or a library would print.\"\"\"
    warnings.warn("a warning")
    logging.getLogger("library").error("a library's error")
    logging.getLogger("library").warning("not for the operator")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    Broken()
    gc.collect()
    return "done"
"""


@pytest.mark.parametrize("workers", ["2"])
async def test_every_line_of_a_server_is_json(tmp_path: Path, workers: str) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / ".env").write_text("NOT_A_SETTING=1\nAUTH_TOKENS=old\n")
    values = {
        "LOG_FORMAT": "json",
        "SESSION_RATE_LIMIT_PER_MIN": "1000",
        "SUBJECT_TURNS_PER_MIN": "1000",
        "TOOLS_PATH": "noisy.py",
        "DATA_DIR": "data",
        "PYTHONWARNINGS": "default",
        "WORKERS": workers,
    }
    output = asyncio.Queue[tuple[str, dict[str, object]]]()
    lines_read: list[dict[str, object]] = []

    async def read(stream: asyncio.StreamReader) -> None:
        async for line in stream:
            try:
                document = json.loads(line)
                output.put_nowait((document["event"], document))
            except (ValueError, KeyError, TypeError):
                output.put_nowait(("no line of the log", {"line": line}))

    async def until(event: str) -> dict[str, object]:
        async with asyncio.timeout(START):
            while True:
                name, document = await output.get()
                lines_read.append(document)
                assert name not in ("not started", "stopped", "no line of the log"), document
                if name == event:
                    return document

    async with process(tmp_path, "--port", "0", **values) as served:
        assert served.stdout is not None and served.stderr is not None
        reading = [asyncio.create_task(read(stream)) for stream in (served.stdout, served.stderr)]
        started = await until("started")
        assert (started["version"], started["models"]) == (__version__, ["demo"])
        assert (started["store"], started["workers"]) == ("data/conductor.db", int(workers))
        async with App(f"{started['address']}?token=old") as phone:
            for _ in range(49):
                await phone.ask("say hello")
            await phone.ask("call noisy")
            assert "done" in phone.finals()[-1]
            (tmp_path / ".env").write_text("AUTH_TOKENS=new\n")
            served.send_signal(signal.SIGHUP)
            for _ in range(int(workers)):
                await until("reloaded")
            await asyncio.wait_for(phone.closed.wait(), START)
        served.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.wait(), START) == 0
        await asyncio.gather(*reading)
    while not output.empty():
        lines_read.append(output.get_nowait()[1])
    counts = Counter(line.get("event") for line in lines_read)
    assert None not in counts, lines_read
    assert counts["turn"] == 50 and counts["connected"] == 1 and counts["not a setting"] == 1
    assert counts["a library's error"] == 1 and counts["uncaught exception"] == 2
    assert counts["stopped"] >= 1 and lines_read[-1]["event"] == "stopped"
    assert sum("a warning" in str(name) for name in counts) == 1
    assert "not for the operator" not in counts


def test_a_start_that_fails_is_one_line_of_json(conductor: Main) -> None:
    code, out, err = conductor("--port", "0", LOG_FORMAT="json", MODEL_PROVIDER="parrot")
    assert (code, out) == (2, "")
    line = json.loads(err)
    assert line["event"] == "not started" and "MODEL_PROVIDER 'parrot' is unknown" in line["reason"]
