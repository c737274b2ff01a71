"""The settings, read once from the environment and ``.env``."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from conductor.config_file import as_clause
from conductor.entry_points import STORES, plugins
from conductor.env_file import ENV_FILE, EnvFile, read_env_file
from conductor.errors import SettingsError

Milliseconds: TypeAlias = Annotated[int, Field(gt=0, le=86_400_000)]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = tuple(part.strip() for part in value.split(",") if part.strip())
    if not parts:  # "not set" would lift the restriction
        raise ValueError("the list is empty")
    return parts


def _split_phrases(value: Any) -> Any:
    return [part for part in map(str.strip, value.split("|")) if part] if isinstance(value, str) else value


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition("+")[0]


_LOWER = BeforeValidator(_lower)
_List: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
# Names that are not settings, such as API keys, and that configuration files refer to.
referenced_names: set[str] = set()
# DATA_DIR of the program, which starts in its own folder.
DATA_FOLDER = "data"
# The SQLite store's file name in DATA_DIR.
STORE_FILE = "conductor.db"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+")


# The files of CONFIG_DIR.
CONFIG_FILES = ("models.toml", "tools.toml", "mcp.json", "webhooks.toml", "policies.json")
_IN_CONFIG_DIR = "is the file {} in CONFIG_DIR"
_IN_MODELS = "is the field {} of a profile in models.toml (docs/models.md)"
GONE: Mapping[str, str] = MappingProxyType(
    {
        "models_file": _IN_CONFIG_DIR.format("models.toml"),
        "http_tools_file": _IN_CONFIG_DIR.format("tools.toml"),
        "mcp_config_file": _IN_CONFIG_DIR.format("mcp.json"),
        "webhooks_file": _IN_CONFIG_DIR.format("webhooks.toml"),
        "openai_api": _IN_MODELS.format("endpoint"),
        "openai_context_window": _IN_MODELS.format("context_window"),
        "openai_max_tokens": _IN_MODELS.format("max_tokens"),
        "llama_cpp_context_window": _IN_MODELS.format("context_window"),
        "llama_cpp_max_tokens": _IN_MODELS.format("max_tokens"),
        "llama_cpp_slots": _IN_MODELS.format("slots"),
        "llama_cpp_threads": _IN_MODELS.format("threads"),
        "bedrock_api_key": "is AWS_BEARER_TOKEN_BEDROCK, or api_key_env of a profile in models.toml",
        "bedrock_base_url": _IN_MODELS.format("base_url"),
        "bedrock_max_tokens": _IN_MODELS.format("max_tokens"),
        "bedrock_region": "is AWS_REGION, or the field region of a profile in models.toml",
        "text_tools_style": _IN_MODELS.format("style"),
    }
)
"""Names that people may still have in an environment or a file -> where the value belongs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of sessions, turns and connections; times are in seconds, sizes in bytes.

    `Settings` provides the values that an operator can set; a comment explains each other value.
    """

    max_event_bytes: int = 65_536
    max_turns: int = 20
    max_tool_rounds: int = 8
    max_calls_per_round: int = 15
    max_calls_per_turn: int = 40  # of 16 KiB each, so that a turn stays within the model's window
    tool_timeout: float = 30.0
    interactive_timeout: float = 600.0  # a person's answer on the screen may take minutes
    ui_timeout: float = 5.0  # a UI call only draws
    speech_timeout: float = 5.0  # a speech may take this long,
    speech_seconds_per_char: float = 0.1  # and as long as a slow voice needs to read it
    bridge_after: float = 1.5  # a turn that waits this long in silence says so
    model_silence: float = 30.0
    model_retry: float = 0.5  # longest pause before the retry of an interrupted reply
    turn_timeout: float = 120.0
    close_timeout: float = 5.0  # for the last commit of a turn
    partial_interval: float = 0.05
    session_grace: float = 120.0
    max_observation_bytes: int = 16_384
    floor_timeout: float = 5.0  # a person has the floor for this long after a partial transcript,
    open_microphone: float = 8.0  # and in a client that has never sent a partial
    pause_timeout: float = 2.0  # a paused speech goes on after this long without a transcript
    hold_unfinished: float = 0.0  # half a sentence waits this long for the other half
    heard_window: float = 0.15  # an interruption this soon after the acknowledgement still counts
    stale_speech: float = 10.0  # an older unacknowledged tts.speak is not replayed
    max_send_queue: int = 1_024  # frames queued for one socket whose client does not read
    send_timeout: float = 10.0  # a client that does not read for this long is cut
    turns_per_minute: float = 30.0
    subject_turns_per_minute: float = 120.0  # of a person
    frames_per_second: float = 50.0  # the shipped app stays below 20
    frames_burst: float = 200.0  # a phone that reconnects sends up to 128 queued events
    frames_in_a_row: float = 20.0  # further events of a burst alternate with other connections
    flood_timeout: float = 10.0  # a client that exceeds the rate for this long is closed
    flood_cost: float = 5.0  # until then it has a fifth of the rate
    flood_pause: float = 1.0  # a flood ends when no event has waited for this long
    wire_frames_per_second: float = 500.0  # frames of any kind, including fragments and pings
    wire_frames_burst: float = 2_000.0  # 1 MiB in fragments of 1 KiB is 1,000
    max_unsent_bytes: int = 1_048_576  # pongs and events for a client that does not read
    alive_timeout: float = 3.0  # a late event claims a session only if the client answers a ping in time
    handshake_timeout: float = 5.0
    first_event_timeout: float = 30.0
    message_timeout: float = 30.0  # time limit of a fragmented message
    max_connections: int = 10_000
    max_handshakes: int = 1_000  # incomplete; over this the oldest is cut
    max_connections_per_subject: int = 200  # the shipped app has a socket for every saved chat
    max_connections_per_address: int = 200  # counted only with TRUSTED_PROXIES
    max_sessions: int = 20_000  # over this, sessions without a connection end early
    max_sessions_per_subject: int = 200  # as for max_sessions
    ping_interval: float = 20.0  # clients rely on one every 15-20 s
    store_retry: float = 0.5  # between two attempts to bind, or to record an apology, without the store
    failed_turn_retry: float = 5.0  # notices wait after a turn that failed in the store or in the server
    free_takeovers: int = 6  # claims in the window before the next one is delayed
    takeover_backoff: float = 0.5  # the first delay, which doubles with each further claim
    verify_timeout: float = 3.0  # after a suspend, the longest pause while ownership is unknown
    approval_timeout: float = 600.0  # a person's time to answer
    calls_per_minute: float = 60.0  # of one tool in one session; more shows a model in a loop
    hard_event_bytes: int = 1_048_576  # the WebSocket library's max_size,
    image_event_bytes: int = 4_194_304  # and for a client that sends images


class Settings(BaseSettings):
    """The settings, named as in the environment, in lower case."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    web: Annotated[Literal["on", "off"], _LOWER] = "on"
    inspect: Annotated[Literal["local", "on", "off"], _LOWER] = "local"
    model_provider: Annotated[str | None, _LOWER] = None
    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: str | None = None
    anthropic_model: Annotated[str, Field(min_length=1)] = "claude-haiku-5-5"
    anthropic_max_tokens: Annotated[int, Field(gt=0, le=64_000)] = 512
    openai_api_key: SecretStr | None = None
    openai_base_url: str | None = None
    openai_model: Annotated[str | None, Field(min_length=1)] = None
    llama_cpp_model: Annotated[str | None, Field(min_length=1)] = None
    bedrock_model: Annotated[str | None, Field(min_length=1)] = None
    text_tools: Annotated[Literal["off", "on", "auto"], _LOWER] = "off"
    max_event_bytes: Annotated[int, Field(ge=128, le=1_048_576)] = 65_536
    max_turns: Annotated[int, Field(ge=1, le=1_000)] = 20
    partial_interval_ms: Annotated[int, Field(ge=0, le=10_000)] = 50
    max_tool_rounds: Annotated[int, Field(ge=0, le=100)] = 8
    max_tool_calls_per_round: Annotated[int, Field(ge=1, le=100)] = 15
    tool_timeout_ms: Milliseconds = 30_000
    model_timeout_ms: Milliseconds = 30_000
    model_thinking: Annotated[Literal["disabled", "between_tools", "adaptive"] | None, _LOWER] = None
    model_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None, _LOWER
    ] = None
    model_sees: bool | None = None
    turn_timeout_ms: Milliseconds = 120_000
    session_rate_limit_per_min: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    subject_turns_per_min: Annotated[int, Field(ge=1, le=1_000_000)] = 120
    daily_token_budget: Annotated[int, Field(ge=0, le=1_000_000_000_000)] = 0
    daily_cost_budget: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0
    max_sessions_per_subject: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    max_kept_sessions_per_subject: Annotated[int, Field(ge=1, le=1_000_000_000)] = 2_000
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_connections_per_subject: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    max_connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    trusted_proxies: _List = ()
    interruption_mode: Annotated[Literal["cancel", "queue"], _LOWER] = "cancel"
    speak_segments: Annotated[Literal["client", "always"], _LOWER] = "client"
    bridge_phrases: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_phrases)] = ()
    summarize_history: bool = False
    hold_unfinished_ms: Annotated[int, Field(ge=0, le=10_000)] = 0
    news_after_s: Annotated[float, Field(ge=0, le=600)] = 8
    speak_errors: bool = True
    system_prompt_file: Path | None = None
    device_tools_file: Path = Path("ios")
    web_fetch: bool = False
    web_search: str | None = None
    mcp_server: bool = False
    session_grace_s: Annotated[float, Field(ge=0, le=86_400)] = 120
    auth_tokens: Annotated[_List, Field(repr=False)] = ()
    auth: Annotated[_List, BeforeValidator(_lower)] = ("tokens",)
    api_keys: Annotated[_List, Field(repr=False)] = ()
    allowed_origins: _List = ()
    session_store_url: Annotated[str | None, Field(repr=False)] = None
    session_store_replicas: Annotated[int, Field(ge=0, le=10)] = 0
    session_ttl_s: Annotated[float, Field(ge=1, le=31_536_000)] = 86_400
    data_dir: Path | None = None
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    allowed_tools: _List = ()
    config_dir: Path = Path()
    policies_file: Path | None = None
    deny_irreversible: bool = False
    dry_run: bool = False
    local_only: bool = False
    redact_paths: bool = False
    file_roots: _List = ()
    notes_dir: Path | None = None
    knowledge_dir: Path | None = None
    memory: bool = False
    tools_path: Path | None = None
    audit_log: Path | None = None
    admin_token: SecretStr | None = None
    otel_exporter_otlp_endpoint: str | None = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _LOWER] = "info"
    log_format: Annotated[Literal["json", "console"], _LOWER] = "console"
    log_content: bool = False

    @field_validator("*", mode="before")  # runs first, as the last validator
    @classmethod
    def _empty_is_unset(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.strip()
        if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
            raise ValueError("it contains control characters or bytes that are not UTF-8")
        return value or cls.model_fields[info.field_name].get_default()

    @field_validator("config_dir")
    @classmethod
    def _folder(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError("it must be an existing folder")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise ValueError("each must be an address or a network such as 10.0.0.0/8") from None
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:  # as a browser sends it
            if origin != "null" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "each must be an origin such as https://app.example.com: scheme and host in lower "
                    "case, a port if it is not the default one, and no path"
                )
        return value

    @field_validator("web_search", "otel_exporter_otlp_endpoint")
    @classmethod
    def _address(cls, value: str | None, info: Any) -> str | None:
        if value is None or value.startswith(("http://", "https://")):
            return value
        if info.field_name != "web_search":
            raise ValueError("use the address of a collector, such as http://127.0.0.1:4318")
        if value != "ddgs":
            raise ValueError("use the address of a SearXNG server, or ddgs")
        return value

    @field_validator("session_store_url")
    @classmethod
    def _known_store(cls, value: str | None) -> str | None:
        if value is None or ("://" in value and _scheme(value) in plugins(STORES)):
            return value
        # The message does not quote the URL, which may contain a password.
        raise ValueError(
            "use memory://, sqlite:///FILE (four slashes for an absolute path), postgres://HOST/DATABASE, "
            "redis://HOST:PORT/0, redis+sentinel://HOST:PORT/SERVICE/0, redis+cluster://HOST:PORT, or the "
            "scheme of a plugin"
        )

    @property
    def store_url(self) -> str:
        """The session store's URL: SESSION_STORE_URL, else a file in DATA_DIR, else memory."""
        if self.session_store_url is not None:
            return self.session_store_url
        return "memory://" if self.data_dir is None else f"sqlite:///{self.data_dir / STORE_FILE}"

    @property
    def store_kind(self) -> str:
        """The scheme of the store's address, without what follows a plus: the name of its entry point."""
        return _scheme(self.store_url)

    @property
    def store_path(self) -> Path:
        return Path(os.path.expanduser(self.store_url.removeprefix("sqlite:///")))

    def config_file(self, name: str) -> Path:
        """Return the path of one of `CONFIG_FILES`."""
        own = self.policies_file if name == "policies.json" else None
        return own or self.config_dir / name

    @property
    def paths(self) -> Iterator[tuple[str, Path]]:
        """The paths that settings name, and the texts that name a file, each with its setting."""
        for name in CONFIG_FILES:
            yield name, self.config_file(name)
        for name in type(self).model_fields:
            value = getattr(self, name)
            for part in value if isinstance(value, tuple) else (value,):
                if name != "config_dir" and (
                    isinstance(part, Path) or (isinstance(part, str) and os.path.isfile(part))
                ):
                    yield name, Path(part)

    @property
    def provider(self) -> str:
        return self.model_provider or ("anthropic" if self.anthropic_api_key else "demo")

    @property
    def authenticates(self) -> bool:
        """Whether clients must prove who they are."""
        return self.auth != ("tokens",) or bool(self.auth_tokens)

    @property
    def serves_page(self) -> bool:
        """Whether the page at ``/`` is served: beyond this machine only with tokens."""
        return self.web == "on" and (is_loopback(self.host) or self.authenticates)

    @property
    def inspectors(self) -> Literal["local", "on", "off"]:
        """Which clients may list the tools of their session; with ``local`` those that use no proxy."""
        is_local = is_loopback(self.host) and not self.trusted_proxies
        return self.inspect if self.inspect != "local" or is_local else "off"

    @property
    def limits(self) -> Limits:
        """The limits as one value for the session."""
        tool_timeout = self.tool_timeout_ms / 1000
        return Limits(
            max_event_bytes=self.max_event_bytes,
            max_turns=self.max_turns,
            max_tool_rounds=self.max_tool_rounds,
            max_calls_per_round=self.max_tool_calls_per_round,
            tool_timeout=tool_timeout,
            ui_timeout=min(Limits().ui_timeout, tool_timeout),
            speech_timeout=min(Limits().speech_timeout, max(1.0, tool_timeout)),
            model_silence=self.model_timeout_ms / 1000,
            turn_timeout=self.turn_timeout_ms / 1000,
            turns_per_minute=self.session_rate_limit_per_min,
            subject_turns_per_minute=self.subject_turns_per_min,
            max_sessions_per_subject=self.max_sessions_per_subject,
            calls_per_minute=max(Limits().calls_per_minute, 2 * self.session_rate_limit_per_min),
            max_connections=self.max_connections,
            max_handshakes=min(Limits().max_handshakes, max(self.max_connections // 5, 16)),
            max_connections_per_subject=self.max_connections_per_subject,
            max_connections_per_address=self.max_connections_per_address,
            max_sessions=max(Limits().max_sessions, 2 * self.max_connections),
            partial_interval=self.partial_interval_ms / 1000,
            session_grace=self.session_grace_s,
            open_microphone=self.news_after_s,
            hold_unfinished=self.hold_unfinished_ms / 1000,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The settings, with defaults for the ``invalid`` ones (name -> problem), and names that are gone."""

    settings: Settings
    invalid: Mapping[str, str]
    file: EnvFile | None


def read_settings(env_file: Path | None, overrides: Mapping[str, Any]) -> Reading:
    """Read the settings and collect all mistakes; ``overrides`` win over environment and file.

    Without ``env_file``, sessions are in memory by default, else in `DATA_FOLDER`.

    Raises `SettingsError` for a file that cannot be read.
    """
    file = read_env_file(env_file, Settings.model_fields) if env_file else None
    # An empty variable means "not set": the file's value applies.
    outside = {name for name, value in EnvSettingsSource(Settings).env_vars.items() if (value or "").strip()}
    values = {name: value for name, value in file.values.items() if name not in outside} if file else {}
    inputs = {**values, **overrides}
    if env_file is not None and "data_dir" not in outside:
        inputs["data_dir"] = inputs.get("data_dir") or DATA_FOLDER
    others = {**(file.others if file else {}), **os.environ}
    gone = {
        name: f"is gone: the value {place}."
        for name, place in GONE.items()
        if others.get(name.upper(), "").strip()
    }
    try:
        return Reading(Settings(**inputs), gone, file)
    except ValidationError as error:
        # `conductor check` reports all mistakes at once.
        invalid = {
            str(detail["loc"][0]): _reason(detail["msg"]) for detail in error.errors(include_url=False)
        }
    defaults = {name: Settings.model_fields[name].get_default() for name in invalid}
    return Reading(Settings(**{**inputs, **defaults}), {**gone, **invalid}, file)


def environment_value(name: str, env_file: Path = ENV_FILE) -> str | None:
    """Return the value of a name that is not a setting, from the environment, else the file, else None."""
    referenced_names.add(name)
    file = read_env_file(env_file, {name.lower()})
    value = os.environ.get(name) or (file.values.get(name.lower()) if file else None)
    return (value or "").strip() or None


def program_token(token: str) -> str:
    """Make the token of the programs of an app's static token; it does not tell the app's."""
    digest = hmac.digest(token.encode(errors="surrogateescape"), b"conductor program", "sha256")
    return f"mcp-{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def with_environment(location: str, text: str, secrets: list[str]) -> str:
    """Replace each ``${NAME}`` by its value from the environment or the file; add the values to ``secrets``.

    Raises `SettingsError`, which begins with ``location``, for a name that is not set.
    """

    def value(match: re.Match[str]) -> str:
        secret = environment_value(match[1])
        if secret is None:
            raise SettingsError(f"{location}: the variable {match[1]} is not set.")
        secrets.append(secret)
        return secret

    return _VARIABLE.sub(value, text)


def environment_values(env_file: Path = ENV_FILE) -> Mapping[str, str]:
    """Return the values of all names, settings or not, of the file and of the environment, which wins."""
    file = read_env_file(env_file, ()) or EnvFile()
    return {**file.others, **os.environ}


def environment_names() -> list[str]:
    """Return the names of the environment in upper case, sorted."""
    return sorted(name.upper() for name in EnvSettingsSource(Settings).env_vars)


def load_settings(env_file: Path | None = ENV_FILE, **overrides: Any) -> Settings:
    """Read the settings; ``overrides`` (command-line options) win over environment and file.

    Raises `SettingsError`, a sentence that names the setting and its problem.
    """
    reading = read_settings(env_file, {name: value for name, value in overrides.items() if value is not None})
    if reading.file and reading.file.mistakes:
        raise SettingsError(reading.file.mistakes[0])
    for name, reason in reading.invalid.items():
        raise SettingsError(f"{name.upper()} {reason}")
    return reading.settings


def _reason(message: str) -> str:
    return f"is not valid: {as_clause(message.removeprefix('Value error, '))}."


def is_safe_url(url: str) -> bool:
    """Return whether an address is https, or http to this machine, without a user: nobody else can answer."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_private = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    return is_private and bool(parts.hostname) and "@" not in parts.netloc


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
