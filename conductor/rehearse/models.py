"""The models of a rehearsal: the scripted one, the person's, and the judge."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from conductor.errors import ModelError, SettingsError
from conductor.events.envelope import new_call_id
from conductor.lines import in_item
from conductor.messages import AssistantMessage, Message, ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, TextDelta
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import Profiles, load_profiles
from conductor.models.registry import make_router
from conductor.rehearse.player import Scene
from conductor.rehearse.script import SCRIPTED, Person, Reply
from conductor.settings import Settings

# Seconds between two words of a scripted reply, so that an interruption or a cut falls within it.
WORD_S = 0.003
# Seconds for an answer of the person's model or of the judge.
ANSWER_S = 120.0
_ENDED = "DONE"
_PERSON = """\
You play a person who speaks with a voice assistant. Stay in the role, and never play the assistant.
The person: {persona}
The person's goal: {goal}
Answer with the person's next words only, a sentence or two. When the goal is reached, or the person gives up,
answer only: DONE"""
_JUDGE = """\
You judge a conversation with a voice assistant. Begin with yes or no, then give the reason in one sentence.
The calls of tools are facts. What the assistant says of them may be wrong."""


def make_model(model: str, settings: Settings, replies: Sequence[Reply] = ()) -> ModelProvider:
    """Make the model of a name: ``scripted``, a profile, a provider, or ``PROVIDER:MODEL``."""
    if model == SCRIPTED:
        return _ScriptedModel(replies)
    return make_router(_profiles(model, settings), settings, ModelMetrics())


def _profiles(model: str, settings: Settings) -> Profiles:
    profiles = load_profiles(settings.model_copy(update={"model_provider": None})).by_name
    if model in profiles:
        # Without fallbacks, which would hide its failures.
        profile = profiles[model].model_copy(update={"fallback": (), "use": None})
        return Profiles(model, {model: profile})
    provider, _, name = model.partition(":")
    update = {"model_provider": provider.lower()} | ({f"{provider.lower()}_model": name} if name else {})
    return load_profiles(settings.model_copy(update=update))


class _ScriptedModel:
    # Plays the replies of a rehearsal, one a request.
    name = SCRIPTED

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = iter(replies)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reply = next(self._replies, None)
        if reply is None:
            raise ModelError("protocol", "The script has no reply left.")
        await asyncio.sleep(reply.after)
        for word in re.findall(r"\s*\S+\s*", reply.say):
            yield TextDelta(word)
            await asyncio.sleep(WORD_S)
        for call in reply.calls:
            yield ToolCall(new_call_id(), call.tool, msgspec.json.encode(call.arguments).decode())
        if reply.error is not None:
            raise ModelError(reply.error, "The rehearsal's model fails here.")
        yield Finished("tool_use" if reply.calls else "end_turn")

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def next_words(person: Person, scenes: Sequence[Scene], provider: ModelProvider) -> str | None:
    """Ask the person's model for the next words; None at the end. Raises `SettingsError` if it fails."""
    # The roles are exchanged: the model speaks as the person.
    messages: list[Message] = [UserMessage("(The assistant listens.)")]
    for scene in scenes:
        messages += [
            AssistantMessage(text=scene.step.say),
            UserMessage(" ".join(scene.speeches) or "(Silence.)"),
        ]
    system = _PERSON.format(persona=person.persona, goal=person.goal)
    words = (await _ask(provider, "the person's model", system, messages)).strip()
    return None if not words or words.strip(" .!*") == _ENDED else words


async def judge(
    scenes: Sequence[Scene], provider: ModelProvider, calls: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Put the scenes' questions to a model, and record its verdicts. Raises `SettingsError` if it fails.

    The question of a `Person` is about all scenes, and ``calls`` are the facts for it.
    """
    for number, scene in enumerate(scenes):
        question = scene.step.expect.judge
        if question is None or not scene.reached:
            continue
        parts = scenes[:number] if scene.is_outcome else [scene]
        lines = [
            in_item(line)
            for part in parts
            for line in (f"Person: {part.step.say}", f"Assistant: {' '.join(part.speeches)}")
        ]
        if scene.is_outcome:
            lines.append(f"Calls: {msgspec.json.encode(calls).decode()}")
        prompt = "\n".join([*lines, "", question])
        scene.verdict = await _ask(provider, "the judge", _JUDGE, [UserMessage(prompt)])


async def _ask(provider: ModelProvider, name: str, system: str, messages: Sequence[Message]) -> str:
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            aclosing(provider.stream(ModelRequest(system, messages))) as events,
        ):
            return "".join([event.text async for event in events if isinstance(event, TextDelta)])
    except TimeoutError:
        raise SettingsError(f"{name} failed: no answer within {ANSWER_S:g} s.") from None
    except ModelError as error:
        raise SettingsError(f"{name} failed: {error}") from None
