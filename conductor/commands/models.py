"""``conductor models``: list, probe and measure model profiles."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TextIO

import httpx2
from rich.console import Console
from rich.progress import Progress

from conductor.commands.output import Item, ok, warn, write_table
from conductor.errors import ModelError, SettingsError
from conductor.logs import configure_logs
from conductor.messages import UserMessage
from conductor.models.base import Finished, ModelProvider, ModelRequest, TextDelta
from conductor.models.health import calls_tools
from conductor.models.profiles import ModelProfile, load_profiles
from conductor.models.registry import as_text, make_provider
from conductor.plugins.models.openai import DEFAULT_BASE_URL
from conductor.settings import Settings, load_settings

# Seconds for a service's list of models, and for one request of a probe.
LIST_TIMEOUT_S = 10.0
TRIAL_TIMEOUT_S = 120.0
# Models of a service to list; hosted services offer hundreds.
MAX_OFFERED = 20

_LONG = "Count from one to sixty in words, separated by commas."
_HEADINGS = ("profile", "model", "kind", "fallback", "price in", "price out", "used")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="list the profiles, and the models of their services")
    listing.add_argument("--offline", action="store_true", help="do not connect to the services")
    probe = actions.add_parser("probe", help="test tool calls, streaming and cancellation")
    bench = actions.add_parser("bench", help="measure the time to the first token, and tokens per second")
    bench.add_argument("--requests", type=int, default=5, help="number of requests (5)")
    for action in (probe, bench):
        action.add_argument("profile", nargs="?", help="the profile (default: the default profile)")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Run a subcommand; returns 2 if the model failed, else 0. Raises `SettingsError`."""
    configure_logs("error", "console", cache=False)
    settings, out = load_settings(), stdout or sys.stdout
    if options.action == "list":
        return _list(settings, out, offline=options.offline)
    profiles = load_profiles(settings)
    name = options.profile or profiles.default
    if name not in profiles.by_name:
        raise SettingsError(f'There is no profile "{name}". Profiles: {", ".join(profiles.by_name)}.')
    profile = profiles.by_name[name]
    if options.action == "probe":
        return asyncio.run(_with(profile, settings, lambda provider: probe(provider, profile, out)))
    if options.requests < 1:
        raise SettingsError("--requests must be 1 or more.")
    return asyncio.run(_with(profile, settings, lambda provider: bench(provider, options.requests, out)))


async def _with(
    profile: ModelProfile, settings: Settings, work: Callable[[ModelProvider], Coroutine[Any, Any, int]]
) -> int:
    provider = make_provider(profile, settings)
    if profile.kind == "text":
        provider = as_text(provider, profile)
    try:
        await provider.start()
        return await work(provider)
    except ModelError as error:
        raise SettingsError(f"{profile.heading}: {error}") from None
    finally:
        await provider.aclose()


def _list(settings: Settings, out: TextIO, *, offline: bool) -> int:
    profiles = load_profiles(settings)
    write_table(
        out,
        _HEADINGS,
        [
            (
                profile.name,
                profile.title,
                profile.kind,
                ", ".join(profile.fallback) or "-",
                f"{profile.prices.input:g}",
                f"{profile.prices.output:g}",
                _use(profile.name == profiles.default, profile),
            )
            for profile in profiles.by_name.values()
        ],
        ("price in", "price out"),
    )
    if offline:
        return 0
    if settings.local_only:
        out.write("\nLOCAL_ONLY is set: models of the services are not listed.\n")
        return 0
    code = 0
    for profile in profiles.by_name.values():
        try:
            offered = _offered(profile)
        except Exception as error:  # of two libraries, or an answer without a list
            out.write(f"\n{profile.name} did not list its models: {type(error).__name__}\n")
            code = 2
            continue
        if offered is not None:
            suffix = f" and {len(offered) - MAX_OFFERED} more" if len(offered) > MAX_OFFERED else ""
            names = ", ".join(
                name if name.isprintable() else ascii(name)[1:-1] for name in offered[:MAX_OFFERED]
            )
            out.write(f"\n{profile.name} offers {names or 'no model'}{suffix}\n")
    return code


def _use(is_default: bool, profile: ModelProfile) -> str:
    return ", ".join(part for part in ("by default" if is_default else "", profile.use or "") if part) or "-"


def _offered(profile: ModelProfile) -> list[str] | None:
    # None for a provider without a list.
    if profile.provider == "anthropic":
        import anthropic

        key = profile.api_key.get_secret_value() if profile.api_key is not None else None
        with anthropic.Anthropic(
            api_key=key, base_url=profile.base_url, timeout=LIST_TIMEOUT_S, max_retries=0
        ) as client:
            return [model.id for model in client.models.list(limit=100).data]
    if profile.provider == "openai":
        return [str(model["id"]) for model in _models_of(profile)]
    return None


