"""The heard part of a speech, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from conductor.conversation.heard import (
    CHARS_PER_SECOND,
    CUT_HERE,
    CUT_SOMEWHERE,
    HEARD_NOTHING,
    heard_part,
    heard_text,
    marked,
)
from conductor.conversation.state import Speech

SPOKEN = "The lamp is on and the door is locked."
SPEECH = Speech(id="c1", turn_id="t1", speech_text=SPOKEN, text=f"**{SPOKEN}**")
SECOND = Speech(
    id="c2",
    turn_id="t1",
    speech_text="It is locked.",
    text="On. **It is locked.**",
    preceding="On.",
    last=False,
)
LAST = changed(SECOND, last=True)

# The speech; the client's `spokenText` and `playedMs`; whether the speech was acknowledged; the heard part.
HEARD: list[tuple[str, Speech, str | None, float | None, bool, str | None]] = [
    ("the client says which words", SPEECH, " The lamp is ", None, False, "The lamp is"),
    ("the client says which words, and for how long", SPEECH, "The lamp", 9_999_999, False, "The lamp"),
    ("the client says that nothing was heard", SPEECH, "", None, False, ""),
    ("the client says blanks", SPEECH, "  \n", None, False, ""),
    ("the client says more than was spoken", SPEECH, "x" * 5_000, None, False, "x" * len(SPOKEN)),
    ("the client says for how long", SPEECH, None, 1_000, False, "The lamp is on"),
    ("a word was not played to its end", SPEECH, None, 900, False, "The lamp is"),
    ("all was played", SPEECH, None, 60_000, False, SPOKEN),
    ("exactly all was played", SPEECH, None, len(SPOKEN) / CHARS_PER_SECOND * 1000 + 1, False, SPOKEN),
    ("nothing was played", SPEECH, None, 0, False, ""),
    ("nothing is known", SPEECH, None, None, False, None),
    ("nothing is known of the acknowledged last segment", LAST, None, None, True, "On."),
    ("nothing is known of a later segment", SECOND, None, None, False, "On."),
    ("a later segment was acknowledged", SECOND, None, None, True, "On. **It is locked.**"),
    ("words of a later segment", SECOND, "It is", None, False, "On. It is"),
    ("no words of a later segment", SECOND, "", None, False, "On."),
    ("the time of a later segment", SECOND, None, 400, False, "On. It is"),
]


@pytest.mark.parametrize(
    ("speech", "spoken_text", "played_ms", "finished", "part"),
    [row[1:] for row in HEARD],
    ids=[row[0] for row in HEARD],
)
def test_the_heard_part_of_a_speech(
    speech: Speech, spoken_text: str | None, played_ms: float | None, finished: bool, part: str | None
) -> None:
    assert heard_part(speech, spoken_text, played_ms, finished=finished) == part
    text = f"{speech.text} {CUT_SOMEWHERE}" if part is None else marked(part)
    assert heard_text(speech, spoken_text, played_ms, finished=finished) == text
    acted = changed(speech, actions=("lamp.on", "door.lock"))
    done = " [Done, though the user may not have heard so: lamp.on, door.lock.]"
    assert heard_text(acted, spoken_text, played_ms, finished=finished) == text + done


def test_a_cut_text_says_so() -> None:
    assert marked("The lamp") == f"The lamp {CUT_HERE}"
    assert marked("") == HEARD_NOTHING
    assert (
        heard_text(Speech(id="c1", turn_id="t1", speech_text="", text=""), None, None, finished=False)
        == CUT_SOMEWHERE
    )


@given(st.text(), st.floats(min_value=0, max_value=1e12))
def test_the_time_played_gives_whole_words(text: str, played_ms: float) -> None:
    part = heard_part(
        Speech(id="c1", turn_id="t1", speech_text=text, text=text), None, played_ms, finished=False
    )
    assert part is not None and text.startswith(part)
    assert len(part) <= played_ms / 1000 * CHARS_PER_SECOND
    assert not part or part == text or text[len(part)] == " "


@given(st.floats(min_value=0, max_value=1e4), st.floats(min_value=0, max_value=1e4))
def test_the_longer_it_played_the_more_was_heard(first: float, second: float) -> None:
    shorter, longer = (heard_part(SPEECH, None, ms, finished=False) for ms in sorted((first, second)))
    assert shorter is not None and longer is not None and longer.startswith(shorter)
