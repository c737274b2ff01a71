"""A person who speaks over a speech: `conductor.conversation.interruptions` as tables.

A row is its name in words, the state, the facts of the process, what happens, and the records that follow.
The gate of the tables takes "mhm" and "yes" for backchannels, and "yes" and "no" for answers.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.consent import Later, Refuse, Response
from conductor.conversation.heard import CUT_BEFORE_SPEECH, CUT_HERE, CUT_SOMEWHERE, HEARD_NOTHING
from conductor.conversation.interruptions import question_stands, resumes_at, withdrawn_speeches
from conductor.conversation.receive import receive, too_late
from conductor.conversation.state import Conversation
from conductor.conversation.steps import due
from conductor.events import client
from tests.conversation.build import (
    CARDS,
    NOW,
    STARTED,
    device,
    finished,
    fold,
    question,
    replied,
    view,
)
from tests.conversation.stories import (
    ASKED,
    BARGED_IN,
    HALF,
    HALF_SAID,
    LOST,
    NO_ANSWER,
    NOTHING_SENT,
    ONE_TWO,
    QUEUE,
    REPLACED,
    SAID,
    SAID_ELSEWHERE,
    SAID_THEN_CALLED,
    SEGMENTS,
    SEGMENTS_SAID,
    STARTS,
    STOPPED,
    TURN,
    TWO_SAID,
    Facts,
    acknowledged,
    heard,
    in_turn,
    over,
    speech,
)


def paused(
    state: Conversation, number: int = 0, *, spoken_text: str | None = "One", played_ms: float | None = None
) -> Conversation:
    """Pause a speech of a state after its first word, or after what is told."""
    record = r.SpeechPaused(
        event_id="p1",
        speech_id=speech(state, number),
        name="the speech",
        spoken_text=spoken_text if played_ms is None else None,
        played_ms=played_ms,
    )
    return fold(record, state=state)


def turn_id(state: Conversation) -> str:
    assert state.turn is not None
    return state.turn.id


def said(text: str, *, last: str = "") -> Conversation:
    """Make the rest after a reply, which another reply without the person may follow."""
    state = over(in_turn(replied(text=text, speech_text=text)))
    if last:
        news = r.TurnStarted(cause="news", limit_ms=120_000)
        state = over(fold(news, replied(text=last, speech_text=last), state=state))
    return state


# -- states

BRIDGED = in_turn(r.BridgeSpoken("One moment."))
WITHOUT_SPEECH = fold(r.SpeechPaused(event_id="p1", speech_id="", name="", spoken_text="One"), state=TURN)
PAUSED = paused(SAID)
PAUSED_IN_TURN = paused(SAID_THEN_CALLED)
PAUSED_IN_LATER_TURN = paused(fold(STARTED, state=SAID))
PAUSED_SEGMENTS = paused(SEGMENTS)
PAUSED_PROMPT = paused(ASKED)
PAUSED_AFTER_LATE = paused(fold(r.PauseEnded(resumes=True, name="another"), state=SAID))
LATE_PAUSED = fold(r.PauseEnded(resumes=True, name="the speech"), state=SAID)
RESUMED = fold(r.PauseEnded(resumes=True, name="the speech"), state=PAUSED)
# A reply said what it is about to do, and its call waits for a tap or for a spoken yes.
ANNOUNCED_WITH_CARD = fold(
    r.ProfileDeclared(CARDS),
    STARTED,
    replied(device(consent="needed"), text="One two.", speech_text="One two."),
    r.QuestionsAsked((question(card=True),)),
)
ANNOUNCED = fold(
    STARTED,
    replied(device(consent="needed"), text="One two.", speech_text="One two."),
    r.QuestionsAsked((question(),)),
    r.PromptSpoken("q1", "May I?"),
)
ANNOUNCED_AS_CARD = changed(ANNOUNCED.questions["q1"], card=True)

# -- what follows

HI, MHM, YES, NO = (client.TranscriptFinal(text) for text in ("hi", "mhm", "yes", "no"))
GOES_ON = r.PauseEnded(resumes=True, event_id="e1", text="mhm", name="the speech")
CUT = r.PauseEnded(resumes=False)
CUT_BY_EVENT = r.PauseEnded(resumes=False, event_id="e1")
HEARD_ONE = f"One {CUT_HERE}"
REFUSED = finished("c1", "permission_denied", tool="", source="", reason="denied")
STARTS_WITH_YES = changed(STARTS, text="yes")
PROMPT_CUT = r.PromptCut("q1", "", NOW + 5_000)


def cut(state: Conversation, text: str = HEARD_ONE, number: int = 0) -> r.SpeechCut:
    return r.SpeechCut(speech(state, number), text)


def pause(
    state: Conversation, name: str, number: int | None = 0, *, spoken_text: str | None = None
) -> r.SpeechPaused:
    speech_id = "" if number is None else speech(state, number)
    return r.SpeechPaused(event_id="e1", speech_id=speech_id, name=name or speech_id, spoken_text=spoken_text)


def not_held(name: str) -> list[r.Record]:
    """Make the records of a pause that holds nothing."""
    return [r.EventHandled("e1"), r.PauseEnded(resumes=True, name=name)]


PAUSES: list[tuple[str, Conversation, Facts, client.OutputPaused, list[r.Record]]] = [
    (
        "of the speech that is played",
        SAID,
        {},
        client.OutputPaused(spoken_text="One"),
        [pause(SAID, "", spoken_text="One")],
    ),
    (
        "of the speech that is played, after a part of a second",
        SAID,
        {},
        client.OutputPaused(played_ms=300.0),
        [changed(pause(SAID, ""), played_ms=300.0)],
    ),
    (
        "by the id of the call",
        TWO_SAID,
        {},
        client.OutputPaused(speech(TWO_SAID, 1)),
        [pause(TWO_SAID, "", 1)],
    ),
    (
        "by the id of the reply: its first segment that is not over",
        SEGMENTS_SAID,
        {},
        client.OutputPaused(SEGMENTS_SAID.speeches[speech(SEGMENTS_SAID)].reply_id),
        [pause(SEGMENTS_SAID, SEGMENTS_SAID.speeches[speech(SEGMENTS_SAID)].reply_id)],
    ),
    ("of a speech that has just ended", SAID, heard(SAID, NOW), client.OutputPaused(), [pause(SAID, "")]),
    ("of a speech that ended before", SAID, heard(SAID), client.OutputPaused(), [pause(SAID, "", None)]),
    (
        "by the id of a speech that has just ended",
        TWO_SAID,
        heard(TWO_SAID, NOW),
        client.OutputPaused(speech(TWO_SAID), spoken_text="One"),
        not_held(speech(TWO_SAID)),
    ),
    (
        "by the id of no speech, while one is played",
        SAID,
        {},
        client.OutputPaused("x"),
        not_held("x"),
    ),
    ("by the id of no speech, while none is", TURN, {}, client.OutputPaused("x"), not_held("x")),
    (
        "by the id of no speech, while one is paused",
        PAUSED,
        {},
        client.OutputPaused("x"),
        [r.EventHandled("e1")],
    ),
    ("without a speech", TURN, {}, client.OutputPaused(), [pause(TURN, "", None)]),
    (
        "a second time, further on",
        PAUSED,
        {},
        client.OutputPaused(speech(PAUSED), spoken_text="One two"),
        [pause(PAUSED, "", spoken_text="One two")],
    ),
    (
        "of a speech that half a sentence has cut",
        HALF_SAID,
        {},
        client.OutputPaused("x", spoken_text="One"),
        [r.EventHandled("e1")],
    ),
    (
        "of no speech, while half a sentence waits",
        HALF_SAID,
        {},
        client.OutputPaused(),
        [r.EventHandled("e1")],
    ),
    (
        "of a speech, while half a sentence waits",
        fold(HALF, state=SAID),
        {},
        client.OutputPaused(speech(SAID)),
        [pause(SAID, "")],
    ),
    ("that was handled", fold(r.EventHandled("e1"), state=SAID), {}, client.OutputPaused(), []),
]


@pytest.mark.parametrize(
    ("state", "facts", "event", "records"), [row[1:] for row in PAUSES], ids=[row[0] for row in PAUSES]
)
def test_a_pause_concerns_this_speech(
    state: Conversation, facts: Facts, event: client.OutputPaused, records: list[r.Record]
) -> None:
    assert receive(view(state, **facts), "e1", event) == records


WORDS: list[tuple[str, Conversation, Facts, object, Response]] = [
    # A backchannel lets the speech go on, and changes nothing else.
    ("a backchannel", PAUSED, {}, MHM, [GOES_ON]),
    (
        "a backchannel that may be an answer, without a question",
        PAUSED,
        {},
        YES,
        [changed(GOES_ON, text="yes")],
    ),
    (
        "a backchannel in another language",
        PAUSED,
        {},
        client.TranscriptFinal("ja", "de"),
        [changed(GOES_ON, text="ja")],
    ),
    ("a backchannel in a turn", PAUSED_IN_TURN, {}, MHM, [GOES_ON]),
    ("a backchannel over a reply that is being written", PAUSED_SEGMENTS, {}, MHM, [GOES_ON]),
    ("a backchannel in the queue's mode", PAUSED, QUEUE, MHM, [GOES_ON]),
    ("a backchannel before the stop", PAUSED, {"draining": True}, MHM, [GOES_ON]),
    ("a backchannel that was handled", fold(GOES_ON, state=PAUSED), {}, MHM, []),
    (
        "a backchannel that a former client said",
        fold(GOES_ON, r.ClientReplaced(), state=PAUSED),
        {},
        MHM,
        [],
    ),
    ("a backchannel without a pause", SAID, {}, MHM, [changed(STARTS, text="mhm")]),
    ("a backchannel after a pause that time ended", RESUMED, {}, MHM, [GOES_ON]),
    ("a backchannel after the pause of a speech that had ended", LATE_PAUSED, {}, MHM, [GOES_ON]),
    ("a backchannel in a pause after such a one", PAUSED_AFTER_LATE, {}, MHM, [GOES_ON]),
    ("the same, as no speech is left", LATE_PAUSED, heard(LATE_PAUSED), MHM, [GOES_ON]),
    ("other words after that pause", LATE_PAUSED, heard(LATE_PAUSED), HI, [STARTS]),
    (
        "a backchannel long after that pause",
        LATE_PAUSED,
        {**heard(LATE_PAUSED), "now": NOW + 2_000},
        MHM,
        [changed(STARTS, text="mhm")],
    ),
    ("other words after it", RESUMED, {}, HI, [STARTS]),
    (
        "a backchannel after it, once the speech is over",
        acknowledged(RESUMED),
        {},
        MHM,
        [changed(STARTS, text="mhm")],
    ),
    # Other words interrupt, with the heard text that the pause told.
    ("words", PAUSED, {}, HI, [CUT, cut(SAID), STARTS]),
    (
        "words after a speech without a heard part",
        paused(SAID, spoken_text=None),
        {},
        HI,
        [CUT, cut(SAID, f"One two. {CUT_SOMEWHERE}"), STARTS],
    ),
    ("words after a part of a second", paused(SAID, played_ms=300.0), {}, HI, [CUT, cut(SAID), STARTS]),
    (
        "words over the second of two speeches",
        paused(TWO_SAID, 1),
        {},
        HI,
        [CUT, cut(TWO_SAID, HEARD_ONE, 1), STARTS],
    ),
    ("words after the paused speech is over", PAUSED, heard(SAID, NOW), HI, [CUT, cut(SAID), STARTS]),
    (
        "words over the speech of the running turn",
        PAUSED_IN_TURN,
        {},
        HI,
        [CUT, cut(SAID_THEN_CALLED), changed(REPLACED, results=(LOST,)), STARTS],
    ),
    (
        "words over the speech of an earlier turn",
        PAUSED_IN_LATER_TURN,
        {},
        HI,
        [CUT, cut(SAID), REPLACED, STARTS],
    ),
    (
        "words over the speech of an earlier turn, in the queue's mode: it goes on, and they wait",
        PAUSED_IN_LATER_TURN,
        QUEUE,
        HI,
        [changed(GOES_ON, event_id="", text=""), r.InputQueued("e1", "hi")],
    ),
    (
        "words over the speech of the running turn, in the queue's mode",
        PAUSED_IN_TURN,
        QUEUE,
        HI,
        [CUT, cut(SAID_THEN_CALLED), changed(REPLACED, results=(LOST,)), STARTS],
    ),
    (
        "words over a reply that is being written",
        PAUSED_SEGMENTS,
        {},
        HI,
        [CUT, changed(REPLACED, text=f"One {CUT_HERE}"), STARTS],
    ),
    (
        "words over a reply, while a later reply is held",
        paused(TWO_SAID),
        {"was_sent": {speech(TWO_SAID)}},
        HI,
        [CUT, cut(TWO_SAID), cut(TWO_SAID, HEARD_NOTHING, 1), STARTS],
    ),
    (
        "words over a reply, while the next one is written and held",
        paused(fold(r.SegmentSpoken("Three. ", "Three."), state=fold(STARTED, state=SAID))),
        {"was_sent": {speech(SAID)}},
        HI,
        [CUT, cut(SAID), changed(REPLACED, text=HEARD_NOTHING), STARTS],
    ),
    (
        "words over a reply, while the next one is written for an app without segments",
        PAUSED_IN_LATER_TURN,
        {"draft": "Three", "request": (turn_id(PAUSED_IN_LATER_TURN), 0, 0)},
        HI,
        [CUT, cut(SAID), changed(REPLACED, text=f"Three {CUT_BEFORE_SPEECH}"), STARTS],
    ),
    ("words over a phrase of waiting", paused(BRIDGED), {}, HI, [CUT, REPLACED, STARTS]),
    ("words in a pause without a speech", WITHOUT_SPEECH, {}, HI, [CUT, REPLACED, STARTS]),
    (
        "words for another process",
        PAUSED,
        {"is_suspended": True},
        HI,
        [CUT, cut(SAID), r.InputQueued("e1", "hi")],
    ),
    (
        "words before the stop",
        PAUSED,
        {"draining": True},
        HI,
        Refuse("rate_limited", "The server restarts.", 2.0),
    ),
    # No answer to a question is taken for a backchannel.
    (
        "an answer to a card",
        paused(ANNOUNCED_WITH_CARD),
        {"visible_cards": {"q1": NOW - 9_000}, "utterance_began": NOW - 1_000},
        YES,
        [
            CUT,
            cut(ANNOUNCED_WITH_CARD),
            r.QuestionDecided(
                question_id="q1",
                call_id="c1",
                outcome="allowed",
                event_id="e1",
                text="yes",
                notes=("The user allowed this call, saying: 'yes'.",),
            ),
        ],
    ),
    (
        "a yes to a card that is not visible yet",
        paused(ANNOUNCED_WITH_CARD),
        {},
        YES,
        [
            CUT,
            cut(ANNOUNCED_WITH_CARD),
            r.AnswerUnclear(question_id="q1", event_id="e1", text="yes", counts=False),
        ],
    ),
    (
        "a yes before the question is heard: it is asked again",
        PAUSED_PROMPT,
        {},
        YES,
        [
            CUT,
            PROMPT_CUT,
            r.AnswerUnclear(question_id="q1", event_id="e1", text="yes", counts=False),
            r.PromptSpoken("q1", "device.do? (1)"),
        ],
    ),
    (
        "a yes before the question that is held: it is asked once",
        paused(ANNOUNCED),
        {"was_sent": {speech(ANNOUNCED)}},
        YES,
        [
            CUT,
            cut(ANNOUNCED),
            PROMPT_CUT,
            r.AnswerUnclear(question_id="q1", event_id="e1", text="yes", counts=False),
            r.PromptSpoken("q1", "device.do? (1)"),
        ],
    ),
    (
        "a yes before the question that the app has queued",
        paused(ANNOUNCED),
        {},
        YES,
        [
            CUT,
            cut(ANNOUNCED),
            r.AnswerUnclear(question_id="q1", event_id="e1", text="yes", counts=False),
            r.PromptSpoken("q1", "device.do? (1)"),
        ],
    ),
    (
        "a yes to a card in place of the question that is held",
        fold(r.QuestionsAsked((ANNOUNCED_AS_CARD,)), state=paused(ANNOUNCED)),
        {"was_sent": {speech(ANNOUNCED)}},
        YES,
        [
            CUT,
            cut(ANNOUNCED),
            r.AnswerUnclear(question_id="q1", event_id="e1", text="yes", counts=False),
        ],
    ),
    (
        "a yes just after the question is heard, which may be an echo",
        paused(fold(r.PromptHeard("q1"), state=ASKED)),
        {"now": NOW + 100},
        YES,
        Later(NOW + 150, "q1"),
    ),
    (
        "a backchannel over a spoken question",
        PAUSED_PROMPT,
        {},
        MHM,
        [
            CUT,
            PROMPT_CUT,
            changed(REPLACED, results=(NO_ANSWER,), superseded=("q1",)),
            changed(STARTS, text="mhm"),
        ],
    ),
    (
        "a no over a spoken question",
        PAUSED_PROMPT,
        {},
        NO,
        [
            CUT,
            PROMPT_CUT,
            r.QuestionDecided(question_id="q1", call_id="c1", outcome="denied", event_id="e1", text="no"),
            REFUSED,
        ],
    ),
    (
        "a yes to a reply that asks",
        paused(said("One two?")),
        {},
        YES,
        [CUT, cut(SAID), STARTS_WITH_YES],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "event", "response"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS]
)
def test_words_in_a_pause_mean_this(
    state: Conversation, facts: Facts, event: object, response: Response
) -> None:
    assert receive(view(state, **facts), "e1", event) == response


STOP, INTERRUPTED = client.ResponseCancel(), client.OutputInterrupted()
AFTER_BOTH = client.OutputInterrupted(spoken_text="One two")
ENDS: list[tuple[str, Conversation, Facts, object, list[r.Record]]] = [
    (
        "a tap cuts what the pause told",
        PAUSED,
        {},
        INTERRUPTED,
        [CUT_BY_EVENT, changed(cut(SAID), event_id="e1")],
    ),
    (
        "a tap knows better how much was heard",
        PAUSED,
        {},
        AFTER_BOTH,
        [CUT_BY_EVENT, r.SpeechCut(speech(SAID), f"One two {CUT_HERE}", "e1")],
    ),
    (
        "a tap knows better how long the speech was heard",
        PAUSED,
        {},
        client.OutputInterrupted(played_ms=600.0),
        [CUT_BY_EVENT, r.SpeechCut(speech(SAID), f"One two. {CUT_HERE}", "e1")],
    ),
    (
        "a tap ends the turn that speaks",
        PAUSED_IN_TURN,
        {},
        INTERRUPTED,
        [
            CUT_BY_EVENT,
            changed(cut(SAID_THEN_CALLED), event_id="e1"),
            changed(BARGED_IN, results=(LOST,)),
        ],
    ),
    (
        "a tap in a pause without a speech",
        WITHOUT_SPEECH,
        {},
        INTERRUPTED,
        [CUT_BY_EVENT, BARGED_IN],
    ),
    (
        "a tap after a pause of nothing, at rest",
        over(WITHOUT_SPEECH),
        {},
        INTERRUPTED,
        [CUT_BY_EVENT],
    ),
    ("a stop at rest cuts the speech", PAUSED, {}, STOP, [CUT, cut(SAID)]),
    (
        "a stop at rest while half a sentence waits",
        paused(fold(HALF, state=SAID)),
        {},
        STOP,
        [CUT, cut(SAID), changed(STARTS, event_id="h1", text="milk and"), STOPPED],
    ),
    (
        "a stop in a turn",
        PAUSED_IN_TURN,
        {},
        STOP,
        [CUT, cut(SAID_THEN_CALLED), changed(STOPPED, results=(LOST,))],
    ),
    (
        "a stop of a reply that is being written",
        PAUSED_SEGMENTS,
        {},
        STOP,
        [CUT, changed(STOPPED, text=HEARD_ONE)],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "event", "records"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_a_tap_ends_a_pause(
    state: Conversation, facts: Facts, event: object, records: list[r.Record]
) -> None:
    assert receive(view(state, **facts), "e1", event) == records


def test_words_about_a_question_that_is_closed_cut_a_paused_speech() -> None:
    unclear = r.AnswerUnclear(question_id="q1", event_id="e1", text="hi", counts=False)
    in_turn_records = too_late(view(PAUSED_IN_LATER_TURN), "e1", HI, "q1")
    assert in_turn_records == [CUT, cut(SAID), unclear]
    assert too_late(view(PAUSED), "e1", HI, "q1")[:2] == [CUT, cut(SAID)]


# -- questions

LONG = "It is ten. Shall I go? I would like to."
STANDS: list[tuple[str, Conversation, bool]] = [
    ("nothing was said", WITHOUT_SPEECH, False),
    ("a statement", PAUSED, False),
    ("a spoken question of a call", PAUSED_PROMPT, True),
    ("a card", paused(ANNOUNCED_WITH_CARD), True),
    ("a reply that ends in a question, which was not heard", paused(said("It is ten. Shall I go?")), True),
    ("a question in quotes at the end", paused(said('He asked: "Shall I go?"')), True),
    ("a question before an emoji", paused(said("Shall I go? \U0001f642")), True),
    ("a question within, before it was begun", paused(said(LONG), spoken_text="It is"), False),
    ("a question within, at its begin", paused(said(LONG), spoken_text="It is ten. Sh"), True),
    ("a question within, after it", paused(said(LONG), spoken_text="It is ten. Shall I go? I would"), True),
    ("a question within, by the time before it", paused(said(LONG), played_ms=100.0), False),
    ("a question within, by the time", paused(said(LONG), played_ms=1_000.0), True),
    (
        "a question within, of a speech whose heard part is not known",
        paused(said(LONG), spoken_text=None),
        True,
    ),
    (
        "a quoted question that the sentence goes on after",
        paused(said('"Shall I go?" he said.'), spoken_text=None),
        False,
    ),
    ("an address", paused(said("It is at a.example/?q=1."), spoken_text=None), False),
    (
        "a question in Chinese",
        paused(said("\u53ef\u4ee5\u5417\uff1f\u597d\u7684\u3002"), spoken_text=None),
        True,
    ),
    (
        "an earlier question that the person has not answered",
        paused(said("Shall I go?", last="One."), 1),
        True,
    ),
    ("an earlier question within", paused(said("Shall I go? I would.", last="One."), 1), True),
    ("an earlier statement", paused(said("I go.", last="One."), 1), False),
    (
        "a question that the person has answered",
        paused(over(fold(STARTED, ONE_TWO, state=said("Shall I go?"))), 1),
        False,
    ),
    (
        "a question at the end of the paused reply, though the person has said more",
        paused(fold(STARTED, state=said("It is ten. Shall I go?")), spoken_text="It"),
        True,
    ),
    ("a segment of a question", paused(in_turn(r.SegmentSpoken("Shall I go? ", "Shall I go?"))), True),
    (
        "a question in a later segment",
        paused(in_turn(r.SegmentSpoken("One. ", "One."), r.SegmentSpoken("Shall I go?", "Shall I go?"))),
        True,
    ),
    ("a segment of a statement", PAUSED_SEGMENTS, False),
]


@pytest.mark.parametrize(("state", "stands"), [row[1:] for row in STANDS], ids=[row[0] for row in STANDS])
def test_words_may_be_an_answer(state: Conversation, stands: bool) -> None:
    assert question_stands(view(state)) is stands


# -- time

UNTIL = NOW + 2_000
TIMES: list[tuple[str, Conversation, Facts, int | None]] = [
    ("no pause", SAID, {}, None),
    ("a pause", PAUSED, {}, UNTIL),
    ("a pause after a partial", PAUSED, {"heard_at": NOW - 1}, UNTIL),
    ("a partial in a pause", PAUSED, {"heard_at": NOW + 500}, UNTIL + 500),
    ("a pause without a client", PAUSED, {"is_connected": False}, None),
]


@pytest.mark.parametrize(("state", "facts", "at"), [row[1:] for row in TIMES], ids=[row[0] for row in TIMES])
def test_a_pause_ends_two_seconds_after_the_last_sign_of_speech(
    state: Conversation, facts: Facts, at: int | None
) -> None:
    assert resumes_at(view(state, **facts)) == at
    ended = [changed(GOES_ON, event_id="", text="")]
    assert due(view(state, now=UNTIL - 1, **facts)) == []
    assert due(view(state, now=UNTIL + 500, **facts)) == (ended if at is not None else [])


# -- speeches that were not sent
SAID_IN_PAUSE = fold(STARTED, replied(text="Three.", speech_text="Three."), at=NOW + 1, state=PAUSED)
WITHDRAWN: list[tuple[str, Conversation, Facts, list[r.Record]]] = [
    ("none", fold(), NOTHING_SENT, []),
    ("a speech", SAID, NOTHING_SENT, [r.SpeechCut(speech(SAID), HEARD_NOTHING)]),
    ("a speech that was sent", SAID, {"was_sent": {speech(SAID)}}, []),
    ("a speech that was heard", SAID, {**NOTHING_SENT, **heard(SAID)}, []),
    ("a speech that was heard in another process", SAID_ELSEWHERE, NOTHING_SENT, []),
    ("a prompt", ASKED, NOTHING_SENT, []),
    ("a reply that is being written", SEGMENTS, NOTHING_SENT, []),
    ("all segments", SEGMENTS_SAID, NOTHING_SENT, [r.SpeechCut(speech(SEGMENTS_SAID), HEARD_NOTHING)]),
    (
        "the second segment",
        SEGMENTS_SAID,
        {"was_sent": {speech(SEGMENTS_SAID)}},
        [r.SpeechCut(speech(SEGMENTS_SAID, 1), f"One. {CUT_HERE}")],
    ),
    (
        "the speeches of two turns",
        TWO_SAID,
        NOTHING_SENT,
        [r.SpeechCut(speech(TWO_SAID, 1), HEARD_NOTHING), r.SpeechCut(speech(TWO_SAID), HEARD_NOTHING)],
    ),
    ("a sent speech, paused within its millisecond", paused(TWO_SAID), {}, []),
    ("a paused speech is cut by its pause", PAUSED, NOTHING_SENT, []),
    (
        "a speech of the pause, which another process takes for a sent one",
        SAID_IN_PAUSE,
        {"was_sent": {speech(SAID_IN_PAUSE), speech(SAID_IN_PAUSE, 1)}},
        [r.SpeechCut(speech(SAID_IN_PAUSE, 1), HEARD_NOTHING)],
    ),
]


@pytest.mark.parametrize(
    ("state", "facts", "records"), [row[1:] for row in WITHDRAWN], ids=[row[0] for row in WITHDRAWN]
)
def test_a_speech_that_was_not_sent_is_withdrawn(
    state: Conversation, facts: Facts, records: list[r.Record]
) -> None:
    assert withdrawn_speeches(view(state, **facts)) == records
