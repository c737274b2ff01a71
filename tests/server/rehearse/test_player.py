"""The actions of a rehearsal's person and device, and their record."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from conductor.models.base import TextDelta
from conductor.rehearse.player import Backstage, Player
from conductor.rehearse.script import Rehearsal, holds
from tests.models import ScriptedProvider
from tests.pictures import png
from tests.server.rehearse.conftest import Rehearse
from tests.serving import serving

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
def test_a_cut_loses_no_answer_and_repeats_no_call(rehearse: Rehearse, moment: str) -> None:
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
def test_the_seed_determines_the_random_cut(rehearse: Rehearse, seed: str, moment: str) -> None:
    out = rehearse(LAMP + "steps: [{say: Light., cut: random}]", "--seed", seed)[1]
    assert f"cut at the {moment}" in out


@pytest.mark.parametrize(
    ("interruption", "text"),
    [
        ("{after_characters: 9}", "One two t"),
        ("{after_characters: 9, heard: One two}", "One two"),
        ("{after_ms: 20, heard: One}", "One"),
    ],
)
def test_an_interruption_cuts_the_spoken_text(rehearse: Rehearse, interruption: str, text: str) -> None:
    step = f"""
steps:
  - say: Count.
    interrupt: {interruption}
    expect: {{said: "^{text}$", state: idle}}
  - say: Again.
    expect: {{said: Once more}}
"""
    code, out, err = rehearse(NINE + step)
    assert (code, err) == (0, ""), out
    assert "interrupted" in out


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


def test_problems_are_failures_without_an_expectation(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(WRONG)
    assert code == 1
    *rows, prompt, difference = out.splitlines()[1:]
    assert prompt.startswith("prompt: voice, version ")
    assert difference.startswith("first difference of one: step 1, The tool 'lamp.switch'")
    for row, problem in zip(
        rows,
        [
            "The tool 'lamp.switch' has the unknown field 'anotations'.; "
            "the socket was not cut: there was no call",
            "the answer was not interrupted: it ended before",
            "2 of approve were not used",
            "expected errors none, was model_provider_failed",
            "errors model_provider_failed",
            "lamp.switch needs consent, but approve has no further decision",
            'dice has no answer to {"sides":7}',
        ],
        strict=True,
    ):
        assert problem in row
    assert [row.split()[2] for row in rows].count("ok") == 1  # the expected error


TWO_CARDS = re.sub(
    r"calls: .*",
    "calls: [{tool: lamp.switch, arguments: {room: a}}, {tool: lamp.switch, arguments: {room: b}}]",
    ASKING,
)
HIGH = ASKING.replace("_meta: {conductor: {approval: ask}}", "annotations: {destructiveHint: true}")
CALCULATED = "{say: what is 17 percent of 2340, cut: %s, expect: {called: [{tool: calculator, times: 1}]}}"


@pytest.mark.parametrize(
    ("text", "code", "phrases"),
    [
        (
            f"{TWO_CARDS}steps: [{{say: Lights., approve: [deny, tap], cut: card, expect: {{called: "
            "[{tool: lamp.switch, arguments: {room: b}, times: 1}, {tool: lamp.switch, times: 1}]}}]",
            0,
            ["cut at the card"],
        ),
        (
            HIGH + "steps: [{say: Light., approve: voice}]",
            1,
            ["an approval request is still open: its answer did not count"],
        ),
        (
            f"{LAMP}    answers: [{{result: 1, delay: 60}}]\nsteps: [{{say: Light.}}, {{say: Thanks.}}]",
            1,
            ["it did not end within 0.05 s", "not reached"],
        ),
        (
            f"{ASKING}cards: false\nsteps: [{{say: Light., expect: {{said: May I, not_called: [lamp.switch], "
            "state: idle}}, {say: 'Yes.', expect: {called: [lamp.switch], said: stays on}}]",
            0,
            [],
        ),
        (
            "model: demo\nsteps: [{say: say hello world, limits: "
            "{seconds: 0.001, input_tokens: 0, output_tokens: 0}}]",
            1,
            [" s, was ", " tokens in, was ", " tokens out, was "],
        ),
        (f"model: demo\nsteps: [{CALCULATED % 'transcript'}]", 0, ["cut at the transcript"]),
        (f"model: demo\nsteps: [{CALCULATED % 'call'}]", 0, ["cut at the call"]),
    ],
    ids=["two cards", "ignored", "no end", "spoken", "limits", "cut", "cut in a call"],
)
def test_a_rehearsal_passes_or_fails(rehearse: Rehearse, text: str, code: int, phrases: list[str]) -> None:
    patience = ["--patience", "0.05"] if "delay: 60" in text else []
    ended, out, err = rehearse(text, *patience)
    assert (ended, err) == (code, ""), out
    assert all(phrase in out for phrase in phrases), out


def test_a_tool_that_the_server_rejects_is_an_error(rehearse: Rehearse) -> None:
    code, _, err = rehearse("model: demo\ntools: [{name: convo.x, inputSchema: {}}]\nsteps: [{say: Hi}]")
    assert code == 2
    assert err.startswith("conductor: one.yaml: the server rejects the tool convo.x: ")


async def test_the_server_continues_while_the_socket_is_cut() -> None:
    alone = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("One "), alone, TextDelta("two.")]])
    rehearsal = Rehearsal.model_validate({"steps": [{"say": "Count.", "cut": "answer"}]})
    async with serving(provider) as served:
        player = Player(rehearsal, served.url, random.Random(1), Backstage(Counter))
        playing = asyncio.create_task(player.play())
        await provider.record(0).started.wait()
        await served.empty()
        alone.set()
        [scene] = await playing
    assert (scene.speeches, scene.problems, scene.state) == (["One two."], [], "idle")


def test_arguments_match_by_their_parts() -> None:
    assert holds({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1}, "d": [1]})
    assert not holds({"a": {"b": 1}}, {"a": {"b": 2}})
    assert not holds({"a": 1}, {"a": {"b": 1}})
    assert not holds({"d": [1, 2]}, {"d": [1]})


def test_the_halves_of_a_sentence_are_one_message(rehearse: Rehearse) -> None:
    step = """
