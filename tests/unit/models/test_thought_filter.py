"""What of a model's text is words for the person, however it is cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import ModelError
from conductor.plugins.models.thought_filter import PAIRS, ThoughtFilter, ThoughtHabit, ThoughtHabits

HARMONY = "<|channel|>analysis<|message|>They greet me.<|end|><|start|>assistant<|channel|>final<|message|>"

# Of models that begin their thoughts, or do not think.
TEXTS: dict[str, tuple[str, str]] = {
    "words": ("Hello.", "Hello."),
    "white space at the start": ("\n Hello.\n", "Hello.\n"),
    **{f"a thought in {begin}": (f" {begin}Hm.{end}\n\nHello.", "Hello.") for begin, end in PAIRS.items()},
    "an empty thought": ("<think>\n\n</think>\n\nHello.", "Hello."),
    "two thoughts": ("<think>a < b </think>\n<think></think> Hello.", "Hello."),
    "a later thought": ("Let me see. <think>Hm.</think>It is 4.", "Let me see. It is 4."),
    "a thought that never ends": ("<think>Hm. It is 4.", ""),
    "a later thought that never ends": ("Well. [THINK]Hm.", "Well. "),
    "another kind of thought inside": ("<think>Use <thinking>?</thinking> No.</think>Hello.", "Hello."),
    "a second end": ("<think>Hm.</think>Hello</think>.", "Hello."),
    "a thought in angle brackets only": ("<thinker>Hello</thinker>", "<thinker>Hello</thinker>"),
    "a text that only begins like a thought": ("<thi", "<thi"),
    "gpt-oss: analysis and final": (HARMONY + "Hello.<|return|>", "Hello."),
    "gpt-oss: analysis without its end": (HARMONY.replace("<|end|>", "") + "Hello.", "Hello."),
    "gpt-oss: a word before a call": (
        "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>',
        "One moment.",
    ),
    "gpt-oss: a call behind analysis": (
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary'
        "<|message|>{}<|call|>",
        "",
    ),
    "gpt-oss: only the final channel": ("<|channel|>final<|message|>Hello.", "Hello."),
    "gpt-oss: a header that never ends": ("<|channel|>" + "Hello, " * 40, ""),
    "an end mark": ("Hello.<|im_end|>", "Hello."),
    "an invented turn": ("Hello.<|im_end|>\n<|im_start|>user\nThanks.<|im_end|>", "Hello."),
    "an invented turn of Llama": (
        "Hello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nThanks.", "Hello.",
    ),
    "an invented turn of DeepSeek": ("Hello.<｜end▁of▁sentence｜><｜User｜>Thanks.", "Hello."),
    "a header at the start": ("<|im_start|>assistant\nHello.<|im_end|>", "Hello."),
    "a header of Llama at the start": (
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello.", "Hello.",
    ),
    "marks at the start": ("<|endoftext|><|assistant|>Hello.", "Hello."),
    "marks between words": ("One.<|reserved_token_7|> Two.", "One. Two."),
    "a mark that is cut off": ("Hello.<|im_e", "Hello."),
    "a tag in inline code": ("Put `<think>` before `</think>`.", "Put `<think>` before `</think>`."),
    "a tag in quotes": ('The tag "<think>" begins it.', 'The tag "<think>" begins it.'),
    "a tag within a sentence": (
        "It thinks between <think> and </think> tags. Models do.",
        "It thinks between <think> and </think> tags. Models do.",
    ),
    "a tag within a sentence, after a thought": (
        "<think>They ask of tags.</think>Write <think> first.", "Write <think> first.",
    ),
    "tags in brackets": ("Tags ([THINK], <thought>) end.", "Tags ([THINK], <thought>) end."),
    "an end mark in inline code": ("`<|im_end|>` ends a turn.", "`<|im_end|>` ends a turn."),
    "a thought on a line of its own": ("I see\n<think>\nHm.\n</think>\nIt is 4.", "I see\n\nIt is 4."),
    "an operator": ("a <| b |> c [x] < d", "a <| b |> c [x] < d"),
}  # fmt: skip

# Of models whose template begins the thought.
UNOPENED: dict[str, tuple[str, str]] = {
    **{f"an end {end}": (f"They greet me.\n{end}\n\nHello.", "Hello.") for end in PAIRS.values()},
    "a beginning, too": ("<think>They greet me.</think>Hello.", "Hello."),
    "a beginning behind words": ("Well. <think>Hm.</think>Hello.", "Well. Hello."),
    "a second end": ("Hm.</think>Hello</think>.", "Hello."),
    "a later thought": ("Hm.</think>Well. <think>Hm.</think>Hello.", "Well. Hello."),
    "no thought at all": ("Hello.", "Hello."),
    "no thought, and an invented turn": ("Hello.<|im_end|>\n<|im_start|>user\nThanks.", "Hello."),
}


def words_of(pieces: Iterable[str], habit: ThoughtHabit | None = None, *, is_cut: bool = False) -> str:
    thoughts = ThoughtFilter(habit)
    return "".join([thoughts.feed(piece) for piece in pieces] + [thoughts.finish(is_cut=is_cut)])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_thoughts_and_marks_are_left_out(text: str, words: str, size: int) -> None:
    assert words_of(text[at : at + size] for at in range(0, len(text), size)) == words


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "words"), UNOPENED.values(), ids=UNOPENED)
def test_thoughts_without_a_beginning_are_left_out_by_habit(text: str, words: str, size: int) -> None:
    assert words_of((text[at : at + size] for at in range(0, len(text), size)), ThoughtHabit(True)) == words


@given(
    st.lists(
        st.sampled_from([*PAIRS, "<|channel|>analysis<|message|>", "<|end|>", " ", "a", "<", "<|", "[TH"])
    ),
    st.lists(st.integers(0, 80), max_size=10),
    st.booleans(),
)
def test_cuts_do_not_change_the_words(parts: list[str], cuts: list[int], unopened: bool) -> None:
    text = "".join(parts)
    edges = [0, *sorted(cuts), len(text)]
    pieces = (text[start:end] for start, end in zip(edges, edges[1:], strict=False))
    assert words_of(pieces, ThoughtHabit(unopened)) == words_of([text], ThoughtHabit(unopened))


def test_only_a_possible_mark_is_held_back() -> None:
    thoughts = ThoughtFilter()
    given_words = [
        thoughts.feed(piece) for piece in ("He", "llo ", "<", "b> and ", "<th", "ink>Hm.</think>", "x")
    ]
    assert given_words == ["He", "llo ", "", "<b> and ", "", "", "x"]


def test_the_first_thought_without_a_beginning_is_asked_again_and_the_next_ones_are_held_back() -> None:
    habit = ThoughtHabit()
    first = ThoughtFilter(habit)
    assert first.feed("They greet me.") == "They greet me."
    with pytest.raises(ModelError) as caught:
        first.feed("</think>Hello.")
    assert caught.value.reason == "connection"
    thoughts = ThoughtFilter(habit)
    assert [thoughts.feed(piece) for piece in ("They ", "greet me.", "</think>\n\n", "Hel", "lo.")] == [
        "", "", "", "Hel", "lo.",
    ]  # fmt: skip


def unopened(habit: ThoughtHabit) -> None:
    """Read a reply that ends a thought without a beginning."""
    with suppress(ModelError):
        words_of(["They greet me.", "</think>Hello."], habit)


def test_one_reply_with_such_a_thought_holds_back_only_its_own_session() -> None:
    habits = ThoughtHabits()
    unopened(habits.of("a"))
    assert habits.of("a").unopened and not habits.of("b").unopened
    words_of(["It spoke of a mark."], habits.of("a"))
    assert not habits.of("a").unopened


def test_two_replies_in_a_row_show_a_habit_of_the_model() -> None:
    habits = ThoughtHabits()
    for _ in range(2):
        unopened(habits.of("a"))
    assert habits.of("b").unopened
    words_of(["No thought."], habits.of("b"))
    assert not habits.of("a").unopened and not habits.of("b").unopened


def test_few_habits_are_kept() -> None:
    habits = ThoughtHabits()
    unopened(habits.of("a"))
    for number in range(100):
        habits.of(str(number))
    assert not habits.of("a").unopened


def test_a_thought_without_a_beginning_in_the_first_piece_is_left_out_at_once() -> None:
    assert words_of(["Hm.</think>Hello."]) == "Hello."


def test_a_whole_reply_without_a_thought_is_given_at_its_end_and_later_ones_at_once() -> None:
    habit = ThoughtHabit(True)
    thoughts = ThoughtFilter(habit)
    assert (thoughts.feed("Hello."), thoughts.finish()) == ("", "Hello.")
    assert ThoughtFilter(habit).feed("Hello.") == "Hello."


def test_a_thought_without_a_beginning_that_the_limit_cut_off_is_not_given() -> None:
    habit = ThoughtHabit(True)
    assert words_of(["They greet me."], habit, is_cut=True) == ""
    assert habit.unopened


def test_an_emphasised_mark_is_spoken_of() -> None:
    words = ThoughtFilter()
    text = "**<think>** begins a thought, **</think>** ends it."
    assert "".join(map(words.feed, text)) + words.finish() == text
