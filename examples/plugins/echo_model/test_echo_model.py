"""The model passes the contract."""

from __future__ import annotations

import pytest
from echo_model import EchoModel

from conductor.testing.model import ModelContract


class TestEcho(ModelContract):
    """The contract of models."""

    @pytest.fixture
    def provider(self) -> EchoModel:
        return EchoModel("You said:")
