"""The authenticator passes the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from signed_auth import from_settings, sign
from websockets.datastructures import Headers

from conductor.plugin import Authenticator, Handshake
from conductor.settings import load_settings
from conductor.testing.auth import AuthContract

KEY = "k" * 32


def signed(person: str, until: str = "4000000000", key: str = KEY) -> Handshake:
    """Make the handshake of a signed address."""
    return Handshake(f"/ws?person={person}&until={until}&signature={sign(key, person, until)}", Headers())


class TestSigned(AuthContract):
    """The contract of authenticators."""

    @pytest.fixture
    def authenticator(self, monkeypatch: pytest.MonkeyPatch) -> Authenticator:
        monkeypatch.setenv("SIGNING_KEY", KEY)
        return from_settings(load_settings(None))

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [signed("ada"), signed("bob")]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        forged = signed("ada").path.replace("ada", "bob")
        return [signed("ada", key="x" * 32), signed("ada", "1000000000"), Handshake(forged, Headers())]
