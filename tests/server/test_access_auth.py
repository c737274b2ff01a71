"""Tokens: their place in a request, and the answer to a wrong token."""

from __future__ import annotations

import pickle
from urllib.parse import quote

import pytest
from websockets.datastructures import Headers

from conductor.identity import ANONYMOUS
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.auth import Handshake
from tests.models import ScriptedProvider
from tests.server.wires import get, http, upgrade
from tests.serving import serving

TOKEN = "correct-horse-battery-staple"
OTHER = "another-token"


def request(path: str = "/ws", *headers: tuple[str, str]) -> Handshake:
    return Handshake(path, Headers(list(headers)))


async def subject_of(handshake: Handshake, *tokens: str) -> str | None:
    """Name the person of a handshake at a server with these tokens."""
    principal = await TokenAuthenticator(tokens).authenticate(handshake)
    return None if principal is None else principal.id


WITH_TOKEN = {
    "the header": request("/ws", ("Authorization", f"Bearer {TOKEN}")),
    "the header in lower case": request("/ws", ("authorization", f"bearer {TOKEN}")),
    "the second of two headers": request(
        "/ws", ("Authorization", "Basic dTpw"), ("Authorization", f"Bearer {TOKEN}")
    ),
    "a subprotocol": request("/ws", ("Sec-WebSocket-Protocol", f"conductor.v1, bearer.{TOKEN}")),
    "a subprotocol header of its own": request(
        "/ws", ("Sec-WebSocket-Protocol", "conductor.v1"), ("Sec-WebSocket-Protocol", f"bearer.{TOKEN}")
    ),
    "the query among others": request(f"/ws?a=b&token={TOKEN}&c=d"),
}


@pytest.mark.parametrize("source", WITH_TOKEN)
async def test_a_token_is_found(source: str) -> None:
    assert WITH_TOKEN[source].token == TOKEN
    assert await subject_of(WITH_TOKEN[source], TOKEN) is not None
    assert await subject_of(WITH_TOKEN[source], OTHER) is None


WITHOUT_TOKEN = {
    "nothing": request(),
    "another scheme": request("/ws", ("Authorization", f"Basic {TOKEN}")),
    "a token without its scheme": request("/ws", ("Authorization", TOKEN)),
    "another subprotocol": request("/ws", ("Sec-WebSocket-Protocol", TOKEN)),
    "an empty parameter": request("/ws?token="),
    "the path": request(f"/ws/token={TOKEN}"),
    "a fragment of a path that is no address": request(f"//[token={TOKEN}"),
}
WRONG_TOKENS = ["x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "bearer." + TOKEN, TOKEN + "," + OTHER]
WRONG = [
    *WITHOUT_TOKEN.values(),
    *(request("/ws", ("Authorization", f"Bearer {token}")) for token in WRONG_TOKENS),
    # The last of them is a list of subprotocols, whose first is right.
    *(request("/ws", ("Sec-WebSocket-Protocol", f"bearer.{token}")) for token in WRONG_TOKENS[:-1]),
    *(request(f"/ws?token={query}") for query in ("%ff%fe", "%ED%A0%80", "%zz", "%00")),
    # The first token of a request decides.
    request(f"/ws?token={TOKEN}", ("Authorization", "Bearer wrong")),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
async def test_without_a_right_token_there_is_no_subject(number: int) -> None:
    assert await subject_of(WRONG[number], TOKEN, OTHER) is None


async def test_each_token_has_a_subject_that_is_stable_and_does_not_reveal_it() -> None:
    presented = (TOKEN, OTHER, TOKEN)
    subjects = [await subject_of(request(f"/ws?token={token}"), TOKEN, OTHER) for token in presented]
    assert None not in subjects and len(set(subjects)) == 2 and subjects[0] == subjects[2]
    assert subjects[0] == await subject_of(request(f"/ws?token={TOKEN}"), TOKEN)
    assert not any(token in str(subjects) for token in (TOKEN, OTHER))
    assert TOKEN.encode() not in pickle.dumps(TokenAuthenticator([TOKEN])), "tokens are stored hashed"


@pytest.mark.parametrize("token", ["schlüssel-日本", "a+b/c=d&e f%20"])
async def test_a_query_may_quote_any_characters_of_a_token(token: str) -> None:
    assert await subject_of(request(f"/ws?token={quote(token, safe='')}"), token)


async def test_without_tokens_every_client_is_anonymous() -> None:
    authenticator = TokenAuthenticator([])
    assert not authenticator.required and TokenAuthenticator([TOKEN]).required
    assert await subject_of(request()) == ANONYMOUS
    assert await subject_of(request(f"/ws?token={TOKEN}")) == ANONYMOUS


# -- over sockets


@pytest.mark.parametrize(
    "request_text",
    [
        upgrade(),
        upgrade("/ws?token=wrong-wrong"),
        upgrade("/ws", "Sec-WebSocket-Protocol: conductor.v1, bearer.wrong-wrong"),
        get("/ws"),
    ],
)
async def test_a_wrong_token_is_not_upgraded_and_not_echoed(request_text: str) -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN,)) as served:
        status, answer = await http(served.listener.port, request_text)
        assert status == 401
        assert "WWW-Authenticate: Bearer" in answer
        assert TOKEN not in answer and "wrong-wrong" not in answer
        assert served.listener.connections == 0


@pytest.mark.parametrize(
    ("request_text", "echoed"),
    [
        (upgrade("/ws", f"Authorization: Bearer {TOKEN}"), None),
        (upgrade(f"/ws?token={TOKEN}"), None),
        (upgrade("/ws", f"Sec-WebSocket-Protocol: conductor.v1, bearer.{TOKEN}"), "conductor.v1"),
        (upgrade("/ws", f"Sec-WebSocket-Protocol: bearer.{TOKEN}"), None),
        (upgrade("/ws", f"Authorization: Bearer {TOKEN}", "Sec-WebSocket-Protocol: other"), None),
    ],
)
async def test_a_right_token_is_upgraded_and_not_echoed(request_text: str, echoed: str | None) -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN, OTHER)) as served:
        status, answer = await http(served.listener.port, request_text)
        assert status == 101
        assert TOKEN not in answer
        lines = [line for line in answer.splitlines() if line.lower().startswith("sec-websocket-protocol")]
        assert lines == ([f"Sec-WebSocket-Protocol: {echoed}"] if echoed else [])


async def test_another_token_cannot_reach_a_session() -> None:
    async with serving(ScriptedProvider([]), tokens=(TOKEN, OTHER)) as served:
        headers = [{"Authorization": f"Bearer {token}"} for token in (TOKEN, OTHER, TOKEN)]
        resumed = []
        for header in headers:
            async with served.phone("s-1", headers=header) as phone:
                resumed.append(phone.log[0]["payload"]["resumed"])
        assert resumed == [False, False, True]
        assert len(served.listener.registry) == 2
