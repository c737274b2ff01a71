"""Each setting, changed from its default, is seen in what the program makes of the settings."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from conductor.app import make_services, running
from conductor.models.profiles import load_profiles
from conductor.observers.turns import TurnObservers
from conductor.settings import Settings, load_settings
from conductor.tools.permissions import GateOptions

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Effect:
    """A ``value`` of a setting, and what ``seen`` then finds; ``also`` are settings that it needs."""

    value: Any
    seen: Callable[[Settings], object]
    expected: object
    also: tuple[tuple[str, Any], ...] = ()


def of(path: str) -> Callable[[Settings], object]:
    """Look at a part of the services."""
    return lambda settings: attrgetter(path)(make_services(settings))


def limit(value: Any, name: str, expected: float) -> Effect:
    return Effect(value, of(f"limits.{name}"), expected)


def model(value: Any, provider: str, field: str, expected: object) -> Effect:
    """Look at the profile that the settings make of a provider."""

    def seen(settings: Settings) -> object:
        found = getattr(load_profiles(settings).main, field)
        return found.get_secret_value() if isinstance(found, SecretStr) else found

    return Effect(value, seen, expected, (("model_provider", provider),))


def gate(value: Any, **options: Any) -> Effect:
    return Effect(value, of("gate_options"), GateOptions(**options))


def tools_of(settings: Settings) -> set[str]:
    return {spec.name for toolset in make_services(settings).toolsets for spec in toolset.specs()}


def has_tool(value: Any, name: str, *also: tuple[str, Any]) -> Effect:
    return Effect(value, lambda settings: name in tools_of(settings), True, also)


def rules_of(settings: Settings) -> object:
    return [(rule.effect, rule.tool) for rule in make_services(settings).policies.rules]


def redacted(settings: Settings) -> object:
    return make_services(settings).redactor.text("read /home/ann/plan.txt")


RULES = '{"version": 1, "rules": [{"effect": "deny", "tool": "calculator"}]}'
SHOP = """
from conductor.tools import tool


@tool(risk="safe", effect="read")
def stock(item: str) -> int:
    \"\"\"Tell how many of an item the shop has.\"\"\"
    return 3
