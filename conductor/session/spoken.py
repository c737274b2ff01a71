"""Questions to the person in words: about the calls of a reply, and of running tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from conductor.conversation.state import Call, Form, Question
from conductor.events.envelope import IdGenerator
from conductor.session.gate import FORM, SessionGate, form_spec
from conductor.tools.base import PersonQuestion
from conductor.tools.declarations import headline
from conductor.tools.outcomes import SCOPES
from conductor.tools.rules import arguments_digest

new_approval_id = IdGenerator("appr")
new_batch_id = IdGenerator("batch")


async def word_questions(
    gate: SessionGate, calls: Sequence[Call], expires_at: int, *, lang: str, with_preview: bool
) -> list[Question]:
    """Word the questions about calls of a reply, except those whose tool is missing or has changed.

    ``lang`` is the language in which the person has spoken, if it is known.
    """
    batch_id = new_batch_id()
    questions = []
    for call in calls:
        await asyncio.sleep(0)  # 64 KiB of arguments take 30 ms in each step
        ready = gate.ready(call)
        if ready is None or ready.spec.fingerprint != call.fingerprint:
            continue
        redacted = dict(gate.executor.redacted(ready.arguments))
        await asyncio.sleep(0)
        question = Question(
            id=new_approval_id(),
            batch_id=batch_id,
            call_id=call.id,
            tool=call.name,
            arguments=call.arguments,
            redacted_arguments=msgspec.json.encode(redacted).decode(),
            digest=call.digest,
            prompt="",
            risk=ready.spec.risk,
            expires_at=expires_at,
            reasons=call.reasons,
            scopes=gate.scopes(ready, call.cautions),
            cautions=call.cautions,
            fingerprint=call.fingerprint,
            source=ready.spec.source,
            preview=await gate.executor.preview(ready) if with_preview else "",
            title=headline(ready.spec, redacted),
            language=gate.language_of(lang),
        )
        question.prompt = gate.prompt(question, 1)
        questions.append(question)
    return questions


def word_form(gate: SessionGate, call: Call, request: PersonQuestion, expires_at: int) -> Question:
    """Word the question of a running tool: a card with a form."""
    form = Form(request.source, request.message, dict(request.schema))
    fields = request.schema.get("properties", {})
    values = msgspec.json.encode({name: field.get("default") for name, field in fields.items()}).decode()
    spec = form_spec(form)
    question = Question(
        id=new_approval_id(),
        batch_id=new_batch_id(),
        call_id=call.id,
        tool=spec.name,
        arguments=values,
        redacted_arguments=values,
        digest=arguments_digest(spec.name, msgspec.json.decode(values)),
        prompt="",
        risk="high",
        expires_at=expires_at,
        reasons=(f"{request.source} asks: {request.message}",),
        scopes=SCOPES[:1],
        source=FORM,
        form=form,
        language=gate.language_of(""),
    )
    question.prompt = gate.prompt(question, 1)
    return question
