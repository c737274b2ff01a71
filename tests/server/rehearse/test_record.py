"""``conductor rehearse record``: stored sessions as rehearsals, which play as they were."""

from __future__ import annotations

import asyncio
import random
import stat
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conductor.app import running
from conductor.conversation import records as r
from conductor.conversation.replay import moments
from conductor.conversation.state import AppFact, Call, Conversation, LateCall, Profile, Question
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.rehearse.player import Backstage, Player
from conductor.rehearse.record import Recording
from conductor.rehearse.report import failures
from conductor.rehearse.script import Expectation, Interruption, Rehearsal, dump, load
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from tests.conftest import IOS_CATALOG, Main
from tests.pictures import png

TOOLS = """
tools:
  - name: lamp.switch
    description: Switch a lamp.
    inputSchema: {type: object, properties: {room: {type: string}, on: {type: boolean}}, required: [room]}
    answers:
      - {when: {room: hall}, result: {on: true}}
      - {when: {room: cellar, on: true}, result: bright, once: true}
      - {when: {room: cellar, on: true}, result: "12"}
  - name: lamp.list
    inputSchema: {type: object}
    annotations: {readOnlyHint: true}
    answers: [{error: "yes: no lamp"}]
"""
CARDS = f"""
variables: {{company: Acme}}
locale: en-GB
time_zone: Europe/London
{TOOLS}
steps:
  - {{say: 'call lamp.switch with {{"room":"hall"}}', approve: tap}}
  - {{say: 'call lamp.switch with {{"room":"hall"}}', approve: {{by: voice, words: "yes"}}}}
  - {{say: 'call lamp.switch with {{"room":"attic"}}', approve: deny}}
  - {{say: 'call lamp.switch with {{"room":"bath"}}', approve: {{by: tap, edit: {{room: hall, on: true}}}}}}
  - {{say: 'call lamp.switch with {{"room":"cellar","on":true}}', approve: {{by: tap, scope: session}}}}
  - {{say: 'call lamp.switch with {{"room":"cellar","on":true}}'}}
  - {{say: 'call lamp.list with {{}}'}}
  - {{say: what is 17 percent of 2340}}
  - {{say: count to 20, interrupt: {{after_characters: 9}}}}
  - {{say: say 1e5}}
"""
VOICE = f"""
variables: {{company: Acme}}
cards: false
{TOOLS}
steps:
  - {{say: 'call lamp.switch with {{"room":"hall"}}'}}
  - {{say: well}}
  - {{say: "yes"}}
  - {{say: say hello}}
"""
SILENT = """
variables: {company: Acme}
tools:
  - name: order.status
    inputSchema: {type: object}
    annotations: {readOnlyHint: true}
    _meta: {conductor: {timeoutMs: 1000}}
    answers:
      - {when: {id: A1}, result: it is on its way}
      - {when: {id: HANG}, delay: 60}
steps:
  - {say: 'call order.status with {"id":"A1"}'}
  - {say: 'call order.status with {"id":"HANG"}'}
  - {say: 'call order.status with {"id":"A1"}'}
"""
SEGMENTS = """
variables: {company: Acme}
segments: true
steps:
  - say: say This is a first sentence of some length. This is a second one, of some length. And a third one.
    interrupt: {after_characters: 60}
"""

APP = """
greeting: Hello, Ms Kim.
variables: {company: Acme}
tools:
  - name: camera.look
    inputSchema: {type: object}
    annotations: {readOnlyHint: true}
    answers: [{result: a photo, images: [photo.png]}]
steps:
  - context:
      - It rains.
      - {text: Three items., key: cart, ttl_s: 600, untrusted: true}
    say: say good morning and
    rest: good night
  - {context: [{text: "", key: cart}], say: count to 5, murmurs: [Mhm.]}
  - {say: "What is this?", images: [photo.png]}
  - {say: "What do you see?"}
"""


@pytest.fixture
async def recorded(conductor: Main, tmp_path: Path) -> AsyncIterator[Any]:
    """Give a function that has a rehearsal played on a server with a store, and records its session."""
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    prompt = tmp_path / "prompt.md"
    prompt.write_text("You answer for {{company}}.", encoding="utf-8")
    (tmp_path / "photo.png").write_bytes(png(64, 48))
    settings = load_settings(
        None, port=0, model_provider="demo", session_store_url=store, system_prompt_file=prompt
    )
    async with running(settings) as listener:

        async def play_and_record(text: str) -> Path:
            path = tmp_path / "played.yaml"
            path.write_text(textwrap.dedent(text), encoding="utf-8")
            url = f"ws://127.0.0.1:{listener.port}/ws"
            scenes = await Player(load(path), url, random.Random(1), Backstage(Counter)).play()
            assert [failure for scene in scenes for failure in failures(scene)] == []
            (session,) = listener.registry.sessions
            file = tmp_path / "recorded.yaml"
            code, out, err = await asyncio.to_thread(
                conductor,
                *("rehearse", "record", session.key.session_id, "-o", str(file)),
                SESSION_STORE_URL=store,
            )
            assert (code, err) == (0, "") and out.endswith(f" steps written to {file}.\n")
            return file

        yield play_and_record


