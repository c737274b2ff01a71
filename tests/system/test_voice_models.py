"""A voice model in front: ``clients/js/openai-live.js`` in Node, between a server and a stand-in voice."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from conductor.messages import UserMessage
from tests.conftest import ROOT
from tests.seeds import seeded
from tests.stand_ins.openai_live import DONE, GONE, LiveService, VoiceSession
from tests.system.clients.programs import CLIENTS, STARTING, missing, started
from tests.system.clients.voices import LIFE_MS, QUIET_MS, converse, seconds
from tests.system.test_javascript_client import address, demo

SOON = 60.0  # seconds, until a test ends that fails


async def test_what_is_delegated_is_asked_for_and_answered_once() -> None:
    async def play(session: VoiceSession) -> None:
        await session.say("person", ' call notes.find with {"number": 7}')
        delegation = await session.delegate()
        answer = await session.commentary.get()
        assert answer.delegation_id == delegation and "number 7" in answer.content
        await session.say("voice", f" Well: {answer.content}")
        await asyncio.sleep(QUIET_MS / 100)
        await session.socket.close(DONE)

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1"}])
        (log,) = (session.state.log for session in listener.registry.sessions)
    assert not service.failures and service.sessions[0].refused == []
    assert seen["v-1"]["runs"] == [7]
    assert len([command for command in service.sessions[0].accepted if command.kind == "commentary"]) == 1


@pytest.mark.parametrize("late_ms", [1000, 2000, 3000])
async def test_a_delegation_waits_for_a_transcript_that_comes_late(late_ms: int) -> None:
    async def play(session: VoiceSession) -> None:
        await session.say("person", " hello there")
        await session.say("voice", " Hello.", at_ms=session.now_ms + 300)
        await asyncio.sleep(seconds(2 * LIFE_MS))
        began, session.now_ms = session.now_ms + 400, session.now_ms + 2000
        delegations = [await session.delegate(), await session.delegate()]
        await asyncio.sleep(seconds(late_ms))
        await session.say("person", ' call notes.find with {"number": 7}', at_ms=began)
        answer = await session.commentary.get()
        assert answer.delegation_id == delegations[0] and "number 7" in answer.content
        await session.say("voice", f" {answer.content}")
        await asyncio.sleep(seconds(2 * LIFE_MS))
        await session.socket.close(DONE)

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1"}])
        (state,) = (session.state for session in listener.registry.sessions)
    assert not service.failures
    assert seen["v-1"]["runs"] == [7]
    assert [message.text for message in state.log if isinstance(message, UserMessage)] == [
        'call notes.find with {"number": 7}'
    ]
    assert {command.delegation_id for command in service.sessions[0].accepted} == {
        *service.sessions[0].delegations
    }


async def test_a_reply_that_is_too_long_is_given_in_halves() -> None:
    digits = " ".join("1234567890" * 14)  # 140 tokens as the bridge counts, 280 as the stand-in does
    given: list[str] = []

    async def play(session: VoiceSession) -> None:
        session.max_tokens = 200
        await session.say("person", ' call notes.find with {"number": 7}')
        await session.delegate()
        while digits not in " ".join(given):
            given.append((await asyncio.wait_for(session.commentary.get(), SOON)).content.strip())
        await session.say("voice", " It is long.")
        await asyncio.sleep(QUIET_MS / 100)
        await session.socket.close(DONE)

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1", "found": digits}])
    assert not service.failures, given
    assert len(given) == 2
    assert [error["code"] for error in seen["v-1"]["errors"]] == ["invalid_command"] * 2


async def test_a_reply_that_the_voice_does_not_take_is_no_silence() -> None:
    async def play(session: VoiceSession) -> None:
        session.max_tokens = 30
        await session.say("person", ' call notes.find with {"number": 7}')
        delegation = await session.delegate()
        told = await asyncio.wait_for(session.commentary.get(), SOON)
        assert (told.delegation_id, "on the screen" in told.content) == (delegation, True)
        await session.say("voice", " The answer is on the screen.")
        await asyncio.sleep(QUIET_MS / 100)
        await session.socket.close(DONE)

    async with demo() as listener, LiveService(play) as service:
        app = {"key": "v-1", "found": "12 34 56 78 90 " * 30}
        seen = await converse(address(listener), service, [app])
    assert not service.failures
    assert "reply_refused" in {error["code"] for error in seen["v-1"]["errors"]}
    assert not [one for one in service.sessions[0].accepted if "nothing to say" in one.content]


async def test_a_reply_that_waits_for_a_lost_voice_is_spoken_by_the_app_that_leaves_it() -> None:
    async def play(session: VoiceSession) -> None:
        await session.say("person", ' call notes.find with {"number": 7}')
        await session.delegate()
        await session.socket.close(GONE)

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1", "found": "a" * 9}])
    assert not service.failures
    assert seen["v-1"]["lost"] == 1
    assert any("aaaaaaaaa" in text for text in seen["v-1"]["spoken"])


async def test_an_app_that_leaves_the_voice_ends_its_session() -> None:
    async def play(session: VoiceSession) -> None:
        await session.send("info", code="leave", message="test")
        await session.send("info", code="none", message="test")

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1"}])
        async with asyncio.timeout(SOON):
            await service.sessions[0].socket.wait_closed()
    assert not service.failures
    assert service.sessions[0].is_ended
    assert seen["v-1"]["lost"] == 0


async def test_a_typed_yes_that_settles_nothing_is_told_and_ends_with_the_question() -> None:
    async def play(session: VoiceSession) -> None:
        await session.say("person", ' call notes.add with {"number": 123}')
        await session.delegate()
        await asyncio.wait_for(session.commentary.get(), SOON)
        await session.say("voice", " May I add number 123?")
        await asyncio.sleep(2 * QUIET_MS / 1000)
        await session.send("info", code="type", message="test")
        await session.send("info", code="none", message="test")
        told = await asyncio.wait_for(session.commentary.get(), SOON)
        assert "typed words" in told.content
        _, end = await session.say("voice", " Please answer aloud.")
        await session.say("person", YES, at_ms=end + 2000)
        answer = await asyncio.wait_for(session.commentary.get(), SOON)
        await session.say("voice", f" {answer.content}")
        await asyncio.sleep(QUIET_MS / 100)
        await session.socket.close(DONE)

    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, [{"key": "v-1", "card": "show"}])
    assert not service.failures, service.failures
    assert seen["v-1"]["runs"] == [123]
    assert seen["v-1"]["typed"] == ["idle"]


# -- consent

YES = " yes please"
PROMPT = re.compile(r"number (\d+)")
Scene = Callable[["Asked", random.Random], Awaitable[None]]


@dataclass
class Asked:
    """A question that the voice was told to ask, and how the voice does so."""

    session: VoiceSession
    number: str

    async def voice(self, text: str, *, size: int = 0) -> tuple[int, int]:
        """Let the voice say a text; ``#`` stands for the value."""
        return await self.session.say("voice", text.replace("#", self.number), size=size)

    async def person(self, text: str, at_ms: int) -> None:
        await self.session.say("person", text, at_ms=at_ms)

    async def quiet(self, times: float = 2) -> None:
        """Let utterances end."""
        await asyncio.sleep(times * QUIET_MS / 1000)


