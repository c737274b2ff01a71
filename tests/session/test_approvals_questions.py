"""Questions about calls: put by card or by voice, answered once, or not at all; in virtual time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from conductor.conversation.replay import replay
from conductor.events import client
from conductor.messages import ToolResult
from conductor.models.base import TextDelta
from conductor.session.fields import SubjectRecords
from conductor.session.inbound import handle, learn
from conductor.session.services import Services
from conductor.stores.base import SessionKey
from conductor.tools.base import ToolSpec
from conductor.tools.judge import Answer, ApprovalJudge
from conductor.tools.policies import Policies
from conductor.tools.rules import Rule
from tests.models import Script
from tests.session.helpers import (
    SPOKEN,
    SlowStore,
    Stage,
    call,
    faults,
    inbound,
    later,
    make_services,
    open_stage,
    tool,
)
from tests.shapes import Event, arguments_of

ALL = ["approval", "cancel", "lease", "late", "async", "activity"]
CATALOG = (
    tool("device.look", effect="read", risk="safe"),
    tool("device.move", effect="write", risk="medium"),
    tool("device.copy", effect="write", risk="medium"),
    tool("device.wipe", effect="irreversible", risk="high"),
)
TWO: list[Script] = [[call("device.move"), call("device.copy")], [TextDelta("Well.")]]
MOVE: list[Script] = [[call("device.move", '{"x":1}')], [TextDelta("Well.")], [TextDelta("Next.")]]


class Scene:
    """A stage with tools that ask, and its observations."""

    def __init__(self, stage: Stage, ran: list[str]) -> None:
        self.stage = stage
        self.app = stage.app
        self.ran = ran

    async def card(self, number: int = 1) -> dict[str, Any]:
        """Wait for a number of cards; give the last one's payload."""
        requests: list[Event] = []
        async with asyncio.timeout(10_000):
            while len(requests) < number:
                requests = [event for event in self.app.log if event["type"] == "approval.request"]
                await later(0.01)
        payload: dict[str, Any] = requests[number - 1]["payload"]
        return payload

    async def prompt(self, number: int = 1) -> str:
        """Wait for the number-th speech, and until the microphone is open after it."""
        async with asyncio.timeout(10_000):
            while len(self.app.speeches()) < number:
                await later(0.01)
            await later(0.5)
        assert self.app.states()[-1] == "idle"
        return self.app.speeches()[number - 1]

    async def hears(self, call_ids: list[str]) -> None:
        """Wait for the speech of a device that is told when to answer, and tell it."""
        while not call_ids:
            await later(0.01)
        self.app.result(call_ids.pop(), SPOKEN)

    def shows(self, card: dict[str, Any]) -> None:
        """Say that a person can see a card."""
        self.app.line.say(client.ApprovalShown(card["approvalId"]))

    async def look_at(self, number: int = 1) -> dict[str, Any]:
        """Wait until a person has looked at a number of cards; give the last one's payload."""
        card = await self.card(number)
        for stage in range(1, number + 1):
            self.shows(await self.card(stage))
        await later(1)
        return card

    def decide(self, card: dict[str, Any], decision: Any, **fields: Any) -> None:
        digest = fields.pop("digest", card["argumentsDigest"])
        event = client.ApprovalResponse(
            approval_id=card["approvalId"], arguments_digest=digest, decision=decision, **fields
        )
        self.app.line.say(event)

    async def tap(self, card: dict[str, Any], decision: Any, **fields: Any) -> None:
        """Decide about a card, and wait for the end of everything."""
        self.decide(card, decision, **fields)
        await self.over()

    async def say(self, text: str) -> None:
        """Say something, and give it a second."""
        self.app.say(text)
        await later(1)

    async def ask(self, text: str) -> None:
        """Say something, and wait for the end of everything."""
        self.app.say(text)
        await self.over()

    def resolved(self) -> list[str]:
        return [e["payload"]["outcome"] for e in self.app.log if e["type"] == "approval.resolved"]

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(m.content) for m in self.stage.session.state.log if isinstance(m, ToolResult)]

    async def over(self) -> None:
        await self.stage.quiet()
        assert faults(self.stage.session.state.log) == []
        assert self.app.states()[-1] == "idle"
        assert not self.stage.session.state.questions, "nothing stands any more"


@asynccontextmanager
async def scene(
    replies: Sequence[Script] = MOVE,
    *,
    capabilities: Sequence[str] = (),
    catalog: Sequence[ToolSpec] = CATALOG,
    answer: Callable[[str, str], str | None] | None = None,
    rules: Sequence[Rule] = (),
    services: Services | None = None,
    locale: str | None = None,
    lang: str | None = None,
    **limits: Any,
) -> AsyncIterator[Scene]:
    """Say "go" to a session with tools that ask."""
    services = replace(
        services or make_services(replies, **limits), catalog=catalog, policies=Policies(tuple(rules))
    )
    ran: list[str] = []

    def handle(name: str, call_id: str) -> str | None:
        if name.startswith("device."):
            ran.append(name)
        return SPOKEN if answer is None else answer(name, call_id)

    stage = await open_stage(services, handle)
    start = client.SessionStart(capabilities=list(capabilities), locale=locale, lang=lang)
    await stage.session.clients.start(start, stage.app.line, resumed=False)
    stage.app.say("go")
    yield Scene(stage, ran)


