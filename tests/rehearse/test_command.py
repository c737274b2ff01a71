"""The command: the examples as they are, another model, another server, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, Main
from tests.rehearse.conftest import Rehearse

EXAMPLES = sorted((ROOT / "examples" / "rehearsals").glob("*.yaml"))
HELLO = """
steps:
  - say: say hello world
    expect: {said: hello world}
"""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_as_expected(conductor: Main, path: Path) -> None:
    code, out, err = conductor("rehearse", str(path))
    assert (code, err) == (0, ""), out
    assert "FAILED" not in out


def test_without_a_model_the_settings_one_answers(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(HELLO, MODEL_PROVIDER="demo")
    assert code == 0, out


def test_a_model_is_chosen_by_its_provider(rehearse: Rehearse) -> None:
    assert rehearse(HELLO, "--model", "demo", MODEL_PROVIDER="anthropic")[0] == 0


def test_a_model_is_chosen_by_its_profile(rehearse: Rehearse, tmp_path: Path) -> None:
    profiles = 'default = "far"\n[[profile]]\nname = "far"\nprovider = "openai"\nmodel = "m"\n'
    profiles += 'base_url = "http://127.0.0.1:9/v1"\n[[profile]]\nname = "near"\nprovider = "demo"\n'
    (tmp_path / "models.toml").write_text(profiles)
    assert rehearse(HELLO, "--model", "near")[0] == 0


def test_an_unknown_model_is_one_sentence(rehearse: Rehearse) -> None:
    code, out, err = rehearse(HELLO, "--model", "deno")
    assert (code, out) == (2, "")
    assert err.startswith("conductor: one.yaml: MODEL_PROVIDER 'deno' is unknown") and err.count("\n") == 1


def test_what_was_not_as_expected_is_told_and_is_exit_code_1(rehearse: Rehearse) -> None:
    code, out, err = rehearse(HELLO.replace("said: hello", "said: bye"), "--model", "demo")
    assert (code, err) == (1, "")
    assert "FAILED" in out and "expected said /bye world/, was said 'hello world'" in out.lower()


def test_settings_of_the_file_are_relative_to_it(rehearse: Rehearse, tmp_path: Path) -> None:
    code, _, err = rehearse("settings: {SYSTEM_PROMPT_FILE: none.md}" + HELLO, "--model", "demo")
    assert code == 2
    assert str(tmp_path / "none.md") in err
