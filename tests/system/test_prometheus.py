"""/metrics and deploy/ with promtool, and the names in deploy/ and the documents.

Prometheus may be missing on a machine: then its tests are skipped and say so. ``.ci/run`` installs it and
sets ``CI_REQUIRE_PROMETHEUS=1``, with which a skip is a failure.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.app import App
from tests.conftest import ROOT
from tests.server.test_metrics import BEARER, CLIENT, METRICS, TOKEN, Running, served
from tests.server.wires import get, http, until
from tests.stand_ins.programs import program

DEPLOY = ROOT / "deploy"
DOCUMENT = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")


async def text_of(server: Running) -> str:
    """Hold a turn, and return /metrics."""
    async with App(f"ws://127.0.0.1:{server.port}/ws?token={CLIENT}", "s-1") as phone:
        await phone.ask("hello")
    await until(lambda: not any(session.busy for session in server.listener.registry.sessions))
    status, answer = await http(server.port, get(METRICS, BEARER))
    assert status == 200
    return answer.partition("\r\n\r\n")[2]


def names_in(text: str) -> set[str]:
    """List the metrics in an expression or a document, without the endings of their samples."""
    names = set(re.findall(r"\bconductor_[a-z_]+", text))
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in names}


async def test_dashboards_and_documents_name_existing_metrics() -> None:
    async with served() as server:
        text = await text_of(server)
    families = {
        re.sub(r"_total$", "", name)
        for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
        if not name.endswith("_created")
    }
    board = (DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    expressions = [target["expr"] for panel in json.loads(board)["panels"] for target in panel["targets"]]
    alerts = re.findall(r"expr: (.*)", (DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    assert len(alerts) >= 7 and len(expressions) >= 14
    for part in (*expressions, *alerts):
        assert names_in(part) <= families, part
    assert names_in(DOCUMENT) == families


async def test_promtool_reports_no_problem(tmp_path: Path) -> None:
    promtool = program("PROMETHEUS", "promtool")
    async with served() as server:
        text = await text_of(server)
    checked = subprocess.run(  # noqa: ASYNC221 -- nothing else runs
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "token").write_text(TOKEN)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(
        config.replace("/etc/prometheus/conductor-admin-token", str(tmp_path / "token"))
    )
    config_check = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]  # with its rules
    assert subprocess.run(config_check, capture_output=True, check=False).returncode == 0  # noqa: ASYNC221