def speaks_when_told(call_ids: list[str]) -> Callable[[str, str], str | None]:
    """Make a device that answers its ``tts.speak`` only when it is told to."""

    def answer(name: str, call_id: str) -> str | None:
        if name == "tts.speak":
            call_ids.append(call_id)
            return None
        return SPOKEN

    return answer


# -- cards


async def test_nine_minutes_for_a_decision_end_well_in_a_turn_of_two_minutes() -> None:
    async with scene(capabilities=ALL, turn_timeout=120.0) as on:
        card = await on.card()
        await later(540)
        assert on.ran == []
        await on.tap(card, "allow")
        assert on.ran == ["device.move"] and on.app.error_codes() == []
        assert on.app.finals() == ["Well."]


async def test_a_question_that_no_answer_expires_and_a_late_decision_is_told_so() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        mark = len(on.app.log)
        await later(601)
        await on.over()
        assert on.resolved() == ["expired"]
        assert on.app.states(mark) == ["speaking", "idle"], "no thinking: the person may be speaking"
        assert on.results()[0]["error_type"] == "approval_timeout"
        assert "do not assume consent" in on.results()[0]["error_message"]
        on.decide(card, "allow")
        await later(1)
        assert on.resolved() == ["expired", "expired"] and on.ran == []


async def test_edited_arguments_are_run_and_the_model_is_told_of_the_changes() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        await on.tap(card, "edit", edited_arguments={"x": 2})
        card_event = next(
            arguments_of(e)
            for e in on.app.log
            if e["payload"].get("name") == "device.move" and e["type"] == "tool.call"
        )
        assert card_event == {"x": 2} and on.resolved() == ["edited"]
        (note,) = on.results()[0]["metadata"]["notes"][:1]
        assert '"before":1' in note and '"after":2' in note


@pytest.mark.parametrize("edited", [{"x": "many"}, {"x": 666}])
async def test_an_edit_that_is_invalid_or_forbidden_is_refused_and_the_question_stands(edited: Any) -> None:

    forbidden = Rule(effect="deny", tool="device.move", args={"x": {"eq": 666}})
    async with scene(capabilities=ALL, rules=[forbidden]) as on:
        card = await on.card()
        on.decide(card, "edit", edited_arguments=edited)
        await later(1)
        assert on.resolved() == ["refused"] and on.ran == []
        await on.tap(card, "allow")
        assert on.resolved() == ["refused", "allowed"] and on.ran == ["device.move"]


async def test_an_edit_whose_refusal_reaches_no_client_is_not_acknowledged() -> None:
    async with scene(capabilities=[*ALL, "resume"]) as on:
        card, session, line = await on.card(), on.stage.session, on.app.line
        edit = client.ApprovalResponse(
            approval_id=card["approvalId"],
            arguments_digest=card["argumentsDigest"],
            decision="edit",
            edited_arguments={"x": "many"},
        )
        await handle(session, inbound(client.ApprovalShown(card["approvalId"]), "shown"), line)
        session.clients.detach(line)
        on.app.capabilities = [*ALL, "resume"]
        await handle(session, inbound(edit, "edit"), line)  # the socket has died behind it
        await on.app.connect(session)
        await later(1)
        acknowledged = [
            key
            for event in on.app.raw
            if event["type"] == "event.ack"
            for key in event["payload"]["eventIds"]
        ]
        assert "edit" not in acknowledged and on.resolved() == []
        await handle(session, inbound(edit, "edit"), on.app.line)
        assert on.resolved() == ["refused"]


async def test_of_several_decisions_about_one_question_in_a_frame_the_first_counts() -> None:
    async with scene(TWO, capabilities=ALL) as on:
        cards = [await on.card(number) for number in (1, 2)]
        edits = [
            client.Decision(
                approval_id=card["approvalId"],
                arguments_digest=card["argumentsDigest"],
                decision="edit",
                edited_arguments={"x": x},
            )
            for card in cards
            for x in ("many", 2, 3)
        ]
        on.app.line.say(client.ApprovalResponse(decisions=edits))
        await later(1)
        assert on.resolved() == ["refused"] * 6 and on.ran == []
        messages = [e["payload"]["message"] for e in on.app.log if e["type"] == "approval.resolved"]
        assert [message.startswith("One decision") for message in messages] == [False, True, True] * 2
        for card in cards:
            on.decide(card, "edit", edited_arguments={"x": 2})
        await on.over()
        assert on.resolved()[6:] == ["edited", "edited"]


async def test_changes_count_as_turns_and_other_decisions_do_not() -> None:
    async with scene(capabilities=ALL, turns_per_minute=3.0) as on:
        card = await on.card()
        for _ in range(4):
            on.decide(card, "edit", edited_arguments={"x": "many"})
        await later(1)
        assert on.resolved() == ["refused"] * 4
        messages = [e["payload"]["message"] for e in on.app.log if e["type"] == "approval.resolved"]
        assert [message == "Too many changes; wait." for message in messages] == [False, False, True, True]
        await on.tap(card, "allow")
        assert on.ran == ["device.move"]


async def test_a_denied_call_is_not_asked_again_in_that_turn_and_two_such_rounds_end_without_tools() -> None:

    rounds: list[Script] = [MOVE[0], MOVE[0], [TextDelta("I leave it.")]]
    async with scene(rounds, capabilities=ALL) as on:
        await on.tap(await on.card(), "deny", message="leave it")
        assert len([e for e in on.app.log if e["type"] == "approval.request"]) == 1
        assert [r["error_type"] for r in on.results()] == ["permission_denied"] * 2
        choices = [request.tool_choice for request in on.stage.provider.requests]
        assert choices == ["auto", "auto", "none"]


