"""The errors: their codes and messages."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from conductor import errors
from conductor.errors import (
    ConductorError,
    ErrorCode,
    ModelError,
    ModelFailure,
    StoreError,
    StoreUnavailable,
    TurnTimeout,
)

CLASSES = [
    error_class
    for _, error_class in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error_class, ConductorError) and error_class.__module__ == errors.__name__
]


def test_every_class_has_a_code_of_the_protocol() -> None:
    assert {c.code for c in CLASSES} <= set(get_args(ErrorCode))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConductorError("x"), "internal_error"),
        (ModelError("refused", "x"), "model_provider_failed"),
        (TurnTimeout("x"), "turn_timeout"),
        (StoreError("x"), "internal_error"),
        (StoreUnavailable("x"), "store_unavailable"),
    ],
)
def test_an_error_has_the_message_for_the_client(error: ConductorError, code: str) -> None:
    assert error.code == code
    assert str(error) == "x"


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


@pytest.mark.parametrize("reason", get_args(ModelFailure))
def test_a_model_error_says_how_and_when_to_come_back(reason: ModelFailure) -> None:
    error = ModelError(reason, "It failed.", retry_after=1.5)
    assert (error.reason, error.retry_after, error.code) == (reason, 1.5, "model_provider_failed")
