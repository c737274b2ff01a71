"""The queues of transcripts and news are bounded, and in order."""

from __future__ import annotations

from conductor.conversation.waiting import News, Transcript, Waiting


def test_transcripts_are_taken_in_order_and_a_surplus_one_is_refused() -> None:
    waiting = Waiting(2, 4)
    assert [waiting.add_transcript(text) for text in ("a", "b", "c")] == [True, True, False]
    assert waiting.transcripts == 2
    assert [waiting.take_transcript() for _ in range(3)] == [Transcript("a"), Transcript("b"), None]
    assert waiting.add_transcript("d")


def test_news_is_coalesced_and_the_oldest_gives_way() -> None:
    waiting = Waiting(2, 3)
    for text in ("a", "b", "a", "c", "d"):
        waiting.add_news(News(text, 100.0))
    assert waiting.has_news
    assert waiting.take_news(0.0) == ["b", "c", "d"]
    assert waiting.take_news(0.0) == []


def test_news_that_was_taken_is_gone() -> None:
    waiting = Waiting(2, 3)
    waiting.add_news(News("a", 100.0))
    waiting.take_news(0.0)
    assert not waiting.has_news


def test_expired_news_is_not_told_by_itself() -> None:
    waiting = Waiting(2, 3)
    waiting.add_news(News("old", 10.0))
    waiting.add_news(News("new", 10.1))
    assert waiting.take_news(10.0) == ["new"]
