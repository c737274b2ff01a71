"""The model of the sessions: it sends each request to a profile, and falls back to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import structlog

from conductor.errors import ModelError
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, Usage, limit_of, warm
from conductor.models.bounds import bounded
from conductor.models.failures import failure, rest_of
from conductor.models.health import CircuitBreaker, calls_tools, is_healthy, is_malformed
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import ModelProfile, Prices, Profiles

# Malformed replies in a row after which an ``auto`` model writes its calls as text.
_MAX_MALFORMED = 2
# Seconds for which it does; then calls are tried again.
_AS_TEXT_S = 600.0
# Failures that are not the service's.
_NOT_ITS_FAULT = frozenset({"refused", "context_too_long", "malformed"})

log = structlog.get_logger(__name__)


def prices_of(profile: ModelProfile, provider: ModelProvider) -> Prices | None:
    """Return the prices of a profile, else its provider's; None if none are known."""
    return profile.prices or getattr(provider, "prices", None)


class Route:
    """One profile with its provider and the health of its service.

    ``as_text`` wraps the provider of a model that writes its calls as text.
    """

    def __init__(
        self,
        profile: ModelProfile,
        provider: ModelProvider,
        as_text: Callable[[ModelProvider, ModelProfile], ModelProvider],
    ) -> None:
        self.profile = profile
        self.provider = provider
        self.breaker = CircuitBreaker()
        self.is_healthy = True
        self._as_text = as_text
        self._using: ModelProvider | None = None
        if profile.kind == "native":
            self._using = provider
        elif profile.kind == "text":
            self._using = as_text(provider, profile)
        self._probing = asyncio.Lock()
        self._malformed = 0  # in a row
        self._as_text_until: float | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._heard_at = float("-inf")

    @property
    def is_up(self) -> bool:
        """Whether a request is likely to be answered."""
        return self.is_healthy and self.breaker.allows

    async def start(self) -> None:
        """Prepare the provider, and probe whether an ``auto`` model calls tools."""
        await self.provider.start()
        await self._ready()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply, and note its end. Raises `ModelError`, at once in a long rest."""
        rested = failure("rate_limited", retry_after=self.breaker.rest_s)
        if rest_of(rested):
            raise self._of_this(rested)
        await asyncio.sleep(self.breaker.rest_s)
        if self.profile.timeout_s is not None:
            request = replace(request, silence_s=self.profile.timeout_s)
        calls: list[ToolCall] = []
        self._active += 1
        self._idle.clear()
        try:
            self._try_calls_again()
            provider = self._using or await self._ready()
            limit = limit_of(request, self.profile.max_tokens)
            async with aclosing(bounded(provider.stream(request), request, limit)) as events:
                async for event in events:
                    self._heard_at = asyncio.get_running_loop().time()
                    if isinstance(event, ToolCall):
                        calls.append(event)
                    elif isinstance(event, Finished):
                        self.breaker.end(succeeded=True)
                        self._count_malformed(is_malformed(event, calls))
                        event = self._signed(event)
                    yield event
        except ModelError as error:
            self._of_this(error)
            if rest_s := rest_of(error):
                self.breaker.rest(rest_s)
            # A second timeout would take another half minute.
            if error.reason == "timeout":
                self.breaker.trip()
            elif error.reason not in _NOT_ITS_FAULT:
                self.breaker.end(succeeded=False)
            if error.reason == "malformed":
                self._count_malformed(True)
            raise
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached (`base.CacheWarmer`), unless it is rewritten for the model."""
        finished = await warm(self.provider, request) if self._using is self.provider else None
        return None if finished is None else self._signed(finished)

    async def close_when_idle(self) -> None:
        """Close the provider when no reply is running."""
        try:
            if self._active:
                await self._idle.wait()
        finally:
            await self.provider.aclose()

    def _of_this(self, error: ModelError) -> ModelError:
        error.profile = self.profile.name
        return error

    def _signed(self, event: Finished) -> Finished:
        profile = self.profile
        # A model of llama_cpp is a file, whose path stays private.
        model = None if profile.provider == "llama_cpp" else profile.model
        return replace(
            event,
            profile=profile.name,
            provider=self.provider.name,
            model=model,
            cost=self.cost(event.usage),
        )

    async def _ready(self) -> ModelProvider:
        async with self._probing:
            if self._using is None:
                native = await calls_tools(self.provider)
                log.info("model tested", profile=self.profile.name, calls_tools=native)
                self._using = self.provider if native else self._as_text(self.provider, self.profile)
            return self._using

    def _count_malformed(self, malformed: bool) -> None:
        self._malformed = self._malformed + 1 if malformed else 0
        if self._malformed >= _MAX_MALFORMED and self.profile.kind == "auto" and self._using is self.provider:
            log.warning("model calls tools as text", profile=self.profile.name)
            self._using = self._as_text(self.provider, self.profile)
            self._as_text_until = asyncio.get_running_loop().time() + _AS_TEXT_S

    def _try_calls_again(self) -> None:
        """End the time in which the model of a service that had garbled some calls writes them as text."""
        if self._as_text_until is not None and asyncio.get_running_loop().time() >= self._as_text_until:
            self._using, self._as_text_until = self.provider, None
            self._malformed = _MAX_MALFORMED - 1

    def cost(self, usage: Usage) -> float:
        """Return the cost of the tokens, by the prices of the profile, else of the provider."""
        prices = prices_of(self.profile, self.provider)
        if prices is None:
            return 0.0
        return (
            usage.input_tokens * prices.input
            + usage.output_tokens * prices.output
            + usage.cache_read_tokens * prices.cache_read
            + usage.cache_write_tokens * prices.cache_write
        ) / 1_000_000

    async def check(self, every_s: float) -> None:
        """Check the health, unless the service rests or was heard in the last ``every_s`` seconds."""
        now = asyncio.get_running_loop().time()
        # At a local server the check would wait behind a reply. One without a sign may hang.
        if now - self._heard_at < every_s:
            self.is_healthy = True
            return
        if self.breaker.rest_s:
            return
        healthy = await is_healthy(self.provider)
        if healthy != self.is_healthy:
            log.info("model health changed", profile=self.profile.name, healthy=healthy)
        self.is_healthy = healthy


