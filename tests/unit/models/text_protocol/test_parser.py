"""The calls, answers and problems of complete replies; `test_replies` has a corpus of notations."""

from __future__ import annotations

import json
from random import Random
from typing import NamedTuple

import pytest

from conductor.plugins.models.text_protocol.parser import WrittenCall
from conductor.plugins.models.text_protocol.prompt import Style, notation
from conductor.plugins.models.text_protocol.scanner import MAX_SPANS, ReplyScanner, ServiceProblem
from tests.cpu import least_cpu_s

TOOLS: dict[str, dict[str, object]] = {"agent.spawn": {}, "get_time": {}, "lamp": {}}
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


BASES = [
    '{"type":"tool_call","name":"lamp","arguments":{"room":"hall","level":7}}',
    '{"type": "tool_call", "name": "agent.spawn", "arguments": {"task": "look", "deep": {"a": [1, 2]}}}',
    '{"arguments":{"room":"a \\"b\\" c"},"name":"lamp","type":"tool_call"}',
    '{\n  "type": "tool_call",\n  "name": "get_time",\n  "arguments": {"zone": "Europe/Rome", "on": null}\n}',
]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"type":"tool_call","name":"lamp","arguments":{"path":"/home/me', "truncated"),
        ('{"type":"tool_call","name":"lamp","arguments":{"on":true}', "truncated"),
        ('{"type":"tool_call","name":"lamp","arguments":[1]}', "malformed"),
        ('{"type":"tool_call","name":"lamp","arguments":"{on"}', "malformed"),
        ('A person: {"name": "Ann", "arguments": {"age": 3}}', "misplaced"),
        ('{"temperature": 21}', "misplaced"),
        ('"name":"lamp","arguments":{"on":true}', "malformed"),
        ('{"type":"tool_call","name":"lamp","arguments":{"on":NaN}}', None),  # mended to a text
        ('{"type":"final_answer","content":"I was cut o', None),
        ('{"type":"tool_call","name":"lamp","arguments":' + '{"a":' * 70 + "1" + "}" * 71, "truncated"),
        ("{ a\n" * (MAX_SPANS + 1), "malformed"),
        ('{"type":"tool_call","name":"lamp","arguments":{}}\n' * (MAX_SPANS + 1), "malformed"),
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
