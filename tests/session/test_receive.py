"""What an event of the client means: `receive`, decisions about cards, and connections as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation import records as r
from conductor.conversation.consent import Later, Refuse, tapped
from conductor.conversation.receive import connected, ended, receive, timed_out, too_late
from conductor.conversation.services import Rules
from conductor.conversation.state import Conversation, LateCall, Notice, Profile
from conductor.conversation.view import Replay
from conductor.events import client
from conductor.events.server import ApprovalResolved
from tests.session.pure import (
    CARDS,
    DURABLE,
    NOW,
    QUEUE,
    RULES,
    STARTED,
    VOICE,
    Gate,
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
TURN_ID = TURN.turn.id if TURN.turn is not None else ""
CALLED = fold(replied(device()), state=TURN)
READ = fold(replied(device(effect="read")), state=TURN)
LATE = fold(finished(late=LateCall("c1", "device.do", "write", NOW + 600_000, NOW)), state=CALLED)
FULL = fold(*(r.InputQueued(f"e{number}", "x") for number in range(3)), state=TURN)
HEARD = fold(r.PromptHeard("q1"), at=NOW - 1_000, state=asking(question()))
SAID = fold(replied(text="One two.", speech_text="One two."), state=TURN)
SAID_AND_OVER = fold(r.TurnEnded("answered"), state=SAID)
SPEECH = next(iter(SAID.speeches))
ONE_CARD = asking(question(), profile=CARDS)
TWO_CARDS = asking(question(), question(2, "c2"), profile=CARDS)
VISIBLE: dict[str, Any] = {"visible_cards": {"q1": NOW - 9_000}, "utterance_began": NOW - 1_000}


def words(text: str) -> client.TranscriptFinal:
    return client.TranscriptFinal(text)


def result(call_id: str = "c1") -> client.ToolResultEvent:
    return client.ToolResultEvent(call_id, "done")


INTERRUPTED = client.OutputInterrupted()

TABLE: list[tuple[str, Conversation, dict[str, Any], Rules, client.ClientEvent, list[str]]] = [
    ("words", fold(), {}, RULES, words("hi"), ["TurnStarted"]),
    ("words again", TURN, {}, RULES, words("go"), ["TurnEnded", "TurnStarted"]),
    ("words over a turn", TURN, {}, RULES, words("stop"), ["TurnEnded", "TurnStarted"]),
    ("words that wait", TURN, {}, QUEUE, words("and"), ["InputQueued"]),
    ("words to a process that stops", fold(), {"draining": True}, DURABLE, words("hi"), ["InputQueued"]),
    ("words that end a question", HEARD, {}, QUEUE, words("the time?"), ["TurnEnded", "TurnStarted"]),
    (
        "words before a speech",
        SAID_AND_OVER,
        {"was_sent": lambda _: False},
        RULES,
        words("hi"),
        ["SpeechCut", "TurnStarted"],
    ),
    ("words after a speech", SAID_AND_OVER, {}, RULES, words("hi"), ["TurnStarted"]),
    ("a spoken yes", HEARD, {}, RULES, words("yes"), ["QuestionDecided"]),
    ("a spoken no", HEARD, {}, RULES, words("no"), ["QuestionDecided", "CallFinished"]),
    ("an unclear answer", HEARD, {}, RULES, words("hm"), ["AnswerUnclear", "PromptSpoken"]),
    (
        "an unclear answer too many",
        fold(*(r.AnswerUnclear("q1", "", "", True),) * 2, state=HEARD),
        {},
        RULES,
        words("hm"),
        ["QuestionDecided", "CallFinished"],
    ),
    (
        "a yes to an unheard prompt",
        asking(question()),
        {},
        RULES,
        words("yes"),
        ["AnswerUnclear", "PromptSpoken"],
    ),
    ("a yes to a visible card", ONE_CARD, VISIBLE, RULES, words("yes"), ["QuestionDecided"]),
    ("a yes to a hidden card", ONE_CARD, {}, RULES, words("yes"), ["AnswerUnclear"]),
    ("a yes to two cards", TWO_CARDS, VISIBLE, RULES, words("yes"), ["AnswerUnclear"]),
    ("a no to two cards", TWO_CARDS, {}, RULES, words("no"), ["QuestionDecided", "CallFinished"] * 2),
    ("a result", CALLED, {}, RULES, result(), ["CallFinished"]),
    ("a result without a call", TURN, {}, RULES, result(), []),
    (
        "a result of a gated call",
        fold(replied(device(consent="needed")), state=TURN),
        {},
        RULES,
        result(),
        [],
    ),
    ("a result of a server's call", fold(replied(local()), state=TURN), {}, RULES, result(), []),
    ("a late result", LATE, {}, RULES, result(), ["LateFinished"]),
    (
        "a second late result",
        fold(r.LateFinished("c1", Notice("n"), False), state=LATE),
        {},
        RULES,
        result(),
        [],
    ),
    (
        "the end of a prompt",
        asking(question()),
        {},
        RULES,
        result(asking(question()).questions["q1"].speech_id),
        ["PromptHeard"],
    ),
    ("a job", CALLED, {}, RULES, client.ToolAccepted("c1", "j"), ["CallFinished"]),
    ("a job, late", LATE, {}, RULES, client.ToolAccepted("c1", "j"), ["JobAccepted"]),
    ("a job of nothing", TURN, {}, RULES, client.ToolAccepted("c1", "j"), []),
    ("a cancelled call", CALLED, {}, RULES, client.ToolCancelled("c1", "none"), ["CallFinished"]),
    ("a cancelled call, late", LATE, {}, RULES, client.ToolCancelled("c1", "partial"), ["LateFinished"]),
    ("an agent", fold(), {}, RULES, client.AgentCompleted("a", "FINISHED"), ["NoticeTaken"]),
    ("a cancel", TURN, {}, RULES, client.ResponseCancel(), ["TurnEnded"]),
    ("a cancel at rest", fold(), {}, RULES, client.ResponseCancel(), []),
    ("an interruption of a turn", TURN, {}, RULES, INTERRUPTED, ["TurnEnded"]),
    ("an interruption of a speech", SAID, {}, RULES, INTERRUPTED, ["SpeechCut", "TurnEnded"]),
    ("an interruption of a speech at rest", SAID_AND_OVER, {}, RULES, INTERRUPTED, ["SpeechCut"]),
    (
        "an interruption of a speech just heard",
        SAID_AND_OVER,
        {"finished_speeches": {SPEECH: NOW - 100}},
        RULES,
        INTERRUPTED,
        ["SpeechCut"],
    ),
    (
        "an interruption of nothing",
        SAID_AND_OVER,
        {"finished_speeches": {SPEECH: NOW - 200}},
        RULES,
        INTERRUPTED,
        ["EventHandled"],
    ),
    ("an interruption of a prompt", asking(question()), {}, RULES, INTERRUPTED, ["PromptCut"]),
    ("an interruption at rest", fold(), {}, RULES, INTERRUPTED, ["EventHandled"]),
]


@pytest.mark.parametrize(
    ("state", "facts", "rules", "event", "records"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_an_event_makes_its_records(
    state: Conversation, facts: dict[str, Any], rules: Rules, event: client.ClientEvent, records: list[str]
) -> None:
    response = receive(view(state, rules, **facts), "event-1", event)
    assert isinstance(response, list)
    assert [type(record).__name__ for record in response] == records


def test_an_event_means_nothing_the_second_time() -> None:
    for _, state, facts, rules, event, _ in TABLE:
        response = receive(view(state, rules, **facts), "event-1", event)
        assert isinstance(response, list)
        after = fold(*response, state=state)
        if "event-1" in after.handled_ids:
            assert receive(view(after, rules, **facts), "event-1", event) == []


def test_deciding_changes_nothing() -> None:
    for _, state, facts, rules, event, _ in TABLE:
        before = fold(state=state)
        receive(view(state, rules, **facts), "event-1", event)
        assert state == before


@pytest.mark.parametrize(
    ("state", "facts", "rules", "text", "code"),
    [
        (fold(), {}, RULES, "  ", "invalid_transcript"),
        (FULL, {}, QUEUE, "more", "rate_limited"),
        (fold(), {"draining": True}, RULES, "hi", "rate_limited"),
    ],
)
def test_words_may_be_refused(
    state: Conversation, facts: dict[str, Any], rules: Rules, text: str, code: str
) -> None:
    response = receive(view(state, rules, **facts), "event-1", words(text))
    assert isinstance(response, Refuse) and response.code == code


def test_a_yes_right_after_the_prompt_is_decided_later() -> None:
    state = fold(r.PromptHeard("q1"), at=NOW - 100, state=asking(question()))
    assert receive(view(state), "event-1", words("yes")) == Later(NOW + 50, "q1")


def test_words_about_a_question_that_is_closed_by_then_belong_to_the_running_turn() -> None:
    state = fold(STARTED)
    (record,) = too_late(view(state), "event-2", words("yes"), "q1")
    assert record == r.AnswerUnclear("q1", "event-2", "yes", counts=False)
    turn = fold(record, state=state).turn
    assert turn is not None and turn.transcripts == ["words-1", "event-2"]
    assert too_late(view(fold(record, state=state)), "event-2", words("yes"), "q1") == []


def test_words_about_a_question_of_a_turn_that_has_ended_have_an_end_of_their_own() -> None:
    started, end = too_late(view(Conversation()), "event-2", words("yes"), "q1")
    assert isinstance(started, r.TurnStarted) and started.event_id == "event-2"
    assert end == r.TurnEnded("interrupted")


# -- what is kept of an interrupted turn


@pytest.mark.parametrize(
    ("state", "sent", "effect", "error_type"),
    [
        (CALLED, True, "write", "unknown"),
        (CALLED, False, "write", "cancelled"),
        (READ, True, "read", "cancelled"),
    ],
)
def test_the_result_of_an_abandoned_call_is_honest(
    state: Conversation, sent: bool, effect: str, error_type: str
) -> None:
    end = ended(view(state, was_sent=lambda _: sent), "interrupted")
    (record,) = end.results
    assert record.error_type == error_type
    assert (record.unknown is not None) == (error_type == "unknown")
    assert record.late is not None and record.late.effect == effect


def test_only_a_call_that_was_on_the_wire_is_cancelled_there() -> None:
    state = fold(replied(device(on_interrupt="cancel"), device("c2")), state=TURN)
    assert ended(view(state), "interrupted").cancelled == ("c1",)
    assert ended(view(state, was_sent=lambda _: False), "interrupted").cancelled == ()
    assert ended(view(state), "timed_out").cancelled == ("c1", "c2")


def test_an_unheard_reply_is_kept_and_marked() -> None:
    writing = view(TURN, draft="Let me see", request=(TURN_ID, 0, 0))
    assert ended(writing, "interrupted").text.startswith("Let me see [")
    assert ended(view(TURN, draft="Let me see"), "interrupted").text == ""


def test_a_failed_turn_apologises_but_a_programs_does_not() -> None:
    end = ended(view(TURN), "failed", error="turn_timeout")
    assert end.apology == end.speech_text == RULES.failures["turn_timeout"]
    program = fold(r.TurnStarted("request", 9, tool="x"))
    end = ended(view(program), "failed", error="turn_timeout")
    assert (end.apology, end.error) == ("", None)


def test_a_time_out_is_unknown_and_its_result_may_still_come() -> None:
    (record,) = timed_out(view(CALLED), "c1", was_shown=False)
    assert isinstance(record, r.CallFinished)
    assert record.error_type == "unknown" and record.late is not None and record.late.starts_turn
    assert timed_out(view(TURN), "c1", was_shown=True) == []


# -- taps


def decision(kind: Any = "allow", **fields: Any) -> client.Decision:
    fields = {"approval_id": "q1", "arguments_digest": "digest c1", **fields}
    return client.Decision(decision=kind, **fields)


TAPS: list[tuple[str, Conversation, client.Decision, list[str], list[str]]] = [
    ("allow", ONE_CARD, decision(), ["QuestionDecided"], []),
    ("deny", ONE_CARD, decision("deny"), ["QuestionDecided", "CallFinished"], []),
    ("edit", ONE_CARD, decision("edit", edited_arguments={"x": 1}), ["QuestionDecided"], []),
    ("edit to nothing", ONE_CARD, decision("edit", edited_arguments={}), [], ["refused"]),
    ("other arguments", ONE_CARD, decision(arguments_digest="other"), [], ["refused"]),
    ("no such question", ONE_CARD, decision(approval_id="q9"), [], ["refused"]),
    (
        "a second time",
        fold(r.QuestionDecided("q1", "c1", "denied"), state=ONE_CARD),
        decision(),
        [],
        ["refused"],
    ),
    ("too late", fold(r.QuestionDecided("q1", "c1", "expired"), state=ONE_CARD), decision(), [], ["expired"]),
    ("for the session", TWO_CARDS, decision(scope="session"), ["QuestionDecided"] * 2, []),
]


@pytest.mark.parametrize(
    ("state", "tap", "records", "answers"), [row[1:] for row in TAPS], ids=[row[0] for row in TAPS]
)
def test_a_tap_makes_its_records(
    state: Conversation, tap: client.Decision, records: list[str], answers: list[str]
) -> None:
    reply = tapped(view(state), tap)
    if isinstance(reply, ApprovalResolved):
        assert (records, answers) == ([], [reply.outcome])
    else:
        assert ([type(record).__name__ for record in reply], []) == (records, answers)


def test_a_call_that_is_forbidden_by_now_does_not_run_by_a_yes() -> None:
    gate = Gate()
    gate.forbids = True
    decided, result_record = tapped(view(ONE_CARD, tools=gate), decision())  # type: ignore[misc]  # records
    assert isinstance(decided, r.QuestionDecided) and decided.outcome == "superseded"
    assert isinstance(result_record, r.CallFinished) and result_record.error_type == "permission_denied"


# -- connections

RESUME = Profile(("resume",))


def joined(
    state: Conversation, profile: Profile = VOICE, live: dict[str, Any] | None = None, **facts: Any
) -> list[str]:
    known = {name: facts.pop(name) for name in ("resumed", "same_process", "is_new") if name in facts}
    known = {"resumed": True, "same_process": False, "is_new": True, **known}
    records = connected(view(state, **live or {}), Replay(**facts), profile, **known)
    return [
        f"probe {m.state}" if isinstance(m, r.StateShown) and m.probe else type(m).__name__ for m in records
    ]


def test_a_connection_opens_the_microphone_unless_a_turn_runs() -> None:
    assert joined(fold()) == ["StateShown"]
    assert joined(fold(), resumed=False) == []
    assert joined(TURN) == []
    assert joined(TURN, unconfirmed=True) == ["probe thinking"]
    assert joined(fold(), unconfirmed=True, waits=True) == [
        "probe speaking",
        "StateShown",
    ]


def test_a_write_that_was_sent_is_withheld_from_a_relaunched_app() -> None:
    assert joined(CALLED) == ["CallsWithheld"]
    assert joined(CALLED, live={"was_sent": lambda _: False}) == []
    assert joined(CALLED, RESUME, same_process=True) == []
    assert joined(READ) == []


def test_a_question_is_asked_again_as_the_client_can_show_it() -> None:
    assert joined(HEARD, CARDS) == ["QuestionsAsked"]
    assert joined(ONE_CARD, CARDS, cards=("q1",)) == ["StateShown"]
    assert joined(HEARD) == ["PromptSpoken"]
    assert joined(HEARD, same_process=True) == ["StateShown"]
    prompt = HEARD.questions["q1"].speech_id
    assert joined(HEARD, speeches=(prompt,)) == ["StateShown"]


def test_rules_are_read_where_things_are_decided() -> None:
    assert replace(RULES, cancels=False) == QUEUE
