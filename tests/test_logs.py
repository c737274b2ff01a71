"""The log: one line an event, in either format, and no content that an exception may carry."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "", "the log goes to standard error"
    return completed.stderr.splitlines()


def test_json_lines_hold_level_time_event_and_fields() -> None:
    events = [json.loads(line) for line in lines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["spoken", "warned", "tool failed"]
    assert events[1]["level"] == "warning" and events[1]["session"] == "s-1"
    assert events[1]["timestamp"].endswith("Z")
    assert events[2]["exception"].startswith("Traceback") and events[2]["tool"] == "x"


@pytest.mark.parametrize(
    ("level", "first"),
    [("debug", "quiet"), ("info", "spoken"), ("warning", "warned"), ("error", "tool failed")],
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


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_content_is_logged_on_request(log_format: str) -> None:
    assert SECRET in "\n".join(lines(log_format=log_format, content=True))


def test_failed_handshakes_are_not_logged_and_errors_of_libraries_are() -> None:
    text = "\n".join(lines(log_format="console"))
    assert "handshake of a stranger" not in text
    assert "ERROR asyncio a library's error" in text
    assert "\x1b" not in text, "a pipe gets no colours"
