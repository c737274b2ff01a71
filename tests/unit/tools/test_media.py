"""Data in base64 within results: a model reads its type and size."""

from __future__ import annotations

import base64
import json
import random
from functools import partial
from typing import Any

import msgspec
import pytest

from conductor.settings import Limits
from conductor.tools.executor import ToolExecutor
from conductor.tools.media import without_media
from conductor.tools.outcomes import failed, succeeded
from tests.cpu import least_cpu_s

NOISE = random.Random(41).randbytes(12_288)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + NOISE).decode()
DATA = base64.b64encode(NOISE).decode()
SVG = "%3Cpath/%3E" * 300
MAIL = base64.encodebytes(NOISE).decode()


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (DATA, "[base64, 12 KB]"),
        (PNG, "[image/png, 12 KB]"),
        (base64.urlsafe_b64encode(NOISE).decode(), "[base64, 12 KB]"),
        (f"data:image/jpeg;base64,{DATA}", "[image/jpeg, 12 KB]"),
        (f"data:text/plain;charset=utf-8;base64,{DATA}", "[text/plain, 12 KB]"),
        (
            f"<img src='data:image/svg+xml;charset=utf-8,{SVG}'> a plan",
            "<img src='[image/svg+xml, 2 KB]'> a plan",
        ),
        (json.dumps([f"data:image/svg+xml,{SVG}"]), '["[image/svg+xml, 2 KB]"]'),
        (f"Here: {MAIL}And more.", "Here: [base64, 12 KB]\nAnd more."),
        (
            '<img src="data:image/gif;base64,R0lGODlhAQAB"> a pixel',
            '<img src="[image/gif, 9 bytes]"> a pixel',
        ),
        (json.dumps({"a": PNG, "b": 1}), '{"a": "[image/png, 12 KB]", "b": 1}'),
        (json.dumps({"a": MAIL}), '{"a": "[base64, 12 KB]\\n"}'),
        (json.dumps({"a": PNG}).replace("/", "\\/"), '{"a": "[image/png, 12 KB]"}'),
        (
            {"shots": [PNG, {"deep": [DATA, "a word"]}]},
            {"shots": ["[image/png, 12 KB]", {"deep": ["[base64, 12 KB]", "a word"]}]},
        ),
        (
            {"type": "image", "data": "R0lGODlhAQAB", "mimeType": "image/gif"},
            {"type": "image", "data": "[image/gif, 9 bytes]", "mimeType": "image/gif"},
        ),
        (
            {"data": "not base64!", "mimeType": "text/plain"},
            {"data": "not base64!", "mimeType": "text/plain"},
        ),
        ("A" * 16_384, "[base64, 12 KB]"),
    ],
)
def test_data_is_described(value: Any, read: Any) -> None:
    assert without_media(value) == read


@pytest.mark.parametrize(
    "value",
    [
        "x" * 20_000,
        "0123456789" * 500,
        "-" * 5_000,
        "word\n" * 2_000,
        "Word " * 2_000,
        DATA[:1_000],
        "data:image/svg+xml,%3Csvg/%3E",
        NOISE.hex(),
        7,
        None,
        {"a": [True]},
    ],
    ids=lambda value: str(value)[:9],
)
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert without_media(value) is value


def test_the_models_observation_has_no_data_wherever_it_stands() -> None:
    executor = ToolExecutor([], Limits())
    for outcome in (
        succeeded(PNG),
        succeeded({"shot": PNG}),
        succeeded("ok", notes=[PNG]),
        failed("tool_error", f"The camera said {PNG}"),
        succeeded([PNG] * 40),  # which would be cut as text
    ):
        result = executor.to_result("call_1", outcome)
        assert "[image/png, 12 KB]" in result.content and "shortened" not in result.content
        assert len(result.content) < 2_000
        msgspec.json.decode(result.content)


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "A" * 1_023 + " ",
        "data:",
        "data:image/png;base64,",
        "data:image/png,a",
        "a" * 59 + "\n",
        "A" * 70 + "\n",
        "\\/",
        "\\n",
        "A\\/",
    ],
    ids=lambda piece: piece[:9],
)
def test_hostile_text_takes_a_bounded_time(piece: str) -> None:
    text = piece * (1_048_576 // len(piece))
    assert least_cpu_s(partial(without_media, text), 0.5) < 0.5  # 0.05; if quadratic, minutes
