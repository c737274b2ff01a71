"""Who may connect: where a token is looked for, and what a wrong one gets."""

from __future__ import annotations

import hmac
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor.rate_limit import ANONYMOUS
from conductor.server.access import Authenticator, bearer_token
from tests.end_to_end.conftest import serving
from tests.models import ScriptedProvider
from tests.server.wires import get, http, upgrade

TOKEN = "correct-horse-battery-staple"
OTHER = "another-token"


def request(path: str = "/ws", *headers: tuple[str, str]) -> Request:
    return Request(path, Headers(list(headers)))


PLACES = {
    "the header": request("/ws", ("Authorization", f"Bearer {TOKEN}")),
    "the header in lower case": request("/ws", ("authorization", f"bearer {TOKEN}")),
    "the header with spaces": request("/ws", ("Authorization", f"Bearer   {TOKEN} ")),
    "the second of two headers": request(
        "/ws", ("Authorization", "Basic dTpw"), ("Authorization", f"Bearer {TOKEN}")
    ),
    "a subprotocol": request("/ws", ("Sec-WebSocket-Protocol", f"conductor.v1, bearer.{TOKEN}")),
    "a subprotocol alone": request("/ws", ("Sec-WebSocket-Protocol", f"bearer.{TOKEN}")),
    "a subprotocol header of its own": request(
        "/ws", ("Sec-WebSocket-Protocol", "conductor.v1"), ("Sec-WebSocket-Protocol", f"bearer.{TOKEN}")
    ),
    "the query": request(f"/ws?token={TOKEN}"),
    "the query among others": request(f"/ws?a=b&token={TOKEN}&c=d"),
    "the query, quoted": request("/ws?token=" + "".join(f"%{ord(c):02x}" for c in TOKEN)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_token_is_found_in(place: str) -> None:
    assert bearer_token(PLACES[place]) == TOKEN
    assert Authenticator([TOKEN]).subject(PLACES[place]) is not None
    assert Authenticator([OTHER]).subject(PLACES[place]) is None


NOWHERE = {
    "nothing": request(),
    "another scheme": request("/ws", ("Authorization", f"Basic {TOKEN}")),
    "a token without its scheme": request("/ws", ("Authorization", TOKEN)),
    "an empty header": request("/ws", ("Authorization", "Bearer ")),
    "another subprotocol": request("/ws", ("Sec-WebSocket-Protocol", TOKEN)),
    "another parameter": request(f"/ws?tokens={TOKEN}"),
    "an empty parameter": request("/ws?token="),
    "the path": request(f"/ws/token={TOKEN}"),
    "a fragment of a path that is no address": request(f"//[token={TOKEN}"),
}


@pytest.mark.parametrize("place", NOWHERE)
def test_no_token_is_found_in(place: str) -> None:
    assert bearer_token(NOWHERE[place]) is None
    assert Authenticator([TOKEN, OTHER]).subject(NOWHERE[place]) is None


@pytest.mark.parametrize(
    "wrong",
    ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "bearer." + TOKEN, TOKEN + "," + OTHER],
)
def test_a_wrong_token_is_nobody(wrong: str) -> None:
    authenticator = Authenticator([TOKEN, OTHER])
    assert authenticator.subject(request("/ws", ("Authorization", f"Bearer {wrong}"))) is None
    assert authenticator.subject(request("/ws", ("Sec-WebSocket-Protocol", f"bearer.{wrong}"))) is None or (
        wrong == TOKEN + "," + OTHER  # a list of subprotocols, whose first is right
    )


def test_the_first_place_that_has_a_token_decides() -> None:
    asked = request(f"/ws?token={TOKEN}", ("Authorization", "Bearer wrong"))
    assert Authenticator([TOKEN]).subject(asked) is None


def test_each_of_several_tokens_is_a_subject_of_its_own() -> None:
    authenticator = Authenticator([TOKEN, OTHER])
    subjects = [authenticator.subject(request(f"/ws?token={token}")) for token in (TOKEN, OTHER, TOKEN)]
    assert None not in subjects and len(set(subjects)) == 2 and subjects[0] == subjects[2]


def test_a_subject_is_the_same_after_a_restart_and_in_any_order_of_tokens() -> None:
    asked = request(f"/ws?token={TOKEN}")
    assert Authenticator([TOKEN]).subject(asked) == Authenticator([OTHER, TOKEN]).subject(asked)


def test_a_subject_does_not_hold_the_token() -> None:
    subject = Authenticator([TOKEN]).subject(request(f"/ws?token={TOKEN}"))
    assert subject is not None and TOKEN not in subject


def test_no_token_is_kept_as_it_is() -> None:
    kept = pickle.dumps(Authenticator([TOKEN]))
    assert TOKEN.encode() not in kept


@pytest.mark.parametrize("token", ["schlüssel-日本", "a+b/c=d&e f%20"])
def test_a_token_of_any_characters_is_found_in_the_query_where_they_are_quoted(token: str) -> None:
    assert Authenticator([token]).subject(request(f"/ws?token={quote(token, safe='')}"))


@pytest.mark.parametrize(
    "path", ["/ws?token=%ff%fe", "/ws?token=%ED%A0%80", "/ws?token=%zz", "/ws?token=%00"]
)
def test_a_query_that_is_no_text_is_nobody(path: str) -> None:
    assert Authenticator([TOKEN]).subject(request(path)) is None


def test_without_tokens_everybody_is_anonymous() -> None:
    authenticator = Authenticator([])
    assert not authenticator.required and Authenticator([TOKEN]).required
    assert authenticator.subject(request()) == ANONYMOUS
    assert authenticator.subject(request(f"/ws?token={TOKEN}")) == ANONYMOUS


@contextmanager
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Watch the library's constant-time comparison."""
    results: list[bool] = []
    compare = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        results.append(compare(one, other))
        return results[-1]

    with monkeypatch.context() as patch:
        patch.setattr(hmac, "compare_digest", watched)
        yield results


@pytest.mark.parametrize(
    ("given", "results"),
    [(TOKEN, [True, False, False]), ("third", [False, False, True]), ("wrong", [False] * 3)],
)
def test_every_token_is_compared_in_constant_time_wherever_the_right_one_stands(
    monkeypatch: pytest.MonkeyPatch, given: str, results: list[bool]
) -> None:
    authenticator = Authenticator([TOKEN, OTHER, "third"])
    with comparisons(monkeypatch) as made:
        authenticator.subject(request(f"/ws?token={given}"))
    assert made == results


# -- over sockets


@pytest.mark.parametrize(
    "asked",
    [
        upgrade(),
        upgrade("/ws?token=wrong-wrong"),
        upgrade("/ws", "Authorization: Bearer wrong-wrong"),
        upgrade("/ws", "Sec-WebSocket-Protocol: conductor.v1, bearer.wrong-wrong"),
        get("/ws"),
    ],
)
async def test_without_a_right_token_there_is_no_upgrade_and_nothing_is_echoed(asked: str) -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN,)) as served:
        status, answer = await http(served.listener.port, asked)
        assert status == 401
        assert "WWW-Authenticate: Bearer" in answer
        assert TOKEN not in answer and "wrong-wrong" not in answer
        assert served.listener.connections == 0


