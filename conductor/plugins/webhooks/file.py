"""``webhooks.toml``: the receiver of the app's backend, and its events."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, HttpUrl

from conductor.config_file import read_toml, validate
from conductor.conversation.webhook_events import WEBHOOK_EVENTS
from conductor.settings import Settings, is_safe_url, with_environment

PREFIX = "whsec_"


def _event(name: str) -> str:
    if name not in WEBHOOK_EVENTS:
        raise ValueError(f"there is no {name}; there are: {', '.join(WEBHOOK_EVENTS)}")
    return name


def _url(url: HttpUrl) -> HttpUrl:
    if not is_safe_url(str(url)):
        raise ValueError("it must be https://, or http:// to this machine, without a user")
    return url


def _key(secret: object) -> bytes:
    key = b""
    with suppress(ValueError):
        if isinstance(secret, str) and secret.startswith(PREFIX):
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    if not 24 <= len(key) <= 64:
        raise ValueError(f"it must be {PREFIX} and 24 to 64 bytes in base64")  # without the secret
    return key


class WebhookFile(BaseModel):
    """The receiver's URL, the key of the signatures, and the names of the events that it gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[HttpUrl, AfterValidator(_url)]
    secret: Annotated[bytes, BeforeValidator(_key), Field(repr=False)]
    events: Annotated[tuple[Annotated[str, AfterValidator(_event)], ...], Field(min_length=1)] = (
        WEBHOOK_EVENTS
    )

    @property
    def secrets(self) -> list[str]:
        """The secret without its prefix."""
        return [base64.b64encode(self.secret).decode()]


def load_webhooks(settings: Settings) -> WebhookFile | None:
    """Read ``webhooks.toml`` in CONFIG_DIR; None without the file. Raises `SettingsError`, one sentence."""
    path = settings.config_file("webhooks.toml")
    if not path.exists():
        return None
    document = read_toml(path)
    for name in ("url", "secret"):
        if isinstance(document.get(name), str):
            document[name] = with_environment(str(path), document[name], [])
    return validate(WebhookFile, document, str(path))