async def test_allowed_for_the_session_is_not_asked_again_at_medium_risk_and_at_high_only_for_the_same() -> (
    None
):

    replies: list[Script] = [
        [call("device.move", '{"x":1}')],
        [call("device.wipe", '{"x":7}')],
        [call("device.move", '{"x":2}')],
        [call("device.wipe", '{"x":7}')],
        [call("device.wipe", '{"x":8}')],
        [TextDelta("Done.")],
    ]
    async with scene(replies, capabilities=ALL) as on:
        on.decide(await on.card(1), "allow", scope="session")
        on.decide(await on.card(2), "allow", scope="session")
        third = await on.card(3)
        assert third["arguments"] == {"x": 8}, "other arguments at high risk"
        await on.tap(third, "deny")
        assert on.ran == ["device.move", "device.wipe", "device.move", "device.wipe"]


async def test_allowed_always_holds_in_other_sessions_of_the_person_until_the_tool_changes() -> None:
    lasting = SubjectRecords(make_services(()).store)

    def services() -> Services:
        return replace(make_services(MOVE), subject_records=lasting)

    async with scene(services=services(), capabilities=ALL) as on:
        card = await on.card()
        assert card["scopes"] == ["once", "session", "always"]
        await on.tap(card, "allow", scope="always")
    async with scene(services=services(), capabilities=ALL) as on:
        await on.over()
        assert "approval.request" not in on.app.shapes()
        assert on.ran == ["device.move"]
    changed = tuple(replace(spec, description="Moves it, and more.") for spec in CATALOG)
    async with scene(services=services(), capabilities=ALL, catalog=changed) as on:
        await on.tap(await on.card(), "deny")


async def test_an_open_question_is_shown_again_after_a_reconnect_and_its_answer_counts() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        on.app.line.cut()
        await later(60)
        on.app.capabilities = ALL
        await on.app.connect(on.stage.session)
        await later(1)
        rounds = [e for e in on.app.repeated if e["type"] == "approval.request"]
        assert rounds and rounds[0]["payload"] == card, "the same event, with its id"
        await on.tap(card, "allow")
        assert on.ran == ["device.move"]


async def test_a_card_that_was_shown_may_be_answered_by_voice_and_any_other_words_supersede_it() -> None:
    async with scene(capabilities=ALL) as on:
        await on.look_at()
        await on.ask("yes please")
        assert on.ran == ["device.move"] and on.resolved() == ["allowed"]
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        await on.ask("what time is it in Paris")
        assert on.ran == [] and on.resolved() == ["superseded"]
        assert on.results()[0]["error_type"] == "approval_timeout"
        assert on.app.finals() == ["Well."], "the new request has its answer"
        on.decide(card, "allow")
        await later(1)
        assert on.resolved()[-1] == "superseded" and on.ran == []


async def is_left_alone(on: Scene, words: str) -> None:
    """Say words that are a yes and may not count: they are shown, and the cards stand."""
    since, decided = len(on.app.log), on.resolved()
    await on.say(words)
    assert on.app.shapes(since) == ["append user", "state idle"]
    assert on.resolved() == decided and on.ran == []


async def test_without_word_that_a_card_was_shown_only_the_card_decides() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        await later(60)
        await is_left_alone(on, "yes please")
        await on.tap(card, "allow")
        assert on.ran == ["device.move"]


@pytest.mark.parametrize("seconds", [0.0, 0.1])
async def test_a_yes_that_was_on_its_way_before_its_card_was_shown_does_not_count(seconds: float) -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        on.app.say("yes please")
        await later(seconds)
        on.shows(card)
        await later(1)
        assert on.ran == [] and on.resolved() == []
        await on.ask("yes please")
        assert on.ran == ["device.move"]
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        on.shows(card)
        await later(seconds)
        await is_left_alone(on, "yes please")
        await on.ask("yes please")
        assert on.ran == ["device.move"]


async def test_words_from_before_a_card_was_shown_do_not_count_however_late_they_end() -> None:
    def partial(on: Scene, text: str) -> None:
        on.app.line.say(client.TranscriptPartial(text))

    async with scene(capabilities=ALL) as on:
        card = await on.card()
        partial(on, "yes")
        await later(0.5)
        on.shows(card)
        await later(3)
        partial(on, "yes just")
        await later(3)
        await is_left_alone(on, "yes please")
        partial(on, "yes")
        await later(1)
        await on.ask("yes please")
        assert on.ran == ["device.move"]
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        partial(on, "hm")
        on.shows(card)
        await later(20)  # the utterance has no end any more
        await on.ask("yes please")
        assert on.ran == ["device.move"]
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        partial(on, "okay")
        await is_left_alone(on, "yes please")
        on.shows(card)
        await later(1)
        await on.ask("yes please")
        assert on.ran == ["device.move"]


async def test_a_card_must_be_shown_again_on_each_connection() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.look_at()
        on.app.capabilities = ALL
        await on.app.connect(on.stage.session)
        await later(1)
        await is_left_alone(on, "yes please")
        on.shows(card)
        await later(1)
        await on.ask("yes please")
        assert on.ran == ["device.move"]


