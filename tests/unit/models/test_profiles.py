"""Model profiles: what a file or the settings give, and one sentence for each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conductor.errors import SettingsError
from conductor.models.profiles import ModelProfile, Prices, Profiles, load_profiles
from conductor.plugins.models.anthropic import from_profile
from conductor.plugins.models.families import prices_of
from conductor.settings import load_settings
from conductor.tools.toolsets import make_redactor
from tests.conftest import ROOT, Main

SECRET = "sk-hunter2-hunter2"
HOME = '[[profile]]\nname = "home"\nprovider = "demo"\n'


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Profiles]:
    """Write ``models.toml`` and load it; keyword arguments are settings."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, **values: str) -> Profiles:
        Path("models.toml").write_text(text, encoding="utf-8")
        return load_profiles(load_settings(None, **values))

    return load


def key_of(profile: ModelProfile) -> str | None:
    return None if profile.api_key is None else profile.api_key.get_secret_value()


def test_the_example_of_the_documents_gives_its_profiles(load: Callable[..., Profiles]) -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    Path(".env").write_text(f"CLOUD_KEY={SECRET}\n")
    profiles = load(text.partition("```toml\n")[2].partition("```")[0])
    home, cloud = profiles.by_name["home"], profiles.by_name["cloud"]
    assert profiles.main is home and profiles.allowed == ("home", "cloud")
    assert (home.kind, home.style, home.endpoint, home.timeout_s) == ("native", "jsonl", "chat", 20)
    assert (home.fallback, home.title) == (("cloud",), "qwen3:4b (openai) at 127.0.0.1")
    assert key_of(cloud) == SECRET and SECRET not in repr(cloud)
    assert cloud.prices and cloud.prices.cache_write == 2.50 and cloud.title == "Claude (claude-sonnet-5-5)"


def test_a_key_may_stand_in_the_file_of_settings(load: Callable[..., Profiles]) -> None:
    Path(".env").write_text(f"HOME_KEY={SECRET}\n")
    assert key_of(load(f'default = "home"\n{HOME}api_key_env = "HOME_KEY"').main) == SECRET


GATEWAY = """default = "gate"
[[profile]]
name = "gate"
provider = "openai"
model = "m"
base_url = "https://gateway.example/v1"
[profile.headers]
X-Portkey-Api-Key = "${GATE_KEY}"
x-provider = "openai"
X-Auth-Token = "plain-secret-1"
x-route = "${ROUTE}"
"""


