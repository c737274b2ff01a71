"""The list of authenticators, and those by a header and by a hook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.datastructures import Headers

from conductor.app import make_authenticator, make_services, running
from conductor.commands.reload import reload
from conductor.entry_points import AUTH, choose
from conductor.errors import SettingsError
from conductor.plugins.auth.hook import CACHE_S, MAX_CACHED, HookAuthenticator
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.rate_limit import tenant_of
from conductor.server.auth import Authenticator, Authenticators, Handshake, Principal, person_id
from conductor.settings import load_settings
from conductor.stores.memory import MemoryStore
from tests.contract.auth import AuthContract
from tests.models import ScriptedProvider
from tests.server.wires import http, upgrade
from tests.stand_ins.web_site import site

TOKEN = "a-token-of-a-client"


def bearer(token: str, **headers: str) -> Handshake:
    return Handshake("/ws", Headers({"Authorization": f"Bearer {token}", **headers}), "192.0.2.1")


class Hook:
    """The service behind AUTH_HOOK: the token is the answer."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    async def ask(self, body: bytes) -> bytes:
        self.asked.append(json.loads(body))
        token = self.asked[-1]["token"] or ""
        return json.dumps({"id": token.partition("@")[0], "tenant": "shop"} | self.more).encode()

    more: dict[str, Any] = {}


@pytest.fixture
def hook() -> Hook:
    return Hook()


@pytest.fixture
def by_hook(hook: Hook) -> HookAuthenticator:
    return HookAuthenticator(hook.ask, hook.now)


