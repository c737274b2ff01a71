"""The gate of a session as tables: the consents of a reply's calls, what taints them, and a yes's scopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.state import AppFact, Conversation, Profile, Question, Summary, UnknownCall
from conductor.identity import ANONYMOUS
from conductor.messages import AssistantMessage, ToolCall, UserMessage
from conductor.session.fields import PersonFields, SubjectRecords
from conductor.session.gate import SessionGate
from conductor.session.services import SessionObserver
from conductor.stores.base import SessionKey
from conductor.stores.memory import MemoryStore
from conductor.tools.base import SessionFields, ToolSpec
from conductor.tools.outcomes import Caution, succeeded
from conductor.tools.policies import Policies
from conductor.tools.rules import Rule, arguments_digest
from tests.conversation.build import NOW, STARTED, device, finished, fold, question, replied, result
from tests.session.helpers import KEY, LocalTools, make_services, tool


class Told(SessionObserver):
    """Remembers the verdicts that it was told of."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    def decided(self, spec: ToolSpec, arguments: Any, verdict: Any) -> None:
        self.effects.append(verdict.effect)


CATALOG = (
    tool("look", effect="read", risk="safe"),
    tool("peek", effect="read", risk="medium", approval="ask"),
    tool("move", effect="write", risk="medium", title="Move it"),
    tool("write", effect="write", approval="never"),
)


def ann() -> SessionFields:
    return PersonFields(SubjectRecords(MemoryStore()), "ann")


def gate_of(
    state: Conversation,
    observer: SessionObserver | None = None,
    *,
    key: SessionKey = KEY,
    has_records: bool = False,
    rules: Sequence[Rule] = (),
    **limits: Any,
) -> SessionGate:
    """Make the gate of a state, with the tools above on the device."""
    services = replace(make_services(**limits), catalog=CATALOG, policies=Policies(tuple(rules)))
    if has_records:
        services = replace(services, subject_records=SubjectRecords(services.store))
    return SessionGate(
        services, key, state, observer=observer or SessionObserver(), now=lambda: NOW, person=ann
    )


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"c{number}", name, "{}") for number, name in enumerate(names)]


CONSENTS: list[tuple[str, list[str], list[str]]] = [
    ("a write that needs no yes", ["write"], ["free"]),
    ("it stands before one that needs a yes", ["write", "move"], ["free", "needed"]),
    ("it stands behind one that needs a yes", ["move", "write"], ["needed", "held"]),
    ("two behind it", ["move", "write", "move", "write"], ["needed", "held", "needed", "held"]),
    ("a read behind a write that needs a yes", ["move", "look"], ["needed", "free"]),
    ("a write behind a read that needs a yes", ["peek", "write"], ["needed", "free"]),
    ("a write behind a call of no tool", ["nothing", "write"], ["free", "free"]),
]


@pytest.mark.parametrize(
    ("names", "consents"), [row[1:] for row in CONSENTS], ids=[row[0] for row in CONSENTS]
)
async def test_writes_wait_for_an_earlier_write_that_needs_a_yes(
    names: list[str], consents: list[str]
) -> None:
    prepared = await gate_of(fold(STARTED)).prepare(calls(*names), is_whole=True)
    assert [call.consent for call in prepared] == consents


ONE_MADE = fold(STARTED, replied(device()), finished())
ROOM: list[tuple[str, Conversation, dict[str, Any], list[bool]]] = [
    ("of a round", fold(STARTED), {"max_calls_per_round": 2}, [True, True, False]),
    ("of a turn", fold(STARTED), {"max_calls_per_turn": 2}, [True, True, False]),
    ("of a turn, of which one is made", ONE_MADE, {"max_calls_per_turn": 2}, [True, False, False]),
]


@pytest.mark.parametrize(("state", "limits", "run"), [row[1:] for row in ROOM], ids=[row[0] for row in ROOM])
async def test_calls_beyond_the_room_are_refused(
    state: Conversation, limits: dict[str, Any], run: list[bool]
) -> None:
    prepared = await gate_of(state, **limits).prepare(calls("look", "look", "look"), is_whole=True)
    assert [call.is_open for call in prepared] == run


