"""Model profiles: the models, their addresses, prices and fallbacks.

They are read from ``models.toml`` in CONFIG_DIR. Without the file the settings make one profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from conductor.config_file import check_url, read_toml, validate
from conductor.errors import SettingsError
from conductor.settings import Settings, environment_value, with_environment

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_NO_HEADERS = frozenset(
    "host content-length content-type transfer-encoding connection accept-encoding".split()
)
_WITHOUT_HEADERS = ("bedrock", "demo", "llama_cpp")
_STRICT = ConfigDict(extra="forbid", frozen=True)

_Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


Thinking: TypeAlias = Literal["disabled", "between_tools", "adaptive"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Platform: TypeAlias = Literal["anthropic", "foundry", "aws", "mantle", "google_cloud"]


class Prices(BaseModel):
    """Prices of a million tokens, in any one currency; without prices of a cache its tokens cost as input."""

    model_config = _STRICT

    input: _Price = 0.0
    output: _Price = 0.0
    cache_read: _Price = 0.0
    cache_write: _Price = 0.0

    @model_validator(mode="before")
    @classmethod
    def _with_cache(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        price = values.get("input", 0.0)
        return {"cache_read": price, "cache_write": price, **values}


class ModelProfile(BaseModel):
    """One model at one service.

    ``kind``: the model makes tool calls (``native``), or writes them as text in a ``style`` that it is taught
    (``text``); ``auto`` tries it out once. ``api_key`` comes from the variable ``api_key_env``. ``headers``
    are added to each request; ``${NAME}`` in them is a variable, with its value in ``header_secrets``.
    ``fallback`` are the profiles asked in turn if this one fails, without their own. ``use``: the requests
    without tools (``voice``) or with tools (``tools``). ``timeout_s``, the longest silence of the service,
    replaces MODEL_TIMEOUT_MS. Without ``thinking`` and ``effort`` the model thinks as little as it allows.
    ``sees``: the model takes images; without it, by the model's name (`families.sees`).
    ``slots``, requests at once, and ``threads`` of the CPU are for llama_cpp, ``region`` is for bedrock
    and, like ``platform``, for Claude. Without ``prices`` the provider's count. ``file`` is the path
    of the profiles.
    """

    model_config = _STRICT

    name: Annotated[str, Field(pattern=_NAME)]
    provider: str
    platform: Platform = "anthropic"
    base_url: str | None = None
    model: Annotated[str | None, Field(min_length=1)] = None
    kind: Literal["native", "text", "auto"] = "native"
    style: Literal["jsonl", "xml", "markdown-json"] = "jsonl"
    endpoint: Literal["chat", "completions", "responses", "auto"] = "auto"
    api_key_env: Annotated[str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = None
    api_key: SecretStr | None = None
    headers: Mapping[str, SecretStr] = {}
    header_secrets: tuple[SecretStr, ...] = ()
    fallback: tuple[str, ...] = ()
    use: Literal["voice", "tools"] | None = None
    max_tokens: Annotated[int, Field(gt=0, le=64_000)] = 512
    context_window: Annotated[int | None, Field(gt=0)] = None
    timeout_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    region: Annotated[str | None, Field(pattern=r"^[a-z0-9-]+$")] = None
    thinking: Thinking | None = None
    effort: Effort | None = None
    sees: bool | None = None
    slots: Annotated[int, Field(ge=1, le=64)] = 1
    threads: Annotated[int | None, Field(ge=1, le=256)] = None
    prices: Prices | None = None
    file: str | None = None

    def label(self, field: str) -> str:
        """Name a field for an error: its setting, or the field in the file."""
        setting = _setting(self.provider, field)
        if self.file is None and setting in Settings.model_fields:
            return setting.upper()
        if self.file is None:
            return f"{field} of a profile in models.toml"
        return f'{"api_key_env" if field == "api_key" else field} of "{self.name}" in {self.file}'

    def required_model(self) -> str:
        """Return ``model``. Raises `SettingsError` if it is not set."""
        if self.model is None:
            raise SettingsError(f"{self.label('model')} is not set.")
        return self.model

    def check_local(self, settings: Settings) -> None:
        """Raise `SettingsError` with LOCAL_ONLY if the model is at its service's own address."""
        if settings.local_only and self.base_url is None:
            raise SettingsError(
                f"LOCAL_ONLY is set, and {self.title} is hosted elsewhere ({self.label('base_url')})."
            )

    @property
    def key(self) -> str | None:
        """The API key as text."""
        return None if self.api_key is None else self.api_key.get_secret_value()

    @property
    def own_headers(self) -> dict[str, str]:
        """The headers as text, with lower-case names."""
        return {name.lower(): value.get_secret_value() for name, value in self.headers.items()}

    @property
    def host(self) -> str | None:
        """The host of ``base_url``."""
        return urlsplit(self.base_url).hostname if self.base_url is not None else None

    @property
    def heading(self) -> str:
        """The name of a profile in a file, and the title."""
        return self.title if self.file is None else f"{self.name}: {self.title}"

    @property
    def title(self) -> str:
        """The model and its place, for people."""
        if self.provider == "anthropic":
            place = "" if self.platform == "anthropic" else f" on {self.platform}"
            return f"Claude ({self.model}){place}"
        # A model of llama_cpp is a file.
        model = self.model and (Path(self.model).name if self.provider == "llama_cpp" else self.model)
        title = self.provider if model is None else f"{model} ({self.provider})"
        return title if self.host is None else f"{title} at {self.host}"


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles by name. A client may choose one of ``allowed``. ``file`` is their path.

    ``health_check_s`` is the time between two checks of profiles with fallbacks; 0 disables them.
    """

    default: str
    by_name: Mapping[str, ModelProfile]
    allowed: tuple[str, ...] = ()
    file: Path | None = None
    health_check_s: float = 0.0

    @property
    def main(self) -> ModelProfile:
        """The default profile."""
        return self.by_name[self.default]


class _File(BaseModel):
    model_config = _STRICT

    default: str
    allowed: tuple[str, ...] = ()
    health_check_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    profile: Annotated[list[dict[str, Any]], Field(min_length=1)]


def models_path(settings: Settings) -> Path:
    """Return the path of the profiles: ``models.toml`` in CONFIG_DIR."""
    return settings.config_file("models.toml")


def load_profiles(settings: Settings) -> Profiles:
    """Read the profiles from the file, or make one of the settings.

    MODEL_PROVIDER wins over the file. Raises `SettingsError` with the file, the profile and the mistake.
    """
    path = models_path(settings)
    if settings.model_provider is None and path.exists():
        return _read(path, settings)
    profile = ModelProfile(
        name="default", provider=settings.provider, **_inherited(settings, settings.provider)
    )
    _check(profile)
    return Profiles(profile.name, {profile.name: profile})


def _inherited(settings: Settings, provider: str) -> dict[str, Any]:
    names = {field: _setting(provider, field) for field in ModelProfile.model_fields}
    values = {field: getattr(settings, name, None) for field, name in names.items()}
    values |= {"kind": _KINDS[settings.text_tools]}
    return {field: value for field, value in values.items() if value is not None}


# TEXT_TOOLS
_KINDS = {"off": "native", "on": "text", "auto": "auto"}


# The providers that take a thinking or an effort.
_CLAUDE = ("anthropic", "bedrock")
_REASONING = {"thinking": _CLAUDE, "effort": (*_CLAUDE, "openai")}


def _setting(provider: str, field: str) -> str:
    # ANTHROPIC_MODEL is the model of anthropic's profiles.
    return f"{'model' if field in ('thinking', 'effort', 'sees') else provider}_{field}"


def _read(path: Path, settings: Settings) -> Profiles:
    file = validate(_File, read_toml(path), str(path))
    by_name: dict[str, ModelProfile] = {}
    for number, values in enumerate(file.profile, 1):
        profile = _profile(path, number, values, settings)
        if profile.name in by_name:
            raise SettingsError(f'{path} has two profiles "{profile.name}".')
        by_name[profile.name] = profile
    profiles = Profiles(file.default, by_name, file.allowed, path, file.health_check_s)
    _check_names(profiles)
    return profiles


def _profile(path: Path, number: int, values: dict[str, Any], settings: Settings) -> ModelProfile:
    name = values.get("name")
    label = f'{path}, profile "{name}"' if isinstance(name, str) else f"{path}, profile {number}"
    for name in ("file", "header_secrets"):
        if name in values:
            raise SettingsError(f"{label}: there is no {name}.")
    if "api_key" in values:
        raise SettingsError(f"{label}: a key does not belong in the file; name its variable in api_key_env.")
    inherited = _inherited(settings, str(values.get("provider")))
    # In a file these settings are for providers that support them.
    for field, providers in _REASONING.items():
        if values.get("provider") not in providers:
            inherited.pop(field, None)
    # A key is not sent to another service.
    if "base_url" in values or values.get("platform", "anthropic") != "anthropic":
        inherited.pop("api_key", None)
        inherited.pop("base_url", None)
    profile = validate(ModelProfile, {**inherited, **values, "file": str(path)}, label)
    if profile.api_key_env is not None:
        key = environment_value(profile.api_key_env)
        if key is None:
            raise SettingsError(f"{label}: {profile.api_key_env}, which api_key_env names, is not set.")
        profile = profile.model_copy(update={"api_key": SecretStr(key)})
    profile = _with_variables(profile, label)
    _check(profile)
    return profile


def _with_variables(profile: ModelProfile, label: str) -> ModelProfile:
    secrets: list[str] = []
    headers = {
        name: SecretStr(with_environment(label, value.get_secret_value(), secrets))
        for name, value in profile.headers.items()
    }
    return profile.model_copy(update={"headers": headers, "header_secrets": tuple(map(SecretStr, secrets))})


def _check(profile: ModelProfile) -> None:
    if profile.platform != "anthropic" and profile.provider != "anthropic":
        raise SettingsError(f"{profile.label('platform')} is for anthropic only.")
    for field, providers in _REASONING.items():
        if getattr(profile, field) is not None and profile.provider not in providers:
            raise SettingsError(f"{profile.label(field)} is for {', '.join(providers)} only.")
    # Such a key fails only as a lost connection.
    key = profile.key
    if key and (not (key.isascii() and key.isprintable()) or " " in key or key[:1] in "'\""):
        raise SettingsError(f"{profile.label('api_key')} holds spaces, quotes or other invalid characters.")
    for name, value in profile.own_headers.items():
        if not _HEADER.fullmatch(name) or name in _NO_HEADERS:
            raise SettingsError(f"{profile.label('headers')} cannot set {name!r}.")
        if not (value.isascii() and value.isprintable()):
            raise SettingsError(f"{profile.label('headers')}: {name} holds invalid characters.")
    if profile.headers and profile.provider in _WITHOUT_HEADERS:
        raise SettingsError(f"{profile.label('headers')}: {profile.provider} takes none.")
    if profile.base_url is not None:
        check_url(profile.base_url, profile.label("base_url"))


def _check_names(profiles: Profiles) -> None:
    by_name, file = profiles.by_name, profiles.file
    references = [("default", [profiles.default]), ("allowed", profiles.allowed)]
    references += [(f'the fallback of "{name}"', profile.fallback) for name, profile in by_name.items()]
    for field, names in references:
        for name in names:
            if name not in by_name:
                listed = ", ".join(by_name)
                raise SettingsError(
                    f'{file}: {field} names "{name}", which is no profile; there are: {listed}.'
                )
    names_by_use: dict[str, str] = {}
    for name, profile in by_name.items():
        if name in profile.fallback or len(set(profile.fallback)) < len(profile.fallback):
            raise SettingsError(f'{file}: the fallback of "{name}" leads back to itself.')
        if profile.use is not None:
            former = names_by_use.setdefault(profile.use, name)
            if former != name:
                raise SettingsError(f'{file}: "{former}" and "{name}" both have use = "{profile.use}".')