async def test_only_a_card_that_was_sent_counts_as_shown() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        on.shows({"approvalId": f"{card['approvalId']}-2"})
        await later(1)
        await is_left_alone(on, "yes please")
    async with scene(capabilities=ALL) as on:
        on.app.line.slow = True
        while not (mark := list(on.stage.session.state.questions)):
            await later(0.1)
        on.app.line.say(client.ApprovalShown(mark[0]))
        await later(1)
        on.app.line.slow = False
        on.app.line.flush()
        await later(1)
        await is_left_alone(on, "yes please")


async def test_a_spoken_yes_to_two_cards_is_for_neither_and_a_no_is_for_both() -> None:
    async with scene(TWO, capabilities=ALL) as on:
        await on.look_at(2)
        await is_left_alone(on, "yes")
        await on.ask("no, none of them")
        assert on.ran == [] and on.resolved() == ["denied", "denied"]


async def test_a_yes_that_was_on_its_way_while_two_cards_stood_is_not_for_the_one_that_is_left() -> None:
    async with scene(TWO, capabilities=ALL) as on:
        first, _ = await on.card(1), await on.look_at(2)
        on.decide(first, "deny")
        await later(0.1)
        await is_left_alone(on, "yes")
        await on.ask("yes")
        assert on.ran == ["device.copy"] and on.resolved() == ["denied", "allowed"]


WIPE: list[Script] = [[call("device.wipe", '{"x":3}')], [TextDelta("Gone.")], [TextDelta("Next.")]]


def phrase_of(prompt: str) -> str:
    phrase = prompt.partition("say: ")[2].partition(".")[0]
    assert len(phrase.split()) >= 2
    return phrase


async def test_a_high_risk_card_takes_the_words_that_it_asks_for_once_it_was_shown_and_no_others() -> None:
    async with scene(WIPE, capabilities=ALL) as on:
        card = await on.card()
        await is_left_alone(on, phrase_of(card["prompt"]))
        on.shows(card)
        await later(1)
        await is_left_alone(on, "yes")
        await on.ask(phrase_of(card["prompt"]))
        assert on.ran == ["device.wipe"] and on.resolved() == ["allowed"]
        assert not on.stage.session.state.grants


async def test_a_card_has_the_words_of_the_voice() -> None:
    prompts: list[str] = []

    for replies in (MOVE, WIPE):
        async with scene(replies, capabilities=ALL) as on:
            prompts.append((await on.card())["prompt"])
        async with scene(replies) as on:
            prompts.append(await on.prompt())
    assert prompts[0] == prompts[1] and prompts[2] == prompts[3]


async def test_the_microphone_is_open_as_long_as_a_card_stands_and_closed_when_the_last_is_decided() -> None:
    async with scene(TWO, capabilities=ALL) as on:
        first, second = await on.card(1), await on.card(2)
        await later(1)
        assert on.app.shapes()[-3:] == ["approval.request", "approval.request", "state idle"]
        since = len(on.app.log)
        on.decide(first, "deny")
        await later(1)
        assert on.app.shapes(since) == ["approval.resolved"]
        await on.tap(second, "deny")
        assert on.app.shapes(since)[1:3] == ["approval.resolved", "state thinking"]


async def test_a_connection_that_comes_while_a_card_stands_finds_the_microphone_open() -> None:
    async with scene(capabilities=ALL) as on:
        await on.card()
        await later(1)
        on.app.line.cut()
        await later(30)
        since = len(on.app.log)
        on.app.capabilities = ALL
        await on.app.connect(on.stage.session)
        await later(1)
        assert on.app.states(since) == ["idle"]


async def test_the_time_that_a_person_takes_is_not_the_tools() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        time.sleep(0.05)  # noqa: ASYNC251  # durations are the wall clock's, which nothing moves
        decided_at = time.time()
        await on.tap(card, "allow")
        took_ms = on.results()[0]["metadata"]["execution_time_ms"]
        assert took_ms <= (time.time() - decided_at) * 1000 + 1


# -- voice


class Listening:
    """A judge that keeps what it hears."""

    def __init__(self, judge: ApprovalJudge[Any]) -> None:
        self._judge = judge
        self.heard: list[str] = []

    def question(self, spec: ToolSpec, arguments: Mapping[str, Any], **options: Any) -> Any:
        return self._judge.question(spec, arguments, **options)

    def prompt(self, question: Any, attempt: int) -> str:
        return self._judge.prompt(question, attempt)

    def classify(self, utterance: str, question: Any, lang: str | None = None) -> Answer:
        self.heard.append(utterance)
        return self._judge.classify(utterance, question, lang)

    def is_backchannel(self, utterance: str) -> bool:
        return self._judge.is_backchannel(utterance)

    def is_credit(self, utterance: str) -> bool:
        return self._judge.is_credit(utterance)

    def answers(self, question: Any) -> Sequence[str]:
        return self._judge.answers(question)

    def is_unfinished(self, utterance: str) -> bool:
        return self._judge.is_unfinished(utterance)


async def test_words_are_judged_once() -> None:
    services = make_services(MOVE)
    judge = Listening(services.judges["en"])
    async with scene(services=replace(services, judges={"en": judge})) as on:
        await on.prompt()
        on.app.say("okay")
        await on.prompt(2)
        on.app.say("yes")
        await on.over()
        assert on.ran == ["device.move"] and judge.heard == ["okay", "yes"]


