"""The least thinking of models, and refused settings, by the rules of the stand-ins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conductor.errors import SettingsError
from conductor.models.profiles import Effort, Thinking, load_profiles
from conductor.models.registry import make_provider
from conductor.plugins.models.anthropic_request import body_of
from conductor.plugins.models.bedrock_stream import converse_body
from conductor.plugins.models.families import Claude, family_of
from conductor.plugins.models.openai import from_profile
from conductor.plugins.models.openai_request import chat_body
from conductor.plugins.models.openai_responses import responses_body
from conductor.plugins.models.rendering import encode, names_of
from conductor.settings import load_settings
from tests.stand_ins import anthropic_rules, bedrock_service, openai_rules
from tests.unit.models.replies import ask


@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        ("claude-haiku-5-5", "disabled", None),
        ("claude-sonnet-5-5", "between_tools", None),
        ("claude-opus-5-5", None, "low"),
        ("claude-fable-5-2", None, "low"),
        ("claude-sonnet-5", "disabled", None),
        # They do not think unless they are told to.
        ("claude-opus-4-8", None, None),
        ("some-model", None, None),
    ],
)
def test_claude_thinks_as_little_as_it_allows(
    model: str, thinking: Thinking | None, effort: Effort | None
) -> None:
    body = msgspec.json.decode(encode(body_of(ask(), names_of(ask()), Claude(model), 512)))
    assert anthropic_rules.check_body(body, {}) is body
    fields = {"thinking": thinking and {"type": thinking}, "output_config": effort and {"effort": effort}}
    assert {name: body.get(name) for name in fields} == fields


def test_claude_on_bedrock_thinks_as_little_as_it_allows() -> None:
    model = "eu.anthropic.claude-haiku-5-5"
    body = converse_body(ask(), names_of(ask()), Claude(model), 512)
    bedrock_service.check(body, model)
    assert body["additionalModelRequestFields"] == {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("thinking", "effort", "fields"),
    [
        ("adaptive", None, {"thinking": {"type": "adaptive"}}),
        (None, "high", {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}),
        # Only with thinking does it take this one.
        (None, "max", {"output_config": {"effort": "max"}}),
    ],
)
def test_a_setting_wins_over_the_least(
    thinking: Thinking | None, effort: Effort | None, fields: dict[str, object]
) -> None:
    body = body_of(ask(), names_of(ask()), Claude("claude-haiku-5-5", thinking, effort), 512)
    anthropic_rules.check_body(msgspec.json.decode(encode(body)), {})
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == fields


@pytest.mark.parametrize(
    ("model", "effort"),
    [
        ("gpt-6-luna", "none"),
        ("gpt-6.1-terra", "none"),
        ("gpt-5.6", "none"),
        ("gpt-6.1-sol", "low"),
        ("gpt-6.2-sol", "low"),
        ("gpt-5.4-mini", None),
        ("gpt-4.1", None),
    ],
)
def test_openai_s_models_think_as_little_as_they_allow(model: str, effort: Effort | None) -> None:
    settings = load_settings(None, model_provider="openai", openai_api_key="k", openai_model=model)
    provider = from_profile(load_profiles(settings).main, settings)
    assert provider.effort == family_of(model).effort == effort
    names = names_of(ask())
    body = responses_body(ask(), names, model=model, max_tokens=512, source="here", effort=provider.effort)
    assert body.get("reasoning") == (effort and {"effort": effort})
    openai_rules.check_body("/v1/responses", msgspec.json.decode(encode(body)), {})
    if effort != "low":
        body = chat_body(
            ask(), names, model=model, max_tokens=512, official=True, source="here", effort=provider.effort
        )
        assert body.get("reasoning_effort") == effort
        openai_rules.check_body("/v1/chat/completions", msgspec.json.decode(encode(body)), {})


def test_only_openai_s_own_service_gets_a_cache_key() -> None:
    request, names = ask(cache_key="k1"), names_of(ask())
    for official in (True, False):
        bodies = {
            "/v1/chat/completions": chat_body(
                request, names, model="m", max_tokens=9, official=official, source="s"
            ),
            "/v1/responses": responses_body(
                request, names, model="m", max_tokens=9, official=official, source="s"
            ),
        }
        for path, body in bodies.items():
            openai_rules.check_body(path, msgspec.json.decode(encode(body)), {})
            assert body.get("prompt_cache_key") == ("k1" if official else None)


def test_another_service_is_sent_no_effort_but_the_one_that_is_set() -> None:
    local = {"openai_base_url": "http://127.0.0.1:1/v1", "openai_model": "gpt-6-luna"}
    for values, effort in (({}, None), ({"model_effort": "High"}, "high")):
        settings = load_settings(None, model_provider="openai", **local, **values)
        assert from_profile(load_profiles(settings).main, settings).effort == effort


CLAUDE = {"anthropic_api_key": "k"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"model_thinking": "off"},
            "MODEL_THINKING is not valid: input should be 'disabled', 'between_tools'",
        ),
        ({"model_thinking": "disabled"}, "MODEL_THINKING is for anthropic, bedrock only."),
        ({"model_effort": "low"}, "MODEL_EFFORT is for anthropic, bedrock, openai only."),
        ({**CLAUDE, "model_effort": "none"}, "MODEL_EFFORT cannot be none with Claude, which takes low, "),
        (
            {**CLAUDE, "anthropic_model": "claude-opus-5-5", "model_thinking": "disabled"},
            "MODEL_THINKING cannot be disabled with claude-opus-5-5, which takes adaptive.",
        ),
        (
            {**CLAUDE, "model_thinking": "disabled", "model_effort": "max"},
            "MODEL_EFFORT cannot be max where thinking is disabled.",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(values: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings = load_settings(None, **values)
        make_provider(load_profiles(settings).main, settings)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("model", "effort", "says"),
    [
        ("gpt-6.2-sol", None, "gpt-6.2-sol at effort low: "),
        ("gpt-6-luna", "high", "gpt-6-luna at effort high: "),
    ],
)
def test_a_wrong_endpoint_in_the_file_is_one_sentence(
    tmp_path: Path, model: str, effort: str | None, says: str
) -> None:
    text = (
        f'default = "a"\n[[profile]]\nname = "a"\nprovider = "openai"\nmodel = "{model}"\nendpoint = "chat"\n'
    )
    (tmp_path / "models.toml").write_text(text)
    settings = load_settings(None, config_dir=tmp_path, openai_api_key="k", model_effort=effort)
    with pytest.raises(SettingsError) as refused:
        make_provider(load_profiles(settings).main, settings)
    assert f"models.toml cannot be chat with {says}" in str(refused.value)


def test_in_a_file_a_setting_is_for_the_profiles_that_know_it(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    claude = '[[profile]]\nname = "claude"\nprovider = "anthropic"\n'
    path.write_text(f'default = "home"\n[[profile]]\nname = "home"\nprovider = "demo"\n{claude}')
    values = {"config_dir": path.parent, "model_thinking": "adaptive", "anthropic_api_key": "k"}
    profiles = load_profiles(load_settings(None, **values)).by_name
    assert (profiles["home"].thinking, profiles["claude"].thinking) == (None, "adaptive")
    path.write_text(path.read_text() + 'effort = "none"\n')
    with pytest.raises(
        SettingsError, match='^effort of "claude" in .*models.toml cannot be none with Claude'
    ):
        settings = load_settings(None, **values)
        make_provider(load_profiles(settings).by_name["claude"], settings)