class TestHook(AuthContract):
    """The contract of authenticators."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        async def ask(body: bytes) -> bytes:
            token = json.loads(body)["token"]
            if token not in ("ada", "bob"):
                raise OSError("401")
            return json.dumps({"id": token}).encode()

        return HookAuthenticator(ask)

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [bearer("ada"), bearer("bob")]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        return [bearer("mallory"), Handshake("/ws", Headers(Cookie="session=ada"))]


# -- the list


class Broken(Authenticator):
    """Fails, with the token in its words."""

    async def authenticate(self, handshake: Handshake) -> Principal | None:
        raise RuntimeError(handshake.token)


async def test_the_first_that_names_a_person_decides_and_is_remembered() -> None:
    parts = Authenticators({"broken": Broken(), "tokens": TokenAuthenticator([TOKEN])})
    with capture_logs() as lines:
        principal = await parts.authenticate(bearer(TOKEN))
        assert await parts.authenticate(bearer("wrong")) is None
    assert principal is not None and principal.authenticator == "tokens" and parts.admits(principal)
    assert [line["error"] for line in lines] == ["RuntimeError"] and TOKEN not in str(lines)
    assert not Authenticators({"broken": Broken()}).admits(principal)
    assert not Authenticators({"tokens": TokenAuthenticator(["another"])}).admits(principal)


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ({"auth": "one_time"}, "AUTH lists one_time, and one-time tokens need API_KEYS"),
        ({"auth": "header,tokens", "trusted_proxies": "10.0.0.1"}, "AUTH lists tokens with others"),
        ({"auth": "header"}, "AUTH=header needs TRUSTED_PROXIES"),
        ({"auth": "hook"}, "AUTH=hook needs AUTH_HOOK"),
        ({"auth": "tokens,unknown", "auth_tokens": TOKEN}, "AUTH 'unknown' is unknown; there are: h"),
    ],
)
def test_a_list_that_is_not_safe_ends_the_start(values: dict[str, str], mistake: str) -> None:
    with pytest.raises(SettingsError, match=f"^{mistake}"):
        make_authenticator(load_settings(None, **values), MemoryStore())


async def test_a_reload_never_opens_a_server_to_the_network() -> None:
    settings = load_settings(None, port=0, auth_tokens=TOKEN)
    services = make_services(settings, ScriptedProvider([]))
    async with running(settings, services) as listener:
        exposed = settings.model_copy(update={"host": "0.0.0.0"})
        without = exposed.model_copy(update={"auth_tokens": ()})
        with capture_logs() as lines:
            assert reload(exposed, services, listener, lambda: without) is exposed
        assert [line["event"] for line in lines] == ["reload failed"]
        assert (await http(listener.port, upgrade("/ws", "Connection: Upgrade")))[0] == 401


# -- the header


async def test_a_header_from_elsewhere_is_ignored_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTH_TENANT_HEADER", "X-Tenant")
    settings = load_settings(None, auth="header,tokens", auth_tokens=TOKEN, trusted_proxies="10.0.0.0/8")
    parts = make_authenticator(settings, MemoryStore())
    with capture_logs() as lines:
        stranger = await parts.authenticate(bearer(TOKEN, **{"X-User": "ada", "X-Tenant": "shop"}))
    assert stranger is not None and stranger.authenticator == "tokens"
    assert [line["source"] for line in lines] == ["192.0.2.1"] and "ada" not in str(lines)
    names = Headers({"X-User": "ada", "X-Tenant": "shop"})
    ada = await parts.authenticate(Handshake("/ws", names, "10.1.2.3"))
    assert ada is not None and ada.id == person_id("shop", "ada") and ada.authenticator == "header"
    assert await parts.authenticate(Handshake("/ws", Headers({"X-User": "ada"}), "10.1.2.3")) is None


# -- the hook


async def test_the_hook_gets_the_handshake_and_names_person_and_tenant(
    hook: Hook, by_hook: HookAuthenticator
) -> None:
    headers = {"Cookie": "a=b", "Sec-WebSocket-Key": "nonce"}
    principal = await by_hook.authenticate(bearer("ada", **headers))
    assert principal == Principal(person_id("shop", "ada"))
    assert tenant_of(principal.id) == tenant_of(person_id("shop", "bob"))
    expected = {"authorization": "Bearer ada", "cookie": "a=b"}
    assert hook.asked == [{"token": "ada", "address": "", "headers": expected}]


async def test_an_answer_is_kept_until_its_end_for_the_same_handshake_only(
    hook: Hook, by_hook: HookAuthenticator
) -> None:
    hook.more = {"expires": hook.time + 2 * CACHE_S}
    for nonce in ("1", "2"):
        assert await by_hook.authenticate(bearer("ada", **{"Sec-WebSocket-Key": nonce})) is not None
    assert len(hook.asked) == 1
    assert await by_hook.authenticate(bearer("ada", Cookie="other")) is not None
    assert await by_hook.authenticate(bearer("bob")) is not None
    assert len(hook.asked) == 3
    hook.time += CACHE_S
    assert await by_hook.authenticate(bearer("ada")) is not None
    assert len(hook.asked) == 4
    hook.time += CACHE_S
    assert await by_hook.authenticate(bearer("ada")) is None, "the person's time is over"


async def test_the_kept_answers_are_bounded(hook: Hook, by_hook: HookAuthenticator) -> None:
    hook.more = {"expires": hook.time + 60}
    for number in range(MAX_CACHED + 1):
        await by_hook.authenticate(bearer(f"p-{number}"))
    await by_hook.authenticate(bearer(f"p-{MAX_CACHED}"))
    assert len(hook.asked) == MAX_CACHED + 1
    await by_hook.authenticate(bearer("p-0"))
    assert len(hook.asked) == MAX_CACHED + 2


@pytest.mark.parametrize(
    "more", [{"id": ""}, {"id": 7}, {"id": None}, {"expires": 999.0}, {"expires": "soon"}, {"tenant": []}]
)
async def test_an_answer_that_is_not_one_refuses(
    hook: Hook, by_hook: HookAuthenticator, more: dict[str, Any]
) -> None:
    hook.more = more
    assert await by_hook.authenticate(bearer("ada")) is None


async def test_the_hook_is_asked_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(lambda request: {"id": "ada"}) as service:
        monkeypatch.setenv("AUTH_HOOK", service.url("/who"))
        authenticator = choose(AUTH, "hook", "AUTH").make(Authenticator, load_settings(None))
        principal = await authenticator.authenticate(bearer("ada"))
        assert principal is not None and principal.id == person_id("", "ada")
    assert [request[:2] for request in service.asked] == [("POST", "/who")]
    with capture_logs() as lines:
        assert await authenticator.authenticate(bearer("ada")) is None
        for _ in range(20):
            assert await authenticator.authenticate(bearer("ada")) is None
    assert [line["reason"] for line in lines] == ["AUTH_HOOK"], "further ones are counted"


@pytest.mark.parametrize("url", ["http://id.example/who", "ftp://id.example/who", "id.example/who"])
def test_an_address_that_others_could_answer_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTH_HOOK", url)
    with pytest.raises(SettingsError, match="^AUTH_HOOK must be an https:// address"):
        choose(AUTH, "hook", "AUTH").make(Authenticator, load_settings(None))