async def test_words_that_may_be_an_echo_are_acknowledged_once_they_are_recorded() -> None:
    call_ids: list[str] = []
    async with scene(answer=speaks_when_told(call_ids), capabilities=["resume"], heard_window=3.0) as on:

        def acknowledged() -> list[str]:
            acks = [event for event in on.app.log if event["type"] == "event.ack"]
            return [event_id for ack in acks for event_id in ack["payload"]["eventIds"]]

        await on.hears(call_ids)
        words_id = on.app.say("yes")  # it waits for the end of the window
        await later(1)
        on.app.say("okay")
        await on.hears(call_ids)  # so the end of the window has moved
        await later(2.5)
        assert on.ran == [] and words_id not in acknowledged()
        await later(3)
        assert on.ran == ["device.move"] and words_id in acknowledged()


async def test_a_bare_okay_is_asked_again_twice_and_then_given_up() -> None:
    async with scene() as on:
        prompts = []
        for number in range(1, 4):
            prompts.append(await on.prompt(number))
            on.app.say("okay")
        await on.over()
        assert len(set(prompts)) == 3 and on.ran == []
        assert on.results()[0]["error_type"] == "approval_timeout"
        assert on.app.speeches()[3:] == ["Well."]


async def test_a_yes_that_interrupts_the_prompt_does_not_count_and_a_no_does() -> None:
    call_ids: list[str] = []
    async with scene(answer=speaks_when_told(call_ids)) as on:
        while not call_ids:
            await later(0.01)
        on.app.interrupt()
        on.app.result(call_ids.pop(), SPOKEN)  # the app says so of an interrupted speech too
        await on.say("yes")
        assert on.ran == [] and len(on.app.speeches()) == 2, "it is presented again"
        on.app.result(call_ids.pop(), SPOKEN)
        await later(1)
        await on.say("yes")
        assert on.ran == ["device.move"]
        on.app.result(call_ids.pop(), SPOKEN)
        await on.over()
    async with scene(answer=speaks_when_told(call_ids)) as on:
        call_ids.clear()
        while not call_ids:
            await later(0.01)
        on.app.interrupt()
        await on.say("no")
        assert on.results()[0]["error_type"] == "permission_denied"


async def test_a_prompt_that_is_interrupted_in_silence_is_spoken_five_times_at_most() -> None:
    async with scene(answer=lambda name, call_id: None if name == "tts.speak" else SPOKEN) as on:
        prompts = 0
        for _ in range(300):
            await later(1)
            if len(on.app.speeches()) > prompts and on.app.speeches()[-1] != "Well.":
                prompts = len(on.app.speeches())
                on.app.interrupt()
        await later(200)
        assert len(on.app.speeches()) == 6, "five presentations and the answer"
        assert on.results()[0]["error_type"] == "approval_timeout" and on.ran == []


async def test_a_speech_that_fails_counts_as_presented_since_its_text_is_shown() -> None:
    def no_voice(name: str, call_id: str) -> str | None:
        return None if name == "tts.speak" else SPOKEN

    async with scene(answer=no_voice) as on:
        call_id = (await on.app.until("tts.speak"))["payload"]["callId"]
        on.app.line.say(client.ToolResultEvent(call_id, None, "no voice"))
        await later(1)
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_high_risk_needs_its_words_repeated_and_is_never_remembered_by_voice() -> None:
    async with scene([[call("device.wipe", '{"x":3}')], [TextDelta("Gone.")]]) as on:
        phrase = phrase_of(await on.prompt(1))
        on.app.say("yes")
        await on.prompt(2)
        await on.say(f"{phrase}, always")
        if on.ran:  # the scope is not taken, the words are
            assert not on.stage.session.state.grants
        else:
            await on.prompt(3)
            await on.say(phrase)
        assert on.ran == ["device.wipe"]
        assert not on.stage.session.state.grants


@pytest.mark.parametrize("mode", ["cancel", "queue"])
async def test_another_request_closes_the_question_and_is_answered(mode: str) -> None:
    async with scene(services=make_services(MOVE, mode=mode)) as on:
        await on.prompt(1)
        await on.ask("what is the weather like in Oslo tomorrow")
        assert on.ran == [] and on.results()[0]["error_type"] == "approval_timeout"
        assert on.app.speeches()[1:] == ["Well."]


# -- another connection, which may be another process of the app


async def relaunches(on: Scene, away: float = 30.0) -> int:
    """End the app and start it again; gives where its log began then."""
    on.app.line.cut()
    on.app.relaunch()
    await later(away)
    since = len(on.app.log)
    await on.app.connect(on.stage.session)
    return since


async def test_a_spoken_question_is_repeated_after_a_relaunch_before_a_yes_counts() -> None:
    call_ids: list[str] = []

    async with scene(answer=speaks_when_told(call_ids)) as on:
        await on.hears(call_ids)
        await later(1)
        since = await relaunches(on)
        await later(1)
        assert on.app.shapes(since)[-4:] == ["append assistant", "state speaking", "tts.speak", "state idle"]
        first, second = on.app.speeches()
        assert first == second, "the whole question"
        await on.say("yes")
        assert on.ran == [], "the prompt is not heard yet"
        for call_id in call_ids:
            on.app.result(call_id, SPOKEN)
            await later(1)
        await on.say("yes")
        assert on.ran == ["device.move"]