def test_a_profile_has_headers_of_its_own_whose_secrets_are_redacted(
    load: Callable[..., Profiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATE_KEY", SECRET)
    monkeypatch.setenv("ROUTE", "route-secret-2")
    profile = load(GATEWAY).main
    assert profile.own_headers == {
        "x-portkey-api-key": SECRET,
        "x-provider": "openai",
        "x-auth-token": "plain-secret-1",
        "x-route": "route-secret-2",
    }
    assert SECRET not in repr(profile) and "plain-secret-1" not in repr(profile)
    redactor = make_redactor(load_settings(None), [])
    text = redactor.text(f"{SECRET} plain-secret-1 route-secret-2 openai")
    assert not any(secret in text for secret in (SECRET, "plain-secret-1", "route-secret-2"))
    assert text.endswith(" openai")


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ('{ "x-key" = "${MISSING_KEY}" }', "the variable MISSING_KEY is not set"),
        ('{ "Host" = "other" }', "headers of .* cannot set 'host'"),
        ('{ "a b" = "c" }', "headers of .* cannot set 'a b'"),
        ('{ "x-key" = "a\\nb" }', "x-key holds invalid characters"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(
    load: Callable[..., Profiles], headers: str, sentence: str
) -> None:
    before, _, _ = GATEWAY.partition("[profile.headers]")
    with pytest.raises(SettingsError, match=sentence):
        load(f"{before}headers = {headers}")
    with pytest.raises(SettingsError, match="headers of .* bedrock takes none"):
        load(f'{before.replace("openai", "bedrock")}headers = {{ "x-key" = "c" }}')


def test_a_key_of_the_settings_is_not_for_another_address(load: Callable[..., Profiles]) -> None:
    cloud = 'default = "cloud"\n[[profile]]\nname = "cloud"\nprovider = "anthropic"\n'
    settings = {"anthropic_api_key": SECRET, "anthropic_model": "claude-test"}
    assert key_of(load(cloud, **settings).main) == SECRET
    gateway = load(f'{cloud}base_url = "https://gateway.example"', **settings).main
    assert gateway.api_key is None and gateway.model == "claude-test"


def test_without_a_file_the_settings_make_the_profile(load: Callable[..., Profiles]) -> None:
    settings = load_settings(None, anthropic_api_key=SECRET, anthropic_model="m", anthropic_max_tokens=7)
    profiles = load_profiles(settings)
    assert profiles.file is None and list(profiles.by_name) == ["default"]
    main = profiles.main
    assert (main.provider, main.model, main.max_tokens, key_of(main)) == ("anthropic", "m", 7, SECRET)


@pytest.mark.parametrize(
    ("more", "price"),
    [
        ("", 2.0),
        ("prices = { input = 7 }", 7.0),
        ("prices = {}", 0.0),
        ('base_url = "https://gateway.example"', 0.0),
        ('model = "claude-test"', 0.0),
    ],
)
def test_a_model_has_the_prices_of_its_own_service(
    load: Callable[..., Profiles], more: str, price: float
) -> None:
    model = "" if "model" in more else 'model = "claude-sonnet-5-5"'
    text = f'default = "a"\n[[profile]]\nname = "a"\nprovider = "anthropic"\n{model}\n{more}'
    main = load(text, anthropic_api_key=SECRET).main
    assert (main.prices or prices_of(main) or Prices()).input == price


def test_the_default_model_has_a_price(load: Callable[..., Profiles]) -> None:
    settings = load_settings(None, anthropic_api_key=SECRET)
    prices = from_profile(load_profiles(settings).main, settings).prices
    assert prices is not None and prices.cache_write == 0.125


def test_the_provider_of_the_settings_wins_over_the_file(load: Callable[..., Profiles]) -> None:
    assert load(f'default = "home"\n{HOME}', model_provider="demo").file is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("default = ", "models.toml is not valid TOML: "),
        ('default = "home"', "models.toml: profile is missing."),
        (HOME, "models.toml: default is missing."),
        ('default = "away"\n' + HOME, 'default names "away", which is no profile; there are: home.'),
        ('default = "home"\nallowed = ["x"]\n' + HOME, 'allowed names "x", which is no profile'),
        ('default = "home"\nmodels = 1\n' + HOME, "models.toml: there is no models."),
        ('default = "home"\n[[profile]]\nname = "home"', 'profile "home": provider is missing.'),
        ('default = "home"\n[[profile]]\nprovider = "demo"', "profile 1: name is missing."),
        ('default = "home"\n' + HOME + 'kind = "some"', '"home": kind is not valid: it must be'),
        ('default = "home"\n' + HOME + 'colour = "red"', 'profile "home": there is no colour.'),
        ('default = "home"\n' + HOME + "max_tokens = 0", "max_tokens is not valid: it must be greater"),
        ('default = "home"\n' + HOME + "prices = { input = -1 }", "prices.input is not valid"),
        ('default = "home"\n' + HOME + f'api_key = "{SECRET}"', "a key does not belong in the file"),
        (
            'default = "home"\n' + HOME + 'api_key_env = "NO_KEY"',
            "NO_KEY, which api_key_env names, is not set.",
        ),
        (
            'default = "home"\n' + HOME + 'base_url = "host"',
            'base_url of "home" in models.toml must begin with',
        ),
        (
            'default = "home"\n' + HOME + 'base_url = "http://n@h"',
            "must not contain a user name or a password",
        ),
        ('default = "home"\n' + HOME + HOME, 'models.toml has two profiles "home".'),
        ('default = "home"\n' + HOME + 'fallback = ["x"]', 'the fallback of "home" names "x", which is no'),
        ('default = "home"\n' + HOME + 'fallback = ["home"]', 'fallback of "home" leads back to itself.'),
        (
            'default = "home"\n' + HOME + 'use = "voice"\n' + HOME.replace("home", "b") + 'use = "voice"',
            '"home" and "b" both have use = "voice".',
        ),
        (
            'default = "home"\n' + HOME.replace("demo", "parrot"),
            "provider of \"home\" in models.toml 'parrot' is unknown; there are: anthropic, ",
        ),
        (
            'default = "cloud"\n[[profile]]\nname = "cloud"\nprovider = "anthropic"',
            'api_key_env of "cloud" in models.toml is not set',
        ),
    ],
)
def test_a_mistake_is_one_sentence(conductor: Main, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "models.toml").write_text(text)
    code, out, err = conductor("--port", "0")
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err
    assert err.startswith("conductor: ") and SECRET not in err


def test_a_file_that_is_not_text_is_one_sentence(conductor: Main, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe")
    assert conductor()[::2] == (2, "conductor: models.toml cannot be read: it is not UTF-8 text.\n")
    (tmp_path / "models.toml").unlink()
    (tmp_path / "models.toml").mkdir()
    with pytest.raises(SettingsError, match="is not a regular file"):
        load_profiles(load_settings(None, config_dir=tmp_path))
