"""Tests of the words that are said while a reply is written."""

from __future__ import annotations

from random import Random

import pytest

from conductor.models.text_protocol.speech import SpokenText

CALL = '{"type":"tool_call","name":"lamp","arguments":{"content":"nested","room":"hall"}}'

# A reply -> what is said while it is written, and what only at its end.
REPLIES: dict[str, tuple[str, str]] = {
    "It is five o'clock.": ("It is five o'clock.", ""),
    '{"type":"final_answer","content":"All \\"done\\"."}': ('All "done".', ""),
    '{"content":"Content first.","type":"final_answer"}': ("Content first.", ""),
    '{"type":"final_answer","other":{"content":"no"},"content":"Yes."}': ("Yes.", ""),
    '{"type":"final_answer","content":"\\u00e4\\ud83d\\ude00\\n\\t\\/\\\\ raw\nnewline"}': (
        "ä😀\n\t/\\ raw\nnewline",
        "",
    ),
    '{"type":"final_answer","content":"half \\ud83d."}': ("half .", ""),
    '{"type":"final_answer","content":"cut o': ("cut o", ""),
    '<tool>{"type":"final_answer","content":"By tag."}</tool>': ("By tag.", ""),
    '```json\n{"type":"final_answer","content":"By fence."}\n```': ("By fence.", ""),
    f"{CALL}": ("", ""),
    f"<tool>{CALL}</tool> and words": ("", ""),
    f"```json\n{CALL}\n```": ("", ""),
    f"<tool_call>\n{CALL}\n</tool_call>": ("", ""),
    f"One moment.\n{CALL}\nIt is on.": ("One moment.\n", "\nIt is on."),
    'One moment.\n{"type":"final_answer","content":"Here."} not this': ("One moment.\nHere.", ""),
    'call: lamp({"on": true})': ("", "call: lamp("),
    "||call: lamp()": ("", "||call: lamp()"),
    "[1] is a footnote.": ("", "[1] is a footnote."),
    "I recall: nothing. Call me at 5 < 6 | 7.": ("I recall: nothing. Call me at 5 < 6 | 7.", ""),
    "They came by cab": ("They came by cab", ""),
    "He said\nc": ("He said\n", "c"),
    "<think>What is {this}?</think>\n\nIt is on.": ("It is on.", ""),
    "<think>never ends": ("", ""),
    "<thi": ("", ""),
    "a `word` of code": ("a `word` of code", ""),
    "<function=lamp>": ("", ""),
    "<b>Bold</b> words": ("Bold words", ""),
    "Set {x} to 5 and {y} to 6.": ("Set {x} to 5 and {y} to 6.", ""),
    '{}type":"tool_call","name":"lamp"}': ("", 'type":"tool_call","name":"lamp"}'),
    "Set {x} to 5 and {y": ("Set {x} to 5 and ", ""),
    "<tool>{x}</tool>": ("", ""),
    '{x}"type":"tool_call"': ("", '"type":"tool_call"'),
    '{"type":"final_answer","content":{"a":"no"}}': ("", ""),
    "": ("", ""),
}


def said(reply: str, cuts: list[int]) -> tuple[str, str]:
    speech = SpokenText()
    pieces = [reply[start:end] for start, end in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    return "".join(speech.feed(piece) for piece in pieces), speech.end()


@pytest.mark.parametrize("reply", REPLIES)
def test_what_is_said_does_not_depend_on_how_it_arrives(reply: str) -> None:
    expected = REPLIES[reply]
    assert said(reply, []) == expected
    assert said(reply, list(range(1, len(reply)))) == expected
    for cut in range(len(reply)):
        assert said(reply, [cut]) == expected


def test_random_pieces_say_the_same() -> None:
    random = Random(3)
    for reply, expected in REPLIES.items():
        for _ in range(20):
            cuts = sorted(random.sample(range(len(reply) + 1), min(4, len(reply))))
            assert said(reply, cuts) == expected


def test_words_are_said_while_their_string_is_open() -> None:
    speech = SpokenText()
    assert speech.feed('{"type":"final_answer","content":"It ') == "It "
    assert speech.feed("is \\") == "is "
    assert speech.feed('"on') == '"on'


def test_a_second_answer_is_not_said() -> None:
    answer = '{"type":"final_answer","content":"Once."}'
    assert said(answer * 2, []) == ("Once.", "")
