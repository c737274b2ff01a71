"""The server's own plugins pass the contracts; the stores' are in tests/stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from websockets.datastructures import Headers

from conductor.entry_points import AUTH, JUDGES, MODELS, TOOLSETS, plugins
from conductor.models.base import ModelProvider
from conductor.models.profiles import load_profiles
from conductor.plugins.models import demo
from conductor.server.auth import Authenticator, Handshake
from conductor.settings import load_settings
from conductor.testing.auth import AuthContract
from conductor.testing.judge import JudgeContract
from conductor.testing.model import ModelContract
from conductor.testing.toolset import MakeToolset, ToolsetContract
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.judge import ApprovalJudge
from conductor.tools.outcomes import ToolOutcome

TOKENS = ("correct-horse-battery-staple", "another-token-of-a-person")


class TestDemo(ModelContract):
    """The demo model."""

    @pytest.fixture
    def provider(self, monkeypatch: pytest.MonkeyPatch) -> ModelProvider:
        monkeypatch.setattr(demo, "PACE_S", 0.005)
        settings = load_settings(None, model_provider="demo")
        provider: ModelProvider = plugins(MODELS)["demo"].load()(load_profiles(settings).main, settings)
        return provider


class TestBuiltin(ToolsetContract):
    """The built-in tools."""

    @pytest.fixture
    def make(self) -> MakeToolset:
        def make() -> Toolset:
            toolset: Toolset = plugins(TOOLSETS)["builtin"].load()(load_settings(None))
            return _Stateless(toolset)

        return make

    @pytest.fixture
    def calls(self) -> Mapping[str, Mapping[str, Any]]:
        return {"calculator": {"expression": "2+2"}, "get_current_time": {}}


class _Stateless(Toolset):
    """The tools that need no session."""

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset

    def specs(self) -> Sequence[ToolSpec]:
        return [spec for spec in self._toolset.specs() if not spec.needs_session]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        return await self._toolset.call(name, arguments, context)


class TestEnglish(JudgeContract):
    """The judge of English."""

    @pytest.fixture
    def judge(self) -> ApprovalJudge[Any]:
        judge: ApprovalJudge[Any] = plugins(JUDGES)["en"].load()()
        return judge

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        return ["mhm", "Yeah.", "okay, right"]

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        return ["Yes.", "yes please", "Sure, go ahead.", "OK, do it"]

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        return ["No.", "no, thanks", "Don't do it."]

    @pytest.fixture
    def others(self) -> Sequence[str]:
        return ["Yes, but not the lamp.", "Is it late?", "maybe", "Yesterday.", "say yes to everything later"]


class TestGerman(JudgeContract):
    """The judge of German."""

    @pytest.fixture
    def judge(self) -> ApprovalJudge[Any]:
        judge: ApprovalJudge[Any] = plugins(JUDGES)["de"].load()()
        return judge

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        return ["mhm", "Ja.", "ach so, okay"]

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        return ["Ja.", "ja bitte", "Klar, mach das.", "in Ordnung, leg los"]

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        return ["Nein.", "nein danke", "Mach das nicht.", "lass es"]

    @pytest.fixture
    def others(self) -> Sequence[str]:
        return ["Ja, aber nicht die Lampe.", "Ist es sp\u00e4t?", "vielleicht", "Jahre.", "sag zu allem ja"]


class TestSpanish(JudgeContract):
    """The judge of Spanish."""

    @pytest.fixture
    def judge(self) -> ApprovalJudge[Any]:
        judge: ApprovalJudge[Any] = plugins(JUDGES)["es"].load()()
        return judge

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        return ["mhm", "S\u00ed.", "vale, claro"]

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        return ["S\u00ed.", "si por favor", "Vale, adelante.", "claro que s\u00ed"]

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        return ["No.", "no gracias", "No lo hagas.", "d\u00e9jalo"]

    @pytest.fixture
    def others(self) -> Sequence[str]:
        return [
            "S\u00ed, pero no la l\u00e1mpara.",
            "\u00bfEs tarde?",
            "quiz\u00e1s",
            "siempre",
            "di que s\u00ed a todo",
        ]


class TestFrench(JudgeContract):
    """The judge of French."""

    @pytest.fixture
    def judge(self) -> ApprovalJudge[Any]:
        judge: ApprovalJudge[Any] = plugins(JUDGES)["fr"].load()()
        return judge

    @pytest.fixture
    def backchannels(self) -> Sequence[str]:
        return ["mhm", "Oui.", "d'accord, je vois"]

    @pytest.fixture
    def consents(self) -> Sequence[str]:
        return ["Oui.", "oui s'il te pla\u00eet", "D'accord, vas-y.", "bien s\u00fbr"]

    @pytest.fixture
    def refusals(self) -> Sequence[str]:
        return ["Non.", "non merci", "Ne fais pas \u00e7a.", "laisse tomber"]

    @pytest.fixture
    def others(self) -> Sequence[str]:
        return [
            "Oui, mais pas la lampe.",
            "Est-ce qu'il est tard\u00a0?",
            "peut-\u00eatre",
            "toujours",
            "dis oui \u00e0 tout",
        ]


class TestTokens(AuthContract):
    """Static tokens."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        settings = load_settings(None, auth_tokens=TOKENS)
        authenticator: Authenticator = plugins(AUTH)["tokens"].load()(settings)
        return authenticator

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [Handshake(f"/ws?token={token}", Headers()) for token in TOKENS]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        return [Handshake("/ws", Headers(Authorization=f"Bearer {TOKENS[0]}x"))]


class TestHeader(AuthContract):
    """A header of trusted proxies."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        settings = load_settings(None, trusted_proxies="10.0.0.0/8")
        authenticator: Authenticator = plugins(AUTH)["header"].load()(settings)
        return authenticator

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        return [_from("10.1.2.3", ("X-User", "ada")), _from("::ffff:10.1.2.3", ("X-User", "bob"))]

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        twice = _from("10.1.2.3", ("X-User", "ada"), ("X-User", "bob"))
        return [twice, _from("192.0.2.1", ("X-User", "ada")), _from("10.1.2.3", ("X-User", " "))]


def _from(peer: str, *headers: tuple[str, str]) -> Handshake:
    return Handshake("/ws", Headers(headers), peer)
