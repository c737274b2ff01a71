"""The calls, answers and problems of complete replies; `test_replies` has a corpus of notations."""

from __future__ import annotations

import json
from random import Random
from typing import NamedTuple

import pytest

from conductor.plugins.models.text_protocol.parser import WrittenCall
from conductor.plugins.models.text_protocol.prompt import Style, notation
from conductor.plugins.models.text_protocol.scanner import ReplyScanner, ServiceProblem
from conductor.plugins.models.text_protocol.span import MAX_DEPTH
from tests.cpu import least_cpu_s

TOOLS: dict[str, dict[str, object]] = {"agent.spawn": {}, "get_time": {}, "lamp": {}}
CALL = {"type": "tool_call", "name": "lamp", "arguments": {"on": True, "room": "la 'cuisine' {2}"}}
ARGUMENTS = json.dumps(CALL["arguments"])
ANSWER = {"type": "final_answer", "content": 'All "done".'}
STYLES: tuple[Style, ...] = ("jsonl", "xml", "markdown-json")


class Found(NamedTuple):
    """What a reply holds."""

    calls: tuple[WrittenCall, ...] = ()
    words: str = ""
    problem: ServiceProblem | None = None


def parse(text: str) -> Found:
    scanner = ReplyScanner(TOOLS)
    words = scanner.feed(text) + scanner.end()
    return Found(() if scanner.problem else tuple(scanner.calls), words, scanner.problem)


def calls(text: str) -> list[tuple[str, object]]:
    result = parse(text)
    assert result.problem is None
    return [(call.name, json.loads(call.arguments)) for call in result.calls]


@pytest.mark.parametrize("style", STYLES)
def test_a_call_and_an_answer_are_read_in_every_style(style: Style) -> None:
    assert parse(notation(CALL, style)) == Found((WrittenCall("lamp", ARGUMENTS),))
    assert parse(notation(ANSWER, style)) == Found(words='All "done".')
    pair = f"{notation(CALL, style)}\n{notation(CALL | {'name': 'get_time'}, style)}"
    assert [name for name, _ in calls(pair)] == ["lamp", "get_time"]


BASES = [
    '{"type":"tool_call","name":"lamp","arguments":{"room":"hall","level":7}}',
    '{"type": "tool_call", "name": "agent.spawn", "arguments": {"task": "look", "deep": {"a": [1, 2]}}}',
    '{"arguments":{"room":"a \\"b\\" c"},"name":"lamp","type":"tool_call"}',
    '{\n  "type": "tool_call",\n  "name": "get_time",\n  "arguments": {"zone": "Europe/Rome", "on": null}\n}',
]
# What is done to a call -> what it is then.
FAULTS: dict[str, tuple[list[tuple[str, str]], str]] = {
    "nothing": ([], "exact"),
    "smart quotes": (
        [('"type"', "“type”"), ('"name"', "“name”"), ('"arguments"', "“arguments”")],
        "repaired",
    ),
    "single quotes around keys": ([('"type"', "'type'"), ('"name"', "'name'")], "repaired"),
    "bare keys": ([('"type"', "type"), ('"name"', "name")], "repaired"),
    "another kind": ([('"tool_call"', '"call"')], "exact"),
    "no name": ([('"name"', '"nom"')], "malformed"),
    "a name that is a number": ([('"lamp"', "5"), ('"agent.spawn"', "5"), ('"get_time"', "5")], "malformed"),
    "an empty name": ([('"lamp"', '""'), ('"agent.spawn"', '""'), ('"get_time"', '""')], "malformed"),
    "parameters": ([('"arguments"', '"parameters"')], "exact"),
}
ENDS: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "a comma": ("", ","),
    "words": ("Here it is:\n", "\nI hope that helps."),
    "a brace too many": ("", "}"),
    "a fence": ("```json\n", "\n```"),
    "a fence that stays open": ("```\n", ""),
    "a tag": ("<tool>", "</tool>"),
    "a tag that stays open": ("<tool>", ""),
}


def quality(result: Found) -> str:
    if result.problem is not None:
        return result.problem
    return "none" if not result.calls else "repaired" if result.calls[0].repaired else "exact"


def test_the_table_of_malformed_calls() -> None:
    wrong = []
    cases = 0
    for base in BASES:
        complete = parse(base).calls[0]
        for fault, (replacements, expected) in FAULTS.items():
            text = base
            for old, new in replacements:
                text = text.replace(old, new)
            for end, (before, after) in ENDS.items():
                result = parse(before + text + after)
                cases += 1
                arguments = [json.loads(call.arguments) for call in result.calls]
                if quality(result) != expected or (
                    arguments and arguments != [json.loads(complete.arguments)]
                ):
                    wrong.append((fault, end, base[:30], quality(result), arguments))
    assert cases > 200
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"type":"tool_call","name":"lamp","arguments":{"path":"/home/me', "truncated"),
        ('{"type":"tool_call","name":"lamp","arguments":{"on":true}', "truncated"),
        ('{"type":"tool_call","name":"lamp","arguments":[1]}', "malformed"),
        ('{"type":"tool_call","name":"lamp","arguments":"{on"}', "malformed"),
        ('A person: {"name": "Ann", "arguments": {"age": 3}}', "misplaced"),
        ('{"temperature": 21}', "misplaced"),
        ("", "empty"),
        ('"name":"lamp","arguments":{"on":true}', "malformed"),
        ('{"type":"tool_call","name":"lamp","arguments":{"on":NaN}}', None),  # mended to a text
        ('{"type":"final_answer","content":"I was cut o', None),
        ('{"type":"tool_call","name":"lamp","arguments":' + '{"a":' * 70 + "1" + "}" * 71, "truncated"),
    ],
)
def test_an_invalid_call_is_a_problem(text: str, problem: ServiceProblem | None) -> None:
    result = parse(text)
    assert result.problem == problem
    if problem is not None:
        assert result.calls == ()


def test_a_call_that_is_cut_off_anywhere_is_never_completed() -> None:
    random = Random(7)
    for base in BASES:
        for style in STYLES:
            text = notation(json.loads(base), style)
            end = text.rindex("}")
            for cut in range(end + 1):
                assert parse(text[:cut]).calls == (), text[:cut]
            complete = parse(text).calls
            for _ in range(20):  # and neither with a little noise in it
                at = random.randrange(end)
                noisy = text[:at] + random.choice('"{}[]\\:,\n x') + text[at : random.randrange(at, end)]
                if parse(noisy).calls:
                    assert noisy.count("{") <= noisy.count("}"), noisy
            assert len(complete) == 1


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "[",
        "{}",
        '{"a":',
        "[lamp(",
        "\n",
        "`",
        "<a",
        "```\n",
        "lamp(",
        "{1}",
        '{"type":"tool_call",',
        "call: lamp({",
        '"',
        "\\",
        "“",
        "a{'b': 1},",
    ],
)
def test_no_text_takes_long(unit: str) -> None:
    text = '{"type":"tool_call","name":"lamp","arguments":{"x":1}' + unit * (70_000 // len(unit))
    assert least_cpu_s(lambda: parse(text), 0.25) < 0.25  # 0.04; quadratic, seconds
    assert least_cpu_s(lambda: parse(unit * (70_000 // len(unit))), 0.25) < 0.25


def test_depth_is_bounded() -> None:
    deep = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)
    assert parse(f'{{"name":"lamp","arguments":{deep}}}').problem == "truncated"
