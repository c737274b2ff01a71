"""People of four languages answer spoken questions: by ``lang`` of the session, and of each transcript."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.app import App
from tests.dialogues import DELETE, DEVICE, MOVE, call, results_of
from tests.models import AnthropicService, Reply
from tests.serving import provider_for, serving
from tests.shapes import Event, arguments_of


@dataclass(frozen=True)
class Person:
    """What a person of a language says, and hears in a question."""

    request: str
    yes: str
    no: str
    asks_back: str
    asked: str
    repeat: str


PEOPLE = {
    "en": Person("tidy up", "Yes, go ahead.", "No, don't.", "What do I have to say?", "May I", "confirm"),
    "de": Person(
        "räum auf", "Ja, mach das.", "Nein, lass das.", "Was muss ich sagen?", "Darf ich", "bestätige"
    ),
    "es": Person("ordena", "Sí, adelante.", "No, déjalo.", "¿Qué tengo que decir?", "¿Puedo", "confirmo"),
    "fr": Person(
        "range", "Oui, vas-y.", "Non, arrête.", "Qu'est-ce que je dois dire ?", "Puis-je", "je confirme"
    ),
}
BOTH = pytest.mark.parametrize("names", ["session", "transcript"])
EACH = pytest.mark.parametrize("lang", list(PEOPLE))


class Voice:
    """A person of one language at a device, who hears each question to its end before the next words."""

    def __init__(self, phone: App, lang: str, names: str) -> None:
        self.phone = phone
        self.person = PEOPLE[lang]
        self._fields = {"lang": lang} if names == "transcript" else {}

    async def hears(self, words: str) -> dict[str, Any]:
        """Say words, and give the arguments of the speech that follows."""
        since = len(self.phone.log)
        self.phone.send("user.audio.transcript.final", {"text": words, **self._fields})
        speech: Event = await self.phone.until("tts.speak", since=since)
        await self.phone.until("state idle", since=speech)
        return dict(arguments_of(speech))


@asynccontextmanager
async def speaking(
    claude: AnthropicService, lang: str, names: str, tool: str = "move_file", **fields: Any
) -> AsyncIterator[Voice]:
    claude.replies += [Reply(calls=(call(tool),)), Reply(text="Good.")]
    start = {"capabilities": ["tools"], "tools": [MOVE, DELETE], **fields}
    if names == "session":
        start["lang"] = lang
    async with serving(provider_for(claude)) as served:
        async with served.phone(tools=DEVICE, start_fields=start) as phone:
            yield Voice(phone, lang, names)


@BOTH
@EACH
async def test_a_person_approves_in_their_language(claude: AnthropicService, lang: str, names: str) -> None:
    async with speaking(claude, lang, names) as voice:
        question = await voice.hears(voice.person.request)
        assert voice.person.asked in question["text"]
        assert question["lang"] == lang
        assert await voice.hears(voice.person.yes) == {"text": "Good."}
        assert voice.phone.runs == [("move_file", {"path": "a"})]


@BOTH
@EACH
async def test_a_person_refuses_in_their_language(claude: AnthropicService, lang: str, names: str) -> None:
    async with speaking(claude, lang, names) as voice:
        await voice.hears(voice.person.request)
        await voice.hears(voice.person.no)
        assert voice.phone.runs == []
        assert results_of(claude.requests[-1])[0]["error_type"] == "permission_denied"


@BOTH
@EACH
async def test_a_person_asks_back_and_approves(claude: AnthropicService, lang: str, names: str) -> None:
    async with speaking(claude, lang, names) as voice:
        question = await voice.hears(voice.person.request)
        assert await voice.hears(voice.person.asks_back) == question
        assert voice.phone.runs == []
        await voice.hears(voice.person.yes)
        assert voice.phone.runs == [("move_file", {"path": "a"})]


@BOTH
@EACH
async def test_a_person_repeats_the_words_of_a_high_risk(
    claude: AnthropicService, lang: str, names: str
) -> None:
    async with speaking(claude, lang, names, "delete_file") as voice:
        question = await voice.hears(voice.person.request)
        again = await voice.hears(voice.person.yes)
        assert voice.phone.runs == []
        words = re.search(rf"{voice.person.repeat} [^.]+", again["text"])
        assert words is not None and words[0] in question["text"]
        await voice.hears(words[0])
        assert voice.phone.runs == [("delete_file", {"path": "a"})]


@BOTH
async def test_an_english_speaker_with_a_german_phone_approves_by_voice(
    claude: AnthropicService, names: str
) -> None:
    async with speaking(claude, "en", names, locale="de-DE") as voice:
        question = await voice.hears("tidy up")
        assert (question["text"][:5], question["lang"]) == ("May I", "en")
        await voice.hears("Yes, go ahead.")
        assert voice.phone.runs == [("move_file", {"path": "a"})]
