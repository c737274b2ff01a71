"""What the person and the device of a rehearsal do, and what is noted of it."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter

import pytest

from conductor.messages import AssistantMessage
from conductor.models.base import TextDelta
from conductor.rehearse.player import Backstage, Player, holds
from conductor.rehearse.script import Rehearsal
from tests.end_to_end.conftest import serving
from tests.models import ScriptedProvider
from tests.rehearse.conftest import Rehearse

LAMP = """
model: scripted
replies:
  - calls: [{tool: lamp.switch, arguments: {room: kitchen, on: true}}]
  - The light is on, and it stays on.
tools:
  - name: lamp.switch
    inputSchema: {type: object}
    _meta: {conductor: {approval: never}}
"""
ASKING = LAMP.replace("never", "ask")
NINE = """
model: scripted
replies:
  - One two three four five six seven eight nine.
  - Once more.
"""


@pytest.mark.parametrize("moment", ["transcript", "call", "answer", "speech"])
def test_a_cut_loses_nothing_and_runs_nothing_twice(rehearse: Rehearse, moment: str) -> None:
    step = f"""
steps:
  - say: Light, please.
    cut: {moment}
    expect: {{called: [{{tool: lamp.switch, times: 1}}], said: it stays on, state: idle}}
"""
    code, out, err = rehearse(LAMP + step)
    assert (code, err) == (0, ""), out
    assert f"cut at the {moment}" in out


@pytest.mark.parametrize(("seed", "moment"), [("1", "call"), ("2", "transcript")])
def test_the_seed_chooses_the_random_cut(rehearse: Rehearse, seed: str, moment: str) -> None:
    out = rehearse(LAMP + "steps: [{say: Light., cut: random}]", "--seed", seed)[1]
    assert f"cut at the {moment}" in out


@pytest.mark.parametrize(
    ("interruption", "heard"),
    [
        ("{after_characters: 9}", "One two t"),
        ("{after_characters: 9, heard: One two}", "One two"),
        ("{after_ms: 20, heard: One}", "One"),
    ],
)
def test_an_interruption_cuts_what_was_said(rehearse: Rehearse, interruption: str, heard: str) -> None:
    step = f"""
steps:
  - say: Count.
    interrupt: {interruption}
    expect: {{said: "^{heard}$", state: idle}}
  - say: Again.
    expect: {{said: Once more}}
"""
    code, out, err = rehearse(NINE + step)
    assert (code, err) == (0, ""), out
    assert "interrupted" in out


def test_with_segments_the_person_interrupts_between_sentences(rehearse: Rehearse) -> None:
    text = """
model: scripted
segments: true
replies:
  - This is a first sentence of some length. This is a second sentence, also of some length. And a third one.
steps:
  - say: Talk.
    interrupt: {after_characters: 60}
    expect: {said: a second, not_said: third}
"""
    code, out, _ = rehearse(text)
    assert code == 0, out


WRONG = """
model: scripted
replies:
  - One two three.
  - Four five six.
  - Seven eight nine.
  - error: refused
  - error: refused
  - calls: [{tool: lamp.switch}]
  - All right.
  - calls: [{tool: dice, arguments: {sides: 6}}, {tool: dice, arguments: {sides: 7}}]
  - calls: [{tool: dice, arguments: {sides: 6}}]
  - Done.
tools:
  - {name: lamp.switch, inputSchema: {type: object}, anotations: {}}
  - name: dice
    inputSchema: {type: object}
    annotations: {readOnlyHint: true}
    answers: [{when: {sides: 6}, error: lost, once: true}, {when: {sides: 6}, result: 4}]
steps:
  - {say: Count., cut: call}
  - {say: Go on., interrupt: {after_characters: 1000}}
  - {say: Go on., approve: [tap, deny]}
  - {say: Fail.}
  - {say: Fail., expect: {errors: [model_provider_failed]}}
  - {say: Light., expect: {not_called: [lamp.switch]}}
  - {say: Roll., expect: {called: [{tool: dice, times: 3}, {tool: dice, arguments: {sides: 6}, times: 2}]}}
"""


def test_what_no_expectation_need_name_is_a_failure(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(WRONG)
    assert code == 1
    rows = out.splitlines()[1:]
    for row, problem in zip(
        rows,
        [
            "The tool 'lamp.switch' has the unknown field 'anotations'.; "
            "the socket was not cut: there was no call",
            "the answer was not interrupted: it ended before",
            "2 of approve were not asked for",
            "expected errors none, was model_provider_failed",
            "errors model_provider_failed",
            "lamp.switch asked for consent, and no approve is left to answer it",
            'dice has no answer to {"sides":7}',
        ],
        strict=True,
    ):
        assert problem in row
    assert [row.split()[2] for row in rows].count("ok") == 1  # the error that was expected


def test_a_call_of_a_tool_that_the_file_has_not_is_a_failure(rehearse: Rehearse) -> None:
    text = "model: scripted\nreplies: [{calls: [{tool: repositories.list}]}, None.]\nsteps: [{say: List.}]"
    code, out, _ = rehearse(text)
    assert code == 1
    assert "repositories.list was called, which is not among the file's tools" in out


def test_several_cards_are_answered_in_their_order(rehearse: Rehearse) -> None:
    calls = "calls: [{tool: lamp.switch, arguments: {room: a}}, {tool: lamp.switch, arguments: {room: b}}]"
    text = re.sub(r"calls: .*", calls, ASKING)
    step = """