"""

EFFECTS: dict[str, Effect] = {
    "inspect": Effect("on", of("inspect"), "on", (("host", "0.0.0.0"),)),
    "model_provider": Effect("openai", lambda settings: load_profiles(settings).main.provider, "openai"),
    "anthropic_api_key": model("sk-1", "anthropic", "api_key", "sk-1"),
    "anthropic_base_url": model("https://a.example", "anthropic", "base_url", "https://a.example"),
    "anthropic_model": model("claude-x", "anthropic", "model", "claude-x"),
    "anthropic_max_tokens": model(7, "anthropic", "max_tokens", 7),
    "openai_api_key": model("sk-1", "openai", "api_key", "sk-1"),
    "openai_base_url": model("https://o.example", "openai", "base_url", "https://o.example"),
    "openai_model": model("gpt-x", "openai", "model", "gpt-x"),
    "llama_cpp_model": model("m.gguf", "llama_cpp", "model", "m.gguf"),
    "bedrock_model": model("nova", "bedrock", "model", "nova"),
    "text_tools": model("on", "openai", "kind", "text"),
    "model_thinking": model("adaptive", "anthropic", "thinking", "adaptive"),
    "model_effort": model("low", "anthropic", "effort", "low"),
    "model_sees": model("true", "openai", "sees", True),
    "max_event_bytes": limit(1_000, "max_event_bytes", 1_000),
    "max_turns": limit(7, "max_turns", 7),
    "partial_interval_ms": limit(70, "partial_interval", 0.07),
    "max_tool_rounds": limit(7, "max_tool_rounds", 7),
    "max_tool_calls_per_round": limit(7, "max_calls_per_round", 7),
    "tool_timeout_ms": limit(7_000, "tool_timeout", 7.0),
    "model_timeout_ms": limit(7_000, "model_silence", 7.0),
    "turn_timeout_ms": limit(7_000, "turn_timeout", 7.0),
    "session_rate_limit_per_min": limit(7, "turns_per_minute", 7),
    "subject_turns_per_min": limit(7, "subject_turns_per_minute", 7),
    "max_sessions_per_subject": limit(7, "max_sessions_per_subject", 7),
    "max_connections": limit(700, "max_connections", 700),
    "max_connections_per_subject": limit(7, "max_connections_per_subject", 7),
    "max_connections_per_address": limit(7, "max_connections_per_address", 7),
    "hold_unfinished_ms": Effect(1_200, of("conduct.hold_ms"), 1_200),
    "news_after_s": limit(7, "open_microphone", 7.0),
    "session_grace_s": limit(7, "session_grace", 7.0),
    "interruption_mode": Effect("queue", of("conduct.cancels"), False),
    "speak_segments": Effect("always", of("speak_segments"), True),
    "bridge_phrases": Effect("One moment.", of("bridge_phrases"), ("One moment.",)),
    "summarize_history": Effect(True, of("summarize_history"), True),
    "speak_errors": Effect(False, of("failures"), {}),
    "system_prompt_file": Effect("prompt.md", of("system_prompt"), "You are a goldfish."),
    "device_tools_file": Effect("none", of("catalog"), ()),
    "web_fetch": has_tool(True, "web_fetch"),
    "web_search": has_tool("http://127.0.0.1:9", "web_search"),
    "session_store_url": Effect("sqlite:///store.db", of("store.durable"), True),
    "data_dir": Effect("data", of("store.durable"), True),
    "allowed_tools": gate("calculator", allowed_tools=("calculator",)),
    "config_dir": Effect("config", rules_of, [("deny", "calculator")]),
    "policies_file": Effect("config/policies.json", rules_of, [("deny", "calculator")]),
    "deny_irreversible": gate(True, deny_irreversible=True),
    "dry_run": gate(True, dry_run=True),
    "local_only": gate(True, local_only=True),
    "redact_paths": Effect(True, redacted, "read [REDACTED:path]"),
    "file_roots": has_tool("notes", "read_file"),
    "notes_dir": has_tool("notes", "notes_search"),
    "knowledge_dir": has_tool("notes", "query_knowledge_base", ("data_dir", "data")),
    "memory": has_tool(True, "remember"),
    "tools_path": has_tool("shop.py", "stock"),
    "audit_log": Effect("audit.jsonl", lambda settings: make_services(settings).audit is None, False),
    "log_content": Effect(True, of("observers.log_content"), True),
}

ELSEWHERE = {
    "host": "server/test_cli.py::test_with_tokens_other_machines_need_a_token",
    "port": "server/test_app.py::test_a_port_in_use_is_reported_before_anything_starts",
    "web": "server/test_page.py::test_web_off_removes_only_the_page",
    "max_kept_sessions_per_subject": "server/conversations/test_rate_limits.py"
    "::test_a_session_too_many_is_refused_clearly_and_existing_ones_can_be_resumed",
    "trusted_proxies": "server/test_metrics.py::test_each_reliable_address_has_its_own_limit_of_wrong_tokens",
    "mcp_server": "server/test_roles.py::test_a_static_token_and_the_one_of_its_programs",
    "auth_tokens": "server/test_cli.py::test_with_tokens_other_machines_need_a_token",
    "auth": "server/test_authenticators.py::test_a_header_from_elsewhere_is_ignored_and_logged",
    "api_keys": "server/test_api_http.py::test_a_wrong_key_is_refused_and_limited_and_locks_nobody_out",
    "allowed_origins": "server/test_access.py"
    "::test_a_page_may_connect_to_its_own_host_and_port_and_no_page_of_another_port",
    "session_store_replicas": "server/commands/test_check_store.py::test_missing_replicas_fail",
    "session_ttl_s": "unit/stores/test_sqlite.py::test_the_settings_decide_when_sessions_expire",
    "workers": "server/test_logs.py::test_every_line_of_a_server_is_json",
    "admin_token": "server/test_metrics.py::test_wrong_tokens_are_ten_a_minute_and_the_right_one_still_works",
    "log_level": "server/test_cli.py::test_with_tokens_other_machines_need_a_token",
    "log_format": "server/test_cli.py::test_with_tokens_other_machines_need_a_token",
}
"""Settings whose effect a test of a running server or of a store shows."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder with the files that the settings name, without the developer's own settings."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("notes", "data", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "policies.json").write_text(RULES)
    (tmp_path / "prompt.md").write_text("You are a goldfish.")
    (tmp_path / "shop.py").write_text(SHOP)


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_is_seen_where_it_is_used(name: str) -> None:
    effect = EFFECTS[name]
    others = dict(effect.also)
    assert effect.seen(load_settings(None, **others)) != effect.expected, "the default has the same effect"
    assert effect.seen(load_settings(None, **others, **{name: effect.value})) == effect.expected


@pytest.mark.parametrize(
    ("name", "tokens", "cost"), [("daily_token_budget", 8, 0.0), ("daily_cost_budget", 0, 8.0)]
)
async def test_a_budget_is_spent_by_what_it_counts(name: str, tokens: int, cost: float) -> None:
    settings = load_settings(None, anthropic_api_key="sk-1", **{name: 7})
    budget = make_services(settings).budget
    assert budget is not None
    assert not await budget.is_spent("ann")
    with budget.running("ann", tokens, cost):
        assert await budget.is_spent("ann")


async def test_traces_go_to_the_collector_of_the_settings() -> None:
    for endpoint in (None, "http://127.0.0.1:9"):
        settings = load_settings(None, port=0, otel_exporter_otlp_endpoint=endpoint)
        services = make_services(settings)
        assert isinstance(services.observers, TurnObservers)
        async with running(settings, services):
            assert (services.observers.tracer is None) == (endpoint is None)


def test_each_setting_has_a_test_of_its_effect() -> None:
    here = {"daily_token_budget", "daily_cost_budget", "otel_exporter_otlp_endpoint"}
    assert {*EFFECTS, *ELSEWHERE, *here} == set(Settings.model_fields)
    for name, test in ELSEWHERE.items():
        path, _, function = test.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert function in {getattr(node, "name", "") for node in tree.body}, f"the test of {name} is gone"
