"""The MCP server of one's own that docs/mcp.md shows, run as the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.ports import free_port
from tests.stand_ins.programs import end, started
from tests.system.mcp.test_toolset import ROOT

SECTION = (
    (ROOT / "docs/mcp.md").read_text(encoding="utf-8").split("## A server of your own")[1].split("\n## ")[0]
)
PROGRAM, CONFIG, COMMAND = re.findall(r"^```\w+\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
HTTP, URL = 'server.run("streamable-http", port=9000)', '"url": "http://127.0.0.1:9000/mcp"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "shop_server.py").write_text(PROGRAM)
    (tmp_path / "mcp.json").write_text(CONFIG)
    return tmp_path


def result(folder: Path) -> Any:
    done = subprocess.run(COMMAND, shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["data"]


def test_the_server_of_the_page_runs_as_a_program(folder: Path) -> None:
    assert f"`{result(folder)}`".replace("'", '"') in SECTION


def test_the_server_of_the_page_runs_over_http(folder: Path) -> None:
    assert f"`{HTTP}`" in SECTION and f"`{URL}`" in SECTION
    port = str(free_port())
    (folder / "shop_server.py").write_text(PROGRAM.replace("server.run()", HTTP.replace("9000", port)))
    (folder / "mcp.json").write_text(
        f'{{"mcpServers": {{"shop": {{{URL.replace("9000", port)}, "trust": true}}}}}}'
    )
    server = started([sys.executable, "shop_server.py"], b"running", cwd=folder)
    try:
        assert result(folder) == {"result": 12}
    finally:
        end(server)
