"""Text for a voice: removed marks, and words that stay."""

from __future__ import annotations

import string
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conductor.speech import CODE_PHRASE, TABLE_PHRASE, for_the_ear
from tests.cpu import least_cpu_s

FENCE = "`" * 3
TABLE = "| a | b |\n|---|:-:|\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("markdown", "speech"),
    [
        ("# The plan", "The plan"),
        ("## The plan ##\nWe go.", "The plan. We go."),
        ("Plan\n====\nWe go.", "Plan. We go."),
        ("It is **very** *nice*, __so__ _so_ ~~not~~.", "It is very nice, so so not."),
        ("***both*** and **a *b* c**", "both and a b c"),
        ("これは**重要**です。", "これは重要です。"),
        ("これは**「重要」**です。", "これは「重要」です。"),
        ("- eggs\n- milk\n* bread", "eggs. milk. bread"),
        ("1. eggs\n2) milk", "eggs. milk"),
        ("- [ ] eggs\n- [x] milk", "eggs. milk"),
        ("- eggs\n  - two\n    1. brown\n    2. white\n- milk", "eggs. two. brown. white. milk"),
        ("- 1. eggs\n• > milk", "1. eggs. milk"),
        ("- eggs,\n  two of them\n- milk!", "eggs, two of them. milk!"),
        ('See [the *docs*](https://example.com/x_(y) "Title").', "See the docs."),
        ("![a heron](heron.png) stands", "a heron stands"),
        ("[![build](b.svg)](https://ci.example) ok", "build ok"),
        ("[Anna]: Hallo", "Anna: Hallo"),
        ("[Anna]: Hallo.\n[Ben]: Um 10:30, ja.", "Anna: Hallo. Ben: Um 10:30, ja."),
        ("> [Anna]: Ja\n\n- [Ben]:\n  Nein", "Anna: Ja. Ben: Nein"),
        ('As [shown][1].\n\n[1]: /here "A title"\n[2]: a.example.org', "As shown."),
        ("As [shown][1], so.\n\n[1]: https://example.com", "As shown, so."),
        ("It is so.[^1]\n\n[^1]: As they say.", "It is so."),
        ("Go to https://www.example.com/a_b/c?d=1#e.", "Go to example.com."),
        ("(see https://example.com/a), or www.example.org/x!", "(see example.com), or example.org!"),
        ("<https://user:pw@example.com:8080/x> or <mailto:a@example.com>", "example.com or a@example.com"),
        ("**https://example.com/a**", "example.com"),
        ("Run `ls -l *_x_*` and ``a`b``.", "Run ls -l *_x_* and a`b."),
        ("> Quoted,\n> twice.", "Quoted, twice."),
        ("One.\n\n---\n\nTwo.\n* * *\nThree.", "One. Two. Three."),
        ("First\n\nSecond", "First. Second"),
        ("Great 🎉! Yes 👍🏽, 👨‍👩‍👧 1️⃣ ✅", "Great! Yes, 1"),
        ('<b>Bold</b> and<br/>a <a href="x">link</a><!-- no -->.', "Bold and a link."),
        ("Salt &amp; pepper &lt; 3", "Salt & pepper < 3"),
        (r"Not \*emphasis\* and \# nothing", "Not *emphasis* and # nothing"),
        ("A **stray", "A stray"),
        ("`a`_`b`_`c`", "a_b_c"),
        ("  much\t white\u00a0space \r\n here ", "much white space here"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("Step \u2780 is done", "Step is done"),
        ("See www.example.com now", "See example.com now"),
    ],
)
def test_marks_are_removed(markdown: str, speech: str) -> None:
    assert for_the_ear(markdown) == speech


@pytest.mark.parametrize(
    "prose",
    [
        "17% of 2340 is 397.8, isn't it?",
        "In snake_case_words, 2 * 3 * 4 is 24, and 2*3*4 too.",
        "2**3 is 8 and a_b_c is a name; so is _private_name.",
        "A 5* hotel, and a 4* one.",
        "3 < 4 and 5 > 2, a<b and c>d, List<int>.",
        "It costs $1,234.50 (about €1.100) at 3:42.",
        "3. That is the answer.",
        "-5 degrees, or 21 °C; © and ™.",
        "She said: “No!” — and left…",
        "Either/or, #1, C#, @home, 50/50, a | b, x[i][j].",
        "こんにちは、世界。",
        "مرحبا بالعالم، كيف حالك؟",
        "मी_को, ही_ x",
        "हिन्दी में क्षमा, नमस्ते।",
        "e\u0301te\u0301 and Việt Nam",
        "می\u200cخواهم",
        "Bonjour ! Ça va ?",
        "",
    ],
)
def test_prose_is_unchanged(prose: str) -> None:
    assert for_the_ear(prose) == prose


