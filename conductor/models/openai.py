"""The model provider for OpenAI and the many services that speak its API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.base import ModelEvent, ModelRequest, StreamDecoder
from conductor.models.families import Effort, family_of
from conductor.models.openai_request import PROVIDER, chat_body, completions_body
from conductor.models.openai_responses import ResponsesDecoder, prefix_of, responses_body
from conductor.models.openai_stream import ChatDecoder
from conductor.models.rendering import encode, may_call, names_of
from conductor.models.streaming import Post, ReplyStreamer
from conductor.models.thought_filter import ThoughtHabit

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.openai.com/v1"
Endpoint: TypeAlias = Literal["chat", "completions", "responses"]
_ENDINGS = ("/chat/completions", "/completions", "/responses")


class OpenAIProvider:
    """A service with OpenAI's API, streaming.

    ``base_url`` usually ends in ``/v1``. ``endpoint`` "completions" is for models without a chat template: it
    sends the messages as one prompt, and no tools. ``max_tokens`` is the limit for spoken answers; with tools
    offered it is raised (`rendering.limit_of`). ``effort`` is sent as it is. Without a
    ``context_window`` the service is asked for it. ``options`` are those of `ReplyStreamer`.
    """

    name = PROVIDER

    def __init__(
        self,
        api_key: str | None,
        model: str,
        max_tokens: int,
        base_url: str | None = None,
        endpoint: Endpoint = "chat",
        effort: Effort | None = None,
        context_window: int | None = None,
        **options: Any,
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self.context_window = context_window
        self.endpoint = endpoint
        self._official = is_official(base_url)
        self.effort = effort
        self._source = f"{urlsplit(base_url or DEFAULT_BASE_URL).hostname} {model}"
        self._habit = ThoughtHabit()
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._streamer = ReplyStreamer(base_url or DEFAULT_BASE_URL, headers, **options)

    async def start(self) -> None:
        """Load the HTTP client, so that the first request need not wait; ask for a window that is not set."""
        await self._streamer.start()
        if self.context_window is None and not self._official:
            self.context_window = window_of(await self._streamer.read_json("/models"), self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model to go on from ``request.messages`` (`conductor.models.base.ModelProvider`)."""
        names = names_of(request)
        decoder: Callable[[], StreamDecoder] = partial(
            ChatDecoder, names, self._source, self._habit, offers_tools=may_call(request)
        )
        model, limit = self._model, request.max_tokens or self._max_tokens
        effort = self.effort
        if self.endpoint == "chat":
            path = "/chat/completions"
            body = chat_body(
                request,
                names,
                official=self._official,
                source=self._source,
                model=model,
                max_tokens=limit,
                effort=effort,
            )
        elif self.endpoint == "completions":
            path = "/completions"
            body = completions_body(request, model=model, max_tokens=limit)
        else:
            path = "/responses"
            body = responses_body(
                request,
                names,
                source=self._source,
                official=self._official,
                model=model,
                max_tokens=limit,
                effort=effort,
            )
            prefix = partial(prefix_of, request, names, source=self._source)
            decoder = partial(ResponsesDecoder, names, prefix, self._habit)
        return self._streamer.stream(path, Post(encode(body), decoder), request)

    async def aclose(self) -> None:
        """Close all connections. Running streams fail."""
        await self._streamer.aclose()


def window_of(listed: Any, model: str) -> int | None:
    """Read a model's context window from a service's list; None if it does not tell.

    vLLM, LM Studio, OpenRouter and llama.cpp each have a name of their own for it.
    """
    models = listed.get("data") if isinstance(listed, dict) else None
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    entry = next(
        (entry for entry in entries if entry.get("id") == model), entries[0] if len(entries) == 1 else {}
    )
    meta = entry.get("meta")
    places = {**(meta if isinstance(meta, dict) else {}), **entry}
    names = (
        "max_model_len",
        "loaded_context_length",
        "context_window",
        "context_length",
        "n_ctx",
        "n_ctx_train",
    )
    windows = (places.get(name) for name in names)
    return next((window for window in windows if isinstance(window, int) and window > 0), None)


def is_official(base_url: str | None) -> bool:
    """Tell whether it is OpenAI's own service, of any region."""
    host = urlsplit(base_url or DEFAULT_BASE_URL).hostname or ""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def from_profile(profile: ModelProfile, settings: Settings) -> OpenAIProvider:
    """Make the provider of a profile.

    Raises `SettingsError` without a model, without the key that OpenAI wants, or for a wrong address.
    """
    official = is_official(profile.base_url)
    if profile.api_key is None and official:
        raise SettingsError(
            f"{profile.label('api_key')} is not set; OpenAI needs it, and {profile.label('base_url')} names "
            "another service."
        )
    if profile.model is None:
        raise SettingsError(f"{profile.label('model')} is not set: which model is to answer?")
    path = urlsplit(profile.base_url or "").path.rstrip("/")
    for ending in _ENDINGS:
        if path.endswith(ending):
            raise SettingsError(f"{profile.label('base_url')} must not end in {ending}: that is added.")
    key = None if profile.api_key is None else profile.api_key.get_secret_value()
    endpoint = _endpoint(profile, official)
    least = family_of(profile.model).effort if official else None
    effort = profile.effort or least
    if endpoint == "chat" and profile.kind != "text" and least is not None and effort != "none":
        raise SettingsError(
            f"{profile.label('endpoint')} cannot be chat with {profile.model} at effort {effort}: OpenAI "
            "calls functions there only at effort none; use responses."
        )
    return OpenAIProvider(
        key,
        profile.model,
        profile.max_tokens,
        profile.base_url,
        endpoint,
        effort,
        profile.context_window,
        local_only=settings.local_only,
    )


def _endpoint(profile: ModelProfile, official: bool) -> Endpoint:
    if profile.endpoint != "auto":
        return profile.endpoint
    # A model that is taught to write its calls needs stop sequences, which "responses" has not.
    return "responses" if official and profile.kind != "text" else "chat"