async def before_the_question(asked: Asked, draw: random.Random) -> None:
    """Let the transcript of older words arrive after the question was given to the voice."""
    await asked.person(YES, asked.session.now_ms - draw.randint(200, 900))
    await asked.voice(" Shall I add note #?")


async def before_the_value(asked: Asked, draw: random.Random) -> None:
    await asked.voice(" Shall I add a note,")
    await asked.person(YES, asked.session.now_ms - draw.randint(0, 300))
    await asked.voice(" the one with number #?")


async def late_transcript(asked: Asked, draw: random.Random) -> None:
    """Let the transcript of words from before the value come after the value's."""
    began, _ = await asked.voice(" number # it is, shall I?")
    await asked.person(YES, began - draw.randint(1, 900))


async def later_transcript(asked: Asked, draw: random.Random) -> None:
    """Let it come when both sides have been silent for a while."""
    began, _ = await asked.voice(" number # it is, shall I?")
    await asked.quiet(draw.uniform(1.5, 4))
    await asked.person(YES, began - draw.randint(1, 900))


async def at_the_value(asked: Asked, draw: random.Random) -> None:
    _, end = await asked.voice(" Shall I add number #")
    await asked.person(YES, end - draw.randint(1, 190))


async def over_the_voice(asked: Asked, draw: random.Random) -> None:
    """Answer after the value, but while the voice goes on."""
    _, heard = await asked.voice(" Shall I add number # ")
    await asked.voice(" to your notes, or would you rather not?")
    await asked.person(YES, heard + draw.randint(0, 900))