async def test_a_call_that_the_person_has_denied_is_refused_without_another_verdict() -> None:
    state, told = fold(STARTED), Told()
    gate = gate_of(state, told)
    (asked,) = await gate.prepare(calls("move"), is_whole=True)
    assert state.turn is not None and told.effects == ["ask"]
    state.turn.denied.append(asked.digest)
    (refused,) = await gate.prepare(calls("move"), is_whole=True)
    assert (refused.consent, told.effects) == ("denied", ["ask"])


MAIL = AppFact(text="A mail.", untrusted=True, key="mail")
FROM_OUTSIDE = finished(result=changed(result(), untrusted=True))
TAINTS: list[tuple[str, Conversation, bool, bool]] = [
    ("nothing", fold(STARTED), False, False),
    ("a summary", Conversation(summary=Summary("Of mails.", untrusted=True)), True, True),
    ("a trusted summary", Conversation(summary=Summary("Of owls.")), False, False),
    ("a fact at rest", fold(r.ContextAdded("", MAIL)), True, True),
    (
        "a fact that was told at the turn's begin and is removed",
        fold(r.ContextAdded("", MAIL), STARTED, r.ContextAdded("", changed(MAIL, text=""))),
        True,
        True,
    ),
    (
        "a result of the running round",
        fold(STARTED, replied(device(), device("c2")), FROM_OUTSIDE),
        True,
        True,
    ),
    ("a result of an earlier round", fold(STARTED, replied(device()), FROM_OUTSIDE), True, True),
    (
        "the call of a program",
        Conversation(log=[UserMessage("hi"), AssistantMessage(text="", untrusted=True)]),
        True,
        False,
    ),
]


@pytest.mark.parametrize(
    ("state", "models", "programs"), [row[1:] for row in TAINTS], ids=[row[0] for row in TAINTS]
)
async def test_texts_of_others_taint_the_calls_of_the_model_and_of_programs(
    state: Conversation, models: bool, programs: bool
) -> None:
    gate = gate_of(state)
    assert gate.is_tainted is models
    for by_program, is_tainted in ((False, models), (True, programs)):
        (call,) = await gate.prepare(calls("write"), is_whole=True, by_program=by_program)
        assert ("untrusted" in call.cautions) is is_tainted


UNKNOWN: list[tuple[str, str, int, tuple[str, ...]]] = [
    ("a write that may have happened", "write", NOW + 1, ("may_have_happened",)),
    ("a write long after it", "write", NOW, ()),
    ("a read", "look", NOW + 1, ()),
]


@pytest.mark.parametrize(
    ("name", "until", "cautions"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN]
)
async def test_a_write_that_may_have_happened_is_asked_about_for_a_while(
    name: str, until: int, cautions: tuple[str, ...]
) -> None:
    state = Conversation(unknown_calls={"c0": UnknownCall(arguments_digest(name, {}), until)})
    (call,) = await gate_of(state).prepare(calls(name), is_whole=True)
    assert (call.cautions, call.consent) == (cautions, "needed" if cautions else "free")


ANN, NOBODY = KEY, SessionKey(ANONYMOUS, "s-1")
SCOPES_OF_A_YES: list[tuple[str, SessionKey, bool, list[Caution], tuple[str, ...]]] = [
    ("a person", ANN, True, [], ("once", "session", "always")),
    ("a server without records of people", ANN, False, [], ("once", "session")),
    ("an anonymous person, whose next device may have another tool", NOBODY, True, [], ("once", "session")),
    ("after texts of others", ANN, True, ["untrusted"], ("once",)),
    ("a call that may have happened", ANN, True, ["may_have_happened"], ("once",)),
]


@pytest.mark.parametrize(
    ("key", "has_records", "cautions", "scopes"),
    [row[1:] for row in SCOPES_OF_A_YES],
    ids=[row[0] for row in SCOPES_OF_A_YES],
)
async def test_a_yes_has_these_scopes(
    key: SessionKey, has_records: bool, cautions: list[Caution], scopes: tuple[str, ...]
) -> None:
    gate = gate_of(fold(STARTED), key=key, has_records=has_records)
    (call,) = await gate.prepare(calls("move"), is_whole=True)
    ready = gate.ready(call)
    assert ready is not None and gate.scopes(ready, cautions) == scopes


