"""The authenticator passes the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from header_auth import from_settings
from websockets.datastructures import Headers

from conductor.server.auth import Authenticator, Handshake
from conductor.settings import load_settings
from tests.contract.auth import AuthContract


class TestHeader(AuthContract):
    """The contract of authenticators."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        return from_settings(load_settings(None, trusted_proxies="10.0.0.0/8"))

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [Handshake("/ws", Headers({"X-User": name}), "10.1.2.3") for name in ("ada", "bob")]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        twice = Headers([("X-User", "ada"), ("X-User", "bob")])
        stranger = Handshake("/ws", Headers({"X-User": "ada"}), "192.0.2.1")
        return [stranger, Handshake("/ws", twice, "10.1.2.3"), Handshake("/ws", Headers(), "10.1.2.3")]