steps:
  - say: Lights.
    approve: [deny, tap]
    cut: card
    expect:
      called: [{tool: lamp.switch, arguments: {room: b}, times: 1}, {tool: lamp.switch, times: 1}]
"""
    code, out, _ = rehearse(text + step)
    assert code == 0, out


def test_an_answer_that_does_not_count_is_a_failure(rehearse: Rehearse) -> None:
    tool = ASKING.replace("_meta: {conductor: {approval: ask}}", "annotations: {destructiveHint: true}")
    code, out, _ = rehearse(tool + "steps: [{say: Light., approve: voice}]")
    assert code == 1
    assert "a question was left open: the answer did not count" in out


def test_a_step_that_does_not_end_is_a_failure_and_the_rest_is_left(rehearse: Rehearse) -> None:
    answers = "    answers: [{result: 1, delay: 60}]\n"
    code, out, _ = rehearse(LAMP + answers + "steps: [{say: Light.}, {say: Thanks.}]", "--patience", "0.05")
    assert code == 1
    assert "it did not end within 0.05 s" in out
    assert "not reached" in out


def test_without_cards_the_question_is_spoken_and_the_next_step_answers(rehearse: Rehearse) -> None:
    steps = """
cards: false
steps:
  - say: Light.
    expect: {said: May I, not_called: [lamp.switch], state: idle}
  - say: "Yes."
    expect: {called: [{tool: lamp.switch, times: 1}], said: stays on}
"""
    code, out, _ = rehearse(ASKING + steps)
    assert code == 0, out


def test_limits_are_compared_with_what_the_step_took(rehearse: Rehearse) -> None:
    limits = "{seconds: 0.001, input_tokens: 0, output_tokens: 0}"
    code, out, _ = rehearse(f"model: demo\nsteps: [{{say: say hello world, limits: {limits}}}]")
    assert code == 1
    for figure in ("s", "tokens in", "tokens out"):
        assert f" {figure}, was " in out


@pytest.mark.parametrize("moment", ["transcript", "call"])
def test_a_tool_of_the_server_counts_though_the_socket_was_cut(rehearse: Rehearse, moment: str) -> None:
    expect = "expect: {called: [{tool: calculator, times: 1}]}"
    code, out, _ = rehearse(
        f"model: demo\nsteps: [{{say: what is 17 percent of 2340, cut: {moment}, {expect}}}]"
    )
    assert code == 0, out


def test_a_tool_that_the_server_refuses_is_one_sentence(rehearse: Rehearse) -> None:
    code, _, err = rehearse("model: demo\ntools: [{name: convo.x, inputSchema: {}}]\nsteps: [{say: Hi}]")
    assert code == 2
    assert err.startswith("conductor: one.yaml: the server refuses the tool convo.x: ")


async def test_the_server_goes_on_while_the_socket_is_cut() -> None:
    alone = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("One "), alone, TextDelta("two.")]])
    rehearsal = Rehearsal.model_validate({"steps": [{"say": "Count.", "cut": "answer"}]})
    async with serving(provider) as served:
        player = Player(rehearsal, served.url, None, random.Random(1), Backstage(Counter))
        playing = asyncio.create_task(player.play())
        await provider.record(0).started.wait()
        await served.empty()
        alone.set()
        [scene] = await playing
    assert (scene.spoken, scene.problems, scene.state) == (["One two."], [], "idle")


async def test_the_model_learns_what_was_heard() -> None:
    provider = ScriptedProvider([[TextDelta("One two three four five.")], [TextDelta("Six.")]])
    steps = [{"say": "Count.", "interrupt": {"after_characters": 7}}, {"say": "Go on."}]
    async with serving(provider) as served:
        player = Player(Rehearsal.model_validate({"steps": steps}), served.url, None, random.Random(1))
        await player.play()
    before = [one.text for one in provider.requests[1].messages if isinstance(one, AssistantMessage)]
    assert len(before) == 1 and before[0].startswith("One two") and "three" not in before[0]


def test_a_part_of_the_arguments_holds() -> None:
    assert holds({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1}, "d": [1]})
    assert not holds({"a": {"b": 1}}, {"a": {"b": 2}})
    assert not holds({"a": 1}, {"a": {"b": 1}})
    assert not holds({"d": [1, 2]}, {"d": [1]})
