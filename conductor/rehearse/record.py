"""``conductor rehearse record``: write a stored session as a rehearsal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from conductor.commands.output import escape, private_file, write
from conductor.commands.sessions import read_moments
from conductor.conversation import records as r
from conductor.conversation.replay import Moment
from conductor.conversation.state import AppFact, Call, Profile, Question
from conductor.errors import SettingsError
from conductor.images import Image
from conductor.rehearse.script import dump, holds
from conductor.settings import load_settings
from conductor.tools.declarations import read_catalog

# Seconds after the time limit of a call that had no result: its answer in the rehearsal.
_AFTER_LIMIT_S = 5


def run(options: argparse.Namespace) -> None:
    """Write the rehearsal. Raises `SettingsError` if there is no such session, or no turn of it."""
    recording = Recording(read_moments(options))
    if not recording.steps:
        raise SettingsError(f"The stored records of session {options.session!r} hold no turn of a person.")
    text = dump(recording.document(read_catalog(load_settings().device_tools_file)))
    text = "".join(f"# {sentence}\n" for sentence in recording.missing_parts()) + text
    if options.output is None:
        sys.stdout.write(text)
        return
    with private_file(options.output, replace=options.force) as file:
        file.write(text)
    write(f"{len(recording.steps)} steps written to {options.output}.")


@dataclass(slots=True)
class _Step:
    # The person's words and the other half of them, the facts before them, the decisions by question, the
    # calls, the speeches, the backchannels by speech, and the interruption.
    say: str
    rest: str | None = None
    facts: list[dict[str, Any] | str] = field(default_factory=list)
    has_images: bool = False
    decisions: dict[str, tuple[Any, str]] = field(default_factory=dict)
    uses: list[Call] = field(default_factory=list)
    speeches: list[str] = field(default_factory=list)
    murmurs: dict[str, str] = field(default_factory=dict)
    heard_characters: int | None = None
    is_answered: bool = True


class Recording:
    """The turns of a person in a session's records. ``missing`` counts the messages before them."""

    def __init__(self, moments: Iterable[Moment]) -> None:
        self.steps: list[_Step] = []
        self.profile = Profile()
        self.missing = 0
        self._greeting: str | None = None
        self._is_greeting = False
        self._step = _Step("")  # the step of a turn without a person
        self._facts: list[dict[str, Any] | str] = []  # since the last step
        self._waiting: list[list[str]] = []  # the parts of each transcript that waits for its turn
        self._is_half = False  # the last of them waits for its other half
        self._seeing: set[str] = set()  # tools of the device that gave images
        self._calls: dict[str, Call] = {}
        self._questions: dict[str, Question] = {}
        self._answers: dict[str, list[dict[str, Any]]] = {}
        for moment in moments:
            self.profile = moment.state.profile
            if moment.name == "Snapshot":
                self.missing = moment.state.log_end
                self._facts = [
                    _fact(fact, moment.at) for fact in moment.state.facts if fact.stands(moment.at)
                ]
            elif moment.record is not None:
                self._prepare(moment.record, moment.at)
                self._take(moment.record)
                self._listen(moment.record)

    def _add_step(self, text: str, images: Sequence[Image] = ()) -> None:
        parts = next((parts for parts in self._waiting if " ".join(parts) == text), [text])
        if parts in self._waiting:
            self._waiting.remove(parts)
        say, rest = parts[0], " ".join(parts[1:]) or None
        self._step = _Step(say, rest, self._facts, bool(images))
        self._facts, self._is_half = [], False
        self.steps.append(self._step)

    def _prepare(self, record: r.Record, at: int) -> None:
        """Take what comes before a turn of a person."""
        match record:
            case r.ContextAdded():
                self._facts.append(_fact(record.fact, at))
            case r.InputQueued():
                if self._is_half:
                    self._waiting[-1].append(record.text)
                else:
                    self._waiting.append([record.text])
                self._is_half = record.until > 0
            case r.TurnStarted():
                self._is_greeting = record.cause == "greeting"
            case r.TurnEnded() if self._is_greeting:
                self._greeting, self._is_greeting = record.apology, False

    def _take(self, record: r.Record) -> None:
        match record:
            case r.TurnStarted(cause="transcript"):
                self._add_step(record.text, record.images)
            case r.TurnStarted():
                self._step = _Step("")
            case r.ReplyLogged():
                self._calls |= {call.id: call for call in record.calls}
            case r.CallFinished():
                self._finish(record)
            case r.TurnEnded():
                for finished in record.results:
                    self._finish(finished)
            case r.QuestionsAsked():
                for question in record.questions:
                    self._questions[question.id] = question
                    if question.card:  # until it is decided
                        self._step.decisions.setdefault(question.id, ("deny", "denied"))
            case r.QuestionDecided() | r.AnswerUnclear() if record.question_id in self._questions:
                self._answer(self._questions[record.question_id], record)

    def _listen(self, record: r.Record) -> None:
        step = self._step
        match record:
            case r.ReplyLogged() | r.SegmentSpoken() if record.speech_text:
                step.speeches.append(record.speech_text)
            case r.PromptSpoken():
                step.speeches.append(record.text)
            case r.PauseEnded(resumes=True) if record.text:
                step.murmurs.setdefault(record.name, record.text)
            case r.TurnEnded(continues=True):  # the next turn has its words, too
                self.steps.remove(step)
                self._facts = step.facts + self._facts
            case r.TurnEnded() if record.reason != "answered":
                step.is_answered = False
        # The end of a turn without a text interrupts no speech.
        if isinstance(record, r.SpeechCut | r.TurnEnded) and record.event_id and record.text:
            if step.speeches and step.heard_characters is None:
                step.heard_characters = _count_heard(step.speeches, record.text)

    def _finish(self, record: r.CallFinished) -> None:
        call = self._calls.get(record.result.call_id)
        if call is None or not record.tool:
            return
        self._step.uses.append(call)
        if record.source != "device":
            return
        if record.result.images:
            self._seeing.add(record.tool)
        outcome = msgspec.json.decode(record.result.content)
        if record.reason == "device_error":
            answer = {"error": outcome["error_message"]}
        elif record.error_type == "none" and record.late is None:
            answer = {"result": _value(outcome["data"])}
        else:  # the device gave none in time
            answer = {"delay": call.limit_ms / 1000 + _AFTER_LIMIT_S}
        answers = self._answers.setdefault(call.name, [])
        arguments = msgspec.json.decode(call.arguments)
        answer = {"when": arguments, **answer}
        former = next((earlier for earlier in reversed(answers) if earlier["when"] == arguments), None)
        if former != answer:
            if former is not None:
                former["once"] = True
            answers.append(answer)

    def _answer(self, question: Question, record: r.QuestionDecided | r.AnswerUnclear) -> None:
        if not question.card and record.text:
            self._add_step(record.text, record.images)
        if not question.card or isinstance(record, r.AnswerUnclear):
            return
        if record.arguments and question.form is None and question.call_id in self._calls:
            call = self._calls[question.call_id]
            self._calls[call.id] = msgspec.structs.replace(call, arguments=record.arguments)
        decision: Any = "deny"
        if record.channel == "voice":
            decision = {"by": "voice", "words": record.text}
        elif record.outcome == "edited":
            decision = {"by": "tap", "edit": msgspec.json.decode(record.arguments)}
        elif record.outcome == "allowed":
            decision = {"by": "tap", "scope": "session"} if record.grants else "tap"
        outcome = "denied" if decision == "deny" else record.outcome
        self._step.decisions[question.id] = (decision, outcome)

    def missing_parts(self) -> list[str]:
        """Say what the records do not hold."""
        sentences = []
        if self.missing:
            sentences.append(f"{self.missing} earlier messages of the session are no longer in its records.")
        shown = [f"step {number}" for number, step in enumerate(self.steps, 1) if step.has_images]
        shown += [f"the answers of {tool}" for tool in sorted(self._seeing)]
        if shown:
            # The app gives a tool's name, which must not end the comment.
            sentences.append(
                escape(f"Records hold no pictures: add the files as images to {', '.join(shown)}.")
            )
        return sentences

    def document(self, catalog: list[Any]) -> dict[str, Any]:
        """Make the file's document; ``catalog`` has the tools of an app without a declaration."""
        profile = self.profile
        # Without device calls the file needs no tools.
        is_catalog_used = profile.tools is None and any(call.is_device for call in self._calls.values())
        declarations = catalog if is_catalog_used else profile.tools or []
        tools = [self._tool(declaration) for declaration in declarations]
        names = {tool["name"] for tool in tools}
        fields = {
            "model": profile.model,
            "locale": profile.locale,
            "time_zone": profile.time_zone,
            "variables": profile.variables,
            "greeting": self._greeting,
            "segments": "segments" in profile.capabilities or None,
            "cards": None if "approval" in profile.capabilities else False,
            "tools": tools,
            "steps": [_document_of(step, names) for step in self.steps],
        }
        return _without_empty(fields)

    def _tool(self, declaration: dict[str, Any]) -> dict[str, Any]:
        answers = self._answers.get(declaration["name"], [])
        # The first that fits is given: one with fewer arguments fits more calls.
        answers = sorted(answers, key=lambda answer: -len(msgspec.json.encode(answer["when"])))
        return {**declaration, "answers": answers} if answers else declaration


