"""Cases of a person's words at a moment of the conversation: a JSON object a line, and a player for them.

``before`` is the moment: ``idle``; ``speaking``, while the assistant says ``said``; ``asking``, the same with
a question at its end; ``asked``, after such a reply; or ``approval``, after a spoken question whose action
is ``said``. ``heard`` are the transcripts, `GAP_S` apart. `problems` says what ``expect`` means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from conductor.events import client
from conductor.messages import UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.tools.base import ToolSpec
from tests.models import Script
from tests.session.helpers import SPOKEN, App, Stage, call, later, make_services, open_session
from tests.shapes import arguments_of

FOLDER = Path(__file__).parent
GAP_S = 0.6
HOLD_S = 1.2
CAPABILITIES = ("pause", "hints", "turns")
HELLO = {"en": "Hello there.", "de": "Guten Tag.", "es": "Buenos días.", "fr": "Bonjour."}


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case."""

    lang: Literal["en", "de", "es", "fr"]
    kind: Literal["backchannel", "answer", "half", "noise", "barge"]
    before: Literal["idle", "speaking", "asking", "asked", "approval"]
    heard: list[str]
    expect: Literal["resumed", "cut", "merged", "held", "answered", "ignored"]
    said: str = ""
    decides: Literal["allow", "deny", "nothing"] | None = None
    why: str = ""

    @property
    def is_over_speech(self) -> bool:
        """Whether the person speaks over the assistant."""
        return self.before in ("speaking", "asking")


@dataclass(frozen=True)
class Seen:
    """What came of the words: the person's messages within a second, and in the end.

    ``history`` are their messages in the history since then, and ``spoken`` counts the speeches.
    """

    soon: Sequence[str]
    later: Sequence[str]
    resumed: bool
    decided: str
    history: Sequence[str]
    spoken: int


def read_cases(name: str) -> list[Case]:
    """Read a file of cases."""
    lines = (FOLDER / name).read_text("utf-8").splitlines()
    return [msgspec.json.decode(line, type=Case) for line in lines if line.strip()]


async def play(case: Case, *, first_word_s: float = 0.0) -> Seen:
    """Play a case over a line to a session, whose model takes ``first_word_s`` to its first word."""
    stage = await _begin(case, first_word_s)
    app = stage.app
    if case.is_over_speech:
        speech = await app.until("tts.speak")
        words = case.said.split()
        heard = " ".join(words[: len(words) // 2])
        app.send("audio.output.paused", {"speechId": speech["payload"]["callId"], "spokenText": heard})
        await later(0.3)
    since, before = len(app.log), len(stage.session.state.log)
    for number, text in enumerate(case.heard):
        if number:
            await later(GAP_S)
        app.say(text)
    await later(0.9)
    soon, resumed = _messages(app, since), bool(app.events("audio.output.resume", since))
    await later(2.5 + 2 * first_word_s)
    return Seen(
        soon=soon,
        later=_messages(app, since),
        resumed=resumed,
        decided=next(iter(stage.session.state.decided.values()), ""),
        history=[m.text for m in stage.session.state.log[before:] if isinstance(m, UserMessage)],
        spoken=len(app.events("tts.speak", since)),
    )


async def _begin(case: Case, first_word_s: float) -> Stage:
    """Bring a session to the moment of a case."""
    act = ToolSpec(
        name="device.act",
        description="Acts.",
        input_schema={"type": "object", "properties": {}},
        risk="medium",
        approval="ask",
        spoken=case.said,
    )
    asked = 0

    def reply(request: ModelRequest) -> Script:
        nonlocal asked
        asked += 1
        if asked == 1 and case.before == "approval":
            return [call("device.act")]
        if asked == 1 and case.said:
            return [TextDelta(case.said)]
        return [first_word_s, TextDelta("Fine.")] if first_word_s else [TextDelta("Fine.")]

    def answer(name: str, call_id: str) -> str | None:
        return None if name == "tts.speak" and case.is_over_speech else SPOKEN

    services = replace(make_services(reply, hold_unfinished=HOLD_S), catalog=[act])
    session = await open_session(services)
    app = App(answer)
    line = app.open_line(session)
    start = client.SessionStart(capabilities=list(CAPABILITIES), locale=case.lang)
    await session.clients.start(start, line, resumed=False)
    app.say(HELLO[case.lang])
    await app.until("tts.speak")
    await later(1)
    return Stage(session, app, services)


def _messages(app: App, since: int) -> list[str]:
    return [arguments_of(event)["text"] for event in app.events("append user", since)]


def problems(case: Case, seen: Seen) -> list[str]:
    """Say what is not as the case expects it."""
    whole = [" ".join(case.heard)]
    as_expected = {
        "resumed": seen.resumed and not seen.later,
        "cut": not seen.resumed and [*seen.later] == case.heard,
        "merged": [*seen.later] == whole and not seen.resumed,
        "held": not seen.soon and [*seen.later] == whole and not seen.resumed,
        "answered": [*seen.soon] == case.heard and not seen.resumed,
        "ignored": not seen.later and not seen.resumed,
    }
    found = [] if as_expected[case.expect] else [f"not {case.expect}: {seen}"]
    if case.kind == "answer" and " ".join(seen.later) != whole[0]:
        found.append(f"an answer was swallowed: {seen}")
    if case.kind == "half" and len(case.heard) > 1 and [*seen.later] != whole:
        found.append(f"half a sentence was answered alone: {seen}")
    if case.kind == "backchannel" and seen.later:
        found.append(f"a backchannel cut: {seen}")
    outcome = {"allowed": "allow", "denied": "deny"}.get(seen.decided, "nothing")
    if case.decides not in (None, outcome):
        found.append(f"not {case.decides}: {seen}")
    return found
