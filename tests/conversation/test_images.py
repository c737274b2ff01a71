"""How long a conversation keeps images, as tables: the records, the images that are kept, and those dropped.

``kept`` maps ids to the turns that had the image; ``gone`` are those of which the log has a line of text.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.history import estimate_tokens
from conductor.conversation.receive import receive
from conductor.conversation.state import Conversation, Notice
from conductor.conversation.view import late_call
from conductor.events import client
from conductor.images import Taken
from conductor.messages import Illustrated, Image, ToolResult, UserMessage
from tests.conversation.build import NOW, STARTED, device, finished, fold, question, replied, result, view
from tests.conversation.stories import QUEUE

A, B, C = (Image(id=key, media_type="image/png", size=9, width=750, height=2) for key in "abc")
REFUSED = Image(id="", media_type="", size=0, width=0, height=0, gone=True, refused="Too large.")
NINE = tuple(replace(A, id=f"n{number}") for number in range(9))
ANSWERED = r.TurnEnded(reason="answered")
INTERRUPTED = r.TurnEnded(reason="interrupted")


def turn(event_id: str = "words-1", *images: Image, cause: str = "transcript") -> r.TurnStarted:
    return replace(STARTED, event_id=event_id, images=images, cause=cause, text="go" if event_id else "")


def snapped(*images: Image) -> list[r.Record]:
    """Make the records of a call that gives images."""
    shown = replace(result(), images=images)
    return [replied(device(started_at=NOW)), finished(result=shown)]


ASKED = [turn(), replied(device(consent="needed")), r.QuestionsAsked((question(),))]
UNCLEAR = r.AnswerUnclear(question_id="q1", event_id="e1", text="hm", counts=True)


def allowed(*images: Image) -> r.QuestionDecided:
    return r.QuestionDecided(question_id="q1", call_id="c1", outcome="allowed", event_id="e2", images=images)


LATE = Notice(text="late", late=True, expires_at=NOW + 9_000, images=(A,))
ROWS: list[tuple[str, list[r.Record], dict[str, int], list[str], list[str]]] = [
    ("a result", [turn(), *snapped(A)], {"a": 1}, [], []),
    ("words", [turn("words-1", A, B)], {"a": 1, "b": 1}, [], []),
    ("the next turn", [turn(), *snapped(A), ANSWERED, turn("words-2")], {"a": 2}, [], []),
    (
        "the turn after that",
        [turn("words-1", A), ANSWERED, turn("words-2"), ANSWERED, turn("words-3", B)],
        {"b": 1},
        ["a"],
        ["a"],
    ),
    (
        "a turn that begins anew with more words is the same one",
        [
            *(turn("words-1", A), ANSWERED, turn("words-2", B)),
            replace(INTERRUPTED, continues=True),
            replace(turn("words-3", B), text="go on", shown=2),
        ],
        {"a": 2, "b": 1},
        [],
        [],
    ),
    (
        "the commit that drops it",
        [turn("words-1", A), ANSWERED, turn("words-2"), ANSWERED, turn("words-3"), ANSWERED],
        {},
        ["a"],
        [],
    ),
    (
        "a program's call is no turn",
        [turn("words-1", A), ANSWERED, turn("", cause="request")],
        {"a": 1},
        [],
        [],
    ),
    ("waiting words", [turn(), r.InputQueued("e2", "hi", images=(A,))], {"a": 0}, [], []),
    (
        "words that waited for two turns",
        [
            turn(),
            r.InputQueued("e2", "hi", images=(A,)),
            *(INTERRUPTED, turn("e1"), INTERRUPTED, turn("e3"), INTERRUPTED),
            replace(turn("e2", A), text="hi"),
        ],
        {"a": 1},
        [],
        [],
    ),
    (
        "a result while nine wait: the running turn sees it",
        [turn(), r.InputQueued("e2", "hi", images=NINE), *snapped(A)],
        {**{image.id: 0 for image in NINE}, "a": 1},
        [],
        [],
    ),
    ("a late result that waits", [r.NoticeTaken("", LATE)], {"a": 0}, [], []),
    ("a late result in its turn", [r.NoticeTaken("", LATE), turn()], {"a": 1}, [], []),
    ("an answer with a picture: it waits for the result", [*ASKED, allowed(B)], {"b": 0}, [], []),
    (
        "the result after an answer with a picture",
        [*ASKED, allowed(B), finished(result=replace(result(), images=(B, A)))],
        {"b": 1, "a": 1},
        [],
        [],
    ),
    (
        "an unclear answer with a picture, and a yes with another",
        [*ASKED, replace(UNCLEAR, images=(A,)), allowed(B)],
        {"a": 0, "b": 0},
        [],
        [],
    ),
    ("an answer to a call that is over", [*ASKED, finished(), allowed(B)], {}, [], []),
    ("a refused one is not kept", [turn("words-1", A, REFUSED)], {"a": 1}, [""], []),
    ("an answer with a refused one", [*ASKED, allowed(REFUSED)], {}, [], []),
    (
        "more than a session keeps: the oldest goes",
        [turn("words-1", A), *snapped(*NINE)],
        {image.id: 1 for image in NINE},
        ["a"],
        ["a"],
    ),
]


@pytest.mark.parametrize(
    ("records", "kept", "gone", "dropped"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_conversation_keeps_an_image_for_two_turns(
    records: list[r.Record], kept: dict[str, int], gone: list[str], dropped: list[str]
) -> None:
    state = fold(*records)
    images = [image for message in state.log if isinstance(message, Illustrated) for image in message.images]
    assert (state.images, [image.id for image in images if image.gone], state.dropped_images) == (
        kept,
        gone,
        dropped,
    )


PAUSED = fold(
    STARTED,
    replied(text="One two.", speech_text="One two."),
    ANSWERED,
    r.SpeechPaused(event_id="p1", speech_id="call_claim_c87", name="s"),
)


CALLED = fold(STARTED, replied(device()))
CLOSED = fold(finished("c1", "unknown", late=late_call(device(), NOW + 9_000)), ANSWERED, state=CALLED)


@pytest.mark.parametrize("state", [CALLED, CLOSED], ids=["in time", "late"])
def test_results_bring_their_images(state: Conversation) -> None:
    records = receive(view(state), "e1", client.ToolResultEvent("c1", "four"), Taken((A,), (("a", b"a"),)))
    assert isinstance(records, list) and list(r.images(records)) == [A]


def test_words_bring_their_images() -> None:
    taken = Taken((A,), (("a", b"a"),))
    started = receive(view(Conversation()), "e1", client.TranscriptFinal("look"), taken)
    assert isinstance(started, list) and list(r.images(started)) == [A]
    waiting = receive(view(fold(STARTED), **QUEUE), "e1", client.TranscriptFinal("look"), taken)
    assert waiting == [r.InputQueued("e1", "look", images=(A,))]
    listened = receive(view(PAUSED), "e1", client.TranscriptFinal("mhm"), taken)
    assert isinstance(listened, list) and list(r.images(listened)) == [A]
    assert receive(view(PAUSED), "e1", client.TranscriptFinal("mhm")) == [
        r.PauseEnded(resumes=True, event_id="e1", text="mhm", name="s")
    ]
    refused = receive(view(PAUSED), "e1", client.TranscriptFinal("mhm"), Taken(refusals=("Too large.",)))
    assert isinstance(refused, list) and list(r.images(refused)) == [REFUSED]
    started = receive(view(fold(STARTED, ANSWERED, turn("e0"))), "e1", client.TranscriptFinal("look"), taken)
    assert isinstance(started, list) and list(r.images(started)) == [A]


def test_an_answer_brings_its_images_with_its_own_commit() -> None:
    assert list(r.images([replace(UNCLEAR, images=(A,)), allowed(B)])) == [A, B]


TOKENS = [
    ("by its pixels, as Claude counts", replace(A, width=1_500, height=1_000), 2_000),
    ("a small one", replace(A, width=1, height=1), 1),
    ("a large one, which services scale down", replace(A, width=3_900, height=4_000), 3_300),
    ("a refused one: a line of text", REFUSED, 20),
    ("a line of text in its place", replace(A, width=1_500, height=1_000, gone=True), 20),
]


@pytest.mark.parametrize(("image", "tokens"), [row[1:] for row in TOKENS], ids=[row[0] for row in TOKENS])
def test_an_image_counts_in_the_history(image: Image, tokens: int) -> None:
    for message in (UserMessage("go", images=(image,)), ToolResult("c1", "go", images=(image,))):
        assert estimate_tokens(message) == tokens + estimate_tokens(UserMessage("go"))
