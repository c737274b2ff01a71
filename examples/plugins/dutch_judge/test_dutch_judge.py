"""The judge passes the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from dutch_judge import LISTENS, NO, YES, DutchJudge

from conductor.testing.judge import JudgeContract


class TestDutch(JudgeContract):
    """The contract of judges."""

    @pytest.fixture
    def judge(self) -> DutchJudge:
        return DutchJudge()

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        return [*LISTENS, "Hm, hm."]

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        return [*YES, "Ja!", "Doe maar."]

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        return [*NO, "Nee."]

    @pytest.fixture
    def others(self) -> Sequence[str]:
        return ["ja maar niet nu", "misschien", "wat zei je?", "ja of nee"]
