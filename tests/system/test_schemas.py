"""Files for other programs, checked against the schemas of these: compose.yaml, and the CI file of the docs.

.ci/run installs check-jsonschema, which has the schemas, in ``build/schemas``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.stand_ins.programs import program

COMPOSE = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "rehearse.md").read_text(encoding="utf-8")
WORKFLOW = PAGE.split("A whole file for GitHub")[1].split("```yaml\n")[1].split("```")[0]
COMPOSE_SPEC, WORKFLOWS = "vendor.compose-spec", "vendor.github-workflows"


def problems(schema: str, text: str, folder: Path) -> str:
    validator = program("SCHEMAS", "check-jsonschema", path=str(ROOT / "build" / "schemas" / "venv" / "bin"))
    (folder / "file.yaml").write_text(text)
    command = [validator, "--builtin-schema", schema, "file.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(("schema", "text"), [(COMPOSE_SPEC, COMPOSE), (WORKFLOWS, WORKFLOW)])
def test_a_file_is_valid(schema: str, text: str, tmp_path: Path) -> None:
    assert problems(schema, text, tmp_path) == ""


@pytest.mark.parametrize(
    ("schema", "text", "old", "new"),
    [
        (COMPOSE_SPEC, COMPOSE, "restart: unless", "restarts: unless"),
        (COMPOSE_SPEC, COMPOSE, "service_healthy", "healthy"),
        (WORKFLOWS, WORKFLOW, "runs-on", "runs_on"),
        (WORKFLOWS, WORKFLOW, "pull_request", "pull_requests"),
    ],
)
def test_a_mistake_is_found(schema: str, text: str, old: str, new: str, tmp_path: Path) -> None:
    assert old in text
    assert problems(schema, text.replace(old, new), tmp_path)
