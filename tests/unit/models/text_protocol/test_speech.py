"""The words that are spoken while a reply arrives."""

from __future__ import annotations

from random import Random

import pytest

from conductor.plugins.models.text_protocol.scanner import ReplyScanner

CALL = '{"type":"tool_call","name":"lamp","arguments":{"content":"nested","room":"hall"}}'

# A reply -> its speech while it arrives, and at its end.
REPLIES: dict[str, tuple[str, str]] = {
    '{"type":"final_answer","content":"half \\ud83d."}': ("half .", ""),
    '{"type":"final_answer","content":"no \\ud83d\\u00e4."}': ("no ä.", ""),
    '{"type":"final_answer","content":"odd \\q \\u12x."}': ("odd q \ufffd12x.", ""),
    '{"type":"final_answer","content":"cut \\ud83': ("cut ", ""),
    '{"type":"final_answer","content":"5" and 6""}': ('5" and 6"', ""),
    f"One moment.\n{CALL}\nIt is on.": ("One moment.", ""),
    'One moment.\n{"type":"final_answer","content":"Here."} not this': ("One moment. Here.", ""),
    "They came by cab": ("They came by cab", ""),
    "He said\nc": ("He said", "\nc"),
    "a `word` of code": ("a `word` of code", ""),
    "<thi": ("", ""),
    "<b>Bold</b> words": ("Bold words", ""),
    "Set {x} to 5 and {y": ("Set {x} to 5 and ", "{y"),
    '{x}"type":"tool_call"': ("{x}", ""),
    "": ("", ""),
}


def speech(reply: str, cuts: list[int]) -> tuple[str, str]:
    scanner = ReplyScanner({"lamp": {}})
    pieces = [reply[start:end] for start, end in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    return "".join(scanner.feed(piece) for piece in pieces), scanner.end()


@pytest.mark.parametrize("reply", REPLIES)
def test_speech_is_the_same_in_any_pieces(reply: str) -> None:
    random = Random(3)
    expected = REPLIES[reply]
    assert speech(reply, []) == expected
    assert speech(reply, list(range(1, len(reply)))) == expected
    for cut in range(len(reply)):
        assert speech(reply, [cut]) == expected
    for _ in range(20):
        cuts = sorted(random.sample(range(len(reply) + 1), min(4, len(reply))))
        assert speech(reply, cuts) == expected


def test_words_are_spoken_while_their_string_is_open() -> None:
    scanner = ReplyScanner({})
    assert scanner.feed('{"type":"final_answer","content":"It ') == "It "
    assert scanner.feed("is \\") == "is "
    assert scanner.feed('"on') == '"on'