def _document_of(step: _Step, device: set[str]) -> dict[str, Any]:
    uses = [
        (call.name, msgspec.json.decode(call.arguments) if call.name in device else {}) for call in step.uses
    ]
    calls: list[dict[str, Any]] = []
    for name, arguments in uses:
        times = sum(tool == name and holds(values, arguments) for tool, values in uses)
        expected = {"tool": name, **({"arguments": arguments} if arguments else {}), "times": times}
        if expected not in calls:
            calls.append(expected)
    expect: dict[str, Any] = {"called": calls} if calls else {}
    if step.speeches and step.is_answered and step.heard_characters is None:
        expect["said"] = r"\S"
    decisions = list(step.decisions.values())
    if decisions:
        expect["approvals"] = [outcome for _, outcome in decisions]
    fields = {
        "context": step.facts,
        "say": step.say,
        "rest": step.rest,
        "murmurs": list(step.murmurs.values())[: len(step.speeches)],  # one over each speech
        "approve": [decision for decision, _ in decisions],
        "interrupt": None if step.heard_characters is None else {"after_characters": step.heard_characters},
        "expect": expect,
    }
    return _without_empty(fields)


def _fact(fact: AppFact, at: int) -> dict[str, Any] | str:
    fields = {
        "text": fact.text,
        "key": fact.key or None,
        "ttl_s": max(0, round((fact.expires_at - at) / 1000, 1)) if fact.expires_at else None,
        "untrusted": fact.untrusted or None,
    }
    told = _without_empty(fields)
    return fact.text if told.keys() == {"text"} else told


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _count_heard(speeches: list[str], text: str) -> int:
    """Count the characters that were spoken when a message was cut to ``text``, which a mark follows."""
    earlier, last = "".join(speeches[:-1]), "".join(speeches[-1:])
    of_last = len(os.path.commonprefix([text, last]))
    of_all = len(os.path.commonprefix([text, " ".join(speeches)]))
    return min(max(of_all, len(earlier) + of_last if of_last else 0), len(earlier) + len(last))


def _value(data: Any) -> Any:
    """Read a device's result, which is a text, as the JSON value that it was made of."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, TypeError):
        return data
    return data if isinstance(value, str) else value