async def begun_before_and_stalled(asked: Asked, draw: random.Random) -> None:
    """Let the second half of an utterance from before the value come after a stall of the network."""
    began, end = await asked.voice(" number #?")
    await asked.person(" well", began - draw.randint(1, 400))
    await asked.quiet(2)
    await asked.person(YES, draw.randint(began, end))


async def echo(asked: Asked, draw: random.Random) -> None:
    """Let the microphone hear the voice, up to a second later."""
    _, end = await asked.voice(
        draw.choice([" Shall I add #? Then say: yes please", " Number #? Say no, or else yes please"])
    )
    echoed = end - 400  # the last two words
    await asked.person(YES, echoed + draw.randint(0, 990))


async def stalled_echo(asked: Asked, draw: random.Random) -> None:
    """Let the words of an echo come one by one."""
    _, end = await asked.voice(" Shall I add number #? Then say: yes please")
    await asked.person(" yes", end - 400 + draw.randint(0, 990))
    await asked.quiet()
    await asked.session.say("person", " please")


async def misheard_echo(asked: Asked, draw: random.Random) -> None:
    _, end = await asked.voice(" Shall I add number #, yes?")
    await asked.person(draw.choice([" yeah", " yes", " yep please"]), end + draw.randint(-200, 490))


async def own_words(asked: Asked, draw: random.Random) -> None:
    """Let the voice model answer for the person, and delegate that."""
    await asked.voice(" Shall I add number #?")
    await asked.quiet(draw.uniform(0, 3))
    asked.session.now_ms += 700
    await asked.voice(draw.choice([" yes please", " I take that as a yes: yes, go ahead."]))
    await asked.session.delegate()


async def late_delegation(asked: Asked, draw: random.Random) -> None:
    """Delegate small talk from before the question after it."""
    await asked.person(YES, asked.session.now_ms - draw.randint(500, 900))
    await asked.quiet(draw.uniform(0, 2))
    await asked.voice(" Shall I add number #?")
    await asked.quiet(draw.uniform(0, 3))
    await asked.session.delegate()


async def without_the_value(asked: Asked, draw: random.Random) -> None:
    await asked.voice(draw.choice([" Shall I add that note?", " Shall I go on?", " A note with a number?"]))
    await asked.person(YES, asked.session.now_ms + draw.randint(600, 3000))


async def another_value(asked: Asked, draw: random.Random) -> None:
    wrong = draw.choice([f"{asked.number}1", f"1{asked.number}", asked.number[:-1], asked.number[::-1] + "0"])
    await asked.session.say("voice", f" Shall I add number {wrong}?")
    await asked.person(YES, asked.session.now_ms + draw.randint(600, 3000))


async def value_before_the_question(asked: Asked, draw: random.Random) -> None:
    """Say the value earlier, and not since."""
    began = asked.session.now_ms - draw.randint(1000, 2000)
    await asked.session.say("voice", f" You want number {asked.number}.", at_ms=began)
    await asked.person(YES, asked.session.now_ms + draw.randint(600, 2000))


async def half_a_value(asked: Asked, draw: random.Random) -> None:
    """Send the value in fragments, and begin the answer between them."""
    await asked.session.say("voice", " Shall I add number")
    _, middle = await asked.session.say("voice", f" {asked.number[:2]}")
    await asked.session.say("voice", f"{asked.number[2:]}?")
    await asked.person(YES, middle + draw.randint(0, 150))


async def lost_voice(asked: Asked, draw: random.Random) -> None:
    """Break the voice session while a good answer is on its way."""
    await cut(asked, draw, "cut_voice")


async def lost_server(asked: Asked, draw: random.Random) -> None:
    """Break the connection to the server while a good answer is on its way."""
    await cut(asked, draw, "cut_server")


async def cut(asked: Asked, draw: random.Random, code: str) -> None:
    """Let the app break a connection at the next event, which begins the answer."""
    _, end = await asked.voice(" Shall I add number #?")
    await asked.session.send("info", code=code, message="test")
    await asked.person(YES, end + draw.randint(700, 2000))


