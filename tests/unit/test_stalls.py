"""Results that once held the event loop for seconds are redacted in time."""

from __future__ import annotations

import pytest

from conductor.tools.redaction import Redactor
from tests.cpu import least_cpu_s

SECRETS = ("a-key-of-a-service-00001", "a-token-of-a-service-00002")
BOUND_S = 0.25
"""Several times the CPU time that one callback may take: machines differ."""


@pytest.mark.parametrize(
    "unit", ["jwt=:", "secret==", "password=//x", "pwd=/a", "auth=aaa:aa", "cookie:aaaaaa", "key-----BEGIN "]
)
def test_a_result_of_64_kib_is_redacted_in_time(unit: str) -> None:
    redactor, text = Redactor(SECRETS, paths=True), unit * (65_536 // len(unit))
    assert least_cpu_s(lambda: redactor.text(text), BOUND_S) < BOUND_S
