"""Which turn an event belongs to, and what ends it: from literals, without sockets."""

from __future__ import annotations

import pytest

from conductor.client.errors import ClientError
from conductor.client.turns import Turn, Turns
from conductor.events.client import ToolResultEvent
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    ServerEvent,
    SpeechFinal,
    ToolCallEvent,
    append_message,
    set_state,
)

LIMIT_S = 5.0


class Wire:
    """Plays events into the turns, as the client does."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.connection = 1

    def say(self, text: str) -> Turn:
        turn = Turn(text, f"id of {text}", self.connection, LIMIT_S)
        self.turns.add(turn)
        return turn

    def hear(self, *events: ServerEvent) -> None:
        for event in events:
            self.turns.note(event)
            self.turns.settle(event, self.connection)


IDLE = set_state("c", "idle")
THINKING = set_state("c", "thinking")
QUESTION = ApprovalRequest(
    "appr_1", "batch_1", "call_1", "notes.delete", {}, "digest", "medium", [], "May I?", ["once"], ""
)


async def test_the_idle_of_an_earlier_turn_does_not_end_one_just_said() -> None:
    wire = Wire()
    turn = wire.say("now")
    wire.hear(SpeechFinal("of an earlier turn"), IDLE)
    assert not turn.is_done
    wire.hear(THINKING, append_message("c", "user", "now"), SpeechFinal("Yes."), IDLE)
    assert (await turn).finals == ("Yes.",)


async def test_a_refused_transcript_ends_with_the_idle_after_its_error() -> None:
    wire = Wire()
    turn = wire.say("")
    wire.hear(ErrorEvent("invalid_transcript", "Empty.", event_id=turn.event_id))
    assert not turn.is_done
    wire.hear(IDLE)
    result = await turn
    assert [error.code for error in result.errors] == ["invalid_transcript"]
    assert not result.ok


async def test_an_error_that_names_no_event_is_the_running_turns_or_else_the_oldest() -> None:
    wire = Wire()
    first = wire.say("one")
    wire.hear(ErrorEvent("rate_limited", "Slow down."), IDLE)
    assert [error.code for error in (await first).errors] == ["rate_limited"]
    second, third = wire.say("two"), wire.say("three")
    wire.hear(append_message("c", "user", "two"), ErrorEvent("model_provider_failed", "Down."), IDLE)
    assert [error.code for error in (await second).errors] == ["model_provider_failed"]
    assert not third.is_done


async def test_an_error_about_something_else_refuses_no_transcript() -> None:
    wire = Wire()
    turn = wire.say("one")
    wire.hear(ErrorEvent("invalid_event", "Odd.", event_id="some other"), IDLE)
    assert not turn.is_done


async def test_a_refused_transcript_does_not_take_the_running_turns_events() -> None:
    wire = Wire()
    running = wire.say("one")
    wire.hear(append_message("c", "user", "one"))
    refused = wire.say("two")
    wire.hear(ErrorEvent("rate_limited", "Slow down.", event_id=refused.event_id), SpeechFinal("One."), IDLE)
    assert (await running).finals == ("One.",)
    assert (await running).ok
    assert (await refused).finals == ()


async def test_a_turn_is_over_when_the_next_begins_without_an_idle_between() -> None:
    wire = Wire()
    first, second = wire.say("one"), wire.say("two")
    wire.hear(append_message("c", "user", "one"), SpeechFinal("One."))
    wire.hear(THINKING, append_message("c", "user", "two"), SpeechFinal("Two."), IDLE)
    assert ((await first).ending, (await first).finals) == ("followed", ("One.",))
    assert ((await second).ending, (await second).finals) == ("idle", ("Two.",))


async def test_a_transcript_that_was_passed_over_is_lost_when_a_later_one_ends() -> None:
    wire = Wire()
    first, second = wire.say("one"), wire.say("two")
    wire.hear(append_message("c", "user", "two"), SpeechFinal("Two."), IDLE)
    assert (await first).ending == "lost"
    assert (await second).ending == "idle"


async def test_a_transcript_comes_back_in_other_spacing_or_composition() -> None:
    wire = Wire()
    turn = wire.say(" cafe\u0301  now ")
    wire.hear(append_message("c", "user", "café now"), IDLE)
    assert turn.is_done


async def test_a_rewritten_transcript_begins_its_turn_only_after_thinking() -> None:
    wire = Wire()
    turn = wire.say("my number is 123")
    wire.hear(append_message("c", "user", "of long ago"), IDLE)
    assert not turn.is_done
    wire.hear(THINKING, append_message("c", "user", "my number is [REDACTED]"), IDLE)
    assert turn.is_done


async def test_what_the_app_still_composes_begins_no_turn() -> None:
    wire = Wire()
    turn = wire.say("hello")
    partial = ToolCallEvent("c", "convo.appendMessage", '{"role":"user","text":"hello","isPartial":true}')
    wire.hear(partial, IDLE)
    assert not turn.is_done


async def test_a_fresh_idle_on_a_later_connection_tells_that_the_transcript_is_lost() -> None:
    wire = Wire()
    turn = wire.say("hello")
    wire.connection = 2
    wire.hear(IDLE)
    assert (await turn).ending == "lost"


async def test_a_turn_outlasts_the_idle_at_which_its_question_is_answered() -> None:
    wire = Wire()
    turn = wire.say("delete it")
    wire.hear(append_message("c", "user", "delete it"), SpeechFinal("Let me see."), QUESTION, IDLE)
    assert not turn.is_done
    wire.hear(ApprovalResolved("appr_1", "allowed"), THINKING, SpeechFinal("Gone."), IDLE)
    assert (await turn).finals == ("Let me see.", "Gone.")


@pytest.mark.parametrize("last", [SpeechFinal("Gone."), ErrorEvent("model_provider_failed", "Down.")])
async def test_a_turn_ends_when_its_end_comes_before_what_became_of_its_question(last: ServerEvent) -> None:
    wire = Wire()
    turn = wire.say("delete it")
    wire.hear(append_message("c", "user", "delete it"), QUESTION, IDLE)
    wire.connection = 2
    wire.hear(last, IDLE, ApprovalResolved("appr_1", "allowed"))
    assert (await turn).ending == "idle"


async def test_the_result_holds_what_the_device_answered() -> None:
    wire = Wire()
    turn = wire.say("go")
    wire.hear(append_message("c1", "user", "go"), ToolCallEvent("c2", "notes.add", "{}"))
    wire.turns.add_result(ToolResultEvent("c2", "added"))
    wire.hear(IDLE)
    (run,) = (await turn).calls
    assert (run.call_id, run.name, run.result, run.error) == ("c2", "notes.add", "added", None)


async def test_arguments_that_are_no_json_are_no_state() -> None:
    wire = Wire()
    turn = wire.say("go")
    wire.hear(append_message("c1", "user", "go"), ToolCallEvent("c2", "convo.setState", "idle"))
    assert not turn.is_done


async def test_closing_ends_every_turn_by_the_error() -> None:
    wire = Wire()
    turn = wire.say("go")
    wire.turns.close(ClientError("gone"))
    with pytest.raises(ClientError, match="gone"):
        await turn
