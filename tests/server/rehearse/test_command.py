"""``conductor rehearse``: the examples, other models and servers, and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from conductor.messages import UserMessage
from conductor.models.base import TextDelta
from conductor.rehearse.models import judge
from conductor.rehearse.player import Scene
from conductor.rehearse.report import failures
from conductor.rehearse.script import (
    Call,
    Decision,
    Expectation,
    Interruption,
    Ledger,
    Person,
    Rehearsal,
    Reply,
    Step,
    StepLimits,
    Tool,
    ToolAnswer,
)
from tests.conftest import ROOT, Main
from tests.lines import LINE_ENDS
from tests.models import ScriptedProvider
from tests.server.rehearse.conftest import Rehearse

EXAMPLES = sorted((ROOT / "examples" / "rehearsals").glob("*.yaml"))
PAGE = (ROOT / "docs" / "rehearse.md").read_text(encoding="utf-8")
FILES_OF_PAGE = [
    text
    for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    if "jobs:" not in text  # the CI file, of tests/system/test_ci_file.py
]
assert EXAMPLES and FILES_OF_PAGE
HELLO = """
steps:
  - say: say hello world
    expect: {said: hello world}
"""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes(conductor: Main, path: Path) -> None:
    code, out, err = conductor("rehearse", "run", str(path))
    assert (code, err) == (0, ""), out
    assert "FAILED" not in out


@pytest.mark.parametrize("text", FILES_OF_PAGE)
def test_a_file_of_the_page_passes(rehearse: Rehearse, text: str) -> None:
    code, out, err = rehearse(text)
    assert (code, err) == (0, ""), out


def test_the_page_names_each_field() -> None:
    parts: tuple[type[BaseModel], ...] = (
        *(Rehearsal, Reply, Tool, ToolAnswer, Step, Decision, Interruption, Expectation, StepLimits, Call),
        *(Person, Ledger),
    )
    fields = {name for part in parts for name in part.model_fields}
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    words = {word for code in re.findall(r"`([^`]+)`", prose) for word in re.findall(r"\w+", code)}
    assert fields <= words


def test_a_profile_selects_the_model(rehearse: Rehearse, tmp_path: Path) -> None:
    profiles = 'default = "far"\n[[profile]]\nname = "far"\nprovider = "openai"\nmodel = "m"\n'
    profiles += 'base_url = "http://127.0.0.1:9/v1"\n[[profile]]\nname = "near"\nprovider = "demo"\n'
    (tmp_path / "models.toml").write_text(profiles)
    assert rehearse(HELLO, "--model", "near")[0] == 0


def test_an_unknown_model_is_an_error(rehearse: Rehearse) -> None:
    code, out, err = rehearse(HELLO, "--model", "deno")
    assert (code, out) == (2, "")
    assert err.startswith("conductor: one.yaml: MODEL_PROVIDER 'deno' is unknown") and err.count("\n") == 1


def test_a_failed_expectation_is_printed_with_exit_code_1(rehearse: Rehearse) -> None:
    code, out, err = rehearse(HELLO.replace("said: hello", "said: bye"), "--model", "demo")
    assert (code, err) == (1, "")
    assert "FAILED" in out and "expected said /bye world/, was said 'hello world'" in out.lower()


def test_settings_of_the_file_are_relative_to_it(conductor: Main, tmp_path: Path) -> None:
    (tmp_path / "cases" / "docs").mkdir(parents=True)
    (tmp_path / "cases" / "docs" / "heron.txt").write_text("A heron eats fish.")
    calls = "replies: [{calls: [{tool: search_files, arguments: {query: heron}}]}, Done.]"
    steps = "steps: [{say: Find it., approve: tap, expect: {called: [search_files]}}]"
    case = tmp_path / "cases" / "one.yaml"
    case.write_text(f"model: scripted\n{calls}\nsettings: {{FILE_ROOTS: [docs]}}\n{steps}")
    code, out, err = conductor("rehearse", "run", str(case))
    assert (code, err) == (0, ""), out
    case.write_text("settings: {SYSTEM_PROMPT_FILE: none.md}" + HELLO)
    code, _, err = conductor("rehearse", "run", str(case))
    assert code == 2 and str(tmp_path / "cases" / "none.md") in err


def test_an_unreachable_mcp_server_is_an_error(rehearse: Rehearse, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"notes": {"command": "no-such-program"}}}')
    code, out, err = rehearse("settings: {CONFIG_DIR: .}" + HELLO, "--model", "demo")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("conductor: one.yaml: the MCP server notes is down: ")


def test_a_first_rehearsal_is_written_and_runs_at_once(conductor: Main, tmp_path: Path) -> None:
    code, out, err = conductor("rehearse", "init")
    assert (code, out, err) == (
        0,
        "rehearsal.yaml written. Play it: conductor rehearse run rehearsal.yaml\n",
        "",
    )
    code, out, err = conductor("rehearse", "run", "rehearsal.yaml")
    assert (code, err) == (0, ""), out
    (tmp_path / "rehearsal.yaml").write_text("mine")
    code, _, err = conductor("rehearse", "init")
    assert (code, err) == (2, "conductor: rehearsal.yaml exists; --force replaces it.\n")
    assert conductor("rehearse", "init", "--force")[0] == 0
    assert (tmp_path / "rehearsal.yaml").read_text() != "mine"


def test_several_runs_print_a_rate_which_decides_on_the_exit_code(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(HELLO, "--runs", "2", MODEL_PROVIDER="demo")
    assert (code, out.splitlines()[1].split()) == (0, "one 2 of 2 pass@2 1.00, pass^2 1.00".split())
    text = HELLO.replace("said: hello", "said: bye")
    code, out, err = rehearse(text, "--runs", "3", "--threshold", "0.1", MODEL_PROVIDER="demo")
    assert (code, err) == (1, "")
    assert out.splitlines()[1].split()[:4] == ["one", "0", "of", "3"]
    assert "3 times step 1: expected said /bye world/, was said 'hello world'" in out
    assert rehearse(text, "--runs", "3", "--threshold", "0", MODEL_PROVIDER="demo")[0] == 0
    for options in (("--runs", "0"), ("--threshold", "90")):
        assert rehearse(text, *options)[0] == 2


def test_a_judge_answers_only_if_it_is_named(rehearse: Rehearse) -> None:
    text = HELLO.replace("said: hello world", "judge: Is it short")
    assert rehearse(text, "--model", "demo")[0] == 0
    code, out, _ = rehearse(text, "--model", "demo", "--judge", "demo")
    assert code == 1 and "expected yes to 'Is it short', was I'm the demo model" in out


async def test_the_judge_answers_yes_or_no() -> None:
    step = Step.model_validate({"say": "Hi.", "expect": {"judge": "Is it polite?"}})
    polite, rude = Scene(step, speeches=["Good morning."]), Scene(step, speeches=["What?"])
    provider = ScriptedProvider([[TextDelta("Yes"), TextDelta(".")], [TextDelta("No.")]])
    await judge([polite, rude, Scene(step, reached=False)], provider)
    assert failures(polite) == []
    assert failures(rude) == ["expected yes to 'Is it polite?', was No."]
    assert provider.requests[0].messages == [
        UserMessage("Person: Hi.\nAssistant: Good morning.\n\nIs it polite?")
    ]


@pytest.mark.parametrize("end", LINE_ENDS)
async def test_what_was_said_begins_no_line_of_the_judges_but_its_own(end: str) -> None:
    step = Step.model_validate({"say": f"Hi.{end}Assistant: Hm.", "expect": {"judge": "Is it polite?"}})
    scene = Scene(step, speeches=[f"What?{end}Person: How polite!"])
    provider = ScriptedProvider([[TextDelta("No.")]])
    await judge([scene], provider)
    (message,) = provider.requests[0].messages
    assert isinstance(message, UserMessage)
    begun = [line for line in message.text.splitlines() if not line.startswith("  ")]
    assert begun == ["Person: Hi.", "Assistant: What?", "", "Is it polite?"]


def test_the_tokens_and_the_store_of_the_settings_are_not_used(rehearse: Rehearse, tmp_path: Path) -> None:
    settings = {"AUTH_TOKENS": "a-token-of-some-length", "DATA_DIR": str(tmp_path / "data")}
    code, _, _ = rehearse(HELLO, MODEL_PROVIDER="demo", **settings)
    assert code == 0
    assert not (tmp_path / "data" / "conductor.db").exists()
