"""Spoken questions: what is consented to, all of it, as a person would say it, and nothing else."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.plugins.judges import LANGUAGES, QuestionWords, classify, make_question, prompt
from conductor.tools.base import ToolSpec
from conductor.tools.judge import AnswerKind
from conductor.tools.outcomes import Effect, Risk
from tests.cpu import least_cpu_s

ZONE = "Europe/Berlin"


def ask(
    arguments: dict[str, Any],
    name: str = "files.delete",
    risk: Risk = "medium",
    *,
    language: str = "en",
    effect: Effect = "write",
    title: str | None = None,
    spoken: str | None = None,
    schema: dict[str, Any] | None = None,
) -> QuestionWords:
    spec = ToolSpec(
        name=name,
        description="",
        input_schema=schema or {},
        risk=risk,
        effect=effect,
        title=title,
        spoken=spoken,
    )
    return make_question(language, spec, arguments, zone=ZONE)


def answer(text: str, question: QuestionWords) -> AnswerKind:
    return classify(text, question, LANGUAGES).kind


# -- the sentence for a call


QUESTIONS: list[tuple[str, str | None, str | None, dict[str, Any], str, str]] = [
    # name, title, template, arguments; what "May I" is asked for, and the words to repeat at high risk
    (
        "lamp.switch",
        None,
        None,
        {"room": "hall", "on": False},
        "switch lamp, with room hall; and on: no",
        "confirm switch lamp hall on no",
    ),
    (
        "lamp.switch",
        "Switch lamp",
        None,
        {"room": "hall", "on": True},
        "switch lamp, with room hall; and on: yes",
        "confirm switch lamp hall on yes",
    ),
    (
        "door_lock",
        None,
        None,
        {"door": "front"},
        "use the tool door lock, with door front",
        "confirm door lock front",
    ),
    (
        "door_lock",
        "Door lock",
        None,
        {"door": "front", "locked": True},
        "use the tool Door lock, with door front; and locked: yes",
        "confirm Door lock front locked yes",
    ),
    (
        "x",
        "Warm up the car",
        None,
        {"minutes": 10},
        "warm up the car, with minutes 10",
        "confirm warm up the car minutes 10",
    ),
    (
        "x",
        "Photo cleanup",
        None,
        {"album": "Rome"},
        "use the tool Photo cleanup, with album Rome",
        "confirm Photo cleanup Rome",
    ),
    (
        "git.push",
        None,
        None,
        {"remote": "origin", "branch": "main", "force": True},
        "push git, with remote origin; branch main; and force: yes",
        "confirm push git origin main force yes",
    ),
    (
        "git.push",
        None,
        None,
        {"remote": "origin", "branch": "release/2.1", "force": False},
        "push git, with remote origin; branch release slash 2.1; and force: no",
        "confirm push git origin release slash 2.1 force no",
    ),
    (
        "db.query",
        "Run query",
        None,
        {"sql": "DELETE FROM orders WHERE id <> 7"},
        "run query, with sql DELETE FROM orders WHERE id less than greater than 7",
        "confirm run query DELETE FROM orders WHERE id less than greater than 7",
    ),
    (
        "db.query",
        "Run query",
        None,
        {"sql": "SELECT * FROM users"},
        "run query, with sql SELECT star FROM users",
        "confirm run query SELECT star FROM users",
    ),
    (
        "db.query",
        "Run query",
        None,
        {"sql": "UPDATE users SET admin = 1 WHERE name = 'bob'"},
        "run query, with sql that I cannot read out",
        "",
    ),
    (
        "files.delete",
        None,
        None,
        {"path": "~/work/*"},
        "delete files, with path tilde slash work slash star",
        "confirm delete files tilde slash work slash star",
    ),
    (
        "files.delete",
        None,
        None,
        {"path": "/etc/hosts"},
        "delete files, with path slash etc slash hosts",
        "confirm delete files slash etc slash hosts",
    ),
    (
        "files.delete",
        None,
        None,
        {"path": "../notes.txt"},
        "delete files, with path dot dot slash notes dot txt",
        "confirm delete files dot dot slash notes dot txt",
    ),
    (
        "files.delete",
        None,
        None,
        {"path": ".env"},
        "delete files, with path dot env",
        "confirm delete files dot env",
    ),
    (
        "files.delete",
        None,
        None,
        {"path": "C:\\Users\\anna"},
        "delete files, with path C colon backslash Users backslash anna",
        "confirm delete files C colon backslash Users backslash anna",
    ),
    (
        "files.delete",
        None,
        None,
        {"paths": ["a.txt", "b.txt"]},
        "delete files, with paths 2 items: a dot txt and b dot txt",
        "confirm delete files a dot txt and b dot txt",
    ),
    ("files.delete", None, None, {"glob": "*"}, "delete files, with glob star", "confirm delete files star"),
    (
        "shell.run",
        "Run command",
        None,
        {"command": "rm -rf /tmp/x"},
        "run command, with command rm dash rf slash tmp slash x",
        "confirm run command rm dash rf slash tmp slash x",
    ),
    (
        "shell.run",
        "Run command",
        None,
        {"command": "cat a | sort > b"},
        "run command, with command cat a pipe sort greater than b",
        "confirm run command cat a pipe sort greater than b",
    ),
    (
        "shell.run",
        "Run command",
        None,
        {"command": "echo $HOME"},
        "run command, with command echo dollar sign HOME",
        "confirm run command echo dollar sign HOME",
    ),
    (
        "pay",
        None,
        None,
        {"to": "\u0440\u0430ypal.com", "amount": 5},
        "pay, with to that I cannot read out; and amount 5",
        "",
    ),
    (
        "pay",
        None,
        None,
        {"to": "paypal.com", "amount": 5, "currency": "USD"},
        "pay, with to paypal dot com; and amount 5 dollars",
        "confirm pay to paypal dot com 5 dollars",
    ),
    (
        "transfer_money",
        None,
        None,
        {"amount": 950, "currency": "EUR", "recipient": "Jonas Brandt"},
        "transfer money, with amount 950 euros; and recipient Jonas Brandt",
        "confirm transfer money 950 euros Jonas Brandt",
    ),
    (
        "transfer_money",
        None,
        None,
        {"amount_cents": 1250, "currency": "GBP", "recipient": "Jonas Brandt"},
        "transfer money, with amount 12 pounds 50; and recipient Jonas Brandt",
        "confirm transfer money 12 pounds 50 Jonas Brandt",
    ),
    (
        "transfer_money",
        None,
        None,
        {"amount": 12.5, "currency": "GBP", "recipient": "Jonas Brandt"},
        "transfer money, with amount 12 pounds 50; and recipient Jonas Brandt",
        "confirm transfer money 12 pounds 50 Jonas Brandt",
    ),
    (
        "transfer_money",
        None,
        None,
        {"amount": 12.555, "currency": "GBP", "recipient": "Jonas"},
        "transfer money, with amount 12.555; currency GBP; and recipient Jonas",
        "confirm transfer money amount 12.555 GBP Jonas",
    ),
    (
        "transfer_money",
        None,
        None,
        {"iban": "DE89 3704 0044 0532 0130 00", "amount": 40, "currency": "EUR"},
        "transfer money, with iban ending in 3 0 0 0; and amount 40 euros",
        "confirm transfer money ending in 3 0 0 0 40 euros",
    ),
    (
        "transfer_money",
        None,
        None,
        {"amount": -40, "currency": "EUR", "recipient": "Jonas"},
        "transfer money, with amount minus 40; currency EUR; and recipient Jonas",
        "confirm transfer money amount minus 40 EUR Jonas",
    ),
    (
        "stock.sell",
        "Sell stock",
        None,
        {"symbol": "ACME", "quantity": 100, "order_type": "market"},
        "sell stock, with symbol ACME; quantity 100; and order type market",
        "confirm sell stock ACME quantity 100 market",
    ),
    (
        "stock.sell",
        "Sell stock",
        None,
        {"symbol": "ACME", "limit": 12.75, "quantity": 3},
        "sell stock, with symbol ACME; limit 12.75; and quantity 3",
        "confirm sell stock ACME limit 12.75 quantity 3",
    ),
    (
        "calendar.create_event",
        "Create event",
        None,
        {"title": "Dinner", "start": "2026-11-28T19:00:00Z"},
        "create event, with title Dinner; and start Saturday 28 November 2026 at 8 pm",
        "confirm create event Dinner Saturday 28 November 2026 at 8 pm",
    ),
    (
        "calendar.create_event",
        "Create event",
        None,
        {"title": "Dinner", "start": "2026-12-01T08:30"},
        "create event, with title Dinner; and start Tuesday 1 December 2026 at 8:30 am",
        "confirm create event Dinner Tuesday 1 December 2026 at 8:30 am",
    ),
    (
        "calendar.create_event",
        "Create event",
        None,
        {"title": "Dinner", "day": "2026-02-30"},
        "create event, with title Dinner; and day 2026 dash 02 dash 30",
        "confirm create event Dinner 2026 dash 02 dash 30",
    ),
    (
        "calendar.create_event",
        "Create event",
        None,
        {"title": "Trip", "from": "2026-07-01", "to": "2026-07-14"},
        "create event, with title Trip; from Wednesday 1 July 2026; and to Tuesday 14 July 2026",
        "confirm create event Trip from Wednesday 1 July 2026 to Tuesday 14 July 2026",
    ),
    (
        "calendar.create_event",
        "Create event",
        None,
        {"title": "Dinner", "time": "19:45"},
        "create event, with title Dinner; and time 7:45 pm",
        "confirm create event Dinner 7:45 pm",
    ),
    (
        "alarm.set",
        "Set alarm",
        None,
        {"time": "06:00", "label": "", "repeat": []},
        "set alarm, with time 6 am",
        "confirm set alarm 6 am",
    ),
    (
        "alarm.set",
        "Set alarm",
        None,
        {"time": "06:00", "days": ["Mon", "Tue"]},
        "set alarm, with time 6 am; and days 2 items: Mon and Tue",
        "confirm set alarm 6 am Mon and Tue",
    ),
    (
        "token.revoke",
        "Revoke token",
        None,
        {"id": "3f2504e0-4f89-11d3-9a0c-0305e82c3301"},
        "revoke token, with id ending in 3 3 0 1",
        "confirm revoke token ending in 3 3 0 1",
    ),
    (
        "token.revoke",
        "Revoke token",
        None,
        {"token": "ab12cd34ef56ab12"},
        "revoke token, with token ending in a b 1 2",
        "confirm revoke token ending in a b 1 2",
    ),
    (
        "car.unlock",
        "Unlock car",
        None,
        {"vin": "1HGCM82633A004352"},
        "unlock car, with vin ending in 4 3 5 2",
        "confirm unlock car ending in 4 3 5 2",
    ),
    (
        "snapshot.restore",
        "Restore snapshot",
        None,
        {"at": 1764300000},
        "restore snapshot, with at ending in 0 0 0 0",
        "confirm restore snapshot at ending in 0 0 0 0",
    ),
    (
        "phone.dial",
        "Dial number",
        None,
        {"number": "+49 151 2345678"},
        "dial number, with number plus 49 151 2345678",
        "confirm dial number plus 49 151 2345678",
    ),
    (
        "phone.dial",
        "Dial number",
        None,
        {"number": "0151 2345678"},
        "dial number, with number 0151 2345678",
        "confirm dial number 0151 2345678",
    ),
    (
        "phone.dial",
        "Dial number",
        None,
        {"number": "555-1234"},
        "dial number, with number 555 dash 1234",
        "confirm dial number 555 dash 1234",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "anna@example.com", "subject": "Hello"},
        "send email, with to anna at example dot com; and subject Hello",
        "confirm send email to anna at example dot com Hello",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "anna_w@example.co.uk", "body": "See you at 5, OK?"},
        "send email, with to anna underscore w at example dot co dot uk; and body See you at 5, OK",
        "",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Anna", "body": "Yes, that works"},
        "send email, with to Anna; and body quote Yes, that works end quote",
        "confirm send email to Anna quote Yes that works end quote",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Anna", "body": "x. Say yes or no. Confirm"},
        "send email, with to Anna; and body that I cannot read out",
        "",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Anna", "body": "See you \U0001f60a"},
        "send email, with to Anna; and body that I cannot read out",
        "",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "\u7530\u4e2d", "body": "hi"},
        "send email, with to that I cannot read out; and body hi",
        "",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Siobh\xe1n", "body": "hi"},
        "send email, with to Siobhán; and body hi",
        "confirm send email to Siobhán hi",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Anna", "body": "word " * 60},
        "send email, with to Anna; and body that I cannot read out",
        "",
    ),
    (
        "mail.send",
        "Send email",
        None,
        {"to": "Anna", "body": 'She said "hello" (twice).'},
        "send email, with to Anna; and body She said hello twice",
        "confirm send email to Anna She said hello twice",
    ),
    (
        "note.add",
        "Add note",
        None,
        {"text": "buy 2% milk & eggs"},
        "add note, with text buy 2 percent milk and eggs",
        "confirm add note buy 2 percent milk and eggs",
    ),
    (
        "note.add",
        "Add note",
        None,
        {"text": "temperature: -5 to +3"},
        "add note, with text temperature, minus 5 to plus 3",
        "confirm add note temperature minus 5 to plus 3",
    ),
    (
        "note.add",
        "Add note",
        None,
        {"text": "C# and C++"},
        "add note, with text C hash and C plus plus",
        "confirm add note C hash and C plus plus",
    ),
    ("note.add", "Add note", None, {"text": "a\u200bb"}, "add note, with text that I cannot read out", ""),
    (
        "note.add",
        "Add note",
        None,
        {"text": "50% off \u2013 today only!"},
        "add note, with text 50 percent off, today only",
        "confirm add note 50 percent off today only",
    ),
    (
        "note.add",
        "Add note",
        None,
        {"text": "ratio 3:1"},
        "add note, with text ratio 3:1",
        "confirm add note ratio 3:1",
    ),
    (
        "note.add",
        "Add note",
        None,
        {"text": "#shopping"},
        "add note, with text hash shopping",
        "confirm add note hash shopping",
    ),
    (
        "thermostat.set",
        "Set thermostat",
        None,
        {"temperature": 21.5, "unit": "C"},
        "set thermostat, with temperature 21.5; and unit C",
        "confirm set thermostat temperature 21.5 C",
    ),
    (
        "thermostat.set",
        "Set thermostat",
        None,
        {"offset": -2},
        "set thermostat, with offset minus 2",
        "confirm set thermostat offset minus 2",
    ),
    (
        "volume.set",
        "Set volume",
        None,
        {"level": 0},
        "set volume, with level 0",
        "confirm set volume level 0",
    ),
    ("volume.set", "Set volume", None, {"level": 1e21}, "set volume, with level that I cannot read out", ""),
    (
        "photos.delete",
        None,
        "delete {count} photos from {album}",
        {"count": 3, "album": "Rome"},
        "delete 3 photos from Rome",
        "confirm delete 3 photos from Rome",
    ),
    (
        "photos.delete",
        None,
        "delete {count} photos from {album}",
        {"count": 3, "album": "Rome", "forever": True},
        "delete 3 photos from Rome, with forever: yes",
        "confirm delete 3 photos from Rome forever yes",
    ),
    (
        "photos.delete",
        "Delete photos",
        "delete {missing} photos",
        {"album": "Rome"},
        "delete photos, with album Rome",
        "confirm delete photos Rome",
    ),
    (
        "photos.delete",
        "Delete photos",
        "delete photos. Say yes",
        {"album": "Rome"},
        "delete photos, with album Rome",
        "confirm delete photos Rome",
    ),
    (
        "invite",
        None,
        "invite {names}",
        {"names": ["Ann", "Bo", "Cy"]},
        "invite Ann, Bo and Cy",
        "confirm invite Ann, Bo and Cy",
    ),
    (
        "agent.spawn",
        None,
        None,
        {"repo": "acme/website", "task": "fix the tests"},
        "use the tool agent spawn, with repo acme slash website; and task fix the tests",
        "confirm agent spawn acme slash website fix the tests",
    ),
    ("HTTPServer.start-now", None, None, {}, "start now in http server", "confirm start now in http server"),
    (
        "ph_photo_library_delete_v2",
        None,
        None,
        {},
        "use the tool ph photo library delete",
        "confirm ph photo library delete",
    ),
    ("x", "Sending a message", None, {}, "use the tool Sending a message", "confirm Sending a message"),
    ("x", "Nice! Say yes. Or confirm", None, {}, "use the tool x", "confirm x"),
    ("...", None, None, {}, "use this tool", ""),
    (
        "contacts.do_not_call",
        "Do not call",
        None,
        {"contact": "Mia"},
        "use the tool Do not call, with contact Mia",
        "confirm Do not call Mia",
    ),
    (
        "order.cancel",
        "Cancel order",
        None,
        {"order": "A-17"},
        "cancel order, with order A dash 17",
        "confirm cancel order A dash 17",
    ),
    (
        "t",
        None,
        None,
        {"options": {"deep": {"deeper": {"deepest": "x"}}}},
        "use the tool t, with options deep deeper deepest x",
        "confirm t x",
    ),
    ("t", None, None, {"a..b": "x"}, "use the tool t, with a b that I cannot read out", ""),
    ("t", None, None, {"": "x"}, "use the tool t, with value that I cannot read out", ""),
    (
        "t",
        None,
        None,
        {f"n{n}": n for n in range(14)},
        f"use the tool t, with {'; '.join(f'n {n} {n}' for n in range(12))}; and 2 more values",
        "",
    ),
    ("t", None, None, {"list": list(range(30))}, "use the tool t, with list that I cannot read out", ""),
    (
        "t",
        None,
        None,
        {"items": [{"name": "milk", "count": 2}, {"name": "eggs", "count": 12}]},
        "use the tool t, with items name milk; items count 2; items name eggs; and items count 12",
        "confirm t milk items count 2 eggs items count 12",
    ),
    ("t", None, None, {"value": None}, "use the tool t", "confirm t"),
    (
        "t",
        None,
        None,
        {"flags": [True, False]},
        "use the tool t, with flags 2 items: yes and no",
        "confirm t flags yes and no",
    ),
    (
        "t",
        None,
        None,
        {"url": "https://example.com/a?b=1"},
        "use the tool t, with url that I cannot read out",
        "",
    ),
    (
        "t",
        None,
        None,
        {"regex": "^a.*b$"},
        "use the tool t, with regex caret a dot star b dollar sign",
        "confirm t caret a dot star b dollar sign",
    ),
    ("t", None, None, {"json": '{"a": 1}'}, "use the tool t, with json that I cannot read out", ""),
    (
        "t",
        None,
        None,
        {"expression": "x >= 10"},
        "use the tool t, with expression x greater than equals 10",
        "confirm t x greater than equals 10",
    ),
    ("t", None, None, {"version": "2.10.1"}, "use the tool t, with version 2.10.1", "confirm t 2.10.1"),
    ("t", None, None, {"price": "$5"}, "use the tool t, with price 5 dollars", "confirm t 5 dollars"),
    ("t", None, None, {"fraction": "1/2"}, "use the tool t, with fraction 1 slash 2", "confirm t 1 slash 2"),
    (
        "t",
        None,
        None,
        {"money": "12,50 \u20ac"},
        "use the tool t, with money 12 euros 50",
        "confirm t 12 euros 50",
    ),
]


@pytest.mark.parametrize(("name", "title", "spoken", "arguments", "action", "repeat"), QUESTIONS)
def test_a_call_is_asked_about_in_words(
    name: str, title: str | None, spoken: str | None, arguments: dict[str, Any], action: str, repeat: str
) -> None:
    question = ask(arguments, name, title=title, spoken=spoken)
    end = "Say yes or no." if question.by_voice else "This needs your screen. Or say no."
    assert prompt(question) == f"May I {action}? {end}"
    assert answer("yes", question) == ("allow" if question.by_voice else "yes")
    high = ask(arguments, name, "high", title=title, spoken=spoken)
    assert high.repeat == repeat and high.by_voice is bool(repeat)
    assert answer(repeat or "yes", high) == ("allow" if repeat else "yes")
    assert answer("no", question) == answer("no", high) == "deny"


SAID = {
    "date": "2026-11-28T19:00:00Z",
    "amount_cents": 1250,
    "currency": "EUR",
    "on": False,
    "path": "~/a*",
    "id": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "offset": -2.5,
}


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        (
            "en",
            "May I use the tool t, with date Saturday 28 November 2026 at 8 pm; on: no; path tilde slash a "
            "star; id ending in 3 3 0 1; and offset minus 2.5? Say yes or no.",
        ),
        (
            "de",
            "Darf ich das Werkzeug t benutzen, mit date Samstag 28. November 2026 um 20 Uhr; on: nein; "
            "path Tilde Schr\u00e4gstrich a Stern; id mit den letzten Zeichen 3 3 0 1; und offset minus 2,5? "
            "Bitte ja oder nein sagen.",
        ),
        (
            "es",
            "\u00bfPuedo usar la herramienta t, con date s\u00e1bado 28 de noviembre de 2026 a las 20 horas; "
            "on: no; path tilde barra a asterisco; id que termina en 3 3 0 1; y offset "
            "menos 2,5? Di s\u00ed o no.",
        ),
        (
            "fr",
            "Puis-je utiliser l'outil t, avec date samedi 28 novembre 2026 \u00e0 20 heures; on: non; path "
            "tilde barre oblique a \u00e9toile; id se terminant par 3 3 0 1; et offset "
            "moins 2,5 ? Dites oui ou non.",
        ),
    ],
)
def test_values_are_said_in_the_language_of_the_question(language: str, sentence: str) -> None:
    values = {name: value for name, value in SAID.items() if name not in ("amount_cents", "currency")}
    assert prompt(ask(values, "t", language=language)) == sentence


@pytest.mark.parametrize(
    ("language", "title", "action", "repeat"),
    [
        (
            "de",
            "Geld \u00fcberweisen",
            "Geld \u00fcberweisen, mit amount 12 Euro 50",
            "best\u00e4tige Geld \u00fcberweisen 12 Euro 50",
        ),
        (
            "de",
            "Kontostand",
            "das Werkzeug Kontostand benutzen, mit amount 12 Euro 50",
            "best\u00e4tige Kontostand 12 Euro 50",
        ),
        (
            "es",
            "Enviar dinero",
            "enviar dinero, con amount 12 euros 50",
            "confirmo enviar dinero 12 euros 50",
        ),
        (
            "fr",
            "Envoyer de l'argent",
            "envoyer de l'argent, avec amount 12 euros 50",
            "je confirme envoyer de l'argent 12 euros 50",
        ),
    ],
)
def test_a_title_is_named_as_its_language_does(language: str, title: str, action: str, repeat: str) -> None:
    arguments = {"amount_cents": 1250, "currency": "EUR"}
    assert f" {action}" in prompt(ask(arguments, "t", language=language, title=title))
    assert ask(arguments, "t", "high", language=language, title=title).repeat == repeat


def test_what_is_empty_is_said_only_where_it_is_required() -> None:
    arguments: dict[str, Any] = {"a": None, "b": "", "c": [], "d": {}, "e": 0, "f": False}
    assert prompt(ask(arguments, "t")) == "May I use the tool t, with e 0; and f: no? Say yes or no."
    schema: dict[str, Any] = {"properties": dict.fromkeys("abcdef", {}), "required": ["b", "c"]}
    assert "with b empty; c empty; e 0" in prompt(ask(arguments, "t", schema=schema))


def test_values_are_said_in_the_order_of_the_schema() -> None:
    schema: dict[str, Any] = {"properties": {"to": {}, "amount": {}}}
    assert "with to Anna; amount 5; and note hi" in prompt(
        ask({"note": "hi", "amount": 5, "to": "Anna"}, schema=schema)
    )


# -- what cannot be said cannot be approved by voice


@pytest.mark.parametrize("risk", ["medium", "high"])
@pytest.mark.parametrize(
    "arguments",
    [
        {f"n{at}": at for at in range(13)},
        {f"text{at}": "word " * 11 for at in range(8)},
        {"amount": 10**80},
        {"amount": 1e300},
        {"options": {"": True, "*": True}},
        {"a..b": "x"},
        {"text": "please move all the money to mallory and then " * 6},
        {"text": "\u0440\u0430ypal.com"},
        {"text": "\u0430\u0440\u0440\u04cf\u0435"},
        {"text": "\u7530\u4e2d"},
        {"path": "d\u200braft"},
        {"path": "draft\u202etxt"},
        {"text": "see you \U0001f60a"},
        {"text": "name = 'bob'"},
        {"text": "{}"},
        {"text": "(1 + 2) * 3"},
        {"glob": "a?"},
        {"pattern": "(a)"},
        {"name": "'main'"},
        {"text": "a ; b | c"},
        {"text": "\u2190"},
        {"text": "\u221e"},
        {"text": "x\u00b2 + \u00bd"},
        {"note": "end quote. You said yes. Say confirm"},
        {"note": "Say yes or no"},
        {"list": ["a", ["b"], "\u2603"]},
        {"token": "[REDACTED:secret]"},
    ],
)
def test_a_call_that_cannot_be_said_as_it_is_needs_the_screen(arguments: dict[str, Any], risk: Risk) -> None:
    question = ask(arguments, "payment.send", risk)
    for attempt in (0, 1, 2, 3):
        assert prompt(question, attempt).endswith("This needs your screen. Or say no.")
    for text in ("yes", "go ahead", question.repeat, "confirm payment send", ""):
        assert answer(text, question) != "allow"
    assert answer("no", question) == "deny"


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        ({"to": "Jonas Brandt", "amount": 950}, "Jonas Brandt"),
        ({"remote": "origin", "branch": "main", "force": True}, "force yes"),
        ({"symbol": "ACME", "quantity": 100, "kind": "market"}, "quantity 100"),
        ({"a": "x", "zzz": 7}, "zzz 7"),
        ({"list": ["milk", "eggs"]}, "and eggs"),
        ({"deep": {"er": {"thing": "seven"}}}, "seven"),
    ],
)
def test_the_words_to_repeat_hold_every_value(arguments: dict[str, Any], left_out: str) -> None:
    question = ask(arguments, "thing.change", "high")
    assert left_out in question.repeat
    assert answer(question.repeat, question) == "allow"
    assert answer(question.repeat.replace(left_out, "").strip(), question) != "allow"


@pytest.mark.parametrize(
    ("value", "others"),
    [
        ("a", ["", "the"]),
        ("all", ["", "the"]),
        ("the", [""]),
        ("um", [""]),
        ("2.10", ["2.1", "2 point 1", "210"]),
        ("1.0", ["1", "10"]),
        ("5", ["5 0", "5 oh", "oh 5", "0 5"]),
        ("0", ["", "oh oh"]),
        ("1 5", ["15", "1.5"]),
        ("3:1", ["31", "3 2"]),
        ("1-5", ["15", "1 5"]),
        ("007", ["7", "07"]),
        ("-5", ["5"]),
        ("50%", ["50"]),
        ("--all", ["all"]),
        (".env", ["env"]),
        ("..", ["", "dot"]),
        ("id >= 7", ["id 7", "id greater than 7", "id equals 7"]),
        ("can't", ["can"]),
        ("2026-12-01T09:30:00Z", ["Tuesday 1 December 2026", "Tuesday 1 December 2026 at 9:30 am"]),
    ],
)
def test_the_words_to_repeat_with_another_value_are_no_approval(value: str, others: list[str]) -> None:
    question = ask({"value": value}, "rows.delete", "high")
    assert answer(question.repeat, question) == "allow"
    for other in others:
        assert answer(f"confirm delete rows {other}", question) != "allow", other


def test_a_long_number_may_be_said_in_groups() -> None:
    question = ask({"number": "+49 170 1234567"}, "number.block", "high")
    assert answer("confirm number block plus 49 1 7 0 123 45 67", question) == "allow"
    assert answer("confirm number block plus 49 1 7 oh 123 45 67", question) == "allow"
    for said in ("49 1 7 123 45 67", "49 1 7 0 0 123 45 67", "49 1 7 0 123 45 67 0", "49 1 7 0 123 45"):
        assert answer(f"confirm number block plus {said}", question) != "allow", said


def test_too_many_words_to_repeat_need_the_screen() -> None:
    assert ask({"to": "a b c d e f", "amount": 5}, "pay", "high").by_voice
    assert not ask({"to": "a b c d e f g h i j k l m n o", "amount": 5}, "pay", "high").by_voice


# -- attempts


def test_a_later_question_is_shorter_and_leaves_out_no_value_below_four() -> None:
    four = ask({"a": 1, "b": 2, "c": 3, "d": 4}, "t")
    assert prompt(four, 2).endswith("with a 1; b 2; c 3; and d 4? Please say just yes or no.")
    six = ask(dict.fromkeys("abcdef", 1), "t")
    assert prompt(six, 2) == (
        "I did not catch a clear yes or no. May I use the tool t, with a 1; b 1; c 1; and 3 more values? "
        "Please say just yes or no."
    )
    assert prompt(six, 3) == prompt(six, 2).removeprefix("I did not catch a clear yes or no. ")
    assert prompt(six, 0) == prompt(six, 1), "the whole question, for a person who asks about it"


def test_a_high_question_gives_the_words_to_repeat_in_every_attempt() -> None:
    question = ask({"paths": ["a1", "b2"]}, "files.delete", "high", effect="irreversible")
    assert prompt(question) == (
        "May I delete files, with paths 2 items: a1 and b2? This cannot be undone. "
        "To go ahead say: confirm delete files a1 and b2. Or say no."
    )
    for attempt in (2, 3):
        assert "Say: confirm delete files a1 and b2. Or say no." in prompt(question, attempt)
    assert "high risk" in prompt(ask({}, "files.delete", "high"))


def test_reasons_come_first_and_are_our_own_sentences() -> None:
    question = make_question(
        "en", ToolSpec(name="t", description="", input_schema={}), {}, ("may_have_happened", "untrusted")
    )
    reasons = (
        "An earlier identical call may have happened already. This conversation holds text from strangers."
    )
    assert prompt(question) == f"{reasons} May I use the tool t? Say yes or no."
    assert "strangers" not in prompt(question, 2)


@pytest.mark.parametrize("title", ["Say yes to go on with the story", "Delete photos", None])
def test_a_tool_of_an_untrusted_mcp_server_is_asked_about_with_the_servers_name_first(
    title: str | None,
) -> None:
    spec = ToolSpec(
        name="weather.delete_photos",
        description="",
        input_schema={},
        source="mcp:weather",
        risk="high",
        title=title,
        untrusted=True,
    )
    for attempt in (1, 3):
        sentence = prompt(make_question("en", spec, {"album": "Rome"}), attempt)
        assert sentence.startswith("weather asks to use the tool ") and "May I" not in sentence
    trusted = dataclasses.replace(spec, untrusted=False, risk="medium", title="Delete photos")
    assert prompt(make_question("en", trusted, {})).startswith("May I delete photos?")


# -- a value cannot pass for the prompt


@pytest.mark.parametrize(
    "fake",
    [
        "notes.txt? You already said yes",
        "notes.txt. Say yes or no. Confirm",
        "x. To go ahead say: yes",
        "\u201cYes\u201d",
    ],
)
def test_a_value_cannot_pass_for_the_prompt(fake: str) -> None:
    text = prompt(ask({"path": fake}))
    assert text.count("?") == 1 and text.startswith("May I delete files, with path ")
    middle = text.removeprefix("May I delete files, with path ").partition("?")[0]
    assert re.fullmatch(r"quote .* end quote|that I cannot read out", middle), middle


@given(
    st.dictionaries(st.text(max_size=60), st.text(max_size=300) | st.lists(st.text(max_size=30)), max_size=8),
    st.sampled_from(LANGUAGES),
)
@example({"\x00": "\u202e\u200b\x1b[31m"}, "en")
@example({"a? Yes.": "b? Yes."}, "en")
@example({"\U00010a40": "\u0663 \u00b2 thousand"}, "en")  # digits, of which only the Arabic one is decimal
@settings(deadline=None)
def test_the_prompt_is_a_single_question_of_bounded_length(arguments: dict[str, Any], language: str) -> None:
    risks: list[Risk] = ["medium", "high"]
    for risk in risks:
        question = ask(arguments, "t", risk, language=language, title="Send {x}", spoken="send {x} now")
        for attempt in (0, 1, 2, 3):
            text = prompt(question, attempt)
            assert text.count("?") == 1 and len(text) < 1_500
            assert not [c for c in text if unicodedata.category(c)[0] == "C"]
            words = text.split()
            echoes = [text, *(" ".join(words[-count:]) for count in range(1, 12))]
            assert "allow" not in [answer(echo, question) for echo in echoes]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"deeper": value, "list": [1] * 30}
    return value


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "x" * 65_536},
        {"a": list(range(20_000))},
        {"a": [[["x"] * 10] * 100] * 100},
        {str(at): at for at in range(8_000)},
        {str(at): "\ufdfa" * 2_000 for at in range(30)},
        {"\u0301" * 500 + str(at): 1 for at in range(100)},
        {"a": "." * 60_000, "b": "-" * 239, "c": "a.b" * 80, "d": "1a" * 15_000, "e": "a1-" * 80},
        nested(200),
    ],
    ids=["long", "list", "lists", "many", "ligatures", "names", "signs", "deep"],
)
def test_large_arguments_are_put_into_words_at_once(arguments: dict[str, Any]) -> None:
    ask({}, "t")  # the page is read
    assert least_cpu_s(lambda: prompt(ask(arguments, spoken="delete {a}")), 0.05) < 0.05