class ModelRouter:
    """A provider over several profiles.

    A request goes to the session's profile, else to the profile for requests with or without tools, else to
    the default. If it fails before its reply begins, its ``fallback`` follows; profiles that seem down, rest,
    or timed out in the last 15 s, come last. A local model's requests stay local unless its ``fallback`` has
    a remote one.
    """

    def __init__(
        self,
        profiles: Profiles,
        make: Callable[[ModelProfile], ModelProvider],
        as_text: Callable[[ModelProvider, ModelProfile], ModelProvider],
        metrics: ModelMetrics,
    ) -> None:
        self._make = make
        self._as_text = as_text
        self._metrics = metrics
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[str, Route] = {}
        self._use(profiles)

    def _use(self, profiles: Profiles) -> list[Route]:
        """Make the routes of new and changed profiles; return the routes that are no longer used."""
        former = self._routes
        routes: dict[str, Route] = {}
        for name, profile in profiles.by_name.items():
            same = name in former and former[name].profile == profile
            routes[name] = former[name] if same else Route(profile, self._make(profile), self._as_text)
        self.profiles = profiles
        self._routes = routes
        self._by_use: dict[str | None, Route] = {
            route.profile.use: route for route in routes.values() if route.profile.use is not None
        }
        self.name = routes[profiles.default].provider.name
        return [route for name, route in former.items() if routes.get(name) is not route]

    def reload(self, profiles: Profiles) -> None:
        """Use other profiles from the next request on. Raises `SettingsError` and changes nothing."""
        closing = [route.close_when_idle() for route in self._use(profiles)]
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        for work in (*closing, self.start()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def context_window(self) -> int | None:
        """The smallest context window of the profiles, in tokens; None if unknown."""
        windows = (
            route.profile.context_window or getattr(route.provider, "context_window", None)
            for route in self._routes.values()
        )
        return min((window for window in windows if window is not None), default=None)

    def serving(self, choice: str | None) -> str | None:
        """Name the profile that would reply to a session now; None without a file of profiles."""
        if self.profiles.file is None:
            return None
        return self._candidates(choice, "tools")[0].profile.name

    def _candidates(self, choice: str | None, use: str, avoid: str | None = None) -> list[Route]:
        if choice is not None and choice in self.profiles.allowed:
            first = self._routes[choice]
        else:
            first = self._by_use.get(use) or self._routes[self.profiles.default]
        routes = [first, *(self._routes[name] for name in first.profile.fallback)]
        return sorted(routes, key=lambda route: (not route.is_up, route.profile.name == avoid))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the first reply that begins. Raises the `ModelError` of the last profile."""
        use = "tools" if request.tools and request.tool_choice != "none" else "voice"
        candidates = self._candidates(request.profile, use, request.avoid)
        for route in candidates:
            is_last = route is candidates[-1]
            has_begun = False
            route.breaker.begin()
            try:
                # Another profile replies sooner than a retry.
                attempt = replace(request, may_retry=request.may_retry and is_last)
                async with aclosing(route.stream(attempt)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                if not has_begun:
                    raise failure("protocol")
                return
            except ModelError as error:
                if has_begun:
                    raise
                self._metrics.failed(route.profile.name, error.reason)
                if error.reason == "refused" or is_last:
                    if rest_of(error):  # another may be back sooner
                        rests = (route.breaker.rest_s for route in candidates)
                        error.retry_after = min(rest_s for rest_s in rests if rest_s)
                    raise
                log.info("model fallback", profile=route.profile.name, reason=error.reason, error=str(error))

    def cost(self, request: ModelRequest, usage: Usage) -> float:
        """Return the cost of a request by the prices of the profile that comes first."""
        use = "tools" if request.tools and request.tool_choice != "none" else "voice"
        return self._candidates(request.profile, use, request.avoid)[0].cost(usage)

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have a prompt cached by the service that would reply now (`base.CacheWarmer`)."""
        return await self._candidates(request.profile, "tools")[0].warm(request)

    async def start(self) -> None:
        """Prepare all providers, and start the health checks of profiles with fallbacks."""
        names = [name for route in self._routes.values() for name in route.profile.fallback]
        watched = [route for name, route in self._routes.items() if route.profile.fallback or name in names]
        if watched and self.profiles.health_check_s and self._watching is None:
            self._watching = asyncio.create_task(self._watch(watched, self.profiles.health_check_s))
        results = await asyncio.gather(
            *(route.start() for route in self._routes.values()), return_exceptions=True
        )
        for route, result in zip(self._routes.values(), results, strict=True):
            if isinstance(result, Exception):
                # The first request tries again. Other errors may hold foreign text.
                error = str(result) if isinstance(result, ModelError) else type(result).__name__
                log.warning("model not ready", profile=route.profile.name, error=error)

    async def _watch(self, routes: list[Route], every_s: float) -> None:
        while True:
            await asyncio.gather(*(route.check(every_s) for route in routes), return_exceptions=True)
            await asyncio.sleep(every_s)

    async def aclose(self) -> None:
        """Stop the checks, and close all providers."""
        tasks = [*self._tasks, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(route.provider.aclose() for route in self._routes.values()))
