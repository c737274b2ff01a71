"""Assigning events to turns, and ending turns, without sockets."""

from __future__ import annotations

import pytest

from conductor.client.turns import Turn, Turns
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    ServerEvent,
    SpeechFinal,
    ToolCallEvent,
    TurnEndedEvent,
    append_message,
    set_state,
)

LIMIT_S = 60.0


class Wire:
    """Passes events to the turns, as the client does."""

    def __init__(self) -> None:
        self.turns = Turns(lambda _: None)

    def say(self, text: str) -> Turn:
        turn = Turn(text, f"id of {text}", LIMIT_S)
        self.turns.open.append(turn)
        return turn

    def hear(self, *events: ServerEvent) -> None:
        for event in events:
            self.turns.note(event)
            self.turns.settle(event)


IDLE = set_state("c", "idle")
THINKING = set_state("c", "thinking")
QUESTION = ApprovalRequest(
    approval_id="appr_1",
    batch_id="batch_1",
    call_id="call_1",
    name="notes.delete",
    arguments={},
    arguments_digest="digest",
    risk="medium",
    reasons=[],
    prompt="May I?",
    scopes=["once"],
    expires_at="",
)


async def test_the_idle_of_an_earlier_turn_does_not_end_a_new_one() -> None:
    wire = Wire()
    turn = wire.say("now")
    wire.hear(SpeechFinal("of an earlier turn"), IDLE)
    assert not turn.is_done
    wire.hear(THINKING, append_message("c", "user", "now"), SpeechFinal("Yes."), IDLE)
    assert (await turn).finals == ["Yes."]


async def test_a_refused_transcript_ends_with_the_idle_after_its_error() -> None:
    wire = Wire()
    turn = wire.say("")
    wire.hear(ErrorEvent(code="invalid_transcript", message="Empty.", event_id=turn.event_id))
    assert not turn.is_done
    wire.hear(IDLE)
    result = await turn
    assert [error.code for error in result.errors] == ["invalid_transcript"]
    assert not result.ok


async def test_an_error_without_an_event_belongs_to_the_running_or_the_oldest_turn() -> None:
    wire = Wire()
    first = wire.say("one")
    wire.hear(ErrorEvent(code="rate_limited", message="Slow down."), IDLE)
    assert [error.code for error in (await first).errors] == ["rate_limited"]
    second, third = wire.say("two"), wire.say("three")
    wire.hear(
        append_message("c", "user", "two"), ErrorEvent(code="model_provider_failed", message="Down."), IDLE
    )
    assert [error.code for error in (await second).errors] == ["model_provider_failed"]
    assert not third.is_done


async def test_an_error_about_another_event_does_not_refuse_a_transcript() -> None:
    wire = Wire()
    turn = wire.say("one")
    wire.hear(ErrorEvent(code="invalid_event", message="Odd.", event_id="some other"), IDLE)
    assert not turn.is_done


async def test_a_refused_transcript_does_not_take_the_running_turns_events() -> None:
    wire = Wire()
    running = wire.say("one")
    wire.hear(append_message("c", "user", "one"))
    refused = wire.say("two")
    wire.hear(
        ErrorEvent(code="rate_limited", message="Slow down.", event_id=refused.event_id),
        SpeechFinal("One."),
        IDLE,
    )
    assert (await running).finals == ["One."]
    assert (await running).ok
    assert (await refused).finals == []


async def test_a_turn_ends_when_the_next_starts_without_an_idle() -> None:
    wire = Wire()
    first, second = wire.say("one"), wire.say("two")
    wire.hear(append_message("c", "user", "one"), SpeechFinal("One."))
    wire.hear(THINKING, append_message("c", "user", "two"), SpeechFinal("Two."), IDLE)
    assert ((await first).ending, (await first).finals) == ("followed", ["One."])
    assert ((await second).ending, (await second).finals) == ("idle", ["Two."])


async def test_a_transcript_that_the_server_skips_is_lost() -> None:
    wire = Wire()
    first, second = wire.say("one"), wire.say("two")
    wire.hear(THINKING, append_message("c", "user", "two"))
    assert ((await first).ending, second.is_done) == ("lost", False)


async def test_a_transcript_matches_after_normalisation() -> None:
    wire = Wire()
    turn = wire.say(" cafe\u0301  now ")
    wire.hear(append_message("c", "user", "café now"), IDLE)
    assert turn.is_done


async def test_a_rewritten_transcript_starts_its_turn_after_thinking() -> None:
    wire = Wire()
    turn = wire.say("my number is 123")
    wire.hear(append_message("c", "user", "of long ago"), IDLE)
    assert not turn.is_done
    wire.hear(THINKING, append_message("c", "user", "my number is [REDACTED]"), IDLE)
    assert turn.is_done


async def test_a_partial_message_starts_no_turn() -> None:
    wire = Wire()
    turn = wire.say("hello")
    partial = ToolCallEvent("c", "convo.appendMessage", '{"role":"user","text":"hello","isPartial":true}')
    wire.hear(partial, IDLE)
    assert not turn.is_done


