"""The CI file of docs/rehearse.md: what it installs exists, and what it runs passes, or fails the build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

SECTION = (ROOT / "docs" / "rehearse.md").read_text(encoding="utf-8").split("A whole file for GitHub")[1]
STEPS: list[dict[str, Any]] = yaml.safe_load(SECTION.split("```yaml\n")[1].split("```")[0])["jobs"][
    "rehearse"
]["steps"]
INSTALL, REHEARSE = (step["run"] for step in STEPS if "run" in step)


def test_it_installs_this_package_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.fullmatch(r"pip install '([\w-]+)\[([\w,-]+)\]'", INSTALL)
    assert found is not None and found[1] == project["name"]
    assert set(found[2].split(",")) <= project["optional-dependencies"].keys()
    (python,) = (step["with"]["python-version"] for step in STEPS if "setup-python" in step.get("uses", ""))
    assert project["requires-python"] == ">=3.11" and tuple(map(int, python.split("."))) >= (3, 11)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a checkout with the rehearsals that the page writes."""
    assert 0 == shell(re.findall(r"`([^`]+)`", SECTION.partition("```yaml")[0])[2:4], tmp_path)
    return tmp_path


def shell(commands: list[str], folder: Path) -> int:
    # As GitHub runs a step; the secret is empty in a pull request from a fork.
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANTHROPIC_API_KEY": "",
    }
    text = "\n".join(commands)
    done = subprocess.run(
        ["bash", "-e", "-c", text], cwd=folder, env=environment, capture_output=True, timeout=60
    )
    return done.returncode


def test_its_rehearsals_pass_and_leave_the_outcomes_that_are_kept(folder: Path) -> None:
    assert shell([REHEARSE], folder) == 0
    (kept,) = (step["with"]["path"] for step in STEPS if "upload-artifact" in step.get("uses", ""))
    assert 'failures="0"' in (folder / kept).read_text()


def test_a_rehearsal_that_fails_fails_the_build(folder: Path) -> None:
    file = folder / "rehearsals" / "hello.yaml"
    file.write_text(file.read_text().replace("397", "398"))
    assert shell([REHEARSE], folder) == 1
