"""Arguments in spoken words: every value is read out, except secrets."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.plugins.judges import prompt
from tests.unit.tools.test_spoken_prompt import ask, high


def details(arguments: dict[str, Any]) -> str:
    text = prompt(ask(arguments, "t"))
    return text.removeprefix("May I run t, with ").removesuffix("? Say yes or no.")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"path": "notes.txt"}, "path notes.txt"),
        ({"title": "Shopping list"}, "title “Shopping list”"),
        ({"limit": 5, "delta": -5}, "limit 5; and delta -5"),
        ({"ref": None, "paths": [], "options": {}}, "ref nothing; paths nothing; and options nothing"),
        ({"text": ""}, "text a text of 0 characters"),
        ({"paths": ["a", "b", "c", "d", "e"]}, "paths 5 items: a, b, c, d and e"),
        ({"order": {"recipient": "eve", "amount": 9}}, "order recipient eve; and order amount 9"),
        ({"steps": [{"a": 1}, {"a": 2}]}, "steps a 1; and steps a 2"),
        (
            {"text": "one two " * 60},
            "text a text of 480 characters that begins “one two one two one two one”",
        ),
        ({"note": "*bold* `code` [x](y) # head"}, "note “bold code x y head”"),
        ({"id": "3f2b8c1e-77aa-4a0b-9d4e-0c1d2e3f4a5b"}, "id an id ending in 4a5b"),
        (
            {"path": "/home/3f2b8c1e-77aa-4a0b-9d4e-0c1d2e3f4a5b"},
            "path /home/3f2b8c1e-77aa-4a0b-9d4e-0c1d2e3f4a5b",
        ),
        ({"name": "\u00e9" * 17 + "123"}, "name " + "\u00e9" * 17 + "123"),
        ({"": "draft", "path": "old"}, "an argument draft; and path old"),
        ({"commit": "da39a3ee5e6b4b0d3255bfef95601890afd80709"}, "commit an id ending in 0709"),
        ({"key": "auto delete"}, "key “auto delete”"),
        (
            {"path": "/a" * 40 + "/notes.txt"},
            "path a text of 90 characters that begins /a/a/a/a/a/a/a/a/a/a and ends in notes.txt",
        ),
    ],
)
def test_every_value_is_in_the_prompt(arguments: dict[str, Any], expected: str) -> None:
    assert details(arguments) == expected


def test_values_come_in_the_schemas_order() -> None:
    order = {"type": "object", "properties": {"amount": {}, "recipient": {}}}
    schema = {"type": "object", "properties": {"order": order, "note": {}}}
    question = ask({"x": 1, "note": "hi", "order": {"recipient": "eve", "amount": 9}}, "pay", schema=schema)
    assert "with order amount 9; order recipient eve; note hi; and x 1?" in prompt(question)


@pytest.mark.parametrize(
    "name", ["password", "apiKey", "user_password", "Authorization", "db.credentials", "accessToken"]
)
def test_secrets_are_neither_read_out_nor_asked_for(name: str) -> None:
    for value in ("hunter2", ["hunter2"], {name: "hunter2"}, 4711):
        question = high({name: value}, "login")
        text = " ".join((prompt(question), question.repeat, *question.action_words))
        assert "a secret" in text
        assert "hunter2" not in text and "4711" not in text