@pytest.mark.parametrize(
    "text",
    [CARDS, VOICE, SEGMENTS, SILENT, APP],
    ids=["cards", "voice", "segments", "a silent tool", "an app that tells and shows"],
)
async def test_a_session_of_the_demo_model_plays_as_it_was(
    recorded: Any, conductor: Main, tmp_path: Path, text: str
) -> None:
    file = await recorded(text)
    original, copy = load(tmp_path / "played.yaml"), load(file)
    for name in ("locale", "time_zone", "cards", "segments", "greeting", "variables"):
        assert getattr(copy, name) == getattr(original, name)
    assert [(step.say, step.rest, step.context, step.murmurs, step.approve) for step in copy.steps] == [
        (step.say, step.rest, step.context, step.murmurs, step.approve) for step in original.steps
    ]
    assert [tool.declaration for tool in copy.tools] == [tool.declaration for tool in original.tools]
    play = ("rehearse", "run", str(file), "--model", "demo")
    code, out, err = await asyncio.to_thread(conductor, *play, SYSTEM_PROMPT_FILE="prompt.md")
    assert (code, err) == (0, ""), out
    # The file holds conversations.
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_the_file_expects_the_recorded_session(recorded: Any) -> None:
    copy = load(await recorded(CARDS))
    lamp = {"tool": "lamp.switch", "times": 1}
    hall, bright = {"room": "hall"}, {"room": "cellar", "on": True}
    allowed = {"called": [{**lamp, "arguments": hall}], "said": r"\S", "approvals": ["allowed"]}
    expected = [
        allowed,
        allowed,
        {"said": r"\S", "approvals": ["denied"]},
        {"called": [{**lamp, "arguments": {**hall, "on": True}}], "said": r"\S", "approvals": ["edited"]},
        {"called": [{**lamp, "arguments": bright}], "said": r"\S", "approvals": ["allowed"]},
        {"called": [{**lamp, "arguments": bright}], "said": r"\S"},
        {"called": [{"tool": "lamp.list", "times": 1}], "said": r"\S"},
        # The arguments of the server's tools are not on the wire.
        {"called": [{"tool": "calculator", "times": 1}], "said": r"\S"},
        {},
        {"said": r"\S"},
    ]
    assert [step.expect for step in copy.steps] == list(map(Expectation.model_validate, expected))
    assert [step.interrupt for step in copy.steps if step.interrupt] == [Interruption(after_characters=9)]
    answers = [[answer.model_dump(exclude_defaults=True) for answer in tool.answers] for tool in copy.tools]
    assert answers == [
        [
            {"when": bright, "result": "bright", "once": True},
            {"when": bright, "result": 12},
            {"when": {**hall, "on": True}, "result": {"on": True}},
            {"when": hall, "result": {"on": True}},
        ],
        [{"error": "yes: no lamp"}],
    ]


async def test_the_file_says_where_pictures_are_missing(recorded: Any) -> None:
    first = (await recorded(APP)).read_text(encoding="utf-8").splitlines()[0]
    assert (
        first == "# Records hold no pictures: add the files as images to step 3, the answers of camera.look."
    )


async def test_another_answer_of_the_model_fails(recorded: Any, conductor: Main) -> None:
    file = await recorded(CARDS)
    text = file.read_text(encoding="utf-8").replace("what is 17 percent of 2340", "say nothing")
    file.write_text(text, encoding="utf-8")
    play = ("rehearse", "run", str(file), "--model", "demo")
    code, out, _ = await asyncio.to_thread(conductor, *play, SYSTEM_PROMPT_FILE="prompt.md")
    assert code == 1 and "expected calculator once, was no call" in out


# -- records of a server that fared worse


def recording(*records: r.Record, state: Conversation | None = None) -> Recording:
    """Record a session of one commit; ``state``: that of a snapshot before it."""
    data = r.encode(
        r.Commit(claim="claim", at=1, records=(r.Claimed("claim"), *records), acked=(), state=state)
    )
    return Recording(moments([data], 1))


def document(*records: r.Record, state: Conversation | None = None) -> dict[str, Any]:
    """Make the document, which must be valid."""
    result = recording(*records, state=state).document([])
    Rehearsal.model_validate(result)
    return result


def started(text: str = "Light.", turn_id: str = "turn-1") -> r.TurnStarted:
    return r.TurnStarted(cause="transcript", limit_ms=30_000, event_id=f"in-{turn_id}", text=text)


