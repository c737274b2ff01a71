"""The queues of transcripts and news are bounded, and in order."""

from __future__ import annotations

from conductor.conversation.pending_inputs import PendingInputs, ServerNotice, Transcript


def test_transcripts_are_taken_in_order_and_a_surplus_one_is_refused() -> None:
    waiting = PendingInputs(2, 4)
    a, b, c = (Transcript(text, f"id-{text}") for text in "abc")
    assert [waiting.add_transcript(one) for one in (a, b, c)] == [True, True, False]
    assert waiting.transcripts == 2
    assert waiting.knows("id-b")
    assert not waiting.knows("id-c")
    for expected in (a, b):
        assert waiting.next_transcript == expected
        waiting.drop_transcript(expected.event_id)
    assert waiting.next_transcript is None
    assert waiting.add_transcript(c)


def test_transcripts_that_cannot_be_answered_are_dropped() -> None:
    waiting = PendingInputs(2, 4)
    waiting.add_transcript(Transcript("a", "id-a"))
    waiting.drop_transcripts()
    assert waiting.next_transcript is None


def test_news_is_coalesced_and_the_oldest_gives_way() -> None:
    waiting = PendingInputs(2, 3)
    for text in ("a", "b", "a", "c", "d"):
        waiting.add_notice(ServerNotice(text, 100.0))
    assert waiting.has_notices(0.0)
    assert [notice.text for notice in waiting.notices()] == ["b", "c", "d"]


def test_news_that_was_told_is_gone_and_newer_news_is_not() -> None:
    waiting = PendingInputs(2, 3)
    waiting.add_notice(ServerNotice("a", 100.0))
    waiting.add_notice(ServerNotice("b", 100.0))
    waiting.drop_notices(waiting.notices()[:1])
    assert [notice.text for notice in waiting.notices()] == ["b"]


def test_expired_news_asks_for_no_turn_of_its_own_and_is_still_told() -> None:
    waiting = PendingInputs(2, 3)
    waiting.add_notice(ServerNotice("old", 10.0))
    assert not waiting.has_notices(10.0)
    waiting.add_notice(ServerNotice("new", 10.1))
    assert waiting.has_notices(10.0)
    assert [notice.text for notice in waiting.notices(before=10.0)] == ["old"]
