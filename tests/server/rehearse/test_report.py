"""The report as JUnit XML."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conductor.rehearse.player import Scene
from conductor.rehearse.report import Performance, pass_rates, write_rates
from conductor.rehearse.script import Step
from tests.server.rehearse.conftest import Rehearse

THREE = """
name: three
model: scripted
replies: [One., "Two\\x07."]
steps:
  - say: First.
    expect: {said: one}
  - say: "Second & \\x07last."
    expect: {said: three, not_said: two}
  - say: Third.
"""


def test_junit_has_a_case_for_each_step(rehearse: Rehearse, tmp_path: Path) -> None:
    code, _, _ = rehearse(THREE, "--junit", "out.xml")
    assert code == 1
    suite = ElementTree.parse(tmp_path / "out.xml").getroot().find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "skipped")} == {
        "name": "three",
        "tests": "3",
        "failures": "2",
        "skipped": "0",
    }
    first, second, third = suite.findall("testcase")
    assert (first.get("name"), first.get("file"), len(first)) == ("1 First.", "one.yaml", 1)
    assert [(item.get("name"), item.get("value")) for item in first[0]] == [("rounds", "1")]
    assert second.get("name") == "2 Second & \\u0007last."
    assert [failure.text for failure in second.findall("failure")] == [
        "expected said /three/, was said 'Two.'\nexpected not said /two/, was said 'Two.'"
    ]
    assert "expected errors none, was model_provider_failed" in (third[1].get("message") or "")


def test_a_rate_counts_the_runs_of_a_file_that_passed(capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(say="Hi.")
    runs = [[], ["it broke"], ["it broke"], []]
    voice, shop = ("voice", "1a2b"), ("shop", "3c4d")
    performances = [Performance("a", "a.yaml", [Scene(step, problems=problems)], voice) for problems in runs]
    performances.append(Performance("b", "b.yaml", [Scene(step), Scene(step, reached=False)], shop))
    assert pass_rates(performances) == {"a.yaml": 0.5, "b.yaml": 0.0}
    write_rates(performances)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        "a 2 of 4 pass@4 1.00, pass^4 0.00 2 times step 1: it broke".split(),
        "b 0 of 1 pass@1 0.00, pass^1 0.00".split(),
        "prompt of a: voice, version 1a2b".split(),
        "prompt of b: shop, version 3c4d".split(),
    ]


def test_a_report_names_the_prompt_and_its_version(rehearse: Rehearse, tmp_path: Path) -> None:
    (tmp_path / "shop.md").write_text("Sell books.")
    text = f"{THREE}settings: {{SYSTEM_PROMPT_FILE: shop.md}}\n"
    _, out, _ = rehearse(text, "--junit", "out.xml")
    version = hashlib.sha256(b"Sell books.").hexdigest()[:12]
    assert f"prompt: shop, version {version}" in out.splitlines()
    found = ElementTree.parse(tmp_path / "out.xml").getroot().findall("testsuite/properties/property")
    properties = {item.get("name"): item.get("value") for item in found}
    assert (properties["prompt"], properties["prompt version"]) == ("shop", version)


def test_an_unwritable_report_is_an_error(rehearse: Rehearse) -> None:
    code, _, err = rehearse(THREE, "--junit", "none/out.xml")
    assert (code, err) == (2, "conductor: none/out.xml cannot be written: No such file or directory.\n")
