"""A session's tools: the executor for its profile, decisions about calls, and questions in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import proxy

import msgspec
import structlog

from conductor.conversation.hints import phrases
from conductor.conversation.state import Call, Conversation, Form, Question
from conductor.conversation.view import CallGate, Edit
from conductor.events.server import ListedTool, RejectedTool
from conductor.identity import ANONYMOUS
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.prompts import session_prompt
from conductor.rate_limit import TokenBucket
from conductor.session.services import Services, SessionObserver
from conductor.stores.base import SessionKey
from conductor.tools.base import SessionFields, ToolSpec
from conductor.tools.declarations import ReadTool, parse_declarations, read_declarations
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.judge import Answer, ApprovalJudge, SpokenQuestion, code_of, language_of
from conductor.tools.outcomes import (
    DEFINITION_CHANGED,
    SCOPES,
    Caution,
    Scope,
    ToolOutcome,
    definition_changed,
    failed,
)
from conductor.tools.permissions import Verdict, grant
from conductor.tools.rules import Rule, arguments_digest, decode_rules, encode_rules

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode

# The source of questions that running tools ask.
FORM = "question"
# The field of a subject's record that holds lasting grants.
GRANTS = "grants"
# Grants of a session or a subject; the oldest is dropped, and its call is asked about again.
MAX_GRANTS = 200

_CUT_OFF = (
    "The reply reached its length limit inside this call's arguments, so they were cut off. Nothing was run. "
    "Call it again with shorter arguments."
)
_NOT_OFFERED = "the server's operator does not allow this tool"
_DENIED_BEFORE = Verdict(
    effect="deny", reasons=("The user said no to this very call already.",), rule=None, warn=False
)


def form_spec(form: Form) -> ToolSpec:
    """Make the tool that stands for a form."""
    return ToolSpec(
        name=f"{form.source}.{FORM}",
        description=form.message,
        input_schema=form.schema,
        source=FORM,
        risk="high",
        effect="read",
    )


def decode_grants(text: str, subject: str) -> tuple[Rule, ...]:
    """Decode grants; an unreadable text grants nothing."""
    try:
        return decode_rules(text) if text else ()
    except ValueError:
        log.error("grants not readable", subject=subject)
        return ()


def with_grant(text: str, rule: Rule, subject: str) -> str:
    """Add a grant to encoded ones, and drop the oldest over the limit."""
    former = [earlier for earlier in decode_grants(text, subject) if earlier != rule]
    return encode_rules((*former, rule)[-MAX_GRANTS:])


class SessionGate(CallGate):
    """The tools of one session as its client declared them, and every decision about their calls."""

    def __init__(
        self,
        services: Services,
        key: SessionKey,
        state: Conversation,
        *,
        observer: SessionObserver,
        now: Callable[[], int],
        person: Callable[[], SessionFields],
    ) -> None:
        self._services = services
        self._key = key
        self._state = state
        self._observer = observer
        self._now = now
        self._person = person
        self._rates: dict[str, TokenBucket] = {}
        self._declared: tuple[ToolSpec, ...] | None = None
        self._declarations: list[Any] | None = None
        self._rejected: Sequence[tuple[str, str]] = ()
        self._executor: ToolExecutor | None = None
        self._rules: tuple[str, str, tuple[Rule, ...]] = ("", "", ())
        self._questions: dict[str, tuple[ApprovalJudge[Any], SpokenQuestion]] = {}

    # -- the declaration

    async def read(self, tools: list[Any]) -> Sequence[ReadTool] | None:
        """Read declarations in admitted steps; None if they are the declared ones."""
        return None if self._has(tools) else await read_declarations(tools, self._services.admission)

    def declare(self, tools: list[Any], readings: Sequence[ReadTool] | None = None) -> list[RejectedTool]:
        """Declare the client's tools as the device's; returns the refused ones.

        ``readings`` are from `read`. An app that comes back declares the same tools, which are kept.
        """
        if not self._has(tools):
            reserved = [spec.name for toolset in self._services.toolsets for spec in toolset.specs()]
            accepted, rejected = parse_declarations(tools, readings=readings, reserved_names=reserved)
            self._declared = tuple(accepted)  # also those not offered: a reload may change the rules
            self._declarations, self._rejected = tools, tuple(rejected)
            self._executor = None
        offers = self.executor.gate.offers
        denied = [(spec.name, _NOT_OFFERED) for spec in self._declared or () if not offers(spec)]
        return [RejectedTool(name, reason) for name, reason in (*self._rejected, *denied)]

    def _has(self, tools: list[Any]) -> bool:
        declared = self._declarations
        return declared is not None and (tools is declared or _encode(tools) == _encode(declared))

    @property
    def declared(self) -> list[str]:
        """The names of the client's tools that the model is offered."""
        return [spec.name for spec in self._declared or () if self.executor.gate.offers(spec)]

    def reload(self, services: Services) -> None:
        """Use the prompt, the catalog and the rules of other services."""
        self._services = services
        self._declarations = None  # read again: a server's tool may have taken a name
        self._executor = None  # made on demand: a reload reaches thousands of sessions at once

    @property
    def system_prompt(self) -> str:
        """The system prompt for this client."""
        profile = self._state.profile
        return session_prompt(
            self._services.system_prompt,
            variables=profile.variables,
            locale=profile.locale,
            time_zone=profile.time_zone,
            instructions=profile.instructions,
            tools=[spec.name for spec in self.executor.specs],
        )

    @property
    def _device(self) -> Sequence[ToolSpec]:
        return self._services.catalog if self._declared is None else self._declared

    @property
    def listed(self) -> list[ListedTool]:
        """All tools of the session, each with the decision on a call."""
        gate, tainted = self.executor.gate, self.is_tainted
        servers = [spec for toolset in self._services.toolsets for spec in toolset.specs()]
        decided = ((spec, gate.preview(spec, tainted=tainted)) for spec in (*servers, *self._device))
        return [
            ListedTool(
                name=spec.name,
                title=spec.title or spec.name,
                source=spec.source,
                risk=spec.risk,
                decision=decision,
                reason=reason,
                input_schema=spec.input_schema,
            )
            for spec, (decision, reason) in decided
        ]

    @property
    def executor(self) -> ToolExecutor:
        """The executor for the present declaration."""
        if self._executor is None:
            weak = proxy(self)
            shared = self._services.executor
            self._executor = shared.scoped(self._rates, lambda: weak.grants(), self._device)
        return self._executor

    def grants(self) -> Sequence[Rule]:
        """List the person's grants, for this session and lasting."""
        subject = self._key.subject
        records = self._services.subject_records
        lasting = records.get(subject, GRANTS) if records is not None else ""
        own = self._state.grants
        if (own, lasting) != self._rules[:2]:
            rules = (*decode_grants(own, subject), *decode_grants(lasting, subject))
            self._rules = (own, lasting, rules)
        return self._rules[2]

    # -- calls of a reply

    async def prepare(
        self, calls: Sequence[ToolCall], *, is_whole: bool, by_program: bool = False
    ) -> tuple[Call, ...]:
        """Validate each call of a reply, or the call of a program, and decide about it.

        A reply that is not ``is_whole`` reached its length limit: its last arguments are incomplete, and no
        call runs.
        """
        turn, limits = self._state.turn, self._services.limits
        calls_made = turn.calls_made if turn is not None else 0
        room = min(limits.max_calls_per_turn - calls_made, limits.max_calls_per_round)
        prepared = []
        for number, call in enumerate(calls):
            if number:
                await asyncio.sleep(0)  # validation takes up to 30 ms with a client's hostile schema
            if not is_whole:
                prepared.append(self._refused(call, failed("parse_error", _CUT_OFF)))
            elif number >= room:
                text = f"Too many calls at once; the first {room} were run, not this one."
                prepared.append(self._refused(call, failed("rate_limited", text)))
            else:
                prepared.append(await self._prepare_call(call, by_program))
        return tuple(self._with_held(prepared))

    def _with_held(self, calls: Sequence[Call]) -> Iterator[Call]:
        """Hold the writes behind a write that needs a yes: the model's order counts."""
        waits = False
        for call in calls:
            writes = call.effect != "read"
            waits = waits or (writes and call.consent == "needed")
            if waits and writes and call.consent == "free":
                call = msgspec.structs.replace(call, consent="held")
            yield call

    async def _prepare_call(self, call: ToolCall, by_program: bool) -> Call:
        executor = self.executor
        checked = executor.prepare(call, partial(self._permit, by_program=by_program))
        if isinstance(checked, DryRun):
            checked = await executor.dry_run(checked.ready)
        if isinstance(checked, ToolOutcome):
            return self._refused(call, checked)
        verdict = checked.verdict if isinstance(checked, ApprovalNeeded) else None
        ready = checked.ready if isinstance(checked, ApprovalNeeded) else checked
        spec = ready.spec
        is_free = verdict is None and spec.effect == "read"
        return Call(
            id=call.call_id,
            name=call.name,
            arguments=msgspec.json.encode(ready.arguments).decode(),
            source=spec.source,
            effect=spec.effect,
            risk=spec.risk,
            limit_ms=round(executor.timeout(spec) * 1000),
            interactive=spec.interactive,
            untrusted=spec.untrusted,
            on_interrupt=spec.on_interrupt,
            # A free read is never asked about, and never has an unknown effect.
            digest="" if is_free else arguments_digest(spec.name, ready.arguments),
            consent="free" if verdict is None else "needed",
            reasons=() if verdict is None else verdict.reasons,
            cautions=() if verdict is None else verdict.cautions,
            notes=ready.notes,
            # A free read of the device is not looked up again.
            fingerprint=spec.fingerprint
            if verdict or spec.effect != "read" or spec.source != "device"
            else "",
        )

    def _refused(self, call: ToolCall, outcome: ToolOutcome) -> Call:
        is_denied = outcome.error_type == "permission_denied"
        return Call(
            id=call.call_id,
            name=call.name,
            consent="denied" if is_denied else "free",
            result=self.executor.to_result(call.call_id, outcome),
        )

    def _permit(self, spec: ToolSpec, arguments: Mapping[str, Any], *, by_program: bool) -> Verdict:
        verdict = self._verdict(spec, arguments, by_program=by_program)
        if verdict is not _DENIED_BEFORE:
            self._observer.decided(spec, arguments, verdict)
        return verdict

    def _verdict(self, spec: ToolSpec, arguments: Mapping[str, Any], *, by_program: bool = False) -> Verdict:
        denied = self._state.turn.denied if self._state.turn is not None else ()
        digest = arguments_digest(spec.name, arguments) if denied or self._state.unknown_calls else ""
        if digest in denied:
            return _DENIED_BEFORE
        return self.executor.gate.decide(
            spec,
            arguments,
            tainted=self._taints_programs if by_program else self.is_tainted,
            may_have_happened=spec.effect != "read" and self._may_have_happened(digest),
        )

    @property
    def is_tainted(self) -> bool:
        """Whether untrusted text in the history may steer the model."""
        return any(getattr(text, "untrusted", False) for text in self._texts)

    @property
    def _taints_programs(self) -> bool:
        """Whether untrusted text may steer programs; their own calls are no such text."""
        others = (text for text in self._texts if not isinstance(text, AssistantMessage))
        return any(getattr(text, "untrusted", False) for text in others)

    @property
    def _texts(self) -> Sequence[object]:
        state = self._state
        told = state.turn.facts.note if state.turn is not None and state.turn.facts is not None else None
        return [*state.log, state.summary, told, *state.facts, *(call.result for call in state.calls)]

    def _may_have_happened(self, digest: str) -> bool:
        now = self._now()
        return any(
            call.digest == digest and call.expires_at > now for call in self._state.unknown_calls.values()
        )

    def ready(self, call: Call) -> PreparedCall | None:
        """Prepare a recorded call to run; None if its tool no longer exists."""
        arguments = msgspec.json.decode(call.arguments) if call.arguments else {}
        return self.executor.restore(ToolCall(call.id, call.name, call.arguments), arguments)

    # -- questions

    def scopes(self, ready: PreparedCall, cautions: Sequence[Caution]) -> tuple[Scope, ...]:
        """List the scopes of a yes: this call, the session, always."""
        granted = [grant(ready.spec, ready.arguments, scope="session")]
        if self._judge(ready.spec, ready.arguments, cautions, granted).effect == "ask":
            return SCOPES[:1]
        # An anonymous client may be another device, with a tool of the same name.
        lasts = ready.spec.source != "device" or self._key.subject != ANONYMOUS
        return SCOPES if lasts and self._services.subject_records is not None else SCOPES[:2]

    def _judge(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        cautions: Sequence[Caution] = (),
        granted: Sequence[Rule] = (),
    ) -> Verdict:
        return self.executor.gate.decide(
            spec,
            arguments,
            tainted="untrusted" in cautions,
            may_have_happened="may_have_happened" in cautions,
            granted=granted,
        )

    async def grant_always(self, question: Question) -> None:
        """Record a lasting grant for a question, unless its call may not run by now. Raises `StoreError`."""
        spec = self.spec_of(question)
        records = self._services.subject_records
        if records is None or spec is None or self.refusal(question, "") is not None:
            return
        rule = grant(spec, msgspec.json.decode(question.arguments), scope="always")
        subject = self._key.subject
        await records.update(subject, GRANTS, lambda text: with_grant(text, rule, subject))

    def spec_of(self, item: Call | Question) -> ToolSpec | None:
        """Find the tool of a call or a question."""
        if isinstance(item, Question) and item.form is not None:
            return form_spec(item.form)
        return self.executor.spec(item.name if isinstance(item, Call) else item.tool)

    # -- Decisions

    def classify(self, question: Question, utterance: str, lang: str) -> Answer:
        """Classify an answer to a question; ``lang`` is the language that the recogniser heard, if any."""
        judge, voice_question = self._voice_question(question)
        return judge.classify(utterance, voice_question, code_of(lang) or None)

    def is_backchannel(self, words: str, lang: str) -> bool:
        """Return whether words only show that the person listens, in the person's language."""
        return self._services.judges[self.language_of(lang)].is_backchannel(words)

    def hints(self) -> list[str]:
        """List the words to listen for: of the open question, of the results, and of the client's tools."""
        questions = self._state.questions.values()
        answers = [word for question in questions for word in self._answers(question)]
        specs = [spec for spec in self._device if self.executor.gate.offers(spec)]
        return phrases(
            answers, [question.redacted_arguments for question in questions], self._state.log, specs
        )

    def _answers(self, question: Question) -> Sequence[str]:
        judge, voice_question = self._voice_question(question)
        return judge.answers(voice_question)

    def is_unfinished(self, words: str, lang: str) -> bool:
        """Return whether words end in the middle of a sentence; not known of a language without a judge."""
        profile = self._state.profile
        judge = self._services.judges.get(code_of(lang or profile.lang or profile.locale or "en"))
        return judge is not None and judge.is_unfinished(words)

    def is_credit(self, words: str) -> bool:
        """Return whether words are the credits of a film, in any language: a recogniser may mistake it."""
        return any(judge.is_credit(words) for judge in self._services.judges.values())

    def language_of(self, lang: str) -> str:
        """Choose the language of a question for a person who has spoken in ``lang``, if that is known."""
        profile = self._state.profile
        return language_of(self._services.judges, lang, profile.lang, profile.locale)

    def prompt(self, question: Question, attempt: int) -> str:
        """Word a question."""
        judge, voice_question = self._voice_question(question)
        return judge.prompt(voice_question, attempt)

    def by_voice(self, question: Question) -> bool:
        """Return whether a question can be allowed by voice."""
        return self._voice_question(question)[1].by_voice

    def _voice_question(self, question: Question) -> tuple[ApprovalJudge[Any], SpokenQuestion]:
        key = f"{question.id} {question.language}"
        voice_question = self._questions.get(key)
        if voice_question is None:
            voice_question = self._questions[key] = self._make_voice_question(question)
            while len(self._questions) > 2 * self._services.limits.max_calls_per_round:
                del self._questions[next(iter(self._questions))]
        return voice_question

    def _make_voice_question(self, question: Question) -> tuple[ApprovalJudge[Any], SpokenQuestion]:
        spec = self.spec_of(question) or ToolSpec(
            name=question.tool, description="", input_schema={}, risk=question.risk
        )
        arguments = msgspec.json.decode(question.redacted_arguments)
        judge = self._services.judges[question.language]
        zone = self._state.profile.time_zone
        return judge, judge.question(
            spec, arguments, cautions=question.cautions, scopes=question.scopes, zone=zone
        )

    def refusal(self, question: Question, arguments: str) -> ToolOutcome | None:
        """Return the outcome of a call whose tool or rules have changed since it was asked about."""
        if question.form is not None:
            return None
        spec = self.spec_of(question)
        if spec is None or spec.fingerprint != question.fingerprint:
            return definition_changed()
        verdict = self._judge(spec, msgspec.json.decode(arguments or question.arguments))
        return _forbidden(verdict) if verdict.effect == "deny" else None

    def held_refusal(self, call: Call) -> ToolOutcome | None:
        """Return the outcome of a held call whose tool changed or that may not run unasked by now."""
        spec = self.spec_of(call)
        if spec is None or spec.fingerprint != call.fingerprint:
            return definition_changed()
        verdict = self._verdict(spec, msgspec.json.decode(call.arguments))
        return _forbidden(verdict) if verdict.effect != "allow" else None

    def edited(self, question: Question, arguments: Mapping[str, Any]) -> Edit | str:
        """Validate edited arguments; a text is the refusal."""
        spec = self.spec_of(question)
        if spec is None:
            return DEFINITION_CHANGED
        before = msgspec.json.decode(question.arguments)
        ready = PreparedCall(
            call=ToolCall(question.call_id, spec.name, ""), spec=spec, toolset=None, arguments=before
        )
        edited = self.executor.edited(ready, arguments)
        if isinstance(edited, str):
            return edited
        verdict = self._judge(spec, edited.arguments) if question.form is None else None
        if verdict is not None and verdict.effect == "deny":
            return " ".join(verdict.reasons)
        encoded = msgspec.json.encode(edited.arguments).decode()
        return Edit(encoded, arguments_digest(spec.name, edited.arguments), " ".join(edited.notes))

    def granted(self, question: Question, grants: str) -> str:
        """Add the session's grant for a question."""
        spec = self.spec_of(question)
        if spec is None:
            return grants
        rule = grant(spec, msgspec.json.decode(question.arguments), scope="session")
        return with_grant(grants, rule, self._key.subject)

    def allows(self, question: Question, grants: str) -> bool:
        """Return whether a question needs no answer with these grants of the session."""
        spec = self.spec_of(question)
        if spec is None:
            return False
        granted = decode_grants(grants, self._key.subject)
        arguments = msgspec.json.decode(question.arguments)
        return self._judge(spec, arguments, question.cautions, granted).effect == "allow"

    def result(self, call: Call, outcome: ToolOutcome) -> ToolResult:
        """Redact and shorten an outcome for the model."""
        return self.executor.to_result(call.id, outcome, untrusted=call.untrusted)

    def memories(self, words: str) -> str:
        """Return what is remembered of the person, fitting to the first words; empty without any."""
        fields = self._person()
        texts = [toolset.memories(fields, words) for toolset in self._services.toolsets]
        return self._services.redactor.text("\n\n".join(filter(None, texts)))


def _forbidden(verdict: Verdict) -> ToolOutcome:
    return failed("permission_denied", f"{' '.join(verdict.reasons)} Nothing was run.", reason="policy")