async def test_a_turn_continues_after_the_idle_for_an_answer() -> None:
    wire = Wire()
    turn = wire.say("delete it")
    wire.hear(append_message("c", "user", "delete it"), SpeechFinal("Let me see."), QUESTION, IDLE)
    assert not turn.is_done
    wire.hear(ApprovalResolved("appr_1", "allowed"), THINKING, SpeechFinal("Gone."), IDLE)
    assert (await turn).finals == ["Let me see.", "Gone."]


@pytest.mark.parametrize(
    "last", [SpeechFinal("Gone."), ErrorEvent(code="model_provider_failed", message="Down.")]
)
async def test_a_turn_may_end_before_its_request_is_resolved(last: ServerEvent) -> None:
    wire = Wire()
    turn = wire.say("delete it")
    wire.hear(append_message("c", "user", "delete it"), QUESTION, IDLE)
    wire.hear(last, IDLE, ApprovalResolved("appr_1", "allowed"))
    assert (await turn).ending == "idle"


async def test_a_named_turn_ends_by_its_event_alone() -> None:
    wire = Wire()
    wire.turns.are_named = True
    turn, answer = wire.say("delete it"), wire.say("yes")
    assert wire.turns.are_busy("idle")
    wire.hear(THINKING, append_message("c", "user", "delete it"), IDLE)
    wire.hear(append_message("c", "user", "yes"), THINKING, SpeechFinal("Gone."), IDLE)
    assert (turn.is_done, answer.is_done) == (False, False)
    wire.hear(
        TurnEndedEvent("turn_1", answer.event_id, "answered"),
        TurnEndedEvent("turn_1", "of another", "failed"),
    )
    assert (answer.is_done, turn.is_done) == (True, False)
    wire.hear(TurnEndedEvent("turn_1", turn.event_id, "answered"))
    assert (await turn).finals == (await answer).finals == ["Gone."]
    assert ((await turn).ending, (await turn).reason) == ("idle", "answered")


@pytest.mark.parametrize(("by_client", "ending"), [(True, "idle"), (False, "followed")])
async def test_an_interrupted_turn_says_by_whom(by_client: bool, ending: str) -> None:
    wire = Wire()
    wire.turns.are_named = True
    turn = wire.say("count")
    if by_client:
        turn.interrupted = True
    wire.hear(TurnEndedEvent("turn_1", turn.event_id, "interrupted"))
    assert ((await turn).ending, (await turn).reason) == (ending, "interrupted")


async def test_a_turn_that_has_asked_by_voice_is_not_busy() -> None:
    wire = Wire()
    wire.turns.are_named = True
    wire.say("delete it")
    wire.hear(THINKING, append_message("c", "user", "delete it"))
    assert wire.turns.are_busy("thinking")
    wire.hear(IDLE)
    assert not wire.turns.are_busy("idle")


async def test_a_refused_transcript_of_a_named_turn_ends_with_the_idle() -> None:
    wire = Wire()
    wire.turns.are_named = True
    turn = wire.say("")
    wire.hear(ErrorEvent(code="invalid_transcript", message="Empty.", event_id=turn.event_id), IDLE)
    assert not (await turn).ok


async def test_invalid_arguments_set_no_state() -> None:
    wire = Wire()
    turn = wire.say("go")
    wire.hear(append_message("c1", "user", "go"), ToolCallEvent("c2", "convo.setState", "idle"))
    assert not turn.is_done


async def test_the_halves_of_a_sentence_are_one_turn() -> None:
    wire = Wire()
    for are_named in (False, True):
        wire.turns.are_named = are_named
        first = wire.say("Milk and")
        wire.hear(IDLE)
        assert not first.is_done
        second = wire.say("eggs")
        wire.hear(THINKING, append_message("c", "user", "Milk and eggs"), SpeechFinal("Noted."))
        if are_named:
            ended = [TurnEndedEvent("t", turn.event_id, "answered") for turn in (first, second)]
            wire.hear(*ended)
        wire.hear(IDLE)
        for turn in (first, second):
            assert (await turn).finals == ["Noted."] and turn.ending == "idle"


async def test_words_that_go_on_have_the_answer_of_both() -> None:
    wire = Wire()
    wire.turns.are_named = True
    first = wire.say("Is there a quiet")
    wire.hear(THINKING, append_message("c", "user", "Is there a quiet"))
    second = wire.say("car park")
    wire.hear(THINKING, append_message("c", "user", "car park"), SpeechFinal("Yes."))
    wire.hear(*(TurnEndedEvent("t", turn.event_id, "answered") for turn in (first, second)), IDLE)
    for turn in (first, second):
        assert (await turn).finals == ["Yes."] and turn.ending == "idle"


async def test_words_that_are_not_the_halves_of_a_message_are_turns_of_their_own() -> None:
    wire = Wire()
    first, second = wire.say("Milk"), wire.say("eggs")
    wire.hear(THINKING, append_message("c", "user", "Milk"), SpeechFinal("One."))
    wire.hear(THINKING, append_message("c", "user", "eggs"), SpeechFinal("Two."), IDLE)
    assert ((await first).finals, (await second).finals) == (["One."], ["Two."])
    assert first.ending == "followed"
