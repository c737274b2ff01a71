"""People of a real authorization server: its keys change, tokens end in a turn, and forged ones are refused.

.ci/run installs oidc-provider-mock under ``build/oidc``. Without it the tests are skipped, unless
``CI_REQUIRE_OIDC=1``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from conductor.app import make_services, running
from conductor.models.base import TextDelta
from conductor.plugins.auth.jwt import REREAD_S, JwtAuthenticator, fetch
from conductor.server.auth import Authenticators
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.app import App
from tests.conftest import ROOT
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, http, upgrade
from tests.services.ports import free_port
from tests.stand_ins.programs import end, missing, started

VOICE = "voice"


class AuthorizationServer:
    """The program on one port; each start has another key. Tokens end after ``seconds``."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self._port = str(port)
        self._process: Any = None

    async def start(self, seconds: int = 3_600) -> None:
        """Start it, or start it again with a new key."""
        self.stop()
        program = ROOT / "build" / "oidc" / "venv" / "bin" / "oidc-provider-mock"
        if not program.exists():
            missing("oidc-provider-mock", "OIDC")
        command = [str(program), "--port", self._port, f"--token-max-age={seconds}"]
        self._process = await asyncio.to_thread(started, command, b"running on")

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            end(self._process)
            self._process = None

    async def token(self, person: str, client: str = VOICE) -> str:
        """Log a person in to an application, by the authorization code flow."""
        back = "https://app.example/back"
        query = {
            "client_id": client,
            "redirect_uri": back,
            "response_type": "code",
            "scope": "openid",
            "state": "s",
        }
        async with httpx2.AsyncClient(trust_env=False, base_url=self.issuer) as browser:
            login = await browser.post("/oauth2/authorize", params=query, data={"sub": person})
            (code,) = re.findall(r"[?&]code=([^&]+)", login.headers["location"])
            grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
            answer = await browser.post("/oauth2/token", data=grant, auth=(client, "secret"))
            return str(answer.json()["id_token"])

    async def keys(self) -> Any:
        """Read the public keys."""
        return json.loads(await fetch(f"{self.issuer}/jwks", local_only=True))["keys"]


@pytest.fixture
async def authorization() -> AsyncIterator[AuthorizationServer]:
    server = AuthorizationServer(free_port())
    try:
        yield server
    finally:
        server.stop()


class Clock:
    """The time since the last read of the keys."""

    time = 0.0

    def now(self) -> float:
        return self.time


@asynccontextmanager
async def conductor(
    authorization: AuthorizationServer, clock: Clock, provider: ScriptedProvider
) -> AsyncIterator[Listener]:
    settings = load_settings(None, port=0, auth_tokens=("a-token-of-the-start",))
    read = partial(fetch, f"{authorization.issuer}/jwks", local_only=True)
    async with running(settings, make_services(settings, provider)) as listener:
        authenticator = JwtAuthenticator(authorization.issuer, VOICE, read, clock.now)
        listener.access.authenticator = Authenticators({"jwt": authenticator})
        yield listener


def phone(listener: Listener, token: str, session_id: str = "s-1") -> App:
    url = f"ws://127.0.0.1:{listener.port}/ws"
    fields = {"capabilities": ["goaway"]}
    headers = {"Authorization": f"Bearer {token}"}
    return App(url, session_id, headers=headers, start_fields=fields, wait_s=WAIT)


async def test_a_token_that_ends_in_a_turn_is_renewed_by_one_of_a_new_key(
    authorization: AuthorizationServer,
) -> None:
    renewed, clock = asyncio.Event(), Clock()
    provider = ScriptedProvider(lambda request: [renewed, TextDelta("Good evening.")])
    await authorization.start(seconds=-40)  # within the leeway of a minute
    async with conductor(authorization, clock, provider) as listener:
        async with phone(listener, await authorization.token("ada")) as app:
            app.say("Hello")
            goaway = await app.until("session.goaway")
            assert goaway["payload"]["reason"] == "token_expires"
            await authorization.start(seconds=-20)
            clock.time += REREAD_S
            app.send("session.update", {"token": await authorization.token("mallory")})
            error = await app.until("error")
            assert error["payload"]["code"] == "unauthorized"
            app.send("session.update", {"token": await authorization.token("ada")})
            later = await app.until("session.goaway", since=app.log.index(goaway) + 1)
            assert later["payload"]["timeLeftMs"] > 20_000
            renewed.set()
            await app.idle()
            assert app.finals() == ["Good evening."] and not app.closed.is_set()
        async with phone(listener, await authorization.token("mallory")) as stranger:
            (event,) = stranger.events("session.started")
            assert event["payload"]["resumed"] is False


def forged(token: str, header: dict[str, str], secret: bytes | None = None) -> str:
    """Put another header on a token; without a secret the signature is empty."""
    claims = token.split(".")[1]
    head = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    digest = b"" if secret is None else hmac.digest(secret, f"{head}.{claims}".encode(), hashlib.sha256)
    return f"{head}.{claims}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


async def test_forged_tokens_are_refused_with_a_line_in_the_log_and_no_detail(
    authorization: AuthorizationServer,
) -> None:
    await authorization.start()
    token = await authorization.token("ada")
    (key,) = await authorization.keys()
    public = jwt.PyJWK(key).key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": authorization.issuer, "aud": VOICE, "sub": "ada", "exp": time.time() + 60}
    kid = jwt.get_unverified_header(token).get("kid", "")
    tokens = [
        forged(token, {"alg": "none", "kid": kid}),
        forged(token, {"alg": "HS256", "kid": kid}, public),
        forged(token, {"alg": "HS256", "kid": "../../../../dev/null"}, b""),
        forged(token, {"alg": "RS256", "kid": "/etc/passwd"}),
        await authorization.token("ada", client="another-application"),
        jwt.encode(claims, "k" * 32),
    ]
    with capture_logs() as lines:
        async with conductor(authorization, Clock(), ScriptedProvider([])) as listener:
            for wrong in tokens:
                request = upgrade("/ws", f"Authorization: Bearer {wrong}", "Connection: Upgrade")
                status, answer = await http(listener.port, request)
                assert status == 401 and answer.endswith("A valid bearer token is required.\n")
            async with phone(listener, token):
                pass
    refusals = [line for line in lines if line["event"].startswith("request")]
    assert [(line["reason"], line.get("count")) for line in refusals] == [
        ("wrong token", None),
        ("wrong token", len(tokens)),
    ]
    assert not any(wrong.split(".")[1] in str(lines) for wrong in tokens) and "ada" not in str(refusals)
