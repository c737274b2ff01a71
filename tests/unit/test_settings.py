"""Settings: valid and invalid values, and .env.example."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from conductor.errors import SettingsError
from conductor.settings import GONE, Limits, Settings, load_settings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / ".env.example"
SECRET = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def no_settings_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own environment and .env out of the tests."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def example() -> dict[str, tuple[str, list[str]]]:
    """Read .env.example: name -> value and the comment lines above it."""
    settings: dict[str, tuple[str, list[str]]] = {}
    comment: list[str] = []
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line)
        elif not line:
            comment = []
        else:
            name, equals, value = line.partition("=")
            assert equals and re.fullmatch(r"[A-Z0-9_]+", name), line
            assert name not in settings, f"{name} stands there twice"
            settings[name] = (value, comment)
            comment = []
    return settings


# -- .env.example


OF_PLUGINS = {
    "JWT_ISSUER": "",
    "JWT_AUDIENCE": "",
    "JWT_KEYS": "",
    "AUTH_HEADER": "X-User",
    "AUTH_ROLE_HEADER": "",
    "AWS_REGION": "",
    "AWS_BEARER_TOKEN_BEDROCK": "",
}
"""Variables that our own plugins read -> the default."""


def test_the_example_names_every_setting_and_nothing_else() -> None:
    assert set(example()) == {name.upper() for name in Settings.model_fields} | OF_PLUGINS.keys()
    assert not {name.lower() for name in example()} & GONE.keys()
    code = "".join(path.read_text() for path in (ROOT / "conductor" / "plugins").rglob("*.py"))
    assert [name for name in OF_PLUGINS if name not in code and not name.startswith("JWT_")] == []


def test_every_setting_of_the_example_has_a_comment_of_its_own() -> None:
    assert [name for name, (_, comment) in example().items() if not comment] == []


def test_each_value_of_the_example_is_the_default() -> None:
    for name, (value, _) in example().items():
        if name in OF_PLUGINS:
            assert value == OF_PLUGINS[name]
            continue
        default = Settings.model_fields[name.lower()].get_default()
        text = ",".join(default) if isinstance(default, tuple) else "" if default is None else str(default)
        assert value == (text.lower() if isinstance(default, bool) else text), name


# -- where values come from


def test_an_empty_value_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.setenv(name.upper(), "  " if name == "port" else "")
    assert load_settings(None) == Settings.model_construct()


def test_the_environment_wins_over_the_file_and_an_option_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings"
    file.write_text("PORT=1001\nMAX_TURNS=7\nMODEL_PROVIDER=demo\n")
    monkeypatch.setenv("PORT", "1002")
    monkeypatch.setenv("MAX_TURNS", "8")
    settings = load_settings(file, port=1003, max_turns=None)
    assert (settings.port, settings.max_turns, settings.model_provider) == (1003, 8, "demo")
    assert load_settings(file, model_provider="anthropic").model_provider == "anthropic"


def test_an_empty_value_in_the_environment_hides_nothing_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings"
    file.write_text("AUTH_TOKENS=abc\nPORT=1001\n")
    monkeypatch.setenv("AUTH_TOKENS", "")
    monkeypatch.setenv("PORT", " ")
    assert (load_settings(file).auth_tokens, load_settings(file).port) == (("abc",), 1001)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("AUTH_TOKENS", " one, two ,,three ", ("one", "two", "three")),
        (
            "ALLOWED_ORIGINS",
            "https://a.example:8443, null, capacitor://localhost, http://[::1]:3000",
            ("https://a.example:8443", "null", "capacitor://localhost", "http://[::1]:3000"),
        ),
        ("LOG_LEVEL", "DEBUG", "debug"),
        ("MODEL_PROVIDER", " Demo ", "demo"),
        ("SPEAK_SEGMENTS", "Always", "always"),
        ("BRIDGE_PHRASES", "One moment, please. | Let me see.|", ("One moment, please.", "Let me see.")),
        ("LOG_CONTENT", "yes", True),
        ("SYSTEM_PROMPT_FILE", "prompt.md", Path("prompt.md")),
        ("MAX_TURNS", " 30 ", 30),
    ],
)
def test_values_may_have_spaces_and_upper_case(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(load_settings(None), name.lower()) == value


# -- malformed values


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("PORT", "eighty", "integer"),
        ("AUTH_TOKENS", " , ", "the list is empty"),
        ("ALLOWED_ORIGINS", "localhost:3000", "https://app.example.com"),
        ("ALLOWED_ORIGINS", "https://a.example,https://b.example/", "no path"),
        ("ALLOWED_ORIGINS", "https://App.example", "lower case"),
        ("ALLOWED_ORIGINS", "*", "must be an origin"),
        ("FILE_ROOTS", "a\nb", "control characters"),
        ("ADMIN_TOKEN", "\udcff", "not UTF-8"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "http://127.0.0.1:4318"),
        ("PORT", "65536", "65535"),
        ("MAX_EVENT_BYTES", "100", "128"),
        ("TURN_TIMEOUT_MS", "1.5", "integer"),
        ("SESSION_GRACE_S", "nan", "86400"),
        ("INTERRUPTION_MODE", "stop", "'cancel' or 'queue'"),
        ("SPEAK_ERRORS", "perhaps", "boolean"),
        ("LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("LOG_FORMAT", "xml", "'json' or 'console'"),
        ("SESSION_STORE_URL", f"mysql://user:{SECRET}@host", "memory://"),
        ("SESSION_STORE_URL", f"redis:{SECRET}@host", "redis://HOST"),
        ("SESSION_STORE_URL", "sessions.db", "sqlite:///FILE"),
    ],
)
def test_a_malformed_value_is_one_sentence_that_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setenv("AUTH_TOKENS", SECRET)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(None)
    message = str(caught.value)
    assert message.startswith(f"{name} is not valid: ") and sentence in message
    assert message.endswith(".") and "\n" not in message and ".." not in message
    assert SECRET not in message
    assert caught.value.__context__ is None, "the cause would show the value"


# -- what the values are good for


@pytest.mark.parametrize(
    ("url", "folder", "store"),
    [
        (None, None, "memory://"),
        (None, "data", "sqlite:///data/conductor.db"),
        (None, "/srv/data", "sqlite:////srv/data/conductor.db"),
        ("memory://", "data", "memory://"),
        ("sqlite:///other.db", "data", "sqlite:///other.db"),
        (f"redis://:{SECRET}@h:1/2", "data", f"redis://:{SECRET}@h:1/2"),
        *((f"{scheme}://h", None, f"{scheme}://h") for scheme in ("redis", "valkeys", "rediss+sentinel")),
    ],
)
def test_sessions_are_kept_where_the_url_says_else_in_the_folder_else_in_memory(
    url: str | None, folder: str | None, store: str
) -> None:
    settings = load_settings(None, session_store_url=url, data_dir=folder)
    assert settings.store_url == store
    assert store.startswith(settings.store_kind) or settings.store_kind == "redis"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a b/c?#%20.db", Path("a b/c?#%20.db")),
        ("sqlite:////srv/c.db", Path("/srv/c.db")),
        ("sqlite:///~/c.db", Path.home() / "c.db"),
    ],
)
def test_a_file_is_named_after_three_slashes(url: str, path: Path) -> None:
    assert load_settings(None, session_store_url=url).store_path == path


def test_settings_shown_hold_no_secret() -> None:
    url = f"redis://:{SECRET}@host"
    settings = load_settings(None, auth_tokens=SECRET, anthropic_api_key=SECRET, session_store_url=url)
    assert SECRET not in repr(settings) and SECRET not in str(settings)
    assert settings.auth_tokens == (SECRET,)


@pytest.mark.parametrize(
    ("provider", "key", "expected"),
    [
        (None, None, "demo"),
        (None, SECRET, "anthropic"),
        ("demo", SECRET, "demo"),
        ("anthropic", None, "anthropic"),
    ],
)
def test_the_provider_is_the_named_one_else_claude_with_a_key_else_the_demo(
    provider: str | None, key: str | None, expected: str
) -> None:
    assert load_settings(None, model_provider=provider, anthropic_api_key=key).provider == expected


def test_the_default_limits_are_those_of_the_default_settings() -> None:
    assert load_settings(None).limits == Limits()


SET_LIMITS = {
    "max_event_bytes": ("max_event_bytes", 2048, 2048),
    "max_turns": ("max_turns", 7, 7),
    "max_tool_rounds": ("max_tool_rounds", 3, 3),
    "max_tool_calls_per_round": ("max_calls_per_round", 4, 4),
    "tool_timeout_ms": ("tool_timeout", 6_500, 6.5),
    "model_timeout_ms": ("model_silence", 2_500, 2.5),
    "turn_timeout_ms": ("turn_timeout", 9_000, 9.0),
    "partial_interval_ms": ("partial_interval", 10, 0.01),
    "session_grace_s": ("session_grace", 1.5, 1.5),
    "hold_unfinished_ms": ("hold_unfinished", 1_200, 1.2),
    "news_after_s": ("open_microphone", 2.5, 2.5),
}


@pytest.mark.parametrize("name", SET_LIMITS)
def test_a_limit_follows_its_setting_and_no_other_does(name: str) -> None:
    limit, value, expected = SET_LIMITS[name]
    limits = load_settings(None, **{name: value}).limits
    changed = {f.name for f in fields(Limits) if getattr(limits, f.name) != getattr(Limits(), f.name)}
    assert getattr(limits, limit) == expected
    assert changed == {limit}


def test_a_ui_call_gets_no_more_time_than_a_tool() -> None:
    assert load_settings(None, tool_timeout_ms=500).limits.ui_timeout == 0.5


@pytest.mark.parametrize(
    ("file", "values", "store"),
    [
        (None, {}, "sqlite:///data/conductor.db"),
        ("PORT=1\nDATA_DIR=\n# DATA_DIR=old\n", {}, "sqlite:///data/conductor.db"),
        ("PORT=1\n export DATA_DIR = mine\n", {}, "sqlite:///mine/conductor.db"),
        ("DATA_DIR=mine\n", {"DATA_DIR": "theirs"}, "sqlite:///theirs/conductor.db"),
        ("DATA_DIR=mine\n", {"DATA_DIR": " "}, "sqlite:///mine/conductor.db"),
        ("SESSION_STORE_URL=memory://\n", {}, "memory://"),
    ],
)
def test_sessions_are_in_the_data_folder_unless_a_setting_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, file: str | None, values: dict[str, str], store: str
) -> None:
    if file is not None:
        Path(".env").write_text(file)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert load_settings().store_url == store