@pytest.mark.parametrize(
    ("name", "is_kept"), [("look", False), ("write", True), ("peek", True), ("local.sum", True)]
)
async def test_a_call_that_is_looked_up_again_keeps_the_definition_of_its_tool(
    name: str, is_kept: bool
) -> None:
    gate = gate_of(fold(STARTED), toolsets=[LocalTools()])
    (call,) = await gate.prepare(calls(name), is_whole=True)
    assert bool(call.fingerprint) is is_kept


def test_a_yes_in_another_language_than_the_questions_does_not_count() -> None:
    gate = gate_of(fold(STARTED))
    assert gate.classify(question(), "yes", "en-GB").kind == "allow"
    assert gate.classify(question(), "yes", "de-DE").kind != "allow"


def test_a_backchannel_is_one_of_the_language_that_was_heard() -> None:
    gate = gate_of(Conversation(profile=Profile(locale="en")))
    assert gate.is_backchannel("genau", "de-DE") and not gate.is_backchannel("genau", "en")


def test_half_a_sentence_is_one_of_the_persons_language() -> None:
    gate = gate_of(Conversation(profile=Profile(lang="de", locale="en")))
    assert gate.is_unfinished("Milch und", "") and not gate.is_unfinished("Milch und", "en")
    assert not gate.is_unfinished("milk and", "nl")  # no judge knows Dutch


FAR = Rule(effect="deny", tool="move", args={"x": {"eq": 666}})


async def asked_about_a_move(gate: SessionGate) -> Question:
    """Make the question about a call of the tool that moves."""
    (call,) = await gate.prepare(calls("move"), is_whole=True)
    return changed(question(), tool="move", fingerprint=call.fingerprint)


async def test_edited_arguments_are_judged_in_place_of_the_questions() -> None:
    gate = gate_of(fold(STARTED), rules=[FAR])
    asked = await asked_about_a_move(gate)
    assert gate.refusal(asked, "") is None and gate.refusal(asked, '{"x":1}') is None
    assert gate.refusal(asked, '{"x":666}') is not None


async def test_a_grant_answers_no_question_that_texts_of_others_may_have_caused() -> None:
    gate = gate_of(fold(STARTED))
    asked = await asked_about_a_move(gate)
    grants = gate.granted(asked, "")
    assert gate.allows(asked, grants) and not gate.allows(asked, "")
    assert not gate.allows(changed(asked, cautions=("untrusted",)), grants)


def test_a_result_of_a_tool_that_reads_texts_of_others_is_untrusted() -> None:
    gate = gate_of(fold(STARTED))
    assert gate.result(device(untrusted=True), succeeded("a mail")).untrusted
    assert not gate.result(device(), succeeded("four")).untrusted


async def test_no_lasting_grant_is_given_for_a_call_that_is_forbidden_by_now() -> None:
    gate = gate_of(fold(STARTED), has_records=True)
    asked = changed(await asked_about_a_move(gate), arguments='{"x":666}')
    forbidding = gate_of(fold(STARTED), has_records=True, rules=[FAR])
    for granting in (gate, forbidding):
        await granting.grant_always(asked)
    assert [rule.tool for rule in gate.grants()] == ["move"] and not forbidding.grants()


class Remembers(LocalTools):
    """Remembers a password, and the words that it is asked about."""

    def memories(self, person: SessionFields, words: str) -> str:
        return f"{words}: password=hunter2hunter2"


def test_memories_have_no_secrets() -> None:
    memories = gate_of(fold(STARTED), toolsets=[Remembers(), LocalTools()]).memories("owls")
    assert memories.startswith("owls: ") and "hunter2" not in memories


def test_words_of_a_tool_that_is_not_offered_are_not_listened_for() -> None:
    assert "Move it" in gate_of(fold(STARTED)).hints()
    assert "Move it" not in gate_of(fold(STARTED), rules=[Rule(effect="deny", tool="move")]).hints()