@pytest.mark.parametrize("delay", [0, 3])
async def test_words_that_come_first_on_a_new_connection_have_heard_no_question(delay: int) -> None:
    services = make_services(MOVE, store=SlowStore(lambda: delay, lambda: delay))
    async with scene(services=services) as on:
        await on.prompt()
        on.app.line.cut()
        on.app.relaunch()
        await on.stage.session.clients.attach(on.app.open_line(on.stage.session), resumed=True)
        on.app.say("yes")
        await on.prompt(2)
        await later(5)
        assert on.ran == []
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_a_session_start_that_follows_other_events_has_the_question_repeated_once() -> None:
    async with scene() as on:
        await on.prompt()
        on.app.line.cut()
        line = on.app.open_line(on.stage.session)
        await on.stage.session.clients.attach(line, resumed=True)
        await later(1)
        await on.stage.session.clients.start(client.SessionStart(), line, resumed=True)
        await later(1)
        assert len(on.app.speeches()) == 2


@pytest.mark.parametrize("same", [True, False])
async def test_a_resuming_client_has_heard_the_prompt_that_it_heard(same: bool) -> None:
    async with scene(capabilities=["resume"]) as on:
        await on.prompt()
        on.app.line.cut()
        line = on.app.open_line(on.stage.session)
        state = client.Resume(on.app.log[-1]["id"]) if same else None
        start = client.SessionStart(capabilities=["resume"], resume=state)
        resume_answer = await learn(on.stage.session, start)
        await on.stage.session.clients.start(start, line, resumed=True, answer=resume_answer)
        await later(1)
        assert len(on.app.speeches()) == (1 if same else 2)
        assert on.app.states()[-1] == "idle"
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_a_connection_that_is_bound_again_by_this_server_is_the_same_process() -> None:
    async with scene() as on:
        await on.prompt()
        line = on.app.line
        on.stage.session.clients.detach(line)
        await on.stage.session.clients.attach(line, resumed=True, same_process=True)
        await later(1)
        assert len(on.app.speeches()) == 1
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_a_prompt_that_is_replayed_is_not_spoken_twice() -> None:
    call_ids: list[str] = []

    async with scene(answer=speaks_when_told(call_ids)) as on:
        while not call_ids:
            await later(0.01)
        await relaunches(on, away=1.0)
        await later(1)
        assert len(on.app.speeches()) == 2 and call_ids[0] == call_ids[1], "the same call, to two processes"
        on.app.result(call_ids[1], SPOKEN)
        await later(1)
        await on.say("yes")
        assert on.ran == ["device.move"]


async def test_a_prompt_that_is_being_recorded_when_a_client_comes_is_spoken_once() -> None:
    store = SlowStore()

    async with scene(services=make_services(MOVE, store=store)) as on:
        await on.prompt()
        on.app.say("okay")
        store.hold = asyncio.Event()
        await later(1)
        relaunch = asyncio.ensure_future(relaunches(on, away=0.0))
        await later(1)
        store.hold.set()
        store.hold = None
        await relaunch
        await on.prompt(2)
        assert len(on.app.speeches()) == 2
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_reconnects_do_not_count_as_repetitions_of_a_question() -> None:
    async with scene() as on:
        await on.prompt()
        for number in range(2, 12):
            await relaunches(on, away=1.0)
            await on.prompt(number)
        for number in range(12, 14):
            on.app.say("okay")
            await on.prompt(number)
        assert on.ran == [] and on.results() == []
        await on.ask("yes")
        assert on.ran == ["device.move"]


TWICE: list[Script] = [MOVE[0], [call("device.move", '{"x":2}')], [TextDelta("Well.")]]


@pytest.mark.parametrize("capabilities", [ALL, []])
@pytest.mark.parametrize(
    ("words", "replies", "granted"),
    [
        ("yes, always allow that", MOVE, None),
        ("yes, for this session", TWICE, True),
        ("{phrase}, for this session", WIPE, False),
    ],
)
async def test_always_is_never_granted_by_voice_and_the_session_only_at_medium_risk(
    words: str, replies: list[Script], granted: bool | None, capabilities: list[str]
) -> None:
    services = make_services(replies)
    services = replace(services, subject_records=SubjectRecords(services.store))
    async with scene(services=services, capabilities=capabilities) as on:
        prompt = (await on.look_at())["prompt"] if capabilities else await on.prompt()
        await on.say(words.format(phrase=phrase_of(prompt) if replies is WIPE else ""))
        assert "always" not in on.stage.session.state.grants
        claim = await services.store.claim(SessionKey("ann", "$grants"))
        assert not replay(claim.commits).fields
        if granted:
            await on.over()
            assert on.ran == ["device.move", "device.move"], "the second is not asked about"
        if granted is False:
            assert not on.stage.session.state.grants


@pytest.mark.parametrize(
    ("tags", "asked", "answer", "ran"),
    [
        ({"locale": "de-DE"}, "Darf ich", "ja bitte", True),
        ({"locale": "de-DE"}, "Darf ich", "yes please", False),
        ({"locale": "de-DE", "lang": "en"}, "May I", "yes please", True),
        ({"locale": "es"}, "¿Puedo", "sí, adelante", True),
        ({"locale": "fr-CA"}, "Puis-je", "oui, vas-y", True),
        ({"locale": "xx"}, "May I", "yes please", True),
        ({}, "May I", "ja bitte", False),
    ],
)
async def test_a_question_is_in_the_language_of_the_session_and_so_is_a_consent(
    tags: dict[str, str], asked: str, answer: str, ran: bool
) -> None:
    async with scene(locale=tags.get("locale"), lang=tags.get("lang")) as on:
        assert (await on.prompt()).startswith(asked)
        await on.ask(answer)
        assert on.ran == (["device.move"] if ran else [])


