"""What has to happen next: `next_step`, `due` and `deadline` as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation import records as r
from conductor.conversation.services import Rules
from conductor.conversation.state import Conversation, Notice
from conductor.conversation.steps import (
    AskModel,
    AskPerson,
    AwaitResults,
    PrepareRequest,
    RunCalls,
    deadline,
    due,
    next_step,
)
from conductor.messages import ToolCall
from tests.session.pure import (
    CARDS,
    CLAIM,
    DURABLE,
    NOW,
    QUEUE,
    RULES,
    STARTED,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
    view,
)

TURN = fold(STARTED)
QUEUED = fold(r.InputQueued("e1", "one"), r.InputQueued("e2", "two"))
NEWS = fold(r.NoticeTaken("e", Notice("n", NOW + 1_000)))
FREE: dict[str, Any] = {"floor_at": NOW}
ROUND = fold(replied(device(), local("c2")), state=TURN)
LOST = fold(r.Claimed("b"), state=fold(replied(local(effect="write")), state=TURN))
REQUEST = fold(r.TurnStarted("request", 9, tool="x"))
TURN_ID = TURN.turn.id if TURN.turn is not None else ""
ASK = AskModel(TURN_ID, 0, 0, with_tools=True)
CALL = ToolCall("c1", "x", "{}")
FIRST = r.TurnStarted("transcript", RULES.turn_ms, "e1", "one")
REFUSED = RULES.failures["rate_limited"]
NOTHING = AwaitResults()

STEPS: list[tuple[str, Conversation, dict[str, Any], Rules, object]] = [
    ("nothing", fold(), {}, RULES, NOTHING),
    ("an input", QUEUED, {}, QUEUE, [FIRST]),
    (
        "an input that another one replaces",
        QUEUED,
        {},
        RULES,
        [FIRST, r.TurnEnded("interrupted", follows=True)],
    ),
    ("an input at the end", QUEUED, {"closing": True}, QUEUE, NOTHING),
    ("an input for another process", QUEUED, {"draining": True}, replace(DURABLE, cancels=False), NOTHING),
    ("an input before the stop", QUEUED, {"draining": True}, QUEUE, [FIRST]),
    (
        "a refused input",
        fold(),
        {"refused_input": True},
        RULES,
        [
            r.TurnStarted("refused", RULES.turn_ms),
            r.TurnEnded("answered", apology=REFUSED, speech_text=REFUSED),
        ],
    ),
    ("a program's call", fold(), {"requests": [CALL]}, RULES, PrepareRequest(CALL)),
    ("a program's call before the stop", fold(), {"requests": [CALL], "draining": True}, RULES, NOTHING),
    ("news", NEWS, FREE, RULES, [r.TurnStarted("news", RULES.turn_ms)]),
    ("news without the floor", NEWS, {}, RULES, NOTHING),
    ("news while the person speaks", NEWS, {"floor_at": NOW + 1}, RULES, NOTHING),
    ("news after a failure", NEWS, {**FREE, "notices_after": NOW + 1}, RULES, NOTHING),
    ("news beyond the rate", NEWS, {**FREE, "may_start": lambda: False}, RULES, NOTHING),
    ("news that is too old", fold(r.NoticeTaken("e", Notice("n", NOW))), FREE, RULES, NOTHING),
    ("a turn", TURN, {}, RULES, ASK),
    ("after a round", fold(finished(), finished("c2"), state=ROUND), {}, RULES, replace(ASK, rounds=1)),
    (
        "after too many rounds",
        TURN,
        {},
        replace(RULES, limits=replace(RULES.limits, max_tool_rounds=0)),
        replace(ASK, with_tools=False),
    ),
    (
        "after too many calls",
        TURN,
        {},
        replace(RULES, limits=replace(RULES.limits, max_calls_per_turn=0)),
        replace(ASK, with_tools=False),
    ),
    (
        "after too many refusals",
        TURN,
        {},
        replace(RULES, max_refused_rounds=0),
        replace(ASK, with_tools=False),
    ),
    ("after a broken reply", fold(r.ReplyBroken(), state=TURN), {}, RULES, replace(ASK, retries=1)),
    ("a round", ROUND, {}, RULES, RunCalls((ROUND.calls[1],))),
    ("a round that runs", ROUND, {"running_calls": {"c2"}}, RULES, AwaitResults(("c1", "c2"))),
    ("a gated call", fold(replied(device(consent="needed")), state=TURN), {}, RULES, AskPerson(("c1",))),
    (
        "a gated call behind a free one",
        fold(replied(device(), device("c2", consent="needed")), state=TURN),
        {},
        RULES,
        AwaitResults(("c1", "c2")),
    ),
    (
        "a gated call after a free one",
        fold(replied(device(), device("c2", consent="needed")), finished(), state=TURN),
        {},
        RULES,
        AskPerson(("c2",)),
    ),
    (
        "a held write",
        fold(replied(device(consent="needed"), device("c2", consent="held")), state=TURN),
        {},
        RULES,
        AskPerson(("c1",)),
    ),
    (
        "a held write after a read that needs a yes",
        fold(replied(device(effect="read", consent="needed"), device("c2", consent="held")), state=TURN),
        {},
        RULES,
        [r.CallReleased("c2")],
    ),
    (
        "a held write whose earlier write is decided",
        fold(replied(device(consent="needed"), device("c2", consent="held")), finished(), state=TURN),
        {},
        RULES,
        [r.CallReleased("c2")],
    ),
    ("an open question", asking(question()), {}, RULES, AwaitResults(("c1",))),
    (
        "a read of another process",
        fold(r.Claimed("b"), state=fold(replied(local()), state=TURN)),
        {},
        RULES,
        "RunCalls",
    ),
    (
        "a device call of another process",
        fold(r.Claimed("b"), state=fold(replied(device()), state=TURN)),
        {},
        RULES,
        AwaitResults(("c1",)),
    ),
    ("a program's turn after its call", REQUEST, {}, RULES, [r.TurnEnded("answered")]),
    (
        "segments of another process",
        fold(r.SegmentSpoken("One. ", "One."), r.Claimed("b"), state=TURN),
        {},
        RULES,
        [r.ReplyBroken("One.", by_takeover=True)],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "rules", "step"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS]
)
def test_the_next_step(state: Conversation, facts: dict[str, Any], rules: Rules, step: object) -> None:
    actual = next_step(view(state, rules, **facts))
    assert type(actual).__name__ == step if isinstance(step, str) else actual == step


def test_a_write_of_another_process_is_unknown_and_does_not_run_again() -> None:
    (record,) = next_step(view(LOST))  # type: ignore[misc]  # records
    assert isinstance(record, r.CallFinished)
    assert record.error_type == "unknown" and record.unknown is not None and record.late is None


def test_a_turn_that_brought_two_processes_down_ends_with_an_apology() -> None:
    state = fold(r.Claimed("b"), r.Claimed("c"), state=TURN)
    (record,) = next_step(view(state))  # type: ignore[misc]  # records
    assert isinstance(record, r.TurnEnded)
    assert (record.reason, record.error) == ("failed", "model_provider_failed") and record.apology


def test_a_step_depends_on_nothing_but_its_arguments() -> None:
    for _, state, facts, rules, _ in STEPS:
        assert next_step(view(state, rules, **facts)) == next_step(view(state, rules, **facts))


# -- time

CUT = fold(r.PromptHeard("q1"), r.PromptCut("q1", "e", NOW + 5_000), state=asking(question()))
CARD = asking(question(), profile=CARDS)

DUE: list[tuple[str, Conversation, int, list[str], int | None]] = [
    ("nothing", fold(), NOW, [], None),
    ("a turn", TURN, NOW + 119_999, [], NOW + 120_000),
    ("a turn that takes too long", TURN, NOW + 120_000, ["TurnEnded"], NOW + 120_000),
    ("a card", CARD, NOW + 599_999, [], NOW + 600_000),
    ("a card that expires", CARD, NOW + 600_000, ["QuestionDecided", "CallFinished"], NOW + 600_000),
    ("a cut prompt", CUT, NOW + 4_999, [], NOW + 5_000),
    ("a cut prompt in silence", CUT, NOW + 5_000, ["PromptSpoken"], NOW + 5_000),
    ("a heard prompt", fold(r.PromptHeard("q1"), state=asking(question())), NOW + 9_000, [], NOW + 600_000),
]


@pytest.mark.parametrize(
    ("state", "now", "records", "at"), [row[1:] for row in DUE], ids=[row[0] for row in DUE]
)
def test_a_deadline_makes_its_records(
    state: Conversation, now: int, records: list[str], at: int | None
) -> None:
    assert [type(record).__name__ for record in due(view(state, now=now))] == records
    assert deadline(view(state, now=now)) == at


def test_a_deadline_that_has_passed_leaves_nothing_due_once_it_is_recorded() -> None:
    for _, state, now, records, _ in DUE:
        decisions = due(view(state, now=now))
        after = fold(*decisions, at=now, state=state)
        if records:
            assert due(view(after, now=now)) == []
            assert (deadline(view(after, now=now)) or now + 1) > now, "the timer would spin"


def test_news_waits_for_the_floor_by_the_one_timer() -> None:
    news = view(NEWS, floor_at=NOW + 300)
    assert deadline(news) == NOW + 300
    news.notices_after = NOW + 900
    assert deadline(news) == NOW + 900
    news.draining = True
    assert deadline(news) is None


def test_the_claim_of_the_story_is_the_owners() -> None:
    assert fold().claim == CLAIM
