"""``conductor models``: list and probe model profiles."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from conductor.commands.output import Item, ok, warn, write, write_table
from conductor.errors import ModelError, SettingsError
from conductor.messages import UserMessage
from conductor.models.base import Finished, ModelProvider, ModelRequest, TextDelta
from conductor.models.health import calls_tools
from conductor.models.profiles import ModelProfile, Prices, load_profiles
from conductor.models.registry import as_text, make_provider
from conductor.plugins.models.families import prices_of
from conductor.settings import load_settings

# Seconds for one request of a probe.
TRIAL_TIMEOUT_S = 120.0

_LONG = "Count from one to sixty in words, separated by commas."
_HEADINGS = ("profile", "model", "kind", "fallback", "price in", "price out", "used")


def probe(options: argparse.Namespace) -> None:
    """Test a model's abilities, and write a line for each. Raises `SettingsError` if it does not answer."""
    settings = load_settings()
    profiles = load_profiles(settings)
    name = options.profile or profiles.default
    if name not in profiles.by_name:
        raise SettingsError(f'There is no profile "{name}". Profiles: {", ".join(profiles.by_name)}.')
    profile = profiles.by_name[name]
    provider = make_provider(profile, settings)
    if profile.kind == "text":
        provider = as_text(provider, profile)

    async def run() -> None:
        try:
            await provider.start()
            write(f"{profile.name}: {profile.title}")
            async for item in probe_items(provider, profile):
                write(item)
        except ModelError as error:
            raise SettingsError(f"{profile.heading}: {error}") from None
        finally:
            await provider.aclose()

    asyncio.run(run())


def list_models(_options: argparse.Namespace) -> None:
    """List the profiles."""
    profiles = load_profiles(load_settings())
    rows = []
    for name, profile in profiles.by_name.items():
        uses = filter(None, ("by default" if name == profiles.default else None, profile.use))
        rates = profile.prices or prices_of(profile) or Prices()
        prices = f"{rates.input:g}", f"{rates.output:g}"
        fallback = ", ".join(profile.fallback) or "-"
        rows.append((name, profile.title, profile.kind, fallback, *prices, ", ".join(uses) or "-"))
    write_table(_HEADINGS, rows, ("price in", "price out"))


async def probe_items(provider: ModelProvider, profile: ModelProfile) -> AsyncIterator[Item]:
    """Test whether a model answers, calls tools, streams, and stops. Raises `ModelError`."""
    reply = await _ask(provider, "Say hello.")
    yield ok("answers", f"first token after {reply.first_s:.2f} s.")
    yield await _probe_tools(provider, profile)
    reply = await _ask(provider, _LONG)
    if reply.deltas > 1:
        tokens_per_s = max(reply.tokens - 1, 0) / max(reply.seconds - reply.first_s, 1e-9)
        yield ok(
            "streaming",
            f"{reply.deltas} pieces within {reply.seconds:.1f} s, {tokens_per_s:.3g} tokens a second.",
        )
    else:
        yield warn("streaming", "the reply is one piece: speech starts late.")
    async with aclosing(provider.stream(_request(_LONG))) as events:
        await anext(events)
        start = time.perf_counter()
    closed_ms = 1000 * (time.perf_counter() - start)
    # A service that continues a cancelled reply delays the next one.
    reply = await _ask(provider, "Say hello.")
    text = f"closed in {closed_ms:.0f} ms; the next first token {reply.first_s:.2f} s later."
    yield ok("cancellation", text)


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


@dataclass(frozen=True, slots=True)
class _Reply:
    # Measurements of one reply; times in seconds.
    first_s: float
    seconds: float
    deltas: int
    tokens: int


def _request(text: str) -> ModelRequest:
    return ModelRequest(
        "", [UserMessage(text)], silence_s=TRIAL_TIMEOUT_S, deadline_s=TRIAL_TIMEOUT_S, may_retry=False
    )


async def _ask(provider: ModelProvider, text: str) -> _Reply:
    start = time.perf_counter()
    times, deltas, tokens = [start], 0, 0
    async with aclosing(provider.stream(_request(text))) as events:
        async for event in events:
            times.append(time.perf_counter())
            deltas += isinstance(event, TextDelta)
            tokens = (isinstance(event, Finished) and event.usage.output_tokens) or tokens
    # Without a count of the service, a delta is about a token.
    return _Reply(times[:2][-1] - start, times[-1] - start, deltas, tokens or deltas)