@pytest.mark.parametrize("locale", ["en", "de", "es", "fr", "xx"])
@pytest.mark.parametrize("answer", ["No.", "Nein, danke.", "No, gracias.", "Non merci.", "nope", "lass es"])
async def test_a_refusal_is_heard_in_every_language(locale: str, answer: str) -> None:
    async with scene(locale=locale) as on:
        await on.prompt()
        await on.ask(answer)
        (result,) = on.results()
        assert on.ran == [] and result["error_type"] == "permission_denied"


async def test_a_question_is_asked_again_in_the_language_that_the_recogniser_hears() -> None:
    async with scene() as on:
        await on.prompt()
        for text, lang, asked in (("ja bitte", "de-DE", "Darf ich"), ("quoi ?", "fr", "Puis-je")):
            since = len(on.app.log)
            on.app.send("user.audio.transcript.final", {"text": text, "lang": lang})
            speak = await on.app.until("tts.speak", since=since)
            arguments = arguments_of(speak)
            assert asked in arguments["text"] and arguments["lang"] == lang[:2]
            await later(1)
        on.app.send("user.audio.transcript.final", {"text": "oui", "lang": "fr"})
        await later(1)
        assert on.ran == ["device.move"]


async def test_a_question_in_the_language_of_the_locale_has_no_lang() -> None:
    for locale, lang in (("en-GB", None), ("de", None), ("xx", "en")):
        async with scene(locale=locale) as on:
            await on.prompt()
            assert arguments_of(on.app.events("tts.speak")[0]).get("lang") == lang


async def test_a_person_who_wants_time_or_the_question_again_uses_up_no_try() -> None:
    async with scene() as on:
        prompt = await on.prompt()
        for number, text in enumerate(("wait", "let me think about it", "one moment"), start=1):
            since = len(on.app.log)
            on.app.say(text)
            await later(1)
            assert on.app.shapes(since) == ["append user", "state idle"], number
        for text in ("pardon?", "what do I have to say?"):
            since = len(on.app.log)
            on.app.say(text)
            await later(1)
            assert on.app.speeches(since) == [prompt]
        await on.ask("yes")
        assert on.ran == ["device.move"]


async def test_a_locale_of_english_is_asked_and_answered_by_voice() -> None:
    async with scene(locale="en-GB") as on:
        await on.prompt()
        await on.ask("yes")
        assert on.ran == ["device.move"]


# -- what may have happened


async def test_an_identical_write_asks_while_the_outcome_of_the_first_one_is_unknown() -> None:
    free = (tool("device.move", effect="write", approval="never"),)
    silent = True

    def answer(name: str, call_id: str) -> str | None:
        return None if name == "device.move" and silent else SPOKEN

    twice: list[Script] = [MOVE[0], MOVE[0], [TextDelta("Well.")]]
    async with scene(twice, capabilities=ALL, catalog=free, answer=answer, tool_timeout=5.0) as on:
        await on.card()
        assert [r["error_type"] for r in on.results()] == ["unknown"]
        assert "may have happened" in " ".join((await on.card())["reasons"])
        silent = False
        await on.tap(await on.card(), "allow")
        assert on.ran == ["device.move", "device.move"]


# -- what a reviewer would try


async def test_a_yes_counts_only_once_no_interruption_can_come_any_more() -> None:
    call_ids: list[str] = []
    async with scene(answer=speaks_when_told(call_ids)) as on:
        await on.hears(call_ids)
        await later(0.001)
        on.app.say("yes")
        await later(0.03)
        on.app.interrupt()
        await later(1)
        assert on.ran == [], "the prompt was cut, and the yes was too early"
        on.app.result(call_ids.pop(), SPOKEN)
        await later(1)
        await on.say("yes")
        assert on.ran == ["device.move"]
    async with scene(answer=speaks_when_told(call_ids)) as on:
        call_ids.clear()
        await on.hears(call_ids)
        await later(0.001)
        await on.say("yes")
        assert on.ran == ["device.move"], "quick, but not too early"


async def test_a_rule_that_comes_while_it_is_asked_about_stops_the_call() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        rules = [Rule(effect="deny", tool="device.move", args={"x": {"eq": 1}})]
        on.stage.session.reload(replace(on.stage.services, policies=Policies(tuple(rules))))
        await on.tap(card, "allow")
        assert on.ran == [] and on.results()[0]["error_type"] == "permission_denied"


async def test_an_empty_transcript_while_a_card_stands_opens_the_microphone_again() -> None:
    async with scene(capabilities=ALL) as on:
        card = await on.card()
        before = len(on.app.log)
        await on.say("   ")
        assert on.app.error_codes(before) == ["invalid_transcript"] and on.app.states(before) == ["idle"]
        await on.tap(card, "allow")
        assert on.ran == ["device.move"]


async def test_another_request_beyond_the_rate_leaves_the_question_alone() -> None:
    async with scene(capabilities=ALL, turns_per_minute=1.0) as on:
        card = await on.card()
        await on.say("what time is it in Paris")
        assert on.app.error_codes() == ["rate_limited"] and on.resolved() == []
        await on.tap(card, "allow")
        assert on.ran == ["device.move"]


async def test_two_interruptions_of_one_prompt_leave_the_question_standing() -> None:
    call_ids: list[str] = []
    async with scene(answer=speaks_when_told(call_ids)) as on:
        while not call_ids:
            await later(0.01)
        on.app.interrupt()
        on.app.interrupt()
        await later(6)
        assert len(on.app.speeches()) == 2, "it is repeated"
        on.app.result(call_ids[-1], SPOKEN)
        await later(1)
        await on.say("yes")
        assert on.ran == ["device.move"]


