"""The model provider for OpenAI and the many services that speak its API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from conductor.errors import SettingsError
from conductor.models.base import ModelEvent, ModelRequest, StreamDecoder, may_call
from conductor.models.profiles import Effort, Prices
from conductor.plugins.models.checked import checked
from conductor.plugins.models.families import family_of, prices_of, sees
from conductor.plugins.models.openai_request import PROVIDER, chat_body, completions_body
from conductor.plugins.models.openai_responses import ResponsesDecoder, responses_body
from conductor.plugins.models.openai_stream import ChatDecoder
from conductor.plugins.models.rendering import encode, for_eyes, names_of, without_marks
from conductor.plugins.models.streaming import HttpProvider, Post, service_at
from conductor.plugins.models.thought_filter import ThoughtHabits

if TYPE_CHECKING:
    from conductor.models.profiles import ModelProfile
    from conductor.settings import Settings

DEFAULT_BASE_URL = "https://api.openai.com/v1"
Endpoint: TypeAlias = Literal["chat", "completions", "responses"]
# A model's context window in the lists of vLLM, LM Studio, OpenRouter and llama.cpp.
_WINDOW_FIELDS = "max_model_len loaded_context_length context_window context_length n_ctx n_ctx_train".split()
_ENDINGS = ("/chat/completions", "/completions", "/responses")


class OpenAIProvider(HttpProvider):
    """A service with OpenAI's API, streaming.

    ``base_url`` usually ends in ``/v1``. ``endpoint`` "completions" is for models without a chat template: it
    sends the messages as one prompt, without tools. ``max_tokens`` limits spoken answers; with tools offered
    it is raised (`base.limit_of`). Without a ``context_window`` the service is asked for it.
    ``headers``, with lower-case names, replace the key's. A model that ``sees`` takes images. ``options`` are
    for `HttpProvider`.
    """

    name = PROVIDER
    prices: Prices | None = None

    def __init__(
        self,
        api_key: str | None,
        model: str,
        max_tokens: int,
        *,
        base_url: str | None = None,
        endpoint: Endpoint = "chat",
        effort: Effort | None = None,
        context_window: int | None = None,
        headers: Mapping[str, str] | None = None,
        sees: bool = True,
        **options: Any,
    ) -> None:
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__(service_at(base_url or DEFAULT_BASE_URL, {**key, **(headers or {})}), **options)
        self._model = model
        self._max_tokens = max_tokens
        self.context_window = context_window
        self.endpoint = endpoint
        self._official = is_official(base_url)
        self.effort = effort
        self._sees = sees and endpoint != "completions"
        self._source = f"{urlsplit(base_url or DEFAULT_BASE_URL).hostname} {model}"
        self._habits = ThoughtHabits()

    async def start(self) -> None:
        """Load the HTTP client before the first request, and ask for an unknown context window."""
        await super().start()
        if self.context_window is None and not self._official:
            self.context_window = window_of(await self.read_json("/models"), self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply (`base.ModelProvider`)."""
        path = "/chat/completions" if self.endpoint == "chat" else f"/{self.endpoint}"
        request = for_eyes(request, sees=self._sees)
        events = self.reply(path, self._post, request if self._official else without_marks(request))
        return checked(events, request)

    def _post(self, request: ModelRequest, reasoning: bool) -> Post:
        names, source, habit = names_of(request), self._source, self._habits.of(request.cache_key)
        decoder: Callable[[], StreamDecoder] = partial(
            ChatDecoder, names, source, habit, offers_tools=may_call(request)
        )
        limits: Any = {"model": self._model, "max_tokens": request.max_tokens or self._max_tokens}
        options: Any = {**limits, "source": source, "official": self._official, "effort": self.effort}
        if self.endpoint == "chat":
            body = chat_body(request, names, **options)
        elif self.endpoint == "completions":
            body = completions_body(request, **limits)
        else:
            body = responses_body(request, names, **options)
            decoder = partial(ResponsesDecoder, names, source, habit)
        return Post(encode(body), decoder)


def window_of(listed: Any, model: str) -> int | None:
    """Read a model's context window from a service's list of models; None if it is not there."""
    models = listed.get("data") if isinstance(listed, dict) else None
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    only = entries[0] if len(entries) == 1 else {}
    entry = next((entry for entry in entries if entry.get("id") == model), only)
    meta = entry.get("meta")
    fields = {**(meta if isinstance(meta, dict) else {}), **entry}
    windows = (fields.get(name) for name in _WINDOW_FIELDS)
    return next((window for window in windows if isinstance(window, int) and window > 0), None)


def is_official(base_url: str | None) -> bool:
    """Return whether it is OpenAI's own service, in any region."""
    host = urlsplit(base_url or DEFAULT_BASE_URL).hostname or ""
    return host == "api.openai.com" or host.endswith(".api.openai.com")


def from_profile(profile: ModelProfile, settings: Settings) -> OpenAIProvider:
    """Make the provider of a profile. Raises `SettingsError`: no model, no key, or a wrong address."""
    profile.check_local(settings)
    official = is_official(profile.base_url)
    if profile.api_key is None and official:
        raise SettingsError(
            f"{profile.label('api_key')} is not set; OpenAI needs it. For another service set "
            f"{profile.label('base_url')}."
        )
    model = profile.required_model()
    path = urlsplit(profile.base_url or "").path.rstrip("/")
    for ending in _ENDINGS:
        if path.endswith(ending):
            raise SettingsError(f"{profile.label('base_url')} must not end in {ending}, which is added.")
    endpoint = _endpoint(profile, official)
    least = family_of(model).effort if official else None
    effort = profile.effort or least
    if endpoint == "chat" and profile.kind != "text" and least is not None and effort != "none":
        raise SettingsError(
            f"{profile.label('endpoint')} cannot be chat with {model} at effort {effort}: OpenAI "
            "calls functions there only at effort none; use responses."
        )
    provider = OpenAIProvider(
        profile.key,
        model,
        profile.max_tokens,
        base_url=profile.base_url,
        endpoint=endpoint,
        effort=effort,
        context_window=profile.context_window,
        headers=profile.own_headers,
        sees=sees(profile, official=official),
        local_only=settings.local_only,
    )
    provider.prices = prices_of(profile)
    return provider


def _endpoint(profile: ModelProfile, official: bool) -> Endpoint:
    if profile.endpoint != "auto":
        return profile.endpoint
    # A model that writes its calls needs stop sequences, which "responses" lacks.
    return "responses" if official and profile.kind != "text" else "chat"
