"""A session that is killed at each of its commits: nothing acknowledged is lost, and no write runs twice.

Each walk is played once to its end, and then once for each of its commits and each kind of death; without
``--extended``, for a random tenth of both. `python -m tests.session.test_crash` prints the figures.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import product

import pytest

from conductor.conversation.replay import SNAPSHOT_COMMITS
from conductor.session import commits
from tests.seeds import seeded
from tests.session.crash_world import Kill, Walk, World, compare
from tests.session.helpers import later, run

# Half a sentence waits for longer than an app is away after a death.
HOLDS = {"hold_unfinished": 10.0}
ALL = ("approval", "cancel", "lease", "late", "async", "activity", "metrics")


def says(*texts: str, pause: float = -1.0) -> object:
    """Say one text after the other, each when the session is at rest, or after a pause."""

    async def script(world: World) -> None:
        for text in texts:
            world.say(text)
            if pause < 0:
                await world.idle()
            else:
                await later(pause)

    return script


def walk(name: str, script: object, *capabilities: str, **fields: object) -> Walk:
    return Walk(name, script, capabilities, **fields)  # type: ignore[arg-type]  # scripts of many shapes


async def told_facts(world: World) -> None:
    """Tell, replace and remove facts: at rest, before a turn and while it runs."""

    def tell(text: str, key: str | None = None) -> None:
        world.app.send("context.add", {"text": text, "key": key})

    tell("Three items.", "cart")
    world.say("hello")
    await world.idle()
    tell("Four items.", "cart")
    tell("It rains.")
    world.say("do")
    tell("Order 4711.", "screen")
    await world.idle()
    tell("", "cart")
    tell("It rains.")
    await world.idle()
    world.say("look")


async def interrupted_speech(world: World) -> None:
    world.say("owls")
    await world.until("tts.speak")
    world.app.interrupt(spokenText="Owls hunt")
    await world.idle()
    world.say("hello")


async def pause_speech(world: World, words: str) -> None:
    """Begin to speak over the speech that plays, and say some words a little later, if there are any."""
    world.app.pause(spokenText="Owls hunt")
    await later(0.4)
    if words:
        world.app.say(words)
        await later(0.2)


async def paused_for_nothing(world: World) -> None:
    world.say("owls")
    await world.until("tts.speak")
    for words in ("mhm", "okay, I see", "", "yes"):
        await pause_speech(world, words)
    await world.idle()
    world.say("hello")


async def paused_and_cut(world: World) -> None:
    world.say("owls")
    await world.until("tts.speak")
    await pause_speech(world, "mhm")
    await world.until(lambda event: event["payload"].get("reason") == "resumed")
    world.app.pause(spokenText="Owls hunt at")
    world.say("look")
    await world.idle()


async def paused_over_question(world: World) -> None:
    world.say("ask")
    await world.until("tts.speak")
    await pause_speech(world, "yes")
    await world.idle()


async def paused_over_card(world: World) -> None:
    world.say("tell")
    card = await world.card()
    world.app.send("approval.shown", {"approvalId": card["approvalId"]})
    await later(1)
    await pause_speech(world, "yes")
    for _ in range(4):
        await later(10)
        if world.session.state.questions:
            world.app.send("approval.shown", {"approvalId": card["approvalId"]})
            await later(1)
            world.app.say("yes please")
    await world.idle()


async def paused_prompt(world: World) -> None:
    world.say("move")
    await world.speech("May I")
    await pause_speech(world, "yes")
    await answer_by_voice(world, "yes please")


async def interrupted_model(world: World) -> None:
    world.say("dots")
    await world.until("assistant.speech.partial")
    world.app.interrupt()
    await world.idle()
    world.say("hello")


async def interrupted_call(world: World) -> None:
    world.say("stop")
    await world.until("device.stop")
    await later(1)
    world.app.interrupt()
    await world.idle()


async def words_over_model(world: World) -> None:
    world.say("dots")
    await world.until("assistant.speech.partial")
    world.say("hello")


async def cancelled(world: World) -> None:
    world.say("dots")
    await world.until("assistant.speech.partial")
    world.app.send("response.cancel", {})
    await later(5)


async def one_card(world: World, decision: str, **fields: object) -> None:
    world.say("move")
    world.decide(await world.card(), decision, **fields)


async def allowed(world: World) -> None:
    await one_card(world, "allow")


async def denied(world: World) -> None:
    await one_card(world, "deny", message="not now")


async def edited(world: World) -> None:
    await one_card(world, "edit", editedArguments={"x": 9})


async def allowed_for_session(world: World) -> None:
    await one_card(world, "allow", scope="session")
    await world.idle()
    world.say("two")
    world.decide(await world.card(2), "allow")


async def two_cards(world: World) -> None:
    world.say("two")
    second = await world.card(2)
    world.decide(second, "allow")
    await later(1)
    world.decide(await world.card(1), "deny")


async def mixed_round(world: World) -> None:
    world.say("mixed")
    world.decide(await world.card(), "allow")


async def card_expires(world: World) -> None:
    world.say("move")
    await world.card()
    await later(700)


async def card_superseded(world: World) -> None:
    world.say("move")
    await world.card()
    world.say("hello")


async def card_by_words(world: World) -> None:
    world.say("move")
    card = await world.card()
    while world.session.state.questions:
        world.app.send("approval.shown", {"approvalId": card["approvalId"]})
        await later(2)
        world.app.say("yes please")
        await later(2)


async def answer_by_voice(world: World, *answers: str) -> None:
    """Answer the voice until the question is decided."""
    await world.until("tts.speak")
    for answer in answers:
        await later(3)
        world.app.say(answer)
    for _ in range(20):
        await later(5)
        if world.session.state.turn is None:
            return
        if world.session.state.questions:
            world.app.say(answers[-1])


async def voice_yes(world: World) -> None:
    world.say("move")
    await answer_by_voice(world, "yes")


async def voice_no(world: World) -> None:
    world.say("move")
    await answer_by_voice(world, "no")


async def voice_unclear(world: World) -> None:
    world.say("move")
    await answer_by_voice(world, "okay", "yes")


async def voice_phrase(world: World) -> None:
    world.say("wipe")
    await answer_by_voice(world, "confirm wipe device")


async def voice_two(world: World) -> None:
    world.say("two")
    await answer_by_voice(world, "yes")


async def voice_superseded(world: World) -> None:
    world.say("move")
    await world.speech("May I")
    await later(3)
    world.say("hello")


async def prompt_interrupted(world: World) -> None:
    world.say("move")
    await world.speech("May I")
    world.app.interrupt()
    await later(5)
    await answer_by_voice(world, "yes")


async def late_result(world: World) -> None:
    world.say("slow")
    await later(30)


async def job(world: World) -> None:
    world.say("job")
    await later(60)


async def notice_at_rest(world: World) -> None:
    world.say("hello")
    await world.idle()
    world.app.agent_done("a-1")
    await later(10)


async def notice_in_turn(world: World) -> None:
    world.say("dots")
    await world.until("assistant.speech.partial")
    world.app.agent_done("a-1")
    await later(10)


async def taken_over(world: World) -> None:
    world.say("both")
    await world.until("device.look")
    await world.come_back()


async def released(world: World) -> None:
    world.say("rounds")
    await world.until("device.look")
    await world.session.close()
    await world.come_back()


async def line_cut(world: World) -> None:
    world.say("rounds")
    await world.until("device.do")
    world.app.line.cut()
    await later(3)
    await world.connect()


async def segments_interrupted(world: World) -> None:
    world.say("owls")
    await world.speech("They hear")
    world.app.interrupt(spokenText="They")
    await world.idle()
    world.say("hello")


async def write_behind_card(world: World) -> None:
    world.say("held")
    world.decide(await world.card(), "allow")


async def over_a_turn(world: World) -> None:
    world.say("dots")
    await world.until("assistant.speech.partial")
    for text in ("so", "do and", "look"):
        world.say(text)
        await later(0.5)


async def cancelled_half(world: World) -> None:
    world.say("look and")
    await world.until("turn.hint")
    world.app.send("response.cancel", {})
    await world.idle()
    world.say("hello")


async def batch(world: World) -> None:
    world.say("two")
    cards = [await world.card(1), await world.card(2)]
    decisions = [
        {"approvalId": c["approvalId"], "argumentsDigest": c["argumentsDigest"], "decision": "allow"}
        for c in cards
    ]
    world.app.send("approval.response", {"decisions": decisions})


WALKS = [
    walk("a plain turn", says("hello")),
    walk("two turns", says("hello", "look")),
    walk("words that wait", says("dots", "hello", "look", pause=0.3), mode="queue"),
    walk("words that replace words", says("dots", "hello", "look", pause=0.3), exact=False),
    walk("half a sentence", says("look and"), "hints", limits=HOLDS),
    walk("two halves", says("look and", "look", pause=0.5), "hints", limits=HOLDS),
    walk("three halves over a turn", over_a_turn, "hints", limits=HOLDS, exact=False),
    walk("words that continue words", says("dots", "hello", pause=0.3), "hints", limits=HOLDS, exact=False),
    walk("half a sentence that is cancelled", cancelled_half, "hints", "cancel", limits=HOLDS, exact=False),
    walk(
        "halves that wait for a turn",
        says("dots", "do and", "look", pause=0.5),
        "hints",
        mode="queue",
        limits=HOLDS,
    ),
    walk("a read of the device", says("look")),
    walk("a write of the device", says("do")),
    walk("words and a call", says("talk")),
    walk("tools of the server", says("sum", "keep")),
    walk("calls of both", says("both")),
    walk("three rounds", says("rounds")),
    walk("calls that are refused", says("wrong")),
    walk("every report", says("rounds", "both"), *ALL),
    walk("a speech is interrupted", interrupted_speech, exact=False),
    walk("a speech is paused for nothing", paused_for_nothing, "pause", exact=False),
    walk("a speech is paused and cut", paused_and_cut, "pause", exact=False),
    walk("segments are paused for nothing", paused_for_nothing, "pause", "segments", exact=False),
    walk("segments are paused and cut", paused_and_cut, "pause", "segments", exact=False),
    walk("a reply that asks is paused", paused_over_question, "pause", answers={"yes": ""}, exact=False),
    walk(
        "a speech is paused over a card",
        paused_over_card,
        *("pause", "segments", "approval"),
        answers={"yes": "device.move {'x': 1}"},
        exact=False,
    ),
    walk("a prompt is paused", paused_prompt, "pause", answers={"yes": "device.move {'x': 1}"}, exact=False),
    walk("the model is interrupted", interrupted_model, exact=False),
    walk("a call is interrupted", interrupted_call, "cancel", exact=False),
    walk("words over the model", words_over_model, exact=False),
    walk("a turn is cancelled", cancelled, "cancel", exact=False),
    walk("a card is allowed", allowed, "approval"),
    walk("a card is denied", denied, "approval"),
    walk("a card is edited", edited, "approval"),
    walk("a card is allowed for the session", allowed_for_session, "approval"),
    walk("two cards", two_cards, *ALL),
    walk("a batch of decisions", batch, "approval"),
    walk("a card among free calls", mixed_round, "approval"),
    walk("a write behind a card", write_behind_card, "approval"),
    walk("a card expires", card_expires, "approval"),
    walk("a card is superseded", card_superseded, "approval", exact=False),
    walk("a card is allowed by words", card_by_words, "approval", exact=False),
    walk("a spoken yes", voice_yes, exact=False),
    walk("a spoken no", voice_no, exact=False),
    walk("an unclear answer", voice_unclear, exact=False),
    walk("the words of a high risk", voice_phrase, exact=False),
    walk("two spoken questions", voice_two, exact=False),
    walk("a spoken question is superseded", voice_superseded, exact=False),
    walk("a prompt is interrupted", prompt_interrupted, exact=False),
    walk("segments of a capable app", says("owls", "hello"), "segments", exact=False),
    walk("segments for any app", says("owls", "hello"), segments=True, exact=False),
    walk("segments are interrupted", segments_interrupted, "segments", exact=False),
    walk("a late result", late_result, "late", exact=False),
    walk("a job", job, "async", exact=False),
    walk("a notice at rest", notice_at_rest, exact=False),
    walk("a notice in a turn", notice_in_turn, exact=False),
    walk("a takeover", taken_over, exact=False),
    walk("a release", released, exact=False),
    walk("a cut line", line_cut),
    walk("facts", told_facts, "context", facts=("Order 4711.", "It rains.")),
    walk("a greeting", says("hello"), start={"greeting": "Good morning."}),
    walk("a turn that takes too long", says("hang"), exact=False),
]


KINDS: list[tuple[Kill, bool]] = [("before", False), ("after", False), ("after", True), ("doubt", False)]
"""When a process dies, and whether the app is launched again, too."""


def deaths(walk: Walk, share: float = 1.0) -> Iterator[tuple[World, str]]:
    """Give a world for this share of a walk's deaths: each kind at each of its commits."""
    undisturbed = World(walk)
    expected = run(undisturbed.play())
    every = list(product(range(1, undisturbed.store.count + 1), KINDS))
    for at, (kill, relaunch) in seeded().sample(every, math.ceil(share * len(every))):
        world = World(walk, at, kill, relaunch=relaunch)
        name = f"{walk.name}, {kill} commit {at} of {undisturbed.store.count}"
        name += ", relaunched" if relaunch else ""
        try:
            answers = kill in ("before", "after") and not relaunch
            compare(walk, expected, run(world.play()), answers=answers)
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}\n{expected}\n{world.app.shapes()}") from error
        yield world, name


@pytest.mark.parametrize(
    ("share", "least"), [(0.1, 2), pytest.param(1.0, 12, marks=pytest.mark.extended)], ids=["tenth", "all"]
)
@pytest.mark.parametrize(
    ("walk", "snapshot_commits"),
    [(walk, 3) for walk in WALKS] + [(walk, SNAPSHOT_COMMITS) for walk in WALKS if walk.exact],
    ids=lambda value: value.name.replace(" ", "_") if isinstance(value, Walk) else value,
)
def test_a_session_may_die_at_each_of_its_commits(
    walk: Walk, snapshot_commits: int, share: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "SNAPSHOT_COMMITS", snapshot_commits)
    assert sum(1 for _ in deaths(walk, share)) >= least


def main() -> None:
    """Print the number of walks, prefixes and deaths, and the seconds."""
    start, prefixes, number = time.perf_counter(), 0, 0
    for walk in WALKS:
        walk_deaths = list(deaths(walk))
        number += len(walk_deaths)
        prefixes += len(walk_deaths) // 4
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{len(WALKS)} walks, {prefixes} prefixes, {number} deaths, {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