async def test_a_no_is_for_the_same_call_twice_in_one_reply_and_a_grant_for_all_that_it_covers() -> None:

    same: list[Script] = [[call("device.move", '{"x":1}')] * 2, [TextDelta("Well.")]]
    following_scripts: list[Script] = [
        [call("device.move", '{"x":1}'), call("device.move", '{"x":2}')],
        [TextDelta("Well.")],
    ]
    async with scene(same, capabilities=ALL) as on:
        await on.tap(await on.card(2), "deny")
        assert on.ran == [] and on.resolved() == ["denied", "denied"]
    async with scene(following_scripts, capabilities=ALL) as on:
        await on.tap(await on.card(2), "allow", scope="session")
        assert on.ran == ["device.move", "device.move"] and on.resolved() == ["allowed", "allowed"]


async def test_the_outcome_of_a_card_is_sent_to_a_client_that_was_away() -> None:
    async with scene(capabilities=ALL) as on:
        await on.card()
        on.app.line.cut()
        await later(700)
        assert on.resolved() == []
        on.app.capabilities = ALL
        await on.app.connect(on.stage.session)
        await later(1)
        assert on.resolved() == ["expired"]


async def test_scopes_that_would_change_nothing_are_not_offered_and_count_as_once() -> None:
    async with scene(capabilities=ALL, rules=[Rule(effect="ask", tool="device.move")]) as on:
        card = await on.card()
        assert card["scopes"] == ["once"]
        await on.tap(card, "allow", scope="session")
        assert on.ran == ["device.move"]
        assert not on.stage.session.state.grants


async def test_two_cards_of_which_one_is_high_stand_in_any_order_after_a_spoken_yes() -> None:

    for calls in ([call("device.wipe"), call("device.move")], [call("device.move"), call("device.wipe")]):
        async with scene([calls, [TextDelta("Well.")]], capabilities=ALL) as on:
            await on.look_at(2)
            await is_left_alone(on, "yes")


# -- the order of writes

ORDER: list[Script] = [
    [call("device.move"), call("device.keep"), call("device.look")],
    [TextDelta("Well.")],
    [TextDelta("Next.")],
]
KEEP = (*CATALOG, tool("device.keep", effect="write", approval="never"))


@pytest.mark.parametrize(
    ("decision", "ran"), [("allow", ["device.move", "device.keep"]), ("deny", ["device.keep"])]
)
async def test_a_write_waits_for_the_decision_on_an_earlier_write_and_a_read_does_not(
    decision: str, ran: list[str]
) -> None:
    async with scene(ORDER, capabilities=ALL, catalog=KEEP) as on:
        card = await on.card()
        assert on.ran == ["device.look"]
        await on.tap(card, decision)
        assert on.ran == ["device.look", *ran]
        assert [result["success"] for result in on.results()] == [decision == "allow", True, True]


async def test_a_held_write_of_an_interrupted_turn_is_not_run() -> None:
    async with scene(ORDER, capabilities=ALL, catalog=KEEP) as on:
        await on.card()
        await on.ask("something else")
        assert on.ran == ["device.look"]
        assert [result["success"] for result in on.results()] == [False, False, True]
        assert on.results()[1]["error_type"] != "unknown"


@pytest.mark.parametrize("changes", ["tool", "rule"])
async def test_a_held_write_is_judged_again_before_it_runs(changes: str) -> None:
    async with scene(ORDER, capabilities=ALL, catalog=KEEP) as on:
        card = await on.card()
        services = on.stage.services
        if changes == "tool":
            keep = replace(KEEP[-1], description="Something else.")
            on.stage.session.reload(replace(services, catalog=(*CATALOG, keep)))
        else:
            on.stage.session.reload(
                replace(services, policies=Policies((Rule(effect="ask", tool="device.keep"),)))
            )
        await on.tap(card, "allow")
        assert on.ran == ["device.look", "device.move"]
        assert on.results()[1]["error_type"] == "permission_denied"
        assert "Nothing was run." in on.results()[1]["error_message"]


async def test_a_tool_that_changes_before_its_question_is_not_asked_about() -> None:
    call_ids: list[str] = []

    def hold(name: str, call_id: str) -> str | None:
        if name != "device.look":
            return SPOKEN
        call_ids.append(call_id)
        return None

    replies: list[Script] = [[call("device.look"), call("device.move")], [TextDelta("Well.")]]
    async with scene(replies, capabilities=ALL, answer=hold) as on:
        while not call_ids:
            await later(0.01)
        changed = replace(CATALOG[1], description="Something else.")
        on.stage.session.reload(replace(on.stage.services, catalog=(CATALOG[0], changed)))
        on.app.result(call_ids.pop(), SPOKEN)
        await on.over()
        assert on.ran == ["device.look"] and "approval.request" not in on.app.shapes()
        assert "changed" in on.results()[1]["error_message"]


async def test_a_second_early_yes_is_not_about_the_next_question() -> None:
    async with scene(TWO) as on:
        while not any(question.presented_at for question in on.stage.session.state.questions.values()):
            await later(0.001)
        on.app.say("yes")
        on.app.say("yes")
        await later(5)
        questions = list(on.stage.session.state.questions.values())
        assert [(question.tool, question.presentations) for question in questions] == [("device.copy", 1)]
        await on.ask("no")
        assert on.ran == ["device.move"]