def reply(tool: str = "lamp.switch", **fields: Any) -> r.ReplyLogged:
    return r.ReplyLogged(
        message=AssistantMessage(text=""),
        calls=(Call(id="c-1", name=tool, arguments='{"room":"hall"}', source="device", **fields),),
    )


def finished(content: str = '{"data":"ok"}', **fields: Any) -> r.CallFinished:
    return r.CallFinished(result=ToolResult("c-1", content), tool="lamp.switch", source="device", **fields)


LAMP = Profile(
    capabilities=("tools", "approval"), tools=[{"name": "lamp.switch", "inputSchema": {"type": "object"}}]
)
CARD = Question(
    id="q-1",
    batch_id="b",
    call_id="c-1",
    tool="lamp.switch",
    arguments='{"room":"hall"}',
    redacted_arguments="{}",
    digest="",
    prompt="May I?",
    risk="medium",
    expires_at=9,
    card=True,
)


@pytest.mark.parametrize("outcome", ["expired", "superseded"])
def test_a_question_without_an_answer_is_denied(outcome: Any) -> None:
    end = (
        (r.QuestionDecided(question_id="q-1", call_id="c-1", outcome="expired"),)
        if outcome == "expired"
        else ()
    )
    (step,) = document(
        r.ProfileDeclared(LAMP), started(), reply(consent="needed"), r.QuestionsAsked((CARD,)), *end
    )["steps"]
    assert step == {"say": "Light.", "approve": ["deny"], "expect": {"approvals": ["denied"]}}


@pytest.mark.parametrize("interrupted", [False, True], ids=["too late", "interrupted"])
def test_a_call_without_a_result_has_an_answer_that_comes_too_late(interrupted: bool) -> None:
    late = LateCall(call_id="c-1", name="lamp.switch", effect="write", expires_at=9)
    unknown = finished('{"data":null}', error_type="unknown", late=late)
    end = r.TurnEnded(reason="interrupted", results=(unknown,)) if interrupted else unknown
    rehearsal = document(r.ProfileDeclared(LAMP), started(), reply(limit_ms=2_000), end)
    assert rehearsal["tools"][0]["answers"] == [{"when": {"room": "hall"}, "delay": 7.0}]
    calls = [{"tool": "lamp.switch", "arguments": {"room": "hall"}, "times": 1}]
    assert rehearsal["steps"] == [{"say": "Light.", "expect": {"called": calls}}]


def test_a_turn_without_a_person_is_no_step_but_its_answers_count() -> None:
    news = r.TurnStarted(cause="news", limit_ms=30_000)
    rehearsal = document(
        r.ProfileDeclared(LAMP),
        started(),
        r.ReplyLogged(message=AssistantMessage(text="Yes."), speech_text="Yes."),
        r.TurnEnded(reason="answered"),
        news,
        reply(),
        finished(),
    )
    assert rehearsal["steps"] == [{"say": "Light.", "expect": {"said": r"\S"}}]
    assert rehearsal["tools"][0]["answers"] == [{"when": {"room": "hall"}, "result": "ok"}]


def test_a_failed_turn_expects_no_speech() -> None:
    failed = r.TurnEnded(
        reason="failed", error="model_provider_failed", apology="Sorry.", speech_text="Sorry."
    )
    (step,) = document(
        started(), r.ReplyLogged(message=AssistantMessage(text="Let"), speech_text="Let"), failed
    )["steps"]
    assert step == {"say": "Light."}


def test_an_interruption_counts_all_speeches_of_the_step() -> None:
    (step,) = document(
        started(),
        r.ReplyLogged(message=AssistantMessage(text="Let me look."), speech_text="Let me look."),
        r.ReplyLogged(message=AssistantMessage(text="It is on."), speech_text="It is on."),
        r.SpeechCut("speech-2", "It is [The user interrupted here and did not hear the rest.]", "in-2"),
    )["steps"]
    assert step["interrupt"] == {"after_characters": len("Let me look.It is ")}


def test_an_interruption_between_speeches_does_not_count() -> None:
    end = r.TurnEnded(reason="interrupted", event_id="in-2")
    (step,) = document(
        started(), r.ReplyLogged(message=AssistantMessage(text="Let"), speech_text="Let me look."), end
    )["steps"]
    assert step == {"say": "Light."}


def test_words_that_continue_others_are_one_step() -> None:
    withdrawn = r.TurnEnded(reason="interrupted", continues=True)
    steps = document(started(), withdrawn, started("Light. In the hall."), finished())["steps"]
    assert [step["say"] for step in steps] == ["Light. In the hall."]


def test_a_half_whose_rest_never_came_is_a_sentence() -> None:
    (step,) = document(r.InputQueued("in-1", "Buy milk and", until=9), started("Buy milk and"))["steps"]
    assert step == {"say": "Buy milk and"}


