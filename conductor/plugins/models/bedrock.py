"""The model provider for Amazon Bedrock's Converse API (the extra ``bedrock``).

botocore finds the credentials, signs requests and parses the stream. Requests are sent as by all providers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from conductor.errors import ModelError, SettingsError
from conductor.models.base import ModelEvent, ModelRequest
from conductor.models.profiles import Effort, Thinking
from conductor.plugins.models.anthropic_request import prefix_of
from conductor.plugins.models.checked import checked
from conductor.plugins.models.families import Claude, check_claude, sees
from conductor.plugins.models.rendering import encode, for_eyes, names_of
from conductor.plugins.models.streaming import HttpProvider, Post, service_at
from conductor.settings import environment_value

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

_SERVICE = "bedrock"


class BedrockProvider(HttpProvider):
    """Bedrock's Converse API in one region, streaming.

    ``api_key`` is a Bedrock API key; without it botocore finds AWS credentials as all AWS tools do.
    ``max_tokens`` limits spoken answers; with tools offered it is raised (`base.limit_of`). ``options``
    are for `HttpProvider`.
    """

    name = "bedrock"

    def __init__(
        self,
        api_key: str | None,
        model: str,
        max_tokens: int,
        region: str,
        *,
        base_url: str | None = None,
        thinking: Thinking | None = None,
        effort: Effort | None = None,
        sees: bool = True,
        **options: Any,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        address = base_url or f"https://bedrock-runtime.{region}.amazonaws.com"
        super().__init__(service_at(address, headers, None if api_key else Signer(region)), **options)
        self._claude = Claude(model, thinking, effort, self.name)
        self._max_tokens = max_tokens
        self._sees = sees
        self._path = f"/model/{quote(model, safe='')}/converse-stream"

    async def start(self) -> None:
        """Load the HTTP client and botocore before the first request."""
        await asyncio.to_thread(_import_all)
        await super().start()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply (`base.ModelProvider`)."""
        events = self.reply(self._path, self._post, for_eyes(request, sees=self._sees))
        return checked(events, request)

    def _post(self, request: ModelRequest, reasoning: bool) -> Post:
        from conductor.plugins.models.bedrock_stream import ConverseDecoder, converse_body

        names, claude = names_of(request), self._claude
        limit = request.max_tokens or self._max_tokens
        body = converse_body(request, names, claude, limit, reasoning=reasoning)
        prefix = partial(prefix_of, request, names, claude, reasoning=reasoning)
        return Post(encode(body), partial(ConverseDecoder, names, prefix))


class Signer(httpx2.Auth):
    """Signs requests with the AWS credentials of this process (Signature Version 4)."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._credentials: Any = None

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the headers of a signature. Raises `ModelError` without credentials."""
        # In a thread: temporary credentials are fetched again when they expire.
        request.headers.update(await asyncio.to_thread(self._headers, str(request.url), request.content))
        yield request

    def _headers(self, url: str, body: bytes) -> Mapping[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session

        try:
            if self._credentials is None:
                self._credentials = Session().get_credentials()
            if self._credentials is None:
                raise ModelError("authentication", "There are no AWS credentials for the model service.")
            signed = AWSRequest("POST", url, {"content-type": "application/json"}, body)
            SigV4Auth(self._credentials.get_frozen_credentials(), _SERVICE, self._region).add_auth(signed)
        except (BotoCoreError, ClientError):
            raise ModelError("authentication", "The AWS credentials could not be loaded.") from None
        return dict(signed.headers.items())


def _import_all() -> None:
    import botocore.session  # noqa: F401 - the import takes time

    import conductor.plugins.models.bedrock_stream  # noqa: F401 - the import takes time


def from_profile(profile: ModelProfile, settings: Settings) -> BedrockProvider:
    """Make the provider of a profile. Raises `SettingsError` without a model, a region or the extra."""
    profile.check_local(settings)
    check_claude(profile)
    model = profile.required_model()
    region = profile.region or environment_value("AWS_REGION") or environment_value("AWS_DEFAULT_REGION")
    if region is None:
        raise SettingsError(f"AWS_REGION is not set, nor the {profile.label('region')}.")
    if find_spec("botocore") is None:
        raise SettingsError(
            "The provider bedrock needs the extra bedrock: pip install 'conductor-voice[bedrock]'."
        )
    key = profile.key
    # The key of all AWS tools is for Amazon's own address only.
    if key is None and profile.base_url is None:
        key = environment_value("AWS_BEARER_TOKEN_BEDROCK")
    return BedrockProvider(
        key,
        model,
        profile.max_tokens,
        region,
        base_url=profile.base_url,
        thinking=profile.thinking,
        effort=profile.effort,
        sees=sees(profile),
        local_only=settings.local_only,
    )