def test_code_is_on_the_screen_and_not_read_out() -> None:
    code = f"{FENCE}python\nsecret = 1\n{FENCE}"
    assert for_the_ear(code) == CODE_PHRASE
    assert for_the_ear(f"Here it is:\n\n{code}\nEnjoy.") == f"Here it is: {CODE_PHRASE} Enjoy."
    assert for_the_ear(f"{code}\nand\n{code}") == f"{CODE_PHRASE} and"
    assert for_the_ear(f"Here:\n~~~\n{code}\n~~~\nDone.") == f"Here: {CODE_PHRASE} Done."
    assert for_the_ear(f"> {FENCE}\n> secret\n> {FENCE}\n> Said.") == f"{CODE_PHRASE} Said."


def test_a_fence_that_is_never_closed_hides_all_that_follows() -> None:
    assert for_the_ear(f"Here.\n{FENCE}\nsecret = 1\n") == f"Here. {CODE_PHRASE}"


def test_three_backticks_inside_a_line_are_no_fence() -> None:
    assert for_the_ear(f"{FENCE}ls{FENCE} lists.\nYes.") == "ls lists. Yes."


def test_a_table_is_on_the_screen_and_not_read_out() -> None:
    assert for_the_ear(TABLE) == TABLE_PHRASE
    assert for_the_ear(f"Look:\n\n{TABLE}\n\nThat is all.") == f"Look: {TABLE_PHRASE} That is all."
    assert for_the_ear(f"{TABLE}\nThat is all.") == f"{TABLE_PHRASE} That is all."


def test_text_without_words_gives_no_speech() -> None:
    assert for_the_ear("🎉 ✨\n---\n<br>") == ""


PROSE = st.text(string.ascii_letters + string.digits + " .,;?!'()%$äßéあ漢字م\u0301")


@given(PROSE)
def test_prose_comes_back_with_single_spaces_and_stays_so(text: str) -> None:
    once = for_the_ear(text)
    assert once == " ".join(text.split())
    assert for_the_ear(once) == once


@given(
    st.text(
        st.sampled_from("ab1 \n\t*_`~[]()<>!#->|\\\"':/&;.🎉\u200d\ufe0f") | st.characters(), max_size=300
    )
)
@example("[a](" * 40)
@example("`" * 40 + "a" + "`" * 39)
def test_any_text_gives_one_clean_line(text: str) -> None:
    speech = for_the_ear(text)
    assert speech == " ".join(speech.split())
    assert not set(speech) & set("\ue000\ue001\ufe0f\x00🎉")
    speech.encode()


@given(
    st.lists(st.sampled_from(["wren", "**", "*", "_", "`", "[", "](", ")", "\n", "# ", "- ", "> ", "<b>"]))
)
def test_words_are_not_lost_among_marks(pieces: list[str]) -> None:
    # Targets of links are meant to go; without "](" and fences every word stays.
    text = " ".join(piece for piece in pieces if piece != "](")
    assert for_the_ear(text).count("wren") == text.count("wren")


def test_no_word_is_lost_in_a_reply_that_is_too_long_to_be_parsed() -> None:
    marked = "*wren* [wren](x) `wren` " * 1_000
    assert for_the_ear(marked).count("wren") == 3_000
    listed = "- a wren\n" * 1_000
    assert for_the_ear(listed).count("wren") == 1_000
    assert for_the_ear(f"{marked}\n\nA **wren**.").endswith(" A wren.")


def test_only_the_first_hour_of_a_reply_is_spoken() -> None:
    assert len(for_the_ear("wren " * 100_000)) == 65_536


HOSTILE = [
    *("*", "_", "`", "~", "[", "]", "(", "<", "#", "|", "\\", " ", "\n", "!", "&", "<!--", "<![CDATA["),
    *("![", "![](", "[a](", '[a](b "', "[x](()", "[a][", "[^", "*[", "*a_", "? ~~", "**a ", "_a ", "` `` "),
    *("> ", "- ", "1. ", "- [ ] ", "\n- a", "1. a\n", "|-|\n", "| a ", "[a]: b\n", "[a\n", "a\n-\n"),
    *("https://", "https://)", "mailto:", "<a ", "<b>", "&#", "&amp;", "🎉 ", FENCE + "\n"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_a_bounded_time(piece: str) -> None:
    text = piece * (65_536 // len(piece))
    line = piece.strip("\n") * (250 // len(piece)) + "\n\n"
    for hostile in (text, "x" + text + "x", line * (65_536 // len(line))):
        assert least_cpu_s(partial(for_the_ear, hostile), 0.25) < 0.25  # 0.02; if quadratic, seconds


def test_runs_of_backticks_of_growing_length_take_a_bounded_time() -> None:
    hostile = " ".join("`" * length for length in range(1, 360))
    assert least_cpu_s(lambda: for_the_ear(hostile), 0.25) < 0.25