def test_a_sentence_of_three_parts_has_the_others_as_its_rest() -> None:
    (step,) = document(
        r.InputQueued("in-1", "Buy milk and", until=9),
        r.InputQueued("in-2", "bread and", until=9),
        r.InputQueued("in-3", "eggs."),
        started("Buy milk and bread and eggs."),
    )["steps"]
    assert step == {"say": "Buy milk and", "rest": "bread and eggs."}


def test_a_turn_without_a_person_does_not_end_a_half() -> None:
    news = r.TurnStarted(cause="news", limit_ms=30_000)
    half, rest = r.InputQueued("in-1", "Buy milk and", until=9), r.InputQueued("in-2", "eggs.")
    (step,) = document(half, news, r.TurnEnded(reason="answered"), rest, started("Buy milk and eggs."))[
        "steps"
    ]
    assert step == {"say": "Buy milk and", "rest": "eggs."}


def test_facts_of_a_sentence_that_went_on_are_told_before_its_whole() -> None:
    rain, cart = AppFact(text="It rains."), AppFact(text="Three items.", key="cart", expires_at=5_001)
    withdrawn = r.TurnEnded(reason="interrupted", continues=True)
    (step,) = document(
        r.ContextAdded("in-1", rain),
        started(),
        r.ContextAdded("in-2", cart),
        withdrawn,
        started("Light. In the hall."),
    )["steps"]
    assert step["context"] == ["It rains.", {"text": "Three items.", "key": "cart", "ttl_s": 5.0}]


@pytest.mark.parametrize("names", [("speech-1", "speech-1"), ("speech-1", "")], ids=["one", "one ended"])
def test_two_backchannels_over_one_speech_are_one(names: tuple[str, str]) -> None:
    spoken = r.ReplyLogged(message=AssistantMessage(text="Yes."), speech_text="Yes.")
    murmurs = [r.PauseEnded(resumes=True, event_id=name, text="Mhm.", name=name) for name in names]
    (step,) = document(started(), spoken, *murmurs)["steps"]
    assert step["murmurs"] == ["Mhm."]


def test_facts_that_stand_at_a_snapshot_are_told_first() -> None:
    state = Conversation(facts=(AppFact(text="It rains."),))
    (step,) = document(started(), state=state)["steps"]
    assert step == {"context": ["It rains."], "say": "Light."}


def test_a_snapshot_is_where_it_begins() -> None:
    state = Conversation(log=[UserMessage("Before."), AssistantMessage(text="Yes.")])
    session = recording(finished(), started(), state=state)
    assert session.missing == 2 and [step.say for step in session.steps] == ["Light."]


# -- the file and the command


def test_texts_that_look_like_other_values_stay_texts(tmp_path: Path) -> None:
    texts = [
        "1e5",
        "yes",
        "null",
        "~",
        "",
        "12:30",
        "0x10",
        "<<",
        "=",
        "- a",
        "a: b",
        "#",
        "\u2028\x07é",
        "2026-03-01",
    ]
    path = tmp_path / "one.yaml"
    path.write_text(dump({"steps": [{"say": text} for text in texts]}), encoding="utf-8")
    assert [step.say for step in load(path).steps] == texts
    assert dump({"a": texts[:1], "b": texts[:1]}).count("&") == 0


async def test_the_tools_of_an_app_without_declarations_are_those_of_the_catalog(
    conductor: Main, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    async with running(
        load_settings(None, port=0, model_provider="demo", session_store_url=store)
    ) as listener:
        claim = await listener.services.store.claim(SessionKey("s", "empty"))
        claim = await listener.services.store.claim(SessionKey("s", "legacy"))
        data = r.encode(
            r.Commit(
                claim=claim.token, at=1, records=(r.Claimed(claim.token), started(), reply("agent.status"))
            )
        )
        await listener.services.store.append(claim, "commit-1", data)

    def run(*arguments: str) -> tuple[int, str, str]:
        settings = {"SESSION_STORE_URL": store, "DEVICE_TOOLS_FILE": str(IOS_CATALOG)}
        return conductor("rehearse", "record", *arguments, **settings)

    code, out, _ = await asyncio.to_thread(run, "legacy", "--subject", "s")
    assert code == 0
    names = [tool["name"] for tool in yaml.safe_load(out)["tools"]]
    assert "agent.status" in names and len(names) > 1
    for arguments, code, sentence in (
        (("none",), 1, "There is no session 'none'."),
        (("empty",), 2, "The stored records of session 'empty' hold no turn of a person."),
        (("legacy", "-o", str(tmp_path / "sessions.db")), 2, f"{tmp_path / 'sessions.db'} exists; --force"),
    ):
        ended, out, err = await asyncio.to_thread(run, *arguments)
        assert (
            (ended, out) == (code, "") and err.startswith(f"conductor: {sentence}") and err.count("\n") == 1
        )
