"""The list of authenticators, and the one by a header."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from websockets.datastructures import Headers

from conductor.app import make_authenticator, make_services, running
from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.auth import Authenticator, Authenticators, Handshake, Principal, person_id
from conductor.settings import load_settings
from conductor.stores.memory import MemoryStore
from tests.models import ScriptedProvider
from tests.server.wires import http, upgrade

TOKEN = "a-token-of-a-client"


def bearer(token: str, **headers: str) -> Handshake:
    return Handshake("/ws", Headers({"Authorization": f"Bearer {token}", **headers}), "192.0.2.1")


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


def test_a_name_is_another_person_for_another_issuer() -> None:
    names = [
        ("shop", "ada"),
        ("bank", "ada"),
        ("", "ada"),
        ("shop\nada", ""),
        ("", "shop\nada"),
        ("shop", "\ud800"),
    ]
    assert len({person_id(*pair) for pair in names}) == len(names)
    assert person_id("shop", "ada") == person_id("shop", "ada") and "ada" not in person_id("shop", "ada")


# -- the header


async def test_a_header_from_elsewhere_is_ignored_and_logged() -> None:
    settings = load_settings(None, auth="header,tokens", auth_tokens=TOKEN, trusted_proxies="10.0.0.0/8")
    parts = make_authenticator(settings, MemoryStore())
    with capture_logs() as lines:
        stranger = await parts.authenticate(bearer(TOKEN, **{"X-User": "ada"}))
    assert stranger is not None and stranger.authenticator == "tokens"
    assert [line["source"] for line in lines] == ["192.0.2.1"] and "ada" not in str(lines)
    ada = await parts.authenticate(Handshake("/ws", Headers({"X-User": "ada"}), "10.1.2.3"))
    assert ada is not None and ada.id == person_id("", "ada") and ada.authenticator == "header"
    assert await parts.authenticate(Handshake("/ws", Headers({"X-User": " "}), "10.1.2.3")) is None