async def while_it_is_asked_again(asked: Asked, draw: random.Random) -> None:
    """Answer unclearly, so that the question is asked again, and then before its value is repeated."""
    _, end = await asked.voice(" Shall I add number #?")
    await asked.person(" hmm maybe", end + draw.randint(700, 2000))
    await asked.session.commentary.get()
    await asked.voice(" So, shall I,")
    await asked.person(YES, asked.session.now_ms - draw.randint(0, 100))
    await asked.voice(" shall I add number #?")


async def good(asked: Asked, draw: random.Random) -> None:
    """Answer so that it counts."""
    words = draw.choice(
        [
            " Shall I add number #?",
            " Do you want number # in your notes?",
            " # goes to your notes, yes or no?",
        ]
    )
    _, end = await asked.voice(words, size=draw.choice([0, 0, 2, 5]))
    if draw.random() < 0.3:
        await asked.quiet()
    await asked.person(draw.choice([YES, " yes", " yes, go ahead"]), end + draw.randint(650, 4000))


TREACHEROUS: tuple[Scene, ...] = (
    before_the_question,
    before_the_value,
    late_transcript,
    later_transcript,
    at_the_value,
    over_the_voice,
    begun_before_and_stalled,
    echo,
    stalled_echo,
    misheard_echo,
    own_words,
    late_delegation,
    without_the_value,
    another_value,
    value_before_the_question,
    half_a_value,
    lost_voice,
    lost_server,
    while_it_is_asked_again,
)


async def consent(timings: int) -> None:
    """Play so many treacherous timings, and a tenth as many answers that count."""
    seed = seeded().randrange(10**6)
    scenes: dict[str, tuple[Scene, random.Random]] = {}
    for number in range(timings + max(4, timings // 10)):
        scene = TREACHEROUS[number % len(TREACHEROUS)] if number < timings else good
        scenes[f"v-{number}"] = (scene, random.Random(seed + number))

    async def play(session: VoiceSession) -> None:
        scene, draw = scenes[session.key]
        if service.of(session.key)[0] is session:
            number = str(100 + int(session.key[2:]))
            await session.say("person", f' call notes.add with {{"number": {number}}}')
            await session.delegate()
            session.now_ms += 1000
            question = await session.commentary.get()
            assert number in question.content and "May I" in question.content, question
            session.now_ms += 200
            await scene(Asked(session, number), draw)
        else:  # after a cut the person repeats the answer to the question of the session before
            await session.say("person", YES)
        # Whatever the voice is told from here on, it says nothing that the question is about.
        for _ in range(6):
            await asyncio.sleep(QUIET_MS / 250)
            while not session.commentary.empty():
                session.commentary.get_nowait()
                await session.say("voice", " Well then.", at_ms=session.now_ms + 2000)
        await session.socket.close(DONE)

    apps = [{"key": key, "card": "show" if random.Random(key).random() < 0.7 else ""} for key in scenes]
    async with demo() as listener, LiveService(play) as service:
        seen = await converse(address(listener), service, apps)
    assert service.failures == []
    approved = {key for key, app in seen.items() if app["runs"]}
    wrong = {scenes[key][0].__name__: key for key in approved if scenes[key][0] is not good}
    assert wrong == {}
    # Where a busy machine draws out a pause, the question is asked again or left to the card: that is safe.
    counting = sum(scene is good for scene, _ in scenes.values())
    assert len(approved) >= counting / 2
    for app in apps:
        if app["card"]:
            assert len(seen[app["key"]]["asked"]) == 1, seen[app["key"]]


async def test_no_words_from_before_a_question_was_heard_no_echo_and_no_voice_model_approves() -> None:
    await consent(418)


async def test_the_client_of_the_package_openai_plays_against_the_stand_in() -> None:
    python = ROOT / "build" / "live" / "bin" / "python"
    if not python.exists():
        missing("the package openai (in build/live)")

    async def play(session: VoiceSession) -> None:
        await session.say("person", " what time is it")
        await session.delegate()

    async with LiveService(play) as service:
        url = service.url.removesuffix("/live/sessions")
        async with started([str(python), str(CLIENTS / "openai_live_client.py"), url]) as process:
            output, errors = await asyncio.wait_for(process.communicate(), STARTING)
    assert process.returncode == 0, errors.decode()
    assert service.sessions[0].refused == []
    (command,) = service.sessions[0].accepted
    assert (command.kind, command.delegation_id) == ("commentary", service.sessions[0].delegations[0])
    assert output.decode().split()[-2:] == ["session.commentary.appended", "session.closed"]