@pytest.mark.parametrize(
    ("asked", "echoed"),
    [
        (upgrade("/ws", f"Authorization: Bearer {TOKEN}"), None),
        (upgrade(f"/ws?token={TOKEN}"), None),
        (upgrade("/ws", f"Sec-WebSocket-Protocol: conductor.v1, bearer.{TOKEN}"), "conductor.v1"),
        (upgrade("/ws", f"Sec-WebSocket-Protocol: bearer.{TOKEN}, conductor.v1"), "conductor.v1"),
        (upgrade("/ws", f"Sec-WebSocket-Protocol: bearer.{TOKEN}"), None),
        (upgrade("/ws", f"Authorization: Bearer {TOKEN}", "Sec-WebSocket-Protocol: other"), None),
    ],
)
async def test_with_a_right_token_there_is_an_upgrade_that_never_echoes_it(
    asked: str, echoed: str | None
) -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN, OTHER)) as served:
        status, answer = await http(served.listener.port, asked)
        assert status == 101
        assert TOKEN not in answer
        lines = [line for line in answer.splitlines() if line.lower().startswith("sec-websocket-protocol")]
        assert lines == ([f"Sec-WebSocket-Protocol: {echoed}"] if echoed else [])


async def test_a_session_is_out_of_reach_of_another_token() -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN, OTHER)) as served:
        headers = [{"Authorization": f"Bearer {token}"} for token in (TOKEN, OTHER, TOKEN)]
        resumed = []
        for each in headers:
            async with served.phone("s-1", headers=each) as phone:
                resumed.append(phone.log[0]["payload"]["resumed"])
        assert resumed == [False, False, True]
        assert len(served.listener.registry) == 2
