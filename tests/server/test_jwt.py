"""AUTH=jwt: tokens of an identity provider, its keys, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms
from structlog.testing import capture_logs
from websockets.datastructures import Headers

from conductor.entry_points import AUTH, choose
from conductor.errors import SettingsError
from conductor.plugins.auth.jwt import LEEWAY_S, MAX_AGE_S, REFRESH_S, REREAD_S, RETRY_S, JwtAuthenticator
from conductor.server.auth import Authenticator, Handshake
from conductor.settings import load_settings
from conductor.testing.auth import AuthContract
from tests.models import AnthropicService
from tests.server.wires import http, upgrade
from tests.serving import configured

ISSUER, AUDIENCE = "https://id.example", "voice"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
STRANGER = rsa.generate_private_key(65537, 2048)


def token(algorithm: str = "RS256", key: Any = None, headers: Any = None, **claims: Any) -> str:
    """Make a token of Ada that is valid for a minute, except for what the arguments change."""
    standard = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 60}
    values = {name: value for name, value in (standard | claims).items() if value is not None}
    key = KEYS.get(algorithm) if key is None else key
    return jwt.encode(values, key, algorithm, headers={"kid": algorithm} if headers is None else headers)


def jwks(*algorithms: str) -> bytes:
    keys = [
        json.loads(get_default_algorithms()[name].to_jwk(KEYS[name].public_key())) | {"kid": name}
        for name in algorithms
    ]
    return json.dumps({"keys": keys}).encode()


def handshake(text: str) -> Handshake:
    return Handshake("/ws", Headers(Authorization=f"Bearer {text}"))


class Provider:
    """The keys of the identity provider."""

    def __init__(self, *algorithms: str) -> None:
        self.document = jwks(*algorithms)
        self.reads = 0
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    async def read(self) -> bytes:
        self.reads += 1
        return self.document


@pytest.fixture
def provider() -> Provider:
    return Provider(*KEYS)


@pytest.fixture
def authenticator(provider: Provider) -> JwtAuthenticator:
    return JwtAuthenticator(ISSUER, AUDIENCE, provider.read, provider.now)


def public_text(algorithm: str) -> bytes:
    data: bytes = KEYS[algorithm].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def shared_secret(secret: bytes) -> str:
    """Sign with HS256 by hand: the package refuses a public key as a secret."""
    header, claims, _ = token().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"RS256"}').rstrip(b"=").decode()
    digest = hmac.digest(secret, f"{header}.{claims}".encode(), hashlib.sha256)
    return f"{header}.{claims}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


REFUSED: dict[str, Callable[[], str]] = {
    "no algorithm": lambda: token("none", key=""),
    "the public key as a shared secret": lambda: shared_secret(public_text("RS256")),
    "another algorithm than the key's": lambda: token("ES256", headers={"kid": "RS256"}),
    "a key of a stranger": lambda: token(key=STRANGER),
    "a key by a path": lambda: token(headers={"kid": "../../etc/passwd"}),
    "a key by an address": lambda: token(headers={"kid": "x", "jku": "https://evil.example/jwks"}),
    "another audience": lambda: token(aud="mail"),
    "no audience": lambda: token(aud=None),
    "another issuer": lambda: token(iss="https://evil.example"),
    "expired": lambda: token(exp=time.time() - LEEWAY_S - 5),
    "without an end": lambda: token(exp=None),
    "not yet valid": lambda: token(nbf=time.time() + LEEWAY_S + 60),
    "no subject": lambda: token(sub=None),
    "an empty subject": lambda: token(sub=""),
    "too long": lambda: token(junk="x" * 10_000),
    "a damaged signature": lambda: token()[:-8] + "AAAAAAAA",
}


class TestJwt(AuthContract):
    """The contract of authenticators."""

    @pytest.fixture
    def authenticator(self, provider: Provider) -> Authenticator:
        return JwtAuthenticator(ISSUER, AUDIENCE, provider.read)

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [handshake(token(name, sub=name)) for name in KEYS]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        return [handshake(make()) for make in REFUSED.values()]


async def test_a_person_has_one_id_and_it_tells_nothing(authenticator: JwtAuthenticator) -> None:
    end = int(time.time()) + 60
    first = await authenticator.authenticate(handshake(token(sub="ada@example.org", exp=end)))
    second = await authenticator.authenticate(handshake(token("ES256", sub="ada@example.org", exp=end)))
    assert first == second and first is not None
    assert "ada" not in first.id and first.expires == end + LEEWAY_S


async def test_new_keys_are_read_at_most_once_a_minute(
    provider: Provider, authenticator: JwtAuthenticator
) -> None:
    provider.document = jwks("RS256")
    assert await authenticator.authenticate(handshake(token())) is not None
    provider.document = jwks("RS256", "ES256")
    for _ in range(3):
        assert await authenticator.authenticate(handshake(token("ES256"))) is None
    assert provider.reads == 1
    provider.time += REREAD_S + 1
    assert await authenticator.authenticate(handshake(token("ES256"))) is not None
    assert await authenticator.authenticate(handshake(token())) is not None
    assert provider.reads == 2


async def test_a_withdrawn_key_is_refused_once_the_keys_are_read_again(
    provider: Provider, authenticator: JwtAuthenticator
) -> None:
    assert await authenticator.authenticate(handshake(token())) is not None
    provider.document = jwks("ES256")
    provider.time += REREAD_S + 1
    assert await authenticator.authenticate(handshake(token(headers={"kid": "new"}))) is None
    assert await authenticator.authenticate(handshake(token())) is None


async def test_a_withdrawn_key_is_refused_after_five_minutes_without_any_other_token(
    provider: Provider, authenticator: JwtAuthenticator
) -> None:
    assert await authenticator.authenticate(handshake(token())) is not None
    provider.document = jwks("ES256")
    provider.time += MAX_AGE_S
    assert MAX_AGE_S == 300
    assert await authenticator.authenticate(handshake(token())) is None
    assert await authenticator.authenticate(handshake(token("ES256"))) is not None
    assert provider.reads == 2


async def test_old_keys_are_read_again_while_tokens_are_admitted_by_them(provider: Provider) -> None:
    reading, ready = asyncio.Event(), asyncio.Event()
    ready.set()

    async def read() -> bytes:
        provider.reads += 1
        reading.set()
        await ready.wait()
        return provider.document

    authenticator = JwtAuthenticator(ISSUER, AUDIENCE, read, provider.now)
    assert await authenticator.authenticate(handshake(token())) is not None
    reading.clear()
    ready.clear()
    provider.document = jwks("ES256")
    provider.time += REFRESH_S
    assert await authenticator.authenticate(handshake(token())) is not None, "nobody waits for the provider"
    await reading.wait()
    ready.set()
    while await authenticator.authenticate(handshake(token())) is not None:  # noqa: ASYNC110 -- the read ends
        await asyncio.sleep(0)
    assert provider.reads == 2


async def test_keys_that_cannot_be_read_again_admit_nobody_after_five_minutes(
    provider: Provider, authenticator: JwtAuthenticator
) -> None:
    assert await authenticator.authenticate(handshake(token())) is not None
    document, provider.document = provider.document, b"<html>"
    provider.time += MAX_AGE_S - 1
    assert await authenticator.authenticate(handshake(token())) is not None
    provider.time += RETRY_S
    assert await authenticator.authenticate(handshake(token())) is None
    provider.document = document
    provider.time += RETRY_S
    assert await authenticator.authenticate(handshake(token())) is not None


@pytest.mark.parametrize("document", [b"<html>", b"{}", b'{"keys": [1]}', b'{"keys": 3}'])
async def test_the_known_keys_stay_if_others_cannot_be_read(
    provider: Provider, authenticator: JwtAuthenticator, document: bytes
) -> None:
    assert await authenticator.authenticate(handshake(token())) is not None
    provider.document = document
    provider.time += REREAD_S + 1
    with capture_logs() as lines:
        assert await authenticator.authenticate(handshake(token(headers={"kid": "new"}))) is None
    assert [line["log_level"] for line in lines] == ["warning", "debug"]
    assert await authenticator.authenticate(handshake(token())) is not None


async def test_a_handshake_that_is_cut_off_does_not_end_the_read_of_the_keys(provider: Provider) -> None:
    reading, ready = asyncio.Event(), asyncio.Event()

    async def read() -> bytes:
        reading.set()
        await ready.wait()
        return provider.document

    authenticator = JwtAuthenticator(ISSUER, AUDIENCE, read)
    stranger = asyncio.create_task(authenticator.authenticate(handshake(token(headers={"kid": "x"}))))
    await reading.wait()
    stranger.cancel()
    person = asyncio.create_task(authenticator.authenticate(handshake(token())))
    await asyncio.wait([stranger])
    ready.set()
    assert await person is not None


async def test_keys_that_cannot_be_read_are_read_again_soon(
    provider: Provider, authenticator: JwtAuthenticator
) -> None:
    document, provider.document = provider.document, b"<html>"
    assert await authenticator.authenticate(handshake(token())) is None
    provider.document = document
    provider.time += RETRY_S
    assert await authenticator.authenticate(handshake(token())) is not None


async def test_a_single_key_needs_no_name(provider: Provider, authenticator: JwtAuthenticator) -> None:
    provider.document = jwks("RS256")
    assert await authenticator.authenticate(handshake(token(headers={}))) is not None
    provider.document = jwks("ES256")
    assert await authenticator.authenticate(handshake(token("ES256", headers={}))) is None
    provider.time += REREAD_S + 1
    assert await authenticator.authenticate(handshake(token("ES256", headers={}))) is not None
    assert await authenticator.authenticate(handshake(token(headers={}))) is None
    assert provider.reads == 2


async def test_the_keys_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.json").write_bytes(jwks("EdDSA"))
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("KEYS", str(tmp_path / "keys.json"))):
        monkeypatch.setenv(f"JWT_{name}", value)
    authenticator = choose(AUTH, "jwt", "AUTH").make(Authenticator, load_settings(None))
    assert await authenticator.authenticate(handshake(token("EdDSA"))) is not None


async def test_sighup_reads_the_keys_again(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks("EdDSA"))
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("KEYS", str(keys))):
        monkeypatch.setenv(f"JWT_{name}", value)
    former, new = (upgrade("/ws", f"Authorization: Bearer {token(name)}") for name in ("EdDSA", "ES256"))
    async with configured(claude, tmp_path, auth=("jwt",)) as served:
        port = served.listener.port
        assert (await http(port, former))[0] == 101
        keys.write_bytes(jwks("ES256"))
        assert (await http(port, former))[0] == 101
        served.reload()
        assert (await http(port, former))[0] == 401
        assert (await http(port, new))[0] == 101


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        (None, "AUTH=jwt needs JWT_KEYS"),
        ("http://id.example/keys", "JWT_KEYS must be an https:// address or a file"),
        ("ftp://id.example/keys", "JWT_KEYS must be an https:// address or a file"),
        ("no-such-file.json", "JWT_KEYS names no-such-file.json, which is no file"),
    ],
)
def test_settings_that_are_not_safe_end_the_start(
    keys: str | None, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ISSUER", ISSUER), ("AUDIENCE", AUDIENCE), ("KEYS", keys or "")):
        monkeypatch.setenv(f"JWT_{name}", value)
    with pytest.raises(SettingsError, match=f"^{mistake}[.]$"):
        choose(AUTH, "jwt", "AUTH").make(Authenticator, load_settings(None))