steps:
  - say: Turn on the light in the
    rest: kitchen.
    cut: transcript
    expect: {called: [{tool: lamp.switch, times: 1}], said: it stays on, state: idle}
"""
    code, out, err = rehearse(LAMP + step)
    assert (code, err) == (0, ""), out


def test_a_whole_sentence_does_not_wait_for_a_rest(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(NINE + "steps: [{say: Go on., rest: Now., expect: {said: Once}}]")
    assert code == 1 and "the server did not wait for the rest" in out


@pytest.mark.parametrize("segments", ["", "segments: true\n"], ids=["whole", "segments"])
def test_a_murmur_lets_the_answer_go_on(rehearse: Rehearse, segments: str) -> None:
    steps = "steps: [{say: Go on., murmurs: [Mhm.], expect: {said: seven, state: idle}}]"
    code, out, err = rehearse(segments + NINE + steps)
    assert (code, err) == (0, ""), out


def test_the_first_step_begins_after_the_greeting(rehearse: Rehearse) -> None:
    steps = "steps: [{say: Go on., interrupt: {after_characters: 4}, expect: {said: '^One $'}}]"
    code, out, err = rehearse("greeting: Hello there.\n" + NINE + steps)
    assert (code, err) == (0, ""), out


def test_words_that_interrupt_are_no_murmur(rehearse: Rehearse) -> None:
    code, out, _ = rehearse(NINE + 'steps: [{say: Go on., murmurs: ["Stop it."], expect: {said: Once}}]')
    assert code == 1 and "1 murmurs did not let the speech go on" in out


SEEING = """
model: demo
tools:
  - name: camera.look
    inputSchema: {type: object}
    annotations: {readOnlyHint: true}
    answers: [{result: a photo, images: [IMAGES]}]
steps:
  - say: What do you see?
    expect: {called: [camera.look], said: "I got a picture .64 by 48 pixels"}
  - say: What is this?
    images: [IMAGES]
    expect: {said: "I got a picture .64 by 48 pixels"}
"""


def test_a_tool_and_words_show_pictures(rehearse: Rehearse, tmp_path: Path) -> None:
    picture = tmp_path / "photo.png"
    picture.write_bytes(png(64, 48))
    code, out, err = rehearse(SEEING.replace("IMAGES", str(picture)))
    assert (code, err) == (0, ""), out
    code, _, err = rehearse(SEEING.replace("IMAGES", str(tmp_path / "none.png")))
    assert code == 2 and "none.png cannot be read: No such file" in err and err.count("\n") == 1
    picture.write_bytes(png(4_000, 4_000))
    code, _, err = rehearse(SEEING.replace("IMAGES", str(picture)))
    assert code == 2 and "4,000 x 4,000 pixels" in err and err.endswith("8,000 a side.\n")


async def test_facts_are_told_before_the_words_of_their_step() -> None:
    rehearsal = Rehearsal.model_validate(
        {
            "steps": [
                {"say": "How many?", "context": ["It rains.", {"key": "cart", "text": "Three items."}]},
                {"say": "And now?", "context": [{"key": "cart", "text": ""}]},
            ]
        }
    )
    provider = ScriptedProvider([[TextDelta("Three.")], [TextDelta("None.")]])
    async with serving(provider) as served:
        scenes = await Player(rehearsal, served.url, random.Random(1), Backstage(Counter)).play()
    assert [scene.problems for scene in scenes] == [[], []]
    first, second = (str(request.messages) for request in provider.requests)
    assert "- It rains.\\n- cart: Three items." in first
    assert "It rains." in second and "Three items." not in second


async def test_a_fact_that_is_too_long_is_a_problem_of_its_step() -> None:
    step = {"say": "Well?", "context": ["x" * 2_001]}
    async with serving(ScriptedProvider([])) as served:
        rehearsal = Rehearsal.model_validate({"steps": [step]})
        (scene,) = await Player(rehearsal, served.url, random.Random(1), Backstage(Counter)).play()
    assert len(scene.problems) == 1 and "2000" in scene.problems[0]
