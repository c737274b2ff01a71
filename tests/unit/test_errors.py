"""The errors: their codes and messages."""

from __future__ import annotations

import inspect
from typing import get_args

from conductor import errors
from conductor.errors import (
    ConductorError,
    ErrorCode,
)

CLASSES = [
    error_class
    for _, error_class in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error_class, ConductorError) and error_class.__module__ == errors.__name__
]


def test_every_class_has_a_code_of_the_protocol() -> None:
    assert {c.code for c in CLASSES} <= set(get_args(ErrorCode))


def test_the_codes_are_those_of_the_protocol() -> None:
    assert sorted(get_args(ErrorCode)) == [
        "internal_error",
        "invalid_event",
        "invalid_transcript",
        "model_provider_failed",
        "rate_limited",
        "session_mismatch",
        "store_unavailable",
        "tool_round_limit_exceeded",
        "turn_timeout",
        "unauthorized",
        "unsupported_protocol_version",
    ]
