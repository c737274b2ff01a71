"""Persons played by a model, the judge, and the ledger that overrules it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conductor.rehearse.ledger import vetoes
from conductor.rehearse.script import Ledger
from tests.conftest import ROOT, Main
from tests.models import OpenAIService, Reply

EXAMPLES = ROOT / "examples" / "rehearsals" / "people"
WORDS = {
    "lamp": ["Switch on the lamp in the hall.", "Yes.", "DONE"],
    "photos": ["Delete 3 photos of album Rome.", "No, keep them.", "DONE"],
    "tunnel": ["Send a message to Ana: the train is late.", "Yes, send it.", "DONE"],
}
YES = "Yes, the person got what was asked for."


class Models:
    """A service that plays the person with ``words``, and the judge with one ``verdict``."""

    def __init__(self, words: Sequence[str], verdict: str, runs: int = 1) -> None:
        self.words = chain.from_iterable(repeat(words, runs))
        self.verdict = verdict
        self.service = OpenAIService(default=self.answer)

    def answer(self, body: dict[str, Any]) -> Reply:
        is_person = body["messages"][0]["content"].startswith("You play a person")
        return Reply(text=next(self.words) if is_person else self.verdict)


async def rehearse(conductor: Main, models: Models, *options: str) -> tuple[int, str, str]:
    async with models.service as service:
        settings = {
            "OPENAI_BASE_URL": service.base_url,
            "OPENAI_API_KEY": "test-key",
            "MODEL_PROVIDER": "demo",
        }
        command = ("rehearse", "run", *options, "--person", "openai:p", "--judge", "openai:j")
        return await asyncio.to_thread(lambda: conductor(*command, **settings))


@pytest.mark.parametrize("name", WORDS)
async def test_an_example_with_a_person_passes(conductor: Main, name: str) -> None:
    code, out, err = await rehearse(conductor, Models(WORDS[name], YES), str(EXAMPLES / f"{name}.yaml"))
    assert (code, err) == (0, ""), out
    assert YES in out


async def test_the_ledger_overrules_the_judge(conductor: Main) -> None:
    words = ["Delete 3 photos of album Rome.", "Confirm delete photos Rome count 3.", "DONE"]
    code, out, _ = await rehearse(conductor, Models(words, YES), str(EXAMPLES / "photos.yaml"))
    assert code == 1
    assert "the ledger has 1 calls of photos.delete, at most 0 allowed" in out


async def test_a_judge_that_says_no_fails_the_run(conductor: Main) -> None:
    models = Models(WORDS["lamp"], "No, the lamp stayed dark.")
    code, out, _ = await rehearse(conductor, models, str(EXAMPLES / "lamp.yaml"))
    assert code == 1 and "was No, the lamp stayed dark." in out
    question = models.service.requests[-1]["messages"][-1]["content"]
    assert "Person: Switch on the lamp in the hall." in question
    assert '"tool":"lamp.switch"' in question


async def test_several_runs_have_their_estimates_in_the_report_and_in_junit(
    conductor: Main, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLES / "lamp.yaml", tmp_path)
    models = Models(WORDS["lamp"], YES, runs=2)
    code, out, _ = await rehearse(conductor, models, "lamp.yaml", "--runs", "2", "--junit", "out.xml")
    assert code == 0 and "pass@2 1.00, pass^2 1.00" in out
    suites = ElementTree.parse(tmp_path / "out.xml").getroot().findall("testsuite")
    estimates = [
        {
            item.get("name"): item.get("value")
            for item in suite.findall("properties/property")
            if "@" in str(item.get("name")) or "^" in str(item.get("name"))
        }
        for suite in suites
    ]
    assert estimates == [{"pass@2": "1.0000", "pass^2": "1.0000"}] * 2


def test_a_person_needs_its_models(conductor: Main) -> None:
    code, _, err = conductor("rehearse", "run", str(EXAMPLES / "lamp.yaml"))
    assert code == 2 and "--person and --judge must name their models" in err


ASKED = {"event": "answer", "tool": "a", "digest": "1", "outcome": "allowed"}
RAN = {"event": "call", "tool": "a", "digest": "1", "error_type": "none"}


@pytest.mark.parametrize(
    ("ledger", "entries", "problems"),
    [
        (Ledger(asked_before=("a",)), [ASKED, RAN], 0),
        (Ledger(asked_before=("a",)), [RAN, ASKED], 1),
        (Ledger(asked_before=("a",)), [ASKED, RAN, RAN], 1),
        (Ledger(asked_before=("a",)), [ASKED | {"outcome": "denied"}, RAN], 1),
        (Ledger(asked_before=("a",)), [ASKED, RAN | {"digest": "2"}], 1),
        (Ledger(at_most={"a": 1}), [RAN], 0),
        (Ledger(at_most={"a": 1}), [RAN, RAN | {"error_type": "unknown"}], 1),
        (Ledger(no_unknown=True), [RAN | {"error_type": "unknown"}], 1),
        (Ledger(never=("a",)), [RAN | {"tool": "b"}], 0),
    ],
)
def test_each_bound_of_the_ledger(ledger: Ledger, entries: list[dict[str, str]], problems: int) -> None:
    assert len(list(vetoes(ledger, entries))) == problems
