"""How commands write texts of others."""

from __future__ import annotations

import json

import pytest

from conductor.commands.output import escape


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain ünïcode 🔊", "plain ünïcode 🔊"),
        ("\x00\x7f\x9b\n\t", "\\u0000\\u007f\\u009b\\n\\t"),
        ("\u202e\u200b\u2028\u00a0\U000e0041", "\\u202e\\u200b\\u2028\\u00a0\\udb40\\udc41"),
    ],
)
def test_invisible_characters_become_json_escapes(text: str, escaped: str) -> None:
    assert escape(text) == escaped
    assert json.loads(f'"{escaped}"') == text
