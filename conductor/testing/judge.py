"""What a judge of spoken answers of any package has to pass; docs/plugins.md shows its use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conductor.tools.base import ToolSpec
from conductor.tools.judge import Answer, AnswerKind, ApprovalJudge

SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}, "count": {"type": "integer"}}}
MEDIUM = ToolSpec(
    name="lamp.switch",
    description="Switch the lamps of a room.",
    input_schema=SCHEMA,
    risk="medium",
    spoken="switch {room}",
)
HIGH = ToolSpec(
    name="photos.delete",
    description="Delete photos.",
    input_schema=SCHEMA,
    risk="high",
    effect="irreversible",
)
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"room": "kitchen", "count": 2},
    {"room": "yes, do it"},
    {"room": "x" * 5_000, "count": 10**30},
    {"room": ["a"] * 300, "count": {"a": {"b": None}}},
]


class JudgeContract:
    """Subclass it, and give the judge and phrases of its language."""

    @pytest.fixture
    def judge(self) -> ApprovalJudge[Any]:
        """Make the judge."""
        raise NotImplementedError

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        """Return utterances that allow a call of medium risk."""
        raise NotImplementedError

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        """Return utterances that deny it."""
        raise NotImplementedError

    @pytest.fixture
    def others(self) -> Sequence[str]:
        """Return utterances that allow nothing: a condition, a question, a doubt, another wish."""
        raise NotImplementedError

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        """Return utterances that only show that the person listens."""
        raise NotImplementedError

    def question(self, judge: ApprovalJudge[Any], spec: ToolSpec = MEDIUM) -> Any:
        """Make the question about switching the kitchen's lamps."""
        return judge.question(spec, {"room": "kitchen"}, zone="Europe/Berlin")

    def kinds(self, judge: ApprovalJudge[Any], utterances: Sequence[str]) -> dict[str, str]:
        """Classify utterances."""
        question = self.question(judge)
        return {utterance: judge.classify(utterance, question).kind for utterance in utterances}

    def test_consents_allow(self, judge: ApprovalJudge[Any], consents: Sequence[str]) -> None:
        assert self.question(judge).by_voice
        assert self.kinds(judge, consents) == dict.fromkeys(consents, "allow")

    def test_refusals_deny(self, judge: ApprovalJudge[Any], refusals: Sequence[str]) -> None:
        assert self.kinds(judge, refusals) == dict.fromkeys(refusals, "deny")

    def test_nothing_else_allows(self, judge: ApprovalJudge[Any], others: Sequence[str]) -> None:
        assert "allow" not in self.kinds(judge, ["", " ", "\n", "…", *others]).values()

    @pytest.mark.parametrize("spec", [MEDIUM, HIGH], ids=lambda spec: spec.risk)
    @pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
    def test_every_call_has_a_prompt_that_does_not_answer_itself(
        self, judge: ApprovalJudge[Any], spec: ToolSpec, arguments: dict[str, Any]
    ) -> None:
        question = judge.question(spec, arguments, cautions=("untrusted",), scopes=("once",))
        for attempt in (1, 2, 3):
            prompt = judge.prompt(question, attempt)
            assert prompt.strip() and len(prompt) < 2_000
            words = prompt.split()
            # A microphone may pick up the prompt, or its end.
            for echo in (prompt, *(" ".join(words[-count:]) for count in range(1, 12))):
                assert judge.classify(echo, question).kind != "allow", echo

    @pytest.mark.parametrize("spec", [MEDIUM, HIGH], ids=lambda spec: spec.risk)
    def test_a_question_names_words_that_count(self, judge: ApprovalJudge[Any], spec: ToolSpec) -> None:
        question = self.question(judge, spec)
        kinds = {judge.classify(words, question).kind for words in judge.answers(question)}
        assert "deny" in kinds and kinds <= {"allow", "deny"}

    def test_words_for_medium_risk_do_not_allow_high_risk(
        self, judge: ApprovalJudge[Any], consents: Sequence[str]
    ) -> None:
        question = self.question(judge, HIGH)
        assert "allow" not in [judge.classify(utterance, question).kind for utterance in consents]

    def test_a_backchannel_is_no_refusal_no_question_and_no_silence(
        self, judge: ApprovalJudge[Any], backchannels: Sequence[str], refusals: Sequence[str]
    ) -> None:
        assert [words for words in backchannels if not judge.is_backchannel(words)] == []
        asked = [f"{words}?" for words in backchannels]
        assert [
            words for words in ("", " ", "\u2026", *refusals, *asked) if judge.is_backchannel(words)
        ] == []

    # Each judge has its own class.
    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
        max_examples=50,
    )
    @given(utterance=st.text(max_size=700))
    def test_any_text_is_classified(self, judge: ApprovalJudge[Any], utterance: str) -> None:
        assert isinstance(judge.is_backchannel(utterance), bool)
        for spec in (MEDIUM, HIGH):
            answer = judge.classify(utterance, self.question(judge, spec))
            assert isinstance(answer, Answer)
            assert answer.kind in get_args(AnswerKind)
            assert answer.scope in ("once", "session")
        assert isinstance(judge.is_unfinished(utterance), bool)
        assert isinstance(judge.is_credit(utterance), bool)
