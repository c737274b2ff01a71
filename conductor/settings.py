"""Everything that can be set, read once from the environment and ``.env``, and handed on as values."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from conductor.errors import SettingsError

Milliseconds: TypeAlias = Annotated[int, Field(gt=0, le=86_400_000)]
_List: TypeAlias = Annotated[tuple[str, ...], NoDecode]

STORE_FILE = "conductor.db"
"""The session store's name in DATA_DIR."""
_REDIS = ("redis", "rediss", "valkey", "valkeys")


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound that a session and its turns keep; times are in seconds, sizes in bytes.

    Those that a user may set come from `Settings`; the others have their reason beside them.
    """

    max_event_bytes: int = 65_536
    max_turns: int = 20
    history_tokens: int = 60_000  # leaves most of a 200k window to one turn's tool results
    max_tool_rounds: int = 8
    max_calls_per_round: int = 15
    max_calls_per_turn: int = 40  # of 16 KiB each: what a turn can add stays within the model's window
    tool_timeout: float = 30.0
    interactive_timeout: float = 600.0  # a person chooses on a screen: minutes, not seconds
    ui_timeout: float = 5.0  # a UI call draws something; a client that needs longer is not answering
    speech_timeout: float = 5.0  # a speech may take this long ...
    speech_seconds_per_char: float = 0.1  # ... and as long as a slow voice needs to read it
    model_silence: float = 30.0
    turn_timeout: float = 120.0
    close_timeout: float = 5.0  # a turn's end: one commit
    partial_interval: float = 0.05
    session_grace: float = 120.0
    max_arguments_bytes: int = 65_536
    max_observation_bytes: int = 16_384
    max_queued_transcripts: int = 3  # protocol, "How the shipped client behaves"
    max_queued_notes: int = 16  # the same
    note_expiry: float = 600.0  # news older than ten minutes is told with the next turn, not by itself
    late_result_expiry: float = 600.0  # tools, "Unknown outcomes"
    job_expiry: float = 86_400.0  # a job that the device accepted may take a day
    max_late_calls: int = 64  # calls whose late result would still be used
    floor_timeout: float = 5.0  # after a partial transcript the person has the floor for this long
    heard_window: float = 0.15  # protocol: an interruption this soon after the acknowledgement still counts
    stale_speech: float = 10.0  # protocol: an older unacknowledged tts.speak is not replayed
    max_unacknowledged: int = 256  # interface events kept for replay; calls are never dropped
    max_send_queue: int = 1_024  # frames waiting for one socket; more means that nobody reads
    send_timeout: float = 10.0  # a peer that takes no byte for this long is gone
    turns_per_minute: float = 30.0
    frames_per_second: float = 50.0  # durability, "Who may connect": the shipped app stays below 20
    frames_burst: float = 1_000.0  # a phone that was away says all it has to say at once
    flood_timeout: float = 10.0  # a client that is over the rate for so long does nothing else
    first_event_timeout: float = 30.0  # durability, the same
    message_timeout: float = 30.0  # a message in fragments is complete by then
    max_connections: int = 10_000
    max_connections_per_subject: int = 50
    max_connections_per_address: int = 200  # counted only where TRUSTED_PROXIES makes addresses true
    max_sessions: int = (
        20_000  # twice the connections: those beyond them that nobody is connected to end early
    )
    ping_interval: float = 20.0  # protocol, "Transport": every 15-20 s
    approval_timeout: float = 600.0  # tools, "Approvals": ten minutes for a person to answer
    calls_per_minute: float = 60.0  # of one tool in one session: more is a model that goes round in circles
    hard_event_bytes: int = 1_048_576  # protocol, "Transport": the library's max_size


class Settings(BaseSettings):
    """The settings, named as in the environment, in lower case."""

    model_config = SettingsConfigDict(env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    model_provider: str | None = None
    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: str | None = None
    anthropic_model: Annotated[str, Field(min_length=1)] = "claude-haiku-4-5"
    anthropic_max_tokens: Annotated[int, Field(gt=0, le=64_000)] = 512
    max_event_bytes: Annotated[int, Field(ge=128, le=1_048_576)] = 65_536
    max_turns: Annotated[int, Field(ge=1, le=1_000)] = 20
    partial_interval_ms: Annotated[int, Field(ge=0, le=10_000)] = 50
    max_tool_rounds: Annotated[int, Field(ge=0, le=100)] = 8
    max_tool_calls_per_round: Annotated[int, Field(ge=1, le=100)] = 15
    tool_timeout_ms: Milliseconds = 30_000
    model_timeout_ms: Milliseconds = 30_000
    turn_timeout_ms: Milliseconds = 120_000
    session_rate_limit_per_min: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_connections_per_subject: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    max_connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    trusted_proxies: _List = ()
    interruption_mode: Literal["cancel", "queue"] = "cancel"
    speak_errors: bool = True
    system_prompt_file: Path | None = None
    device_tools_file: Path | None = None
    session_grace_s: Annotated[float, Field(ge=0, le=86_400)] = 120
    auth_tokens: Annotated[_List, Field(repr=False)] = ()
    allowed_origins: _List = ()
    session_store_url: Annotated[str | None, Field(repr=False)] = None
    session_store_replicas: Annotated[int, Field(ge=0, le=10)] = 0
    session_ttl_s: Annotated[float, Field(ge=1, le=31_536_000)] = 86_400
    data_dir: Path | None = None
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    allowed_tools: _List = ()
    policies_file: Path | None = None
    deny_irreversible: bool = False
    dry_run: bool = False
    local_only: bool = False
    redact_paths: bool = False
    file_roots: _List = ()
    admin_token: SecretStr | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "console"
    log_content: bool = False

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any, info: Any) -> Any:
        """Take ``NAME=`` in a file for "not set", as people mean it."""
        if isinstance(value, str) and not value.strip():
            return cls.model_fields[info.field_name].get_default()
        return value.strip() if isinstance(value, str) else value

    @field_validator(
        "auth_tokens", "allowed_origins", "allowed_tools", "file_roots", "trusted_proxies", mode="before"
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("log_level", "log_format", "interruption_mode", "model_provider", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise ValueError("each must be an address, or a network such as 10.0.0.0/8") from None
        return value

    @field_validator("session_store_url")
    @classmethod
    def _known_store(cls, value: str | None) -> str | None:
        if value is None or value == "memory://":
            return value
        scheme, separator, rest = value.partition("://")
        if scheme == "sqlite" and separator and len(rest) > 1 and rest.startswith("/"):
            return value
        if scheme in _REDIS and separator:
            return value
        # The URL is not quoted: it may hold a password.
        raise ValueError(
            "use memory://, sqlite:///FILE (four slashes for an absolute path) or redis://HOST:PORT/0"
        )

    @property
    def store_url(self) -> str:
        """Where sessions are kept: what was named, else a file in DATA_DIR, else memory."""
        if self.session_store_url is not None:
            return self.session_store_url
        return "memory://" if self.data_dir is None else f"sqlite:///{self.data_dir / STORE_FILE}"

    @property
    def store_scheme(self) -> str:
        """The kind of store: ``memory``, ``sqlite``, ``redis`` and so on."""
        return self.store_url.partition("://")[0]

    @property
    def store_path(self) -> Path:
        """The file of a SQLite store."""
        return Path(os.path.expanduser(self.store_url.removeprefix("sqlite:///")))

    @property
    def provider(self) -> str:
        """The model provider that is meant: what was named, else Claude with a key and the demo without."""
        return self.model_provider or ("anthropic" if self.anthropic_api_key else "demo")

    @property
    def limits(self) -> Limits:
        """The bounds, as the session wants them."""
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
            calls_per_minute=max(Limits().calls_per_minute, 2 * self.session_rate_limit_per_min),
            max_connections=self.max_connections,
            max_connections_per_subject=self.max_connections_per_subject,
            max_connections_per_address=self.max_connections_per_address,
            max_sessions=max(Limits().max_sessions, 2 * self.max_connections),
            partial_interval=self.partial_interval_ms / 1000,
            session_grace=self.session_grace_s,
        )


def load_settings(env_file: Path | None = Path(".env"), **overrides: Any) -> Settings:
    """Read the settings; ``overrides`` (command-line options) win over environment and file.

    Raises `SettingsError`, one sentence that names the setting and what it takes.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(_env_file=env_file, **given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]).upper() if first["loc"] else "The settings"
        raise SettingsError(f"{name} is not valid: {_lower_first(first['msg'])}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The file {env_file} cannot be read: {error}.") from None


def _lower_first(text: str) -> str:
    text = text.removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]