def _models_of(profile: ModelProfile) -> list[dict[str, Any]]:
    key = profile.api_key.get_secret_value() if profile.api_key is not None else None
    headers = {"authorization": f"Bearer {key}"} if key else {}
    base_url = (profile.base_url or DEFAULT_BASE_URL).rstrip("/")
    response = httpx2.get(f"{base_url}/models", headers=headers, timeout=LIST_TIMEOUT_S)
    response.raise_for_status()
    models: list[dict[str, Any]] = response.json()["data"]
    return models


async def probe(provider: ModelProvider, profile: ModelProfile, out: TextIO) -> int:
    """Test the model's abilities, and write a line for each. Raises `ModelError` if it does not answer."""
    out.write(f"{profile.name}: {profile.title}\n")
    text = await _ask(provider, "Say hello.")
    items = [ok("answers", f"first token after {text.first_s:.2f} s.")]
    items += [await _probe_tools(provider, profile), await _probe_streaming(provider)]
    items.append(await _probe_cancellation(provider))
    for item in items:
        out.write(f"{item}\n")
    return 0


async def _probe_tools(provider: ModelProvider, profile: ModelProfile) -> Item:
    if profile.kind == "text":
        if await calls_tools(provider):
            return ok("tools", "called, as text.")
        return warn("tools", "not called, in spite of instructions.")
    if await calls_tools(provider):
        return ok("tools", 'called: kind = "native" fits.')
    if await calls_tools(as_text(provider, profile)):
        return warn("tools", 'not called, but written as text: set kind = "text".')
    return warn("tools", "neither called nor written as text.")


async def _probe_streaming(provider: ModelProvider) -> Item:
    reply = await _ask(provider, _LONG)
    if reply.deltas > 1:
        return ok("streaming", f"{reply.deltas} pieces within {reply.seconds:.1f} s.")
    return warn("streaming", "the reply is one piece: speech starts late.")


async def _probe_cancellation(provider: ModelProvider) -> Item:
    async with aclosing(provider.stream(_request(_LONG))) as events:
        await anext(events)
        start = time.perf_counter()
    closed_s = time.perf_counter() - start
    # A service that continues a cancelled reply delays the next one.
    next_reply = await _ask(provider, "Say hello.")
    return ok(
        "cancellation",
        f"closed in {1000 * closed_s:.0f} ms; the next first token {next_reply.first_s:.2f} s later.",
    )


class _Reply:
    """Measurements of one reply; times in seconds."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.first_s = 0.0
        self.seconds = 0.0
        self.deltas = 0
        self.tokens = 0

    def add(self, event: object) -> None:
        now = time.perf_counter() - self._start
        if isinstance(event, TextDelta):
            self.deltas += 1
        if isinstance(event, Finished):
            # Without a count of the service, a delta is about a token.
            self.tokens = event.usage.output_tokens or self.deltas
        self.first_s = self.first_s or now
        self.seconds = now

    @property
    def tokens_per_s(self) -> float:
        return max(self.tokens - 1, 0) / max(self.seconds - self.first_s, 1e-9)


def _request(text: str) -> ModelRequest:
    return ModelRequest(
        "", [UserMessage(text)], silence_s=TRIAL_TIMEOUT_S, deadline_s=TRIAL_TIMEOUT_S, may_retry=False
    )


async def _ask(provider: ModelProvider, text: str) -> _Reply:
    reply = _Reply(time.perf_counter())
    async with aclosing(provider.stream(_request(text))) as events:
        async for event in events:
            reply.add(event)
    return reply


async def bench(provider: ModelProvider, requests: int, out: TextIO) -> int:
    """Send a warm-up request and ``requests`` more, one after the other, and write their times."""
    replies = []
    # On stderr, so that a pipe receives only the figures.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for number in progress.track(range(requests + 1), description="asking"):
            reply = await _ask(provider, _LONG)
            if number:
                replies.append(reply)
    rows = [
        ("first token ms", *_spread([1000 * reply.first_s for reply in replies])),
        ("tokens a second", *_spread([reply.tokens_per_s for reply in replies])),
        ("tokens", *_spread([float(reply.tokens) for reply in replies])),
    ]
    write_table(out, ("figure", "median", "least", "most"), rows, ("median", "least", "most"))
    return 0


def _spread(values: list[float]) -> Iterator[str]:
    for value in (statistics.median(values), min(values), max(values)):
        yield f"{value:.0f}" if value >= 100 else f"{value:.3g}"
